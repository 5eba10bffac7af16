"""What a key of a primary-key table may hold: what each action makes of its row, by merge engine.

A model is a pure function from a row and an action to a row. Rows are tuples; None is a key without a row. This says
again, one row at a time and in plain Python, what the server does by columns; they are meant to know nothing of each
other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from fluss.testing.sim.history import Clear, Delete, Row, Upsert, Value

Write: TypeAlias = Upsert | Delete | Clear
Combine: TypeAlias = Callable[[Any, Any], Any]
"""What two values of a column make, the older one first"""


class RegisterModel(Protocol):
    """The rules for one key."""

    def apply(self, row: Row | None, write: Write) -> Row | None:
        """The row behind a write."""

    def is_blind(self, write: Write) -> bool:
        """Whether what is left does not depend on the row before."""


def _without_targets(row: Row, columns: tuple[int, ...], key_count: int) -> Row | None:
    """The row with its target columns cleared; None when nothing is left behind the key."""
    left = tuple(None if at in columns and at >= key_count else value for at, value in enumerate(row))
    return left if any(value is not None for value in left[key_count:]) else None


@dataclass(frozen=True)
class Replacing:
    """A table without a merge engine: rows replace each other, partial updates keep the other columns."""

    key_count: int = 1
    """The first columns, which are the key"""

    def apply(self, row: Row | None, write: Write) -> Row | None:
        if isinstance(write, Clear):
            return None
        if isinstance(write, Delete):
            return None if row is None or not write.columns else _without_targets(row, write.columns, self.key_count)
        if not write.columns:
            return write.row
        before = row or (None,) * len(write.row)
        pairs = enumerate(zip(before, write.row, strict=True))
        return tuple(new if at < self.key_count or at in write.columns else old for at, (old, new) in pairs)

    def is_blind(self, write: Write) -> bool:
        return isinstance(write, Clear) or not write.columns


@dataclass(frozen=True)
class FirstRow:
    """The merge engine FIRST_ROW: a row stays as it came first, deletes are ignored."""

    key_count: int = 1

    def apply(self, row: Row | None, write: Write) -> Row | None:
        if isinstance(write, Clear) or write.overwrite:
            return Replacing(self.key_count).apply(row, write)
        return row if isinstance(write, Delete) or row is not None else write.row

    def is_blind(self, write: Write) -> bool:
        return (isinstance(write, Clear) or write.overwrite) and Replacing(self.key_count).is_blind(write)


@dataclass(frozen=True)
class Versioned:
    """The merge engine VERSIONED: a row is replaced by one of the same or a higher version, deletes are ignored."""

    column: int
    key_count: int = 1

    def apply(self, row: Row | None, write: Write) -> Row | None:
        if isinstance(write, Clear) or write.overwrite:
            return Replacing(self.key_count).apply(row, write)
        if isinstance(write, Delete) or (row is not None and self._version(write.row) < self._version(row)):
            return row
        return write.row

    def _version(self, row: Row) -> tuple[bool, Any]:
        value = row[self.column]
        return (value is not None, value or 0)

    def is_blind(self, write: Write) -> bool:
        return (isinstance(write, Clear) or write.overwrite) and Replacing(self.key_count).is_blind(write)


def combine_sum(old: Any, new: Any) -> Any:
    return new if old is None else old if new is None else old + new


def combine_product(old: Any, new: Any) -> Any:
    return new if old is None else old if new is None else old * new


def combine_max(old: Any, new: Any) -> Any:
    return new if old is None else old if new is None else max(old, new)


def combine_min(old: Any, new: Any) -> Any:
    return new if old is None else old if new is None else min(old, new)


def combine_last(old: Any, new: Any) -> Any:
    return new


def combine_last_present(old: Any, new: Any) -> Any:
    """What a column without a function of its own does."""
    return old if new is None else new


def combine_first_present(old: Any, new: Any) -> Any:
    return new if old is None else old


def combine_joined(old: Any, new: Any) -> Any:
    return new if old is None else old if new is None else f"{old},{new}"


@dataclass(frozen=True)
class Aggregating:
    """The merge engine AGGREGATION: columns are combined; deletes are ignored unless the table allows them."""

    functions: Mapping[int, Combine]
    """By column; `combine_last_present` for all others"""
    deletes: bool = False
    key_count: int = 1

    def apply(self, row: Row | None, write: Write) -> Row | None:
        if isinstance(write, Clear) or write.overwrite:
            return Replacing(self.key_count).apply(row, write)
        if isinstance(write, Delete):
            return Replacing(self.key_count).apply(row, write) if self.deletes else row
        if row is None:
            return Replacing(self.key_count).apply(None, write)
        pairs = enumerate(zip(row, write.row, strict=True))
        return tuple(self._combined(at, old, new, write.columns) for at, (old, new) in pairs)

    def _combined(self, at: int, old: Value, new: Value, columns: tuple[int, ...]) -> Value:
        if at < self.key_count or (columns and at not in columns):
            return old
        combined: Value = self.functions.get(at, combine_last_present)(old, new)
        return combined

    def is_blind(self, write: Write) -> bool:
        return (isinstance(write, Clear) or write.overwrite) and Replacing(self.key_count).is_blind(write)

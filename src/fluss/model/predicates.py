"""Filters on rows: `col("id") >= 200`, combined with `&`, `|` and `~`.

A comparison never matches null, as in SQL; `is_null()` and `is_not_null()` look for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, NoReturn

from fluss.model.errors import InvalidRequestError

DEPTH_MAX = 50
"""How deep `&` and `|` may alternate; a protobuf parser gives up at 100 levels, and each of ours takes two."""


class LeafFunction(IntEnum):
    """What is asked about one column; the numbers are the protocol's."""

    EQUAL = 0
    NOT_EQUAL = 1
    LESS_THAN = 2
    LESS_OR_EQUAL = 3
    GREATER_THAN = 4
    GREATER_OR_EQUAL = 5
    IS_NULL = 6
    IS_NOT_NULL = 7
    STARTS_WITH = 8
    CONTAINS = 9
    ENDS_WITH = 10
    IN = 11
    NOT_IN = 12


class CompoundFunction(IntEnum):
    """How predicates are combined; the numbers are the protocol's."""

    AND = 0
    OR = 1


class Leaf(NamedTuple):
    """A question about one column."""

    function: LeafFunction
    column: str
    literals: tuple[Any, ...] = ()
    negated: bool = False


class Compound(NamedTuple):
    """Predicates combined; children never have the same function as their parent."""

    function: CompoundFunction
    children: tuple[Leaf | Compound, ...]


_SYMBOLS = {
    LeafFunction.EQUAL: "==",
    LeafFunction.NOT_EQUAL: "!=",
    LeafFunction.LESS_THAN: "<",
    LeafFunction.LESS_OR_EQUAL: "<=",
    LeafFunction.GREATER_THAN: ">",
    LeafFunction.GREATER_OR_EQUAL: ">=",
}
_METHODS = {LeafFunction.IN: "is_in", LeafFunction.NOT_IN: "not_in"}


class Predicate:
    """A filter for a scan. Build one from `col`, then combine with `&`, `|` and `~`."""

    __slots__ = ("node",)

    def __init__(self, node: Leaf | Compound) -> None:
        self.node = node

    def and_(self, other: Predicate) -> Predicate:
        """Match rows that both predicates match."""
        return _combine(CompoundFunction.AND, self, other)

    def or_(self, other: Predicate) -> Predicate:
        """Match rows that one of the predicates matches."""
        return _combine(CompoundFunction.OR, self, other)

    def not_(self) -> Predicate:
        """Match rows that the predicate does not match; a comparison with null matches neither way, as in SQL."""
        return Predicate(_negated(self.node))

    def __invert__(self) -> Predicate:
        return self.not_()

    def __and__(self, other: Predicate, /) -> Predicate:
        return self.and_(other) if isinstance(other, Predicate) else NotImplemented

    def __or__(self, other: Predicate, /) -> Predicate:
        return self.or_(other) if isinstance(other, Predicate) else NotImplemented

    def __rand__(self, other: Predicate, /) -> Predicate:
        return other.and_(self) if isinstance(other, Predicate) else NotImplemented

    def __ror__(self, other: Predicate, /) -> Predicate:
        return other.or_(self) if isinstance(other, Predicate) else NotImplemented

    def __bool__(self) -> NoReturn:
        raise TypeError("A predicate is neither true nor false by itself: combine predicates with & and |, not and/or.")

    def __repr__(self) -> str:
        return f"Predicate({_text(self.node)})"


class ColumnRef:
    """A column to compare: `col("id") >= 200` and `col("id").greater_or_equal(200)` are the same.

    Values are plain Python: bool, int, float, str, bytes, `Decimal`, `date`, `time`, `datetime` (without time zone for
    a TIMESTAMP column, with one for TIMESTAMP_LTZ). A FLOAT column is compared with the value rounded to its type, a
    DECIMAL column with a float as it is printed: 9.99 is 9.99. A field of a ROW column is named with dots:
    `address.city`.
    """

    __slots__ = ("_name",)
    __hash__ = None  # type: ignore[assignment]  # its equality builds a predicate

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"A column name is a str, not {type(name).__name__}.")
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def _leaf(self, function: LeafFunction, *literals: Any) -> Predicate:
        return Predicate(Leaf(function, self._name, literals))

    def __eq__(self, value: Any, /) -> Predicate:  # type: ignore[override]
        return self.equal(value)

    def __ne__(self, value: Any, /) -> Predicate:  # type: ignore[override]
        return self.not_equal(value)

    def __lt__(self, value: Any, /) -> Predicate:
        return self.less_than(value)

    def __le__(self, value: Any, /) -> Predicate:
        return self.less_or_equal(value)

    def __gt__(self, value: Any, /) -> Predicate:
        return self.greater_than(value)

    def __ge__(self, value: Any, /) -> Predicate:
        return self.greater_or_equal(value)

    def equal(self, value: Any) -> Predicate:
        """Match rows where the column equals `value`."""
        return self._leaf(LeafFunction.EQUAL, value)

    def not_equal(self, value: Any) -> Predicate:
        """Match rows where the column is not null and differs from `value`."""
        return self._leaf(LeafFunction.NOT_EQUAL, value)

    def less_than(self, value: Any) -> Predicate:
        """Match rows where the column is less than `value`."""
        return self._leaf(LeafFunction.LESS_THAN, value)

    def less_or_equal(self, value: Any) -> Predicate:
        """Match rows where the column is at most `value`."""
        return self._leaf(LeafFunction.LESS_OR_EQUAL, value)

    def greater_than(self, value: Any) -> Predicate:
        """Match rows where the column is greater than `value`."""
        return self._leaf(LeafFunction.GREATER_THAN, value)

    def greater_or_equal(self, value: Any) -> Predicate:
        """Match rows where the column is at least `value`."""
        return self._leaf(LeafFunction.GREATER_OR_EQUAL, value)

    def is_null(self) -> Predicate:
        """Match rows where the column is null."""
        return self._leaf(LeafFunction.IS_NULL)

    def is_not_null(self) -> Predicate:
        """Match rows where the column is not null."""
        return self._leaf(LeafFunction.IS_NOT_NULL)

    def starts_with(self, prefix: str) -> Predicate:
        """Match rows where the string column starts with `prefix`."""
        return self._leaf(LeafFunction.STARTS_WITH, _checked_text(prefix))

    def ends_with(self, suffix: str) -> Predicate:
        """Match rows where the string column ends with `suffix`."""
        return self._leaf(LeafFunction.ENDS_WITH, _checked_text(suffix))

    def contains(self, infix: str) -> Predicate:
        """Match rows where the string column contains `infix`."""
        return self._leaf(LeafFunction.CONTAINS, _checked_text(infix))

    def is_in(self, values: Sequence[Any]) -> Predicate:
        """Match rows where the column equals one of `values`; an empty list matches nothing."""
        return self._leaf(LeafFunction.IN, *_checked_list(values))

    def not_in(self, values: Sequence[Any]) -> Predicate:
        """Match rows where the column is not null and equals none of `values`."""
        return self._leaf(LeafFunction.NOT_IN, *_checked_list(values))

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "A column is neither true nor false by itself: compare it, then combine predicates with & and |."
        )

    def __repr__(self) -> str:
        return f"ColumnRef({self._name})"


def col(name: str) -> ColumnRef:
    """A column, by its name in the table's schema, for building a filter."""
    return ColumnRef(name)


def _checked_text(value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"A part of a string is a str, not {type(value).__name__}.")
    return value


def _checked_list(values: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"Pass a list of values, not {type(values).__name__}.")
    return tuple(values)


def _combine(function: CompoundFunction, left: Predicate, right: Predicate) -> Predicate:
    if not isinstance(right, Predicate):
        raise TypeError(f"A predicate combines with a predicate, not with {type(right).__name__}.")
    children: list[Leaf | Compound] = []
    for node in (left.node, right.node):
        if isinstance(node, Compound) and node.function is function:
            children.extend(node.children)
        else:
            children.append(node)
    combined = Compound(function, tuple(children))
    if _depth(combined) > DEPTH_MAX:
        raise InvalidRequestError(f"A filter nests & and | at most {DEPTH_MAX} deep.")
    return Predicate(combined)


def _negated(node: Leaf | Compound) -> Leaf | Compound:
    if isinstance(node, Leaf):
        return node._replace(negated=not node.negated)
    other = CompoundFunction.OR if node.function is CompoundFunction.AND else CompoundFunction.AND
    return Compound(other, tuple(map(_negated, node.children)))


def _depth(node: Leaf | Compound) -> int:
    return 1 if isinstance(node, Leaf) else 1 + max(map(_depth, node.children))


def _text(node: Leaf | Compound) -> str:
    if isinstance(node, Leaf) and node.negated:
        return f"~({_text(node._replace(negated=False))})"
    if isinstance(node, Compound):
        separator = " & " if node.function is CompoundFunction.AND else " | "
        return separator.join(f"({_text(child)})" for child in node.children)
    column = f"col({node.column!r})"
    if node.function in _SYMBOLS:
        return f"{column} {_SYMBOLS[node.function]} {node.literals[0]!r}"
    method = _METHODS.get(node.function, node.function.name.lower())
    arguments = repr(list(node.literals)) if node.function in _METHODS else ", ".join(map(repr, node.literals))
    return f"{column}.{method}({arguments})"

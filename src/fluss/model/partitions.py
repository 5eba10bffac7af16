"""Partitions: which values of the partition columns, and the name made of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.schema import Column
from fluss.model.tables.literals import INT_BITS
from fluss.model.types import TypeRoot

SEPARATOR: Final = "$"
VALUE_LENGTH_MAX: Final = 200
NEWER_MAX: Final = 2**31 - 1
_VALUE: Final = re.compile(r"[A-Za-z0-9_-]+")
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")
_DAY: Final = re.compile(r"-?[0-9]{4,7}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])")
_RESERVED_PREFIX: Final = "__"


class PartitionSpec:
    """Values of partition columns, as text: `PartitionSpec({"region": "US"})`."""

    __slots__ = ("_values",)

    def __init__(self, spec_map: Mapping[str, str]) -> None:
        for column, value in spec_map.items():
            if not isinstance(column, str) or not isinstance(value, str):
                raise _bad(f"A partition spec maps column names to texts, not {column!r} to {value!r}")
        self._values = dict(spec_map)

    @classmethod
    def of(cls, spec: PartitionSpec | Mapping[str, str]) -> PartitionSpec:
        """The spec itself, or the one that a dict describes."""
        return spec if isinstance(spec, PartitionSpec) else cls(spec)

    def get_spec_map(self) -> dict[str, str]:
        """Values by column."""
        return dict(self._values)

    def name(self, partition_keys: Sequence[str]) -> str:
        """The partition's name in a table with these partition columns; code 43 if columns are missing or unknown."""
        if set(self._values) != set(partition_keys):
            raise _bad(
                f"A partition of this table is named by {_listed(partition_keys)}, not by {_listed(list(self._values))}"
            )
        return SEPARATOR.join(self._values[key] for key in partition_keys)

    def check_values(self) -> None:
        """Raise code 43 unless every value may be part of a new partition's name."""
        for column, value in self._values.items():
            check_value(column, value)

    def check_types(self, columns: Iterable[Column]) -> None:
        """Raise code 43 unless each value is one of its column's type, as far as texts of the type have one form."""
        for column in columns:
            value = self._values.get(column.name)
            if value is not None and not _is_of(column.data_type.root, value):
                raise _bad(f"The value {value!r} of partition column {column.name!r} is not of type {column.data_type}")

    def matches(self, other: PartitionSpec) -> bool:
        """Whether `other` has all values of this spec."""
        return self._values.items() <= other._values.items()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionSpec) and self._values == other._values

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"PartitionSpec({self._values})"


PartitionSpecLike: TypeAlias = PartitionSpec | Mapping[str, str]


class PartitionBound(NamedTuple):
    """A bound on new partitions: at most `newer_max` that are newer than the one with the id `newer_than_id`."""

    newer_than_id: int
    newer_max: int
    """Up to NEWER_MAX"""


def _is_of(root: TypeRoot, value: str) -> bool:
    if root in INT_BITS:
        half = 1 << INT_BITS[root] - 1
        return _INTEGER.fullmatch(value) is not None and -half <= int(value) < half
    if root is TypeRoot.BOOLEAN:
        return value in ("true", "false")
    if root is TypeRoot.DATE:
        return _DAY.fullmatch(value) is not None
    return True


def spec_of_name(name: str, partition_keys: Sequence[str]) -> PartitionSpec:
    """The values that a partition's name stands for."""
    values = name.split(SEPARATOR)
    if len(values) != len(partition_keys):
        shown = name[: len(partition_keys) * VALUE_LENGTH_MAX]
        raise _bad(f"The partition name {shown!r} does not have a value for each of {_listed(partition_keys)}")
    return PartitionSpec(dict(zip(partition_keys, values, strict=True)))


def check_value(column: str, value: str) -> None:
    """Raise code 43 unless `value` may be part of a new partition's name."""
    if len(value) > VALUE_LENGTH_MAX:
        raise _bad(
            f"The value of partition column {column!r} has {len(value)} characters, {VALUE_LENGTH_MAX} are allowed"
        )
    if not _VALUE.fullmatch(value) or value.startswith(_RESERVED_PREFIX):
        raise _bad(
            f"The value {value!r} of partition column {column!r} can't be part of a partition name: use ASCII letters, "
            f"digits, '_' and '-', not beginning with {_RESERVED_PREFIX!r}"
        )


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(map(repr, columns)) or "nothing"


def _bad(text: str) -> InvalidRequestError:
    return InvalidRequestError(f"{text}.", ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION)

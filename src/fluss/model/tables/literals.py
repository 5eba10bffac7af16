"""Binding a filter to a table's schema: columns by index, literals as values of their column's type."""

from __future__ import annotations

import datetime as dt
import math
import numbers
import operator
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

from fluss.model.errors import InvalidRequestError, SchemaMismatchError
from fluss.model.predicates import Compound, CompoundFunction, Leaf, LeafFunction, Predicate
from fluss.model.schema import Column, Schema
from fluss.model.types import DataType, TypeRoot

_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
# From this precision on a timestamp is an int64 of nanoseconds, which ends in the year 2262.
_NANOSECONDS_PRECISION_MIN = 7
INT_BITS = {TypeRoot.TINYINT: 8, TypeRoot.SMALLINT: 16, TypeRoot.INTEGER: 32, TypeRoot.BIGINT: 64}
_OF_TEXT = (LeafFunction.STARTS_WITH, LeafFunction.CONTAINS, LeafFunction.ENDS_WITH)


OPPOSITES = {
    LeafFunction.EQUAL: LeafFunction.NOT_EQUAL,
    LeafFunction.LESS_THAN: LeafFunction.GREATER_OR_EQUAL,
    LeafFunction.GREATER_THAN: LeafFunction.LESS_OR_EQUAL,
    LeafFunction.IS_NULL: LeafFunction.IS_NOT_NULL,
    LeafFunction.IN: LeafFunction.NOT_IN,
}
OPPOSITES |= {opposite: function for function, opposite in OPPOSITES.items()}
_FLOATS = (TypeRoot.FLOAT, TypeRoot.DOUBLE)
_OF_ORDER = (
    LeafFunction.LESS_THAN,
    LeafFunction.LESS_OR_EQUAL,
    LeafFunction.GREATER_THAN,
    LeafFunction.GREATER_OR_EQUAL,
)


class BoundLeaf(NamedTuple):
    """A question about one column of a schema."""

    function: LeafFunction
    column: int
    data_type: DataType
    literals: tuple[Any, ...]
    """Values that fit the column: ints in range, floats as the type has them, decimals with the type's scale."""
    negated: bool = False
    """Whether the answer is turned round, where no other function is the opposite"""
    fields: tuple[int, ...] = ()
    """The way from the column to a field of a row in it; the type is that field's"""


class BoundCompound(NamedTuple):
    function: CompoundFunction
    children: tuple[Bound, ...]


Bound: TypeAlias = BoundLeaf | BoundCompound


def bind(predicate: Predicate, schema: Schema) -> Bound:
    """The predicate over a schema; errors name the column."""
    if not isinstance(predicate, Predicate):
        raise InvalidRequestError(
            f'A filter is a predicate such as col("id") >= 200, not a {type(predicate).__name__}.'
        )
    return _bind(predicate.node, schema)


def columns_of(bound: Bound) -> set[int]:
    """The columns that a filter looks at."""
    if isinstance(bound, BoundLeaf):
        return {bound.column}
    return set().union(*map(columns_of, bound.children))


def _bind(node: Leaf | Compound, schema: Schema) -> Bound:
    if isinstance(node, Compound):
        return BoundCompound(node.function, tuple(_bind(child, schema) for child in node.children))
    index, column, fields = find_column(node.column, schema)
    if column.data_type.is_nested and node.literals:
        raise SchemaMismatchError(
            f"Column {column.name!r} is {column.data_type}: a filter can only ask whether it is null."
        )
    if node.function in _OF_TEXT and column.data_type.root not in (TypeRoot.CHAR, TypeRoot.STRING):
        raise SchemaMismatchError(
            f"{node.function.name.lower()} needs a string column, but {column.name!r} is {column.data_type}."
        )
    literals = tuple(_literal(column, value) for value in node.literals)
    function, negated = opposite(node.function, column.data_type.root) if node.negated else (node.function, False)
    return BoundLeaf(function, index, column.data_type, literals, negated, fields)


def find_column(name: str, schema: Schema) -> tuple[int, Column, tuple[int, ...]]:
    """A column's index, or that of the one that has a field; then what is compared, and the way to it."""
    names = schema.column_names
    first, *rest = [name] if name in names else name.split(".")
    if first not in names:
        raise SchemaMismatchError(f"The filter names a column {name!r} that the table lacks; it has {names}.")
    data_type, fields = schema.columns[names.index(first)].data_type, []
    for part in rest:
        known = [field.name for field in data_type.fields] if data_type.root is TypeRoot.ROW else []
        if part not in known:
            raise SchemaMismatchError(f"The filter names a field {name!r}, but {data_type} has no field {part!r}.")
        fields.append(known.index(part))
        data_type = data_type.fields[fields[-1]].data_type
    return names.index(first), Column(name, data_type), tuple(fields)


def opposite(function: LeafFunction, root: TypeRoot) -> tuple[LeafFunction, bool]:
    """The function that matches what another does not, or the same one to be turned round."""
    if function not in OPPOSITES or (root in _FLOATS and function in _OF_ORDER):
        return function, True  # NaN is neither less nor greater
    return OPPOSITES[function], False


def _literal(column: Column, value: Any) -> Any:
    if value is None:
        raise InvalidRequestError(
            f"A filter on column {column.name!r} compares with None, which never matches; "
            "use is_null() or is_not_null()."
        )
    return _CONVERTERS[column.data_type.root](column, value)


def _mismatch(column: Column, value: Any, expected: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"The filter on column {column.name!r} of type {column.data_type} takes {expected}, "
        f"not {type(value).__name__} {_shown(value)}."
    )


def _out_of_range(column: Column, value: Any) -> InvalidRequestError:
    return InvalidRequestError(
        f"The filter value {_shown(value)} is out of range for column {column.name!r} of type {column.data_type}."
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _boolean(column: Column, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _mismatch(column, value, "a bool")
    return value


def _integer(column: Column, value: Any) -> int:
    if isinstance(value, bool):
        raise _mismatch(column, value, "an int")
    try:
        number = operator.index(value)
    except TypeError:
        raise _mismatch(column, value, "an int") from None
    half = 1 << INT_BITS[column.data_type.root] - 1
    if not -half <= number < half:
        raise _out_of_range(column, value)
    return number


def _float(column: Column, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real | Decimal):
        raise _mismatch(column, value, "a float")
    try:
        number = float(value)
        if column.data_type.root is TypeRoot.FLOAT:
            (number,) = struct.unpack("<f", struct.pack("<f", number))
    except OverflowError:
        raise _out_of_range(column, value) from None
    if math.isnan(number):
        raise InvalidRequestError(f"The filter on column {column.name!r} compares with NaN, which never matches.")
    if isinstance(value, numbers.Integral) and number != int(value):
        raise InvalidRequestError(
            f"The filter value {value} can't be held exactly by column {column.name!r} of type {column.data_type}; "
            "pass a float."
        )
    return number


def _string(column: Column, value: Any) -> str:
    if not isinstance(value, str):
        raise _mismatch(column, value, "a str")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"The filter value for column {column.name!r} is not valid Unicode.") from None
    return value


def _bytes(column: Column, value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _mismatch(column, value, "bytes")
    return bytes(value)


def _decimal(column: Column, value: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, Decimal | int | float):
        raise _mismatch(column, value, "a Decimal")
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if not number.is_finite():
        raise _out_of_range(column, value)
    sign, digits, exponent = number.as_tuple()
    shift = int(exponent) + column.data_type.scale
    # Zeros beyond the precision are never needed; this keeps an absurd exponent from making a number of that length.
    if number and shift + len(digits) > column.data_type.precision:
        raise _out_of_range(column, value)
    unscaled = int("".join(map(str, digits)))
    if shift >= 0:
        unscaled *= 10 ** (shift if unscaled else 0)
    else:
        unscaled, rest = divmod(unscaled, 10 ** min(-shift, len(digits)))
        if rest:
            raise InvalidRequestError(
                f"The filter value {_shown(value)} has more decimal places than column {column.name!r} of type "
                f"{column.data_type}."
            )
    return Decimal((sign, tuple(map(int, str(unscaled))), -column.data_type.scale))


def _date(column: Column, value: Any) -> dt.date:
    if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
        raise _mismatch(column, value, "a date")
    return value


def _time(column: Column, value: Any) -> dt.time:
    if not isinstance(value, dt.time) or value.tzinfo is not None:
        raise _mismatch(column, value, "a time without time zone")
    return value


def _timestamp(column: Column, value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime) or value.tzinfo is not None:
        raise _mismatch(column, value, "a datetime without time zone")
    return _checked_instant(column, value)


def _timestamp_ltz(column: Column, value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime) or value.utcoffset() is None:
        raise _mismatch(column, value, "a datetime with a time zone")
    return _checked_instant(column, value)


def _checked_instant(column: Column, value: dt.datetime) -> dt.datetime:
    nanoseconds = epoch_microseconds(value) * 1000
    if column.data_type.precision >= _NANOSECONDS_PRECISION_MIN and not -(2**63) <= nanoseconds < 2**63:
        raise _out_of_range(column, value)
    return value


def epoch_microseconds(value: dt.datetime) -> int:
    """Microseconds since 1970; a datetime without time zone counts on its own clock."""
    return (value - (_EPOCH if value.tzinfo is None else _EPOCH_UTC)) // _MICROSECOND


_CONVERTERS: dict[TypeRoot, Callable[[Column, Any], Any]] = {
    TypeRoot.BOOLEAN: _boolean,
    TypeRoot.TINYINT: _integer,
    TypeRoot.SMALLINT: _integer,
    TypeRoot.INTEGER: _integer,
    TypeRoot.BIGINT: _integer,
    TypeRoot.FLOAT: _float,
    TypeRoot.DOUBLE: _float,
    TypeRoot.CHAR: _string,
    TypeRoot.STRING: _string,
    TypeRoot.BINARY: _bytes,
    TypeRoot.BYTES: _bytes,
    TypeRoot.DECIMAL: _decimal,
    TypeRoot.DATE: _date,
    TypeRoot.TIME: _time,
    TypeRoot.TIMESTAMP: _timestamp,
    TypeRoot.TIMESTAMP_LTZ: _timestamp_ltz,
}

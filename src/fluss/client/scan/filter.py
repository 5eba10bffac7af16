"""A scan's filter in two forms: the exact one for Arrow batches, and the server's, which only leaves batches out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from fluss.formats.rows.python_rows import RowBuilder
from fluss.model.forms.arrow_types import UNIT_PRECISION, time_unit, to_arrow
from fluss.model.predicates import CompoundFunction, LeafFunction, Predicate
from fluss.model.schema import Column, Schema
from fluss.model.tables.literals import Bound, BoundLeaf, bind, columns_of, epoch_microseconds
from fluss.model.types import DataType, DataTypes, TypeRoot
from fluss.protocol import messages_pb2 as pb

_Mask: TypeAlias = Callable[[Callable[[int], pa.Array]], pa.Array]

# A longer list costs more on the wire than it saves there.
PUSHED_LITERALS_MAX = 1_000

_LEAF, _COMPOUND = 0, 1
_COMPACT_DECIMAL_PRECISION_MAX = 18
_TIME_MILLISECONDS_PRECISION_MAX = 3
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
_FLOATS = (TypeRoot.FLOAT, TypeRoot.DOUBLE)
_EPOCH_DATE = dt.date(1970, 1, 1)

# The protocol's numbers for the types of literals.
_TYPE_CODES = {
    TypeRoot.BOOLEAN: 0,
    TypeRoot.TINYINT: 1,
    TypeRoot.SMALLINT: 2,
    TypeRoot.INTEGER: 3,
    TypeRoot.BIGINT: 4,
    TypeRoot.FLOAT: 5,
    TypeRoot.DOUBLE: 6,
    TypeRoot.CHAR: 7,
    TypeRoot.STRING: 8,
    TypeRoot.DECIMAL: 9,
    TypeRoot.DATE: 10,
    TypeRoot.TIME: 11,
    TypeRoot.TIMESTAMP: 12,
    TypeRoot.TIMESTAMP_LTZ: 13,
    TypeRoot.BINARY: 14,
    TypeRoot.BYTES: 15,
}
_NULL_CHECKS: dict[LeafFunction, Callable[[pa.Array], pa.Array]] = {
    LeafFunction.IS_NULL: pc.is_null,
    LeafFunction.IS_NOT_NULL: pc.is_valid,
}
_COMPARISONS: dict[LeafFunction, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    LeafFunction.EQUAL: pc.equal,
    LeafFunction.NOT_EQUAL: pc.not_equal,
    LeafFunction.LESS_THAN: pc.less,
    LeafFunction.LESS_OR_EQUAL: pc.less_equal,
    LeafFunction.GREATER_THAN: pc.greater,
    LeafFunction.GREATER_OR_EQUAL: pc.greater_equal,
}
_TEXT_MATCHES: dict[LeafFunction, Callable[[pa.Array, str], pa.Array]] = {
    LeafFunction.STARTS_WITH: pc.starts_with,
    LeafFunction.CONTAINS: pc.match_substring,
    LeafFunction.ENDS_WITH: pc.ends_with,
}


class ScanFilter:
    """A filter bound to a table's schema. `mask` may run on any thread."""

    def __init__(self, predicate: Predicate, schema: Schema) -> None:
        bound = bind(predicate, schema)
        self.columns = columns_of(bound)
        self.message = _to_message(bound, schema.field_ids)
        """What the server gets; None when it could leave out too much."""
        self.mask = _mask(bound)
        """Which rows match (true; false or null when not), given the columns by index."""


def _mask(bound: Bound) -> _Mask:
    if isinstance(bound, BoundLeaf):
        place, of_values = bound.column, _leaf_mask(bound)
        if bound.negated:
            return lambda column: pc.invert(of_values(_field(column(place), bound.fields)))
        return lambda column: of_values(_field(column(place), bound.fields))
    combine = pc.and_kleene if bound.function is CompoundFunction.AND else pc.or_kleene
    masks = [_mask(child) for child in bound.children]
    return lambda column: reduce(combine, (mask(column) for mask in masks))


def _field(values: pa.Array, fields: Sequence[int]) -> pa.Array:
    """A field of the rows in a column; null where one of these is."""
    return pc.struct_field(values, fields) if fields else values


def _leaf_mask(leaf: BoundLeaf) -> Callable[[pa.Array], pa.Array]:
    """The mask of a column's values; literals are converted once for all batches."""
    function = leaf.function
    if function in _NULL_CHECKS:
        return _NULL_CHECKS[function]
    if function in _TEXT_MATCHES:
        matches, text = _TEXT_MATCHES[function], leaf.literals[0]
        return lambda values: matches(values, text)
    if function in _COMPARISONS:
        compare, (literals,) = _COMPARISONS[function], _literals(leaf.data_type, leaf.literals)
        return lambda values: compare(values, literals[0])
    return _membership(leaf)


def _membership(leaf: BoundLeaf) -> Callable[[pa.Array], pa.Array]:
    literals = list(leaf.literals)
    if leaf.data_type.root in _FLOATS and 0.0 in literals:
        literals += [0.0, -0.0]  # a set tells the two forms of zero apart
    value_sets = _literals(leaf.data_type, literals) or [pa.nulls(0, to_arrow(leaf.data_type))]

    def is_in(values: pa.Array) -> pa.Array:
        return reduce(pc.or_, (pc.is_in(values, value_set=value_set) for value_set in value_sets))

    def is_not_in(values: pa.Array) -> pa.Array:
        return pc.and_not(pc.is_valid(values), is_in(values))

    return is_in if leaf.function is LeafFunction.IN else is_not_in


def _literals(data_type: DataType, values: Sequence[Any]) -> list[pa.Array]:
    """Values in Arrow, one array for each type that they need."""
    builders: dict[DataType, RowBuilder] = {}
    for value in values:
        kind = _literal_type(data_type, value)
        if kind not in builders:
            builders[kind] = RowBuilder(Schema.of([Column("literal", kind)]))
        builders[kind].append((value,))
    return [builder.build().column(0) for builder in builders.values()]


def _literal_type(data_type: DataType, value: Any) -> DataType:
    """The column's type, or a wider one that the value needs: the comparison is then made in the wider one."""
    if isinstance(value, bytes):
        return DataTypes.bytes()  # of any length, also for a column of fixed length
    if isinstance(value, str):
        return DataTypes.string()
    if isinstance(value, dt.time | dt.datetime):
        unit = time_unit(data_type.precision)
        needed = "us" if value.microsecond % _MICROSECONDS[unit] else unit
        return replace(data_type, precision=UNIT_PRECISION[needed])  # all digits of the unit
    return data_type


def _to_message(bound: Bound, field_ids: list[int]) -> pb.PbPredicate | None:
    """The predicate, or a weaker one where a part can't be told to the server; None when nothing is left."""
    if isinstance(bound, BoundLeaf):
        if not _is_pushable(bound):
            return None
        leaf = pb.PbLeafPredicate(function=bound.function, field_id=field_ids[bound.column])
        for value in bound.literals:
            _set_literal(leaf.literals.add(), bound.data_type, value)
        return pb.PbPredicate(type=_LEAF, leaf=leaf)
    children = [_to_message(child, field_ids) for child in bound.children]
    told = [child for child in children if child is not None]
    if not told or (bound.function is CompoundFunction.OR and len(told) < len(children)):
        return None
    return pb.PbPredicate(type=_COMPOUND, compound=pb.PbCompoundPredicate(function=bound.function, children=told))


def _is_pushable(leaf: BoundLeaf) -> bool:
    root = leaf.data_type.root
    if len(leaf.literals) > PUSHED_LITERALS_MAX or leaf.negated or leaf.fields:
        return False
    if root is TypeRoot.TIME:
        # Servers keep times in milliseconds, and would compare what lies between them wrongly.
        return leaf.data_type.precision <= _TIME_MILLISECONDS_PRECISION_MAX and not any(
            value.microsecond % 1000 for value in leaf.literals
        )
    # Java orders -0.0 before 0.0; here they are equal.
    return root not in _FLOATS or all(leaf.literals)


def _set_literal(target: pb.PbLiteralValue, data_type: DataType, value: Any) -> None:
    root = data_type.root
    target.literal_type = _TYPE_CODES[root]
    target.is_null = False
    if root is TypeRoot.BOOLEAN:
        target.boolean_value = value
    elif root in (TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INTEGER):
        target.int_value = value
    elif root is TypeRoot.BIGINT:
        target.bigint_value = value
    elif root is TypeRoot.FLOAT:
        target.float_value = value
    elif root is TypeRoot.DOUBLE:
        target.double_value = value
    elif root in (TypeRoot.CHAR, TypeRoot.STRING):
        target.string_value = value
    elif root in (TypeRoot.BINARY, TypeRoot.BYTES):
        target.binary_value = value
    elif root is TypeRoot.DECIMAL:
        _set_decimal(target, data_type, value)
    elif root is TypeRoot.DATE:
        target.bigint_value = (value - _EPOCH_DATE).days
    elif root is TypeRoot.TIME:
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        target.int_value = seconds * 1000 + value.microsecond // 1000
    else:
        milliseconds, microseconds = divmod(epoch_microseconds(value), 1000)
        target.timestamp_millis_value = milliseconds
        target.timestamp_nano_of_millis_value = microseconds * 1000


def _set_decimal(target: pb.PbLiteralValue, data_type: DataType, value: Any) -> None:
    sign, digits, _ = value.as_tuple()
    unscaled = int("".join(map(str, digits))) * (-1 if sign else 1)
    if data_type.precision <= _COMPACT_DECIMAL_PRECISION_MAX:
        target.decimal_value = unscaled
    else:
        size_bytes = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
        target.decimal_bytes = unscaled.to_bytes(size_bytes, "big", signed=True)

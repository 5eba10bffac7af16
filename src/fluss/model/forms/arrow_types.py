"""Data types as Arrow types, both ways. The one module of `model` that needs pyarrow, so import it lazily."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt

from fluss.model.errors import SchemaMismatchError
from fluss.model.types import NESTING_DEPTH_MAX, DataField, DataType, DataTypes, TypeRoot, too_deep

if TYPE_CHECKING:
    from fluss.model.schema import Schema

_PLAIN_TO_ARROW = {
    TypeRoot.BOOLEAN: pa.bool_(),
    TypeRoot.TINYINT: pa.int8(),
    TypeRoot.SMALLINT: pa.int16(),
    TypeRoot.INTEGER: pa.int32(),
    TypeRoot.BIGINT: pa.int64(),
    TypeRoot.FLOAT: pa.float32(),
    TypeRoot.DOUBLE: pa.float64(),
    TypeRoot.CHAR: pa.string(),
    TypeRoot.STRING: pa.string(),
    TypeRoot.BYTES: pa.binary(),
    TypeRoot.DATE: pa.date32(),
}
UNIT_PRECISION = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def time_unit(precision: int) -> str:
    """The Arrow unit that holds a fractional-second precision."""
    return next(unit for unit, digits in UNIT_PRECISION.items() if precision <= digits)


def to_arrow(data_type: DataType) -> pa.DataType:
    """The Arrow type whose buffers carry `data_type` on the wire."""
    root = data_type.root
    if root in _PLAIN_TO_ARROW:
        return _PLAIN_TO_ARROW[root]
    if root is TypeRoot.BINARY:
        return pa.binary(data_type.length)
    if root is TypeRoot.DECIMAL:
        return pa.decimal128(data_type.precision, data_type.scale)
    if root is TypeRoot.TIME:
        unit = time_unit(data_type.precision)
        return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    if root is TypeRoot.TIMESTAMP:
        return pa.timestamp(time_unit(data_type.precision))
    if root is TypeRoot.TIMESTAMP_LTZ:
        return pa.timestamp(time_unit(data_type.precision), tz="UTC")
    return _nested_to_arrow(data_type)


def _nested_to_arrow(data_type: DataType) -> pa.DataType:
    if data_type.element is not None:
        return pa.list_(pa.field("item", to_arrow(data_type.element), data_type.element.nullable))
    if data_type.key is not None and data_type.value is not None:
        value = pa.field("value", to_arrow(data_type.value), data_type.value.nullable)
        return pa.map_(pa.field("key", to_arrow(data_type.key), nullable=False), value)
    return pa.struct([arrow_field(field.name, field.data_type) for field in data_type.fields])


def arrow_field(name: str, data_type: DataType) -> pa.Field:
    """An Arrow field for a column."""
    return pa.field(name, to_arrow(data_type), data_type.nullable)


def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema whose record batches carry the table's rows."""
    return pa.schema([arrow_field(column.name, column.data_type) for column in schema.columns])


_ARROW_TO_PLAIN = {
    pa.bool_(): DataTypes.boolean(),
    pa.int8(): DataTypes.tinyint(),
    pa.int16(): DataTypes.smallint(),
    pa.int32(): DataTypes.int(),
    pa.int64(): DataTypes.bigint(),
    # Unsigned integers take the signed type of the same width, as pyfluss does; larger values are refused on write.
    pa.uint8(): DataTypes.tinyint(),
    pa.uint16(): DataTypes.smallint(),
    pa.uint32(): DataTypes.int(),
    pa.uint64(): DataTypes.bigint(),
    pa.float32(): DataTypes.float(),
    pa.float64(): DataTypes.double(),
    pa.string(): DataTypes.string(),
    pa.large_string(): DataTypes.string(),
    pa.string_view(): DataTypes.string(),
    pa.binary(): DataTypes.bytes(),
    pa.large_binary(): DataTypes.bytes(),
    pa.binary_view(): DataTypes.bytes(),
    pa.date32(): DataTypes.date(),
    pa.date64(): DataTypes.date(),
}


def from_arrow(arrow_type: pa.DataType, nullable: bool = True, depth: int = 0) -> DataType:
    """The data type of a column declared with an Arrow type; `depth` is the number of types around it."""
    if depth > NESTING_DEPTH_MAX:
        raise too_deep()
    # Not looked up when it is nested: Arrow compares and prints such types by recursion.
    plain = None if arrow_type.num_fields else _ARROW_TO_PLAIN.get(arrow_type)
    data_type = plain or _parameterized_from_arrow(arrow_type, depth + 1)
    if data_type is None:
        raise SchemaMismatchError(
            f"The Arrow type {arrow_type} has no Fluss type; use one of bool, int8-64, float32/64, string, binary, "
            "decimal128, date32, time32/64, timestamp, list, map, struct."
        )
    return data_type if nullable else data_type.not_null()


def _parameterized_from_arrow(arrow_type: pa.DataType, depth: int) -> DataType | None:
    if pt.is_decimal128(arrow_type):
        return DataTypes.decimal(arrow_type.precision, arrow_type.scale)
    if pt.is_fixed_size_binary(arrow_type):
        return DataTypes.binary(arrow_type.byte_width)
    if pt.is_time(arrow_type):
        return DataTypes.time(UNIT_PRECISION[arrow_type.unit])
    if pt.is_timestamp(arrow_type):
        make = DataTypes.timestamp if arrow_type.tz is None else DataTypes.timestamp_ltz
        return make(UNIT_PRECISION[arrow_type.unit])
    if pt.is_dictionary(arrow_type):
        return from_arrow(arrow_type.value_type, depth=depth)
    if pt.is_list(arrow_type) or pt.is_large_list(arrow_type):
        return DataTypes.array(from_arrow(arrow_type.value_type, arrow_type.value_field.nullable, depth))
    if pt.is_map(arrow_type):
        value = from_arrow(arrow_type.item_type, arrow_type.item_field.nullable, depth)
        return DataTypes.map(from_arrow(arrow_type.key_type, depth=depth), value)
    if pt.is_struct(arrow_type):
        fields = [DataField(field.name, from_arrow(field.type, field.nullable, depth)) for field in arrow_type]
        return DataTypes.row(fields)
    return None

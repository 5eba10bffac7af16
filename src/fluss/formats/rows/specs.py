"""The codes by which kernels know a column, from its type."""

from __future__ import annotations

from typing import Final

from fluss.kernels.codes import (
    CODE_BIG_DECIMAL,
    CODE_BOOL,
    CODE_BYTES,
    CODE_CHAR,
    CODE_FIXED_BYTES,
    CODE_FIXED_FLOAT,
    CODE_FIXED_INT,
    CODE_NESTED,
    CODE_TIMESTAMP,
    CODE_VARINT,
    KIND_ARRAY,
    KIND_BINARY,
    KIND_BOOL,
    KIND_BYTES,
    KIND_DATE,
    KIND_DECIMAL,
    KIND_DOUBLE,
    KIND_FLOAT,
    KIND_INT,
    KIND_MAP,
    KIND_ROW,
    KIND_STRING,
    KIND_TIME,
    KIND_TIMESTAMP,
    KIND_TIMESTAMP_LTZ,
    LAYOUT_COMPACTED,
    LAYOUT_INDEXED,
    Kind,
    Spec,
)
from fluss.kernels.codes import LAYOUT_KEY as LAYOUT_KEY
from fluss.model.types import DataType, TypeRoot

DECIMAL_COMPACT_PRECISION_MAX: Final = 18
DECIMAL_WIDTH_BYTES: Final = 16
_DAY_MS_MAX: Final = 86_400_000 - 1

_INT_BITS: Final = {
    TypeRoot.TINYINT: 8,
    TypeRoot.SMALLINT: 16,
    TypeRoot.INTEGER: 32,
    TypeRoot.BIGINT: 64,
}
_KINDS: Final = {
    TypeRoot.BOOLEAN: KIND_BOOL,
    **dict.fromkeys(_INT_BITS, KIND_INT),
    TypeRoot.FLOAT: KIND_FLOAT,
    TypeRoot.DOUBLE: KIND_DOUBLE,
    TypeRoot.CHAR: KIND_STRING,
    TypeRoot.STRING: KIND_STRING,
    TypeRoot.BYTES: KIND_BYTES,
    TypeRoot.BINARY: KIND_BINARY,
    TypeRoot.DECIMAL: KIND_DECIMAL,
    TypeRoot.DATE: KIND_DATE,
    TypeRoot.TIME: KIND_TIME,
    TypeRoot.TIMESTAMP: KIND_TIMESTAMP,
    TypeRoot.TIMESTAMP_LTZ: KIND_TIMESTAMP_LTZ,
    TypeRoot.ARRAY: KIND_ARRAY,
    TypeRoot.MAP: KIND_MAP,
    TypeRoot.ROW: KIND_ROW,
}
_FIXED_WIDTH_BYTES: Final = {
    TypeRoot.BOOLEAN: 1,
    TypeRoot.TINYINT: 1,
    TypeRoot.SMALLINT: 2,
    TypeRoot.INTEGER: 4,
    TypeRoot.BIGINT: 8,
    TypeRoot.FLOAT: 4,
    TypeRoot.DOUBLE: 8,
    TypeRoot.DECIMAL: DECIMAL_WIDTH_BYTES,
    TypeRoot.DATE: 4,
    TypeRoot.TIMESTAMP: 8,
    TypeRoot.TIMESTAMP_LTZ: 8,
}
_OFFSET_WIDTH_BYTES: Final = 4


def units_per_second(precision: int) -> int:
    """Units per second of the Arrow unit that holds a fractional-second precision."""
    return 10 ** (0 if precision == 0 else 3 if precision <= 3 else 6 if precision <= 6 else 9)


def _time_width_bytes(units: int) -> int:
    return 4 if units <= 1_000 else 8


def kind_of(data_type: DataType) -> Kind:
    """The checks of a column."""
    root = data_type.root
    limit = 0
    if root in _INT_BITS:
        limit = _INT_BITS[root]
    elif root in (TypeRoot.CHAR, TypeRoot.BINARY):
        limit = data_type.length
    elif root is TypeRoot.DECIMAL:
        limit = 10**data_type.precision
    elif root in (TypeRoot.TIME, TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ):
        limit = units_per_second(data_type.precision)
    fixed_size = _FIXED_WIDTH_BYTES.get(root, _OFFSET_WIDTH_BYTES)
    if root is TypeRoot.BINARY:
        fixed_size = data_type.length
    elif root is TypeRoot.TIME:
        fixed_size = _time_width_bytes(limit)
    children = _children_of(data_type)
    if root is TypeRoot.ROW:
        fixed_size = sum(kind.fixed_size_bytes for _, kind in children)
    text = str(data_type)
    return Kind(_KINDS[root], limit, data_type.scale, data_type.nullable, fixed_size, text, children)


def _children_of(data_type: DataType) -> tuple[tuple[str, Kind], ...]:
    if data_type.element is not None:
        return (("element", kind_of(data_type.element)),)
    if data_type.key is not None and data_type.value is not None:
        return ("key", kind_of(data_type.key.not_null())), ("value", kind_of(data_type.value))
    return tuple((field.name, kind_of(field.data_type)) for field in data_type.fields)


def spec_of(data_type: DataType, layout: int = LAYOUT_COMPACTED) -> Spec:
    """The place of a column in rows and keys."""
    root = data_type.root
    if data_type.is_nested:
        return Spec(CODE_NESTED, 0)
    if root is TypeRoot.BOOLEAN:
        return Spec(CODE_BOOL, 1)
    if root in (TypeRoot.TINYINT, TypeRoot.SMALLINT):
        return Spec(CODE_FIXED_INT, _FIXED_WIDTH_BYTES[root])
    if root in (TypeRoot.FLOAT, TypeRoot.DOUBLE):
        return Spec(CODE_FIXED_FLOAT, _FIXED_WIDTH_BYTES[root])
    if root in (TypeRoot.INTEGER, TypeRoot.DATE):
        return Spec(CODE_VARINT, 4, bits=32, low=-(1 << 31), high=(1 << 31) - 1)
    if root is TypeRoot.BIGINT:
        return Spec(CODE_VARINT, 8)
    if root is TypeRoot.CHAR and layout == LAYOUT_INDEXED:
        return Spec(CODE_CHAR, data_type.length)
    if root in (TypeRoot.CHAR, TypeRoot.STRING, TypeRoot.BYTES):
        return Spec(CODE_BYTES, 0)
    if root is TypeRoot.BINARY:
        return Spec(CODE_FIXED_BYTES, data_type.length)
    if root is TypeRoot.DECIMAL:
        if data_type.precision > DECIMAL_COMPACT_PRECISION_MAX:
            return Spec(CODE_BIG_DECIMAL, DECIMAL_WIDTH_BYTES)
        limit = 10**data_type.precision - 1
        return Spec(CODE_VARINT, DECIMAL_WIDTH_BYTES, low=-limit, high=limit)
    return _temporal_spec(data_type)


def _temporal_spec(data_type: DataType) -> Spec:
    units = units_per_second(data_type.precision)
    if data_type.root is TypeRoot.TIME:
        width = _time_width_bytes(units)
        return Spec(CODE_VARINT, width, max(1_000 // units, 1), max(units // 1_000, 1), 32, 0, _DAY_MS_MAX)
    if units <= 1_000:
        return Spec(CODE_VARINT, 8, 1_000 // units)
    return Spec(CODE_TIMESTAMP, 8, multiplier=units // 1_000)

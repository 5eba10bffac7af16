"""Null counts, minima and maxima of a batch's columns: a server leaves out batches that a filter can't match.

version 1:byte, column count N:int16, N indexes:int16, N null counts:int32, then minima and maxima, each as int32 size
and aligned row: null bits behind 8 reserved ones, an 8-byte slot per column, a variable part for what does not fit.

Bounds are plain values that compare as the column's values do: decimals unscaled, times in ms, timestamps in ns, text
as UTF-8 bytes. A bound that is missing is unknown, except that a column of nulls has none.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from fluss.model.errors import CorruptDataError
from fluss.model.schema import Column
from fluss.model.tables.options import ALL_COLUMNS, STATISTICS_COLUMNS, statistics_columns
from fluss.model.types import DataType, TypeRoot

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.formats.rows.codecs import AlignedFormat

Bound: TypeAlias = bool | int | float | bytes

VERSION: Final = 1
# A longer text has no bounds: they would take more room than they are worth.
TEXT_BOUND_SIZE_MAX_BYTES: Final = 1024

_SLOT_FORMATS: Final = {
    TypeRoot.BOOLEAN: "?",
    TypeRoot.TINYINT: "b",
    TypeRoot.SMALLINT: "h",
    TypeRoot.INTEGER: "i",
    TypeRoot.BIGINT: "q",
    TypeRoot.FLOAT: "f",
    TypeRoot.DOUBLE: "d",
    TypeRoot.DATE: "i",
    TypeRoot.TIME: "i",
}
_FLOATS: Final = (TypeRoot.FLOAT, TypeRoot.DOUBLE)
_TEXT: Final = (TypeRoot.STRING, TypeRoot.CHAR)
_TIMESTAMPS: Final = (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)
_SUPPORTED: Final = frozenset((*_SLOT_FORMATS, *_TEXT, *_TIMESTAMPS, TypeRoot.DECIMAL))
_SLOT_BYTES: Final = 8
_INLINE_SIZE_MAX_BYTES: Final = 7
_INLINE_MARK: Final = 0x80
_COMPACT_DECIMAL_PRECISION_MAX: Final = 18
_COMPACT_TIMESTAMP_PRECISION_MAX: Final = 3
_NS_PER_MS: Final = 1_000_000
_HEAD: Final = struct.Struct("<Bh")
_I32: Final = struct.Struct("<i")
_I64: Final = struct.Struct("<q")
_POINTER: Final = struct.Struct("<Ii")  # size or nanoseconds, offset from the row's start


class ColumnStatistics(NamedTuple):
    null_count: int
    minimum: Bound | None
    maximum: Bound | None


def is_supported(data_type: DataType) -> bool:
    """Whether columns of a type can have statistics."""
    return data_type.root in _SUPPORTED


def columns_of(properties: Mapping[str, str], columns: Sequence[tuple[str, DataType]]) -> tuple[int, ...]:
    """Indexes of the columns that a table's properties ask to keep statistics of, in their order; mostly none.

    `columns` are names and types. A column that the table does not have or whose type has no order is left out.
    """
    asked = properties.get(STATISTICS_COLUMNS, "").strip()
    if not asked:
        return ()
    names = [name for name, _ in columns] if asked == ALL_COLUMNS else statistics_columns(asked)
    return tuple(i for i, (name, data_type) in enumerate(columns) if name in names and is_supported(data_type))


def encode(rows: pa.RecordBatch, types: Sequence[DataType], columns: Sequence[int]) -> bytes:
    """The block for some columns of a batch, nothing without rows or columns; `types` are those of all columns."""
    import pyarrow as pa

    if not rows.num_rows or not columns:
        return b""
    count = len(columns)
    bounds = [_bounds(rows.column(index), types[index]) for index in columns]
    batch = pa.RecordBatch.from_arrays(bounds, [str(index) for index in columns])
    minima, maxima = _row_format(tuple(types[index] for index in columns)).encode(batch).to_pylist()
    null_counts = [rows.column(index).null_count for index in columns]
    head = _HEAD.pack(VERSION, count) + struct.pack(f"<{count}h{count}i", *columns, *null_counts)
    return b"".join((head, _I32.pack(len(minima)), minima, _I32.pack(len(maxima)), maxima))


def _bounds(column: pa.Array, data_type: DataType) -> pa.Array:
    """Minimum and maximum, null where they are not known."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count == len(column):
        return pa.nulls(2, column.type)
    found = pc.min_max(column)
    low, high = found["min"], found["max"]
    if data_type.root in _FLOATS:
        if pc.any(pc.is_nan(column)).as_py():
            # Readers do not agree on where NaN lies.
            return pa.nulls(2, column.type)
        # Zeros are equal and yet ordered in Java: take the outer ones.
        return pa.array([low.as_py() or -0.0, high.as_py() or 0.0], column.type)
    if data_type.root in _TEXT:
        bounds = [scalar.as_py() if _is_short(scalar) else None for scalar in (low, high)]
        return pa.array(bounds, column.type)
    return pa.array([low, high], column.type)


def _is_short(text: pa.Scalar) -> bool:
    return bool(text.as_buffer().size <= TEXT_BOUND_SIZE_MAX_BYTES)


@lru_cache(maxsize=64)
def _row_format(types: tuple[DataType, ...]) -> AlignedFormat:
    from fluss.formats.rows.codecs import AlignedFormat

    return AlignedFormat([Column(str(index), data_type) for index, data_type in enumerate(types)])


def decode(
    block: memoryview, types: Sequence[DataType], wanted: Collection[int] | None = None
) -> dict[int, ColumnStatistics]:
    """The statistics in a block by column index, of `wanted` columns or all; raises `CorruptDataError`."""
    try:
        return _decode(block, types, wanted)
    except (struct.error, IndexError) as error:
        raise CorruptDataError(f"statistics: {error}") from error


def _decode(
    block: memoryview, types: Sequence[DataType], wanted: Collection[int] | None
) -> dict[int, ColumnStatistics]:
    version, count = _HEAD.unpack_from(block, 0)
    if version != VERSION or count <= 0:
        raise CorruptDataError(f"statistics: version {version} of {count} columns")
    numbers = struct.unpack_from(f"<{count}h{count}i", block, _HEAD.size)
    indexes, null_counts = numbers[:count], numbers[count:]
    minima, end = _row_at(block, _HEAD.size + 6 * count)
    maxima, _ = _row_at(block, end)
    found: dict[int, ColumnStatistics] = {}
    for position, (index, null_count) in enumerate(zip(indexes, null_counts, strict=True)):
        if not 0 <= index < len(types):
            raise CorruptDataError(f"statistics: of column {index}, there are {len(types)}")
        if wanted is None or index in wanted:
            low = _decode_slot(minima, position, count, types[index])
            high = _decode_slot(maxima, position, count, types[index])
            found[index] = ColumnStatistics(null_count, low, high)
    return found


def _row_at(block: memoryview, at: int) -> tuple[memoryview, int]:
    (size,) = _I32.unpack_from(block, at)
    end = at + _I32.size + size
    if size < 0 or end > len(block):
        raise CorruptDataError(f"statistics: a row of {size} bytes in {len(block)}")
    return block[at + _I32.size : end], end


def _decode_slot(row: memoryview, index: int, arity: int, data_type: DataType) -> Bound | None:
    if row[(index + 8) >> 3] & 1 << (index & 7):
        return None
    at = (arity + 63 + 8) // 64 * 8 + _SLOT_BYTES * index
    root = data_type.root
    value: Bound
    if root in _SLOT_FORMATS:
        (value,) = struct.unpack_from("<" + _SLOT_FORMATS[root], row, at)
        return value
    if root in _TEXT:
        mark = row[at + _INLINE_SIZE_MAX_BYTES]
        if mark & _INLINE_MARK:
            return bytes(row[at : at + min(mark & ~_INLINE_MARK, _INLINE_SIZE_MAX_BYTES)])
        return bytes(_pointed(row, at))
    if root is TypeRoot.DECIMAL:
        if data_type.precision <= _COMPACT_DECIMAL_PRECISION_MAX:
            return int(_I64.unpack_from(row, at)[0])
        return int.from_bytes(_pointed(row, at), "big", signed=True)
    if root in _TIMESTAMPS:
        if data_type.precision <= _COMPACT_TIMESTAMP_PRECISION_MAX:
            return int(_I64.unpack_from(row, at)[0]) * _NS_PER_MS
        nanos, offset = _POINTER.unpack_from(row, at)
        return int(_I64.unpack_from(row, offset)[0]) * _NS_PER_MS + int(nanos)
    return None


def _pointed(row: memoryview, at: int) -> memoryview:
    size, offset = _POINTER.unpack_from(row, at)
    if offset < 0 or offset + size > len(row):
        raise CorruptDataError(f"statistics: {size} bytes at {offset} in a row of {len(row)}")
    return row[offset : offset + size]

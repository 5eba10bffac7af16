"""Python rows of small batches, straight from the bytes of their message.

Most of the time between a row's arrival and its reader would go into Arrow objects that are made for it and dropped.
It is only for batches whose checksum holds: what says nothing of the rows is not looked at.
"""

from __future__ import annotations

import struct
from datetime import UTC
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from fluss.formats import kernel
from fluss.formats.arrow.messages import RAW_PREFIX, parse_metadata
from fluss.formats.arrow.payload import empty_batch
from fluss.model.errors import CorruptDataError

ROWS_MAX: Final = 16
_UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}  # in a second
_NUMBERS: Final = {
    pa.int8(): "b",
    pa.int16(): "h",
    pa.int32(): "i",
    pa.int64(): "q",
    pa.float32(): "f",
    pa.float64(): "d",
}


class _Unfit(Exception):  # noqa: N818  # no failure: such batches are read through Arrow
    pass


class _Column(NamedTuple):
    name: str
    number: str  # struct's letter, "" for strings and bytes
    is_text: bool
    units: int  # of a timestamp in a second, otherwise 0
    zone: Any

    @property
    def buffer_count(self) -> int:
        return 2 if self.number else 3


class RawRows:
    """Reads batches of one schema."""

    __slots__ = ("_buffer_count", "_columns", "no_rows")

    def __init__(self, schema: pa.Schema, columns: list[_Column]) -> None:
        self.no_rows = empty_batch(schema)
        """A batch of the schema."""
        self._columns = columns
        self._buffer_count = sum(column.buffer_count for column in columns)

    @classmethod
    def of(cls, schema: pa.Schema) -> RawRows | None:
        """None where the schema has columns that are read through Arrow only."""
        columns = [_column(field.name, field.type) for field in schema]
        return cls(schema, [column for column in columns if column is not None]) if all(columns) else None

    def read(self, payload: memoryview) -> list[dict[str, Any]] | None:
        """None for a batch that is not small, plain and sound: read through Arrow, it has its rows or its error."""
        try:
            return self._read(payload)
        except (_Unfit, CorruptDataError, struct.error, ValueError, OverflowError):
            return None

    def _read(self, payload: memoryview) -> list[dict[str, Any]]:
        metadata = parse_metadata(payload)
        count, nodes, places = metadata.row_count, metadata.nodes, metadata.buffers
        if not 0 < count <= ROWS_MAX or len(nodes) != 2 * len(self._columns) or len(places) != 2 * self._buffer_count:
            raise _Unfit
        body = payload[metadata.body_start :]
        is_prefixed = metadata.codec is not None
        rows: list[dict[str, Any]] = [{} for _ in range(count)]
        first = 0
        for number, column in enumerate(self._columns):
            end = first + 2 * column.buffer_count
            buffers = [_buffer(body, places[at], places[at + 1], is_prefixed) for at in range(first, end, 2)]
            first = end
            values = _values(column, count, nodes[2 * number], nodes[2 * number + 1], buffers)
            for row, value in zip(rows, values, strict=True):
                row[column.name] = value
        return rows


def _column(name: str, arrow_type: pa.DataType) -> _Column | None:
    if pt.is_timestamp(arrow_type):
        return _Column(name, "q", False, _UNITS[arrow_type.unit], None if arrow_type.tz is None else UTC)
    if pt.is_string(arrow_type) or pt.is_binary(arrow_type):
        return _Column(name, "", pt.is_string(arrow_type), 0, None)
    number = _NUMBERS.get(arrow_type)
    return None if number is None else _Column(name, number, False, 0, None)


def _buffer(body: memoryview, start: int, size: int, is_prefixed: bool) -> memoryview:
    if is_prefixed and size:
        if body[start : start + 8] != RAW_PREFIX:
            raise _Unfit
        return body[start + 8 : start + size]
    return body[start : start + size]


def _values(column: _Column, count: int, length: int, null_count: int, buffers: list[memoryview]) -> list[Any]:
    validity, values = buffers[:2]
    if length != count or not 0 <= null_count <= count:
        raise _Unfit
    found: list[Any]
    if column.number:
        found = list(struct.unpack_from(f"<{count}{column.number}", values))
    else:
        found = _variable(column, struct.unpack_from(f"<{count + 1}i", values), buffers[2])
    if null_count:
        bits = int.from_bytes(validity[: (count + 7) >> 3], "little") & ((1 << count) - 1)
        if 8 * len(validity) < count or count - bits.bit_count() != null_count:
            raise _Unfit
        found = [value if bits >> row & 1 else None for row, value in enumerate(found)]
    return kernel.datetimes_of(found, column.units, column.zone) if column.units else found


def _variable(column: _Column, offsets: tuple[int, ...], data: memoryview) -> list[Any]:
    if offsets[0] < 0 or offsets[-1] > len(data) or list(offsets) != sorted(offsets):
        raise _Unfit
    pieces = [data[start:end] for start, end in pairwise(offsets)]
    return [str(piece, "utf-8") for piece in pieces] if column.is_text else [bytes(piece) for piece in pieces]

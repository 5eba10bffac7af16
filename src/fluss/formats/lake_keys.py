"""Bucket keys of tables that are tiered to Paimon or Iceberg: those formats hash other bytes than a compacted key's.

A Paimon key is a row of eight-byte slots behind a header of zero bits; what does not fit a slot lies behind the slots.
An Iceberg key is the plain value of its one column. Nulls are refused: a key has no null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.formats.kinds import DECIMAL_COMPACT_PRECISION_MAX, units_per_second
from fluss.model.errors import InvalidRequestError, SchemaMismatchError
from fluss.model.schema import Column
from fluss.model.types import TypeRoot

PAIMON: Final = "PAIMON"
ICEBERG: Final = "ICEBERG"

_WORD_BYTES: Final = 8
_INLINE_BYTES_MAX: Final = 7
_INLINE_MARK: Final = 0x80
_BIG_DECIMAL_BYTES: Final = 16
_HEADER_BITS: Final = 8
_MILLIS_PER_SECOND: Final = 1_000
_MICROS_PER_SECOND: Final = 1_000_000

_TEXT: Final = (TypeRoot.CHAR, TypeRoot.STRING, TypeRoot.BYTES, TypeRoot.BINARY)
_TIMESTAMPS: Final = (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)
_INTS: Final = (TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INTEGER, TypeRoot.BIGINT, TypeRoot.DATE)
_FLOATS: Final = (TypeRoot.FLOAT, TypeRoot.DOUBLE)

Words = npt.NDArray[np.int64]


class LakeKeys(Protocol):
    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray: ...


def lake_keys(lake_format: str, columns: Sequence[Column]) -> LakeKeys:
    """The encoder of a lake format."""
    return IcebergKeys(columns) if lake_format == ICEBERG else PaimonKeys(columns)


class IcebergKeys:
    """Keys of one column."""

    def __init__(self, columns: Sequence[Column]) -> None:
        if len(columns) != 1:
            names = ", ".join(column.name for column in columns)
            raise InvalidRequestError(f"A table tiered to Iceberg has one bucket key column, not {names}.")
        self._column = columns[0]
        root = self._column.data_type.root
        scalar = (TypeRoot.INTEGER, TypeRoot.DATE, TypeRoot.BIGINT, TypeRoot.TIME, TypeRoot.TIMESTAMP, TypeRoot.DECIMAL)
        if root not in (*scalar, *_FLOATS, *_TEXT):
            raise InvalidRequestError(
                f"Iceberg has no bucket function for the bucket key {self._column.name!r} of type "
                f"{self._column.data_type}."
            )

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        values = _checked(self._column, batch)
        root = self._column.data_type.root
        if root in _TEXT:
            return values.cast(pa.binary())
        if root is TypeRoot.DECIMAL:
            return _by_distinct(values, _unscaled)
        if root in _FLOATS:
            return _fixed(values.to_numpy())
        if root is TypeRoot.TIME:
            return _fixed(_times(self._column, values, _MILLIS_PER_SECOND) * _MILLIS_PER_SECOND)
        if root is TypeRoot.TIMESTAMP:
            return _fixed(_times(self._column, values, _MICROS_PER_SECOND))
        return _fixed(_numbers(values))


class PaimonKeys:
    """Keys of any number of columns."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = list(columns)
        self._header_words = (len(columns) + 63 + _HEADER_BITS) // 64

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        values = [_checked(column, batch) for column in self._columns]
        slots = [_slot_words(column, array) for column, array in zip(self._columns, values, strict=True)]
        header = [np.zeros(batch.num_rows, np.int64)] * self._header_words
        words = [slot for slot in slots if slot is not None]
        if len(words) == len(slots):
            return _fixed(np.column_stack([*header, *words]))
        if len(values) == 1:
            return _by_distinct(values[0], lambda value: self._row([_cell(self._columns[0], value)]))
        cells = [
            [int(word).to_bytes(_WORD_BYTES, "little", signed=True) for word in slot]
            if slot is not None
            else [_cell(column, value) for value in _scalars(array)]
            for column, array, slot in zip(self._columns, values, slots, strict=True)
        ]
        return pa.array(map(self._row, zip(*cells, strict=True)), pa.binary())

    def _row(self, cells: Sequence[bytes | tuple[bytes, int]]) -> bytes:
        """One row; a cell is its slot, or (what lies behind the slots, the low half of its slot)."""
        size_bytes = (self._header_words + len(cells)) * _WORD_BYTES
        slots, behind = bytearray(self._header_words * _WORD_BYTES), bytearray()
        for cell in cells:
            if isinstance(cell, bytes):
                slots += cell
            else:
                data, low = cell
                slots += (size_bytes + len(behind) << 32 | low).to_bytes(_WORD_BYTES, "little")
                behind += data.ljust(-(-len(data) // _WORD_BYTES) * _WORD_BYTES, b"\0")
        return bytes(slots + behind)


def _checked(column: Column, batch: pa.RecordBatch) -> pa.Array:
    values = batch.column(column.name)
    if values.null_count:
        raise SchemaMismatchError(f"Bucket key column {column.name!r} expects {column.data_type}, not null.")
    return values


def _fixed(values: npt.NDArray[np.generic]) -> pa.BinaryArray:
    """Keys of one width: the rows of an array."""
    rows = len(values)
    width = values.nbytes // rows if rows else 0
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    data = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0)


def _by_distinct(values: pa.Array, encode: Callable[[object], bytes]) -> pa.BinaryArray:
    encoded = values.dictionary_encode()
    return pa.array(map(encode, _scalars(encoded.dictionary)), pa.binary()).take(encoded.indices)


def _scalars(values: pa.Array) -> list[object]:
    """Values as `_cell` and `_unscaled` take them: texts as bytes, timestamps as counts of their unit."""
    if pa.types.is_timestamp(values.type):
        values = values.view(pa.int64())
    elif not pa.types.is_decimal(values.type):
        values = values.cast(pa.binary())
    scalars: list[object] = values.to_pylist()
    return scalars


def _numbers(values: pa.Array) -> Words:
    if pa.types.is_date32(values.type):
        values = values.view(pa.int32())
    return np.asarray(values.to_numpy(), np.int64)


def _times(column: Column, values: pa.Array, per_second: int) -> Words:
    """A time of day or timestamp in another unit; digits that it has no room for are cut off."""
    units = units_per_second(column.data_type.precision)
    counts = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64()).to_numpy().astype(np.int64)
    scaled: Words = counts * (per_second // units) if per_second >= units else counts // (units // per_second)
    return scaled


def _slot_words(column: Column, values: pa.Array) -> Words | None:
    """A column whose values fit their slots; None for one that may need more."""
    root, precision = column.data_type.root, column.data_type.precision
    if root in _INTS:
        words = _numbers(values)
        # A slot has the bytes of the value and zeros behind them, whatever its sign.
        return words if root is TypeRoot.BIGINT else words & ((1 << values.type.bit_width) - 1)
    if root is TypeRoot.BOOLEAN:
        return np.asarray(values.to_numpy(zero_copy_only=False), np.int64)
    if root is TypeRoot.FLOAT:
        return np.asarray(values.to_numpy().view(np.uint32), np.int64)
    if root is TypeRoot.DOUBLE:
        return np.asarray(values.to_numpy().view(np.int64))
    if root is TypeRoot.TIME:
        return _times(column, values, _MILLIS_PER_SECOND)
    if root in _TIMESTAMPS and precision <= 3:
        return _times(column, values, _MILLIS_PER_SECOND)
    if root is TypeRoot.DECIMAL and precision <= DECIMAL_COMPACT_PRECISION_MAX:
        # The low half of a 128-bit number.
        data = np.frombuffer(values.buffers()[1], np.int64)
        return data[2 * values.offset : 2 * (values.offset + len(values)) : 2]
    return None


def _cell(column: Column, value: object) -> bytes | tuple[bytes, int]:
    root = column.data_type.root
    if root in _TIMESTAMPS:
        units = units_per_second(column.data_type.precision)
        assert isinstance(value, int)
        millis, rest = divmod(value, units // _MILLIS_PER_SECOND)
        return millis.to_bytes(_WORD_BYTES, "little", signed=True), rest * (1_000_000_000 // units)
    if root is TypeRoot.DECIMAL:
        data = _unscaled(value)
        return data.ljust(_BIG_DECIMAL_BYTES, b"\0"), len(data)
    assert isinstance(value, bytes)
    if len(value) <= _INLINE_BYTES_MAX:
        return value.ljust(_INLINE_BYTES_MAX, b"\0") + bytes([_INLINE_MARK | len(value)])
    return value, len(value)


def _unscaled(value: object) -> bytes:
    """The digits of a decimal without its point, as the fewest bytes, big-endian."""
    number = int(value.scaleb(-value.as_tuple().exponent))  # type: ignore[attr-defined]
    bits = number.bit_length() if number >= 0 else (number + 1).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)

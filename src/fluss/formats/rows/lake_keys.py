"""Bucket keys of tables that are tiered to Paimon or Iceberg: those formats hash other bytes than a compacted key's.

A Paimon key is an aligned row, an Iceberg key the plain value of its one column. Nulls are refused: a key has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.formats.rows.aligned import AlignedFormat
from fluss.formats.rows.specs import units_per_second
from fluss.model.errors import InvalidRequestError, SchemaMismatchError
from fluss.model.schema import Column
from fluss.model.types import TypeRoot

PAIMON: Final = "PAIMON"
ICEBERG: Final = "ICEBERG"

_MILLIS_PER_SECOND: Final = 1_000
_MICROS_PER_SECOND: Final = 1_000_000

_TEXT: Final = (TypeRoot.CHAR, TypeRoot.STRING, TypeRoot.BYTES, TypeRoot.BINARY)
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
            return _unscaled_keys(values)
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
        self._format = AlignedFormat(columns)

    def encode(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        for column in self._columns:
            _checked(column, batch)
        return self._format.encode(batch.select([column.name for column in self._columns]))


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


def _unscaled_keys(values: pa.Array) -> pa.BinaryArray:
    """Keys of decimals; of every distinct one once."""
    encoded = values.dictionary_encode()
    return pa.array(map(_unscaled, encoded.dictionary.to_pylist()), pa.binary()).take(encoded.indices)


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


def _unscaled(value: object) -> bytes:
    """The digits of a decimal without its point, as the fewest bytes, big-endian."""
    number = int(value.scaleb(-value.as_tuple().exponent))  # type: ignore[attr-defined]
    bits = number.bit_length() if number >= 0 else (number + 1).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)

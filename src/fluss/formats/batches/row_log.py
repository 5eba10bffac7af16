"""The records of a log batch in the row formats INDEXED and COMPACTED: per record its length, change type and row.

The change type is always written, so there is no vector of change types as in front of an Arrow payload.
"""

from __future__ import annotations

import functools
from typing import Final

import pyarrow as pa

from fluss.formats import kernel
from fluss.formats.batches.log_batch import BatchHeader, BufferLike
from fluss.formats.rows.codecs import CompactedFormat, IndexedFormat, RowFormat, binary_array, rows_of
from fluss.formats.rows.specs import kind_of
from fluss.model.descriptor import LogFormat
from fluss.model.errors import CorruptDataError, SchemaMismatchError
from fluss.model.schema import Schema

# A null takes a bit in a row and its type's full width in Arrow, so a small batch could ask for any amount of memory.
DECODED_SIZE_MAX_BYTES: Final = 1 << 30


def encode(
    rows: pa.RecordBatch, schema: Schema, log_format: str, change_types: bytes | bytearray | None = None
) -> bytes:
    """The records of a batch; without `change_types` every row is an append."""
    if change_types is not None and len(change_types) != rows.num_rows:
        raise ValueError(f"{len(change_types)} change types for {rows.num_rows} rows")
    data, offsets = rows_of(_format(schema, log_format).encode(rows))
    changes = bytes(rows.num_rows) if change_types is None else change_types
    return bytes(kernel.join_records(data, offsets, rows.num_rows, changes))


def decode(
    payload: BufferLike, record_count: int, schema: Schema, log_format: str
) -> tuple[bytes | None, pa.RecordBatch]:
    """Change types (None when every row is an append) and rows; bytes that are no such records are refused."""
    if record_count * _width_bytes(schema) > DECODED_SIZE_MAX_BYTES:
        raise CorruptDataError(f"log batch: {record_count} records take more than {DECODED_SIZE_MAX_BYTES} bytes")
    change_types, data, offsets = kernel.split_records(payload, record_count)
    batch = _format(schema, log_format).decode(binary_array(data, offsets, record_count))
    appends_only = change_types.count(0) == record_count
    return None if appends_only else bytes(change_types), batch


def decode_rows(
    buf: BufferLike, position: int, header: BatchHeader, schema: Schema, log_format: str
) -> tuple[bytes | None, pa.RecordBatch]:
    """Change types and rows, see `decode`, of the log batch at `position`."""
    start = position + header.header_size_bytes + header.statistics_size_bytes
    payload = memoryview(buf)[start : position + header.size_bytes]
    return decode(payload, header.record_count, schema, log_format)


@functools.lru_cache(maxsize=64)
def _format(schema: Schema, log_format: str) -> RowFormat:
    if log_format == LogFormat.INDEXED:
        return IndexedFormat(schema.columns)
    if log_format == LogFormat.COMPACTED:
        return CompactedFormat(schema.columns)
    raise SchemaMismatchError(f"The log format {log_format} has no rows; INDEXED and COMPACTED have.")


@functools.lru_cache(maxsize=64)
def _width_bytes(schema: Schema) -> int:
    """What a row takes in Arrow at least."""
    return sum(kind_of(column.data_type).fixed_size_bytes for column in schema.columns)

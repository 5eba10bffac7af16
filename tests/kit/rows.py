"""Rows that say who wrote them and in which order, so that a lost, doubled, moved or damaged one shows."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

import fluss
from fluss.formats.arrow.payload import Codec, Compression, decode, encode
from fluss.formats.batches.log_batch import (
    NO_BATCH_SEQUENCE,
    NO_WRITER_ID,
    BufferLike,
    encode_batch,
    payload_of,
    verify_crc,
    walk,
)

FIRST_SCHEMA_ID = 1
SCHEMA = pa.schema([("writer", pa.int32()), ("sequence", pa.int64()), ("filler", pa.string())])
_CODEC = Codec(Compression.NONE)
_FILLER_LENGTH_MAX = 61


class Row(NamedTuple):
    writer: int
    sequence: int


class StoredBatch(NamedTuple):
    """Rows of one batch and where the log has them."""

    base_offset: int
    rows: list[Row]


def descriptor(buckets: int) -> fluss.TableDescriptor:
    """A table for such rows, without compression: sizes then follow from the rows alone."""
    return fluss.TableDescriptor(
        fluss.Schema(SCHEMA), bucket_count=buckets, properties={"table.log.arrow.compression.type": "NONE"}
    )


def filler(row: Row) -> str:
    """Text of varying length that belongs to this row and no other."""
    text = f"{row.writer}/{row.sequence}/"
    return text * (1 + (row.writer * 7 + row.sequence * 13) % _FILLER_LENGTH_MAX // len(text))


def values(row: Row) -> tuple[int, int, str]:
    """The row as a writer takes it."""
    return (row.writer, row.sequence, filler(row))


def arrow_batch(rows: list[Row]) -> pa.RecordBatch:
    columns = [[row.writer for row in rows], [row.sequence for row in rows], [filler(row) for row in rows]]
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA
    )


def wire_batch(rows: list[Row], writer_id: int = NO_WRITER_ID, batch_sequence: int = NO_BATCH_SEQUENCE) -> bytearray:
    """A log batch as a client sends it."""
    payload = encode(arrow_batch(rows), _CODEC)
    return encode_batch(
        payload,
        schema_id=FIRST_SCHEMA_ID,
        record_count=len(rows),
        writer_id=writer_id,
        batch_sequence=batch_sequence,
    )


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """The rows of a batch; one that is not as it was written is an error."""
    writers, sequences, fillers = (column.to_pylist() for column in batch.columns)
    rows = [Row(*pair) for pair in zip(writers, sequences, strict=True)]
    damaged = [row for row, text in zip(rows, fillers, strict=True) if text != filler(row)]
    if damaged:
        raise AssertionError(f"rows with a damaged filler: {damaged[:5]}")
    return rows


def stored_batches(records: BufferLike) -> list[StoredBatch]:
    """The batches of a fetch answer, whole and with good checksums."""
    found: list[StoredBatch] = []
    size = 0
    for position, header in walk(records):
        verify_crc(records, position, header)
        found.append(StoredBatch(header.base_offset, rows_of(decode(payload_of(records, position, header)[1], SCHEMA))))
        size += header.size_bytes
    if size != len(records):
        raise AssertionError(f"an answer of {len(records)} bytes ends {len(records) - size} bytes into a batch")
    return found

"""Fetched batches, and the Arrow batches, tables and records made of them in the caller's own thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fluss.client.scan.cursor import Cursor
from fluss.formats import kernel
from fluss.formats.rows.python_rows import to_rows
from fluss.formats.rows.records import ScanRecord, ScanRecords
from fluss.model.paths import TableBucket
from fluss.model.records import ChangeType, RecordBatch

ROW_SIZE_BYTES = 1_024
"""Of a row as Python objects, about."""


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """Rows of one log batch, or some of them, with their place in the log."""

    batch: pa.RecordBatch
    bucket: TableBucket
    base_offset: int
    last_offset: int
    timestamp_ms: int
    change_types: bytes | None
    """One byte per row; None when every row was appended."""
    offsets: pa.Array | None = None
    """Each row's offset where a filter has left gaps; None when they follow one another."""
    rows: list[dict[str, Any]] | None = None
    """For a scanner of records: the rows as they are, where they were read without Arrow; `batch` then has none."""

    @property
    def row_count(self) -> int:
        count: int = self.batch.num_rows if self.rows is None else len(self.rows)
        return count

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory; rows may have long values besides."""
        size: int = self.batch.get_total_buffer_size() if self.rows is None else len(self.rows) * ROW_SIZE_BYTES
        return size

    def slice(self, start: int, count: int) -> FetchedBatch:
        """Some of the rows; nothing is copied."""
        if start == 0 and count == self.row_count:
            return self
        base_offset, last_offset = self.base_offset + start, self.base_offset + start + count - 1
        offsets = None if self.offsets is None else self.offsets.slice(start, count)
        if offsets is not None and count:
            base_offset, last_offset = offsets[0].as_py(), offsets[-1].as_py()
        return FetchedBatch(
            self.batch.slice(start, count),
            self.bucket,
            base_offset,
            last_offset,
            self.timestamp_ms,
            None if self.change_types is None else self.change_types[start : start + count],
            offsets,
            None if self.rows is None else self.rows[start : start + count],
        )

    def filter(self, mask: pa.Array) -> FetchedBatch | None:
        """The rows for which `mask` is true, None for none."""
        count = mask.true_count
        if count == 0:
            return None
        if count == self.row_count:
            return self
        offsets = pc.add(pc.indices_nonzero(mask).cast(pa.int64()), self.base_offset)
        changes = self.change_types
        if changes is not None:
            kept = pa.Array.from_buffers(pa.uint8(), len(changes), [None, pa.py_buffer(changes)]).filter(mask)
            changes = kept.buffers()[1].to_pybytes()[: len(kept)]
        return FetchedBatch(
            self.batch.filter(mask),
            self.bucket,
            offsets[0].as_py(),
            offsets[-1].as_py(),
            self.timestamp_ms,
            changes,
            offsets,
        )


class ScanStep(NamedTuple):
    """What brings a reader on in one bucket: rows, or just an offset to move on to, where nothing is for this scan."""

    cursor: Cursor
    next_offset: int
    fetched: FetchedBatch | None = None
    size_bytes: int = 0
    """About what the rows take in memory"""


_CHANGE_TYPES = tuple(ChangeType)


def to_records(batches: Sequence[FetchedBatch]) -> ScanRecords:
    """Rows as records, by bucket."""
    by_bucket: dict[TableBucket, list[ScanRecord]] = {}
    for fetched in batches:
        records = kernel.records_of_rows(
            to_rows(fetched.batch) if fetched.rows is None else fetched.rows,
            fetched.base_offset,
            None if fetched.offsets is None else fetched.offsets.to_pylist(),
            fetched.timestamp_ms,
            _CHANGE_TYPES,
            fetched.change_types,
        )
        by_bucket.setdefault(fetched.bucket, []).extend(records)
    return ScanRecords(by_bucket)


def to_table(batches: Sequence[FetchedBatch], schema: pa.Schema) -> pa.Table:
    """Rows as one table; nothing is copied. Batches of other schemas are padded with null, and bring their columns."""
    if all(fetched.batch.schema == schema for fetched in batches):
        return pa.Table.from_batches([fetched.batch for fetched in batches], schema=schema)
    tables = [schema.empty_table(), *(pa.Table.from_batches([fetched.batch]) for fetched in batches)]
    return pa.concat_tables(tables, promote_options="default")


def to_record_batches(batches: Sequence[FetchedBatch]) -> list[RecordBatch]:
    """Arrow batches with bucket and offsets."""
    return [RecordBatch(fetched.batch, fetched.bucket, fetched.base_offset, fetched.last_offset) for fetched in batches]

"""What a scan hands out before it becomes records or tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fluss.client.scan.cursor import Cursor
from fluss.model.paths import TableBucket

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

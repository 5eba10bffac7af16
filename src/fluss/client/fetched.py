"""What a scan hands out before it becomes records or tables."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from fluss.model.paths import TableBucket


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """Rows of one log batch, or a part of them, with their place in the log."""

    batch: pa.RecordBatch
    bucket: TableBucket
    base_offset: int
    last_offset: int
    timestamp_ms: int
    change_types: bytes | None
    """One byte per row; None when every row was appended."""

    @property
    def row_count(self) -> int:
        return self.last_offset - self.base_offset + 1

    def slice(self, start: int, count: int) -> FetchedBatch:
        """Some of the rows; nothing is copied."""
        if start == 0 and count == self.row_count:
            return self
        return FetchedBatch(
            self.batch.slice(start, count),
            self.bucket,
            self.base_offset + start,
            self.base_offset + start + count - 1,
            self.timestamp_ms,
            None if self.change_types is None else self.change_types[start : start + count],
        )

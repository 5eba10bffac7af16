"""Rows of a log between two offsets: what a Spark partition of a log, or of changes, has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from fluss.model.errors import TimeoutError

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.sync import LogScanner

POLL_TIMEOUT_MS = 1_000
# The rows of a partition exist when it is planned, so they come at once unless the server is gone or overloaded.
SILENCE_MAX_S = 120.0


@dataclass(frozen=True)
class BucketRange(InputPartition):  # type: ignore[misc]
    """The rows of one bucket from `start_offset` up to, not including, `end_offset`."""

    table_id: int
    partition_id: int | None
    bucket: int
    start_offset: int
    end_offset: int


def read_range(scanner: LogScanner, wanted: BucketRange) -> Iterator[pa.RecordBatch]:
    """All rows of a range; batches that cross its ends are cut there."""
    if wanted.partition_id is None:
        scanner.subscribe(wanted.bucket, wanted.start_offset)
    else:
        scanner.subscribe_partition(wanted.partition_id, wanted.bucket, wanted.start_offset)
    position = wanted.start_offset
    moved_at = time.monotonic()
    while position < wanted.end_offset:
        for found in scanner.poll_record_batch(POLL_TIMEOUT_MS):
            first = max(found.base_offset, wanted.start_offset)
            rows = min(found.last_offset + 1, wanted.end_offset) - first
            if rows > 0:
                yield found.batch.slice(first - found.base_offset, rows)
        # Asked from the scanner, because it also passes over batches without rows.
        ((_, reached),) = scanner.get_subscribed_buckets()
        if reached > position:
            position, moved_at = reached, time.monotonic()
        elif time.monotonic() - moved_at > SILENCE_MAX_S:
            raise TimeoutError(
                f"Bucket {wanted.bucket} gave nothing for {SILENCE_MAX_S:g} s at offset {position}; "
                f"rows up to offset {wanted.end_offset} were there when the query was planned."
            )

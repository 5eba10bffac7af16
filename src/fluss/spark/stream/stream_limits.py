"""How far a micro-batch may go when it is limited.

Rows are counted by offsets: a change that is not wanted counts like one that is. Every bucket gets a share by how much
it has, and at least one row, so that all of them move. The current rows of a bucket come in one piece: so many buckets
at a time as have seen no more changes than the limit has rows, and at least one.
"""

from __future__ import annotations

from fluss.model.infos import TableInfo
from fluss.spark.read.parts import BucketRange
from fluss.spark.read.plan import BucketKey
from fluss.spark.stream.offsets import CURRENT_ROWS, Offsets

SAMPLE_ROWS = 1_000


def limited(starts: Offsets, ends: Offsets, rows_max: int) -> dict[BucketKey, int]:
    """Ends for about `rows_max` rows; `starts` and `ends` have the same buckets."""
    found = dict(starts)
    remaining = rows_max
    for key, start in starts.items():
        # A bucket has no more rows than it has seen changes.
        if start == CURRENT_ROWS and (remaining == rows_max or ends[key] <= remaining):
            found[key] = ends[key]
            remaining -= ends[key]
    backlog = {key: ends[key] - start for key, start in starts.items() if start != CURRENT_ROWS and ends[key] > start}
    total = sum(backlog.values())
    if remaining > 0:
        for key, rows in backlog.items():
            found[key] += rows if total <= remaining else max(1, rows * remaining // total)
    return found


def sample_range(info: TableInfo, starts: Offsets, ends: Offsets) -> BucketRange | None:
    """Some of the rows that come next, to see how large they are; None if there are none."""
    backlog = {key: ends[key] - start for key, start in starts.items() if ends[key] > max(start, 0)}
    if not backlog:
        return None
    partition_id, bucket = key = max(backlog, key=backlog.__getitem__)
    # Where current rows come first, the last changes are about as large, and are kept the longest.
    start = starts[key] if starts[key] != CURRENT_ROWS else max(0, ends[key] - SAMPLE_ROWS)
    return BucketRange(info.table_id, partition_id, bucket, start, min(ends[key], start + SAMPLE_ROWS))

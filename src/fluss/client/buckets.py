"""Which bucket rows go to. A splitter takes the rows of a chunk and keeps their order within each bucket."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from fluss.client.chunk import Split
from fluss.formats.bucketing import BucketAssigner, BucketHash
from fluss.model.config import Config
from fluss.model.errors import InvalidRequestError
from fluss.model.infos import TableInfo

LAKE_FORMAT = "table.datalake.format"
PLAIN_LAKE_FORMAT = "LANCE"  # buckets as without a lake; other formats have functions of their own


def splitter(info: TableInfo, config: Config) -> Split:
    """How a writer of a table chooses buckets."""
    if info.num_buckets == 1:
        return lambda rows: [(0, rows)]
    keys = info.get_bucket_keys()
    if keys:
        _check_lake_format(info)
        columns = {column.name: column for column in info.schema.columns}
        assigner = BucketAssigner([columns[key] for key in keys], info.num_buckets, BucketHash(config.bucket_hash))
        return lambda rows: split_by_bucket(rows, assigner.assign(rows))
    if config.writer_bucket_no_key_assigner == "round_robin":
        return RoundRobin(info.num_buckets)
    return Sticky(info.num_buckets)


def _check_lake_format(info: TableInfo) -> None:
    lake_format = info.properties.get(LAKE_FORMAT, PLAIN_LAKE_FORMAT).upper()
    if lake_format != PLAIN_LAKE_FORMAT:
        raise InvalidRequestError(
            f"Table {info.table_path} has the bucket function of {lake_format}; writing to it is not supported yet."
        )


class Sticky:
    """All rows of a chunk to one bucket, the next chunk to another."""

    def __init__(self, bucket_count: int) -> None:
        self._count = bucket_count
        self._current = random.randrange(bucket_count)

    def __call__(self, rows: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        self._current = (self._current + random.randrange(1, self._count)) % self._count
        return [(self._current, rows)]


class RoundRobin:
    """Rows in equal parts to all buckets, beginning where the last chunk ended. Parts are slices: nothing is copied."""

    def __init__(self, bucket_count: int) -> None:
        self._count = bucket_count
        self._next = random.randrange(bucket_count)

    def __call__(self, rows: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        parts = min(self._count, rows.num_rows)
        first = self._next
        self._next = (first + parts) % self._count
        bounds = [part * rows.num_rows // parts for part in range(parts + 1)]
        return [
            ((first + part) % self._count, rows.slice(bounds[part], bounds[part + 1] - bounds[part]))
            for part in range(parts)
        ]


def split_by_bucket(rows: pa.RecordBatch, buckets: pa.Array) -> list[tuple[int, pa.RecordBatch]]:
    """Rows by bucket; Arrow's sort is stable, so rows of a bucket keep their order."""
    order = pc.sort_indices(buckets)
    ordered = rows.take(order)
    return [(bucket, ordered.slice(start, end - start)) for bucket, start, end in _runs(buckets.take(order))]


def _runs(ordered: pa.Array) -> Iterator[tuple[int, int, int]]:
    encoded = pc.run_end_encode(ordered)
    start = 0
    for bucket, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        yield bucket, start, end
        start = end

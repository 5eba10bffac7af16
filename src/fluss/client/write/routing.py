"""Routing of rows: which partition and bucket they belong to. Missing partitions are found or made here.

A splitter takes the rows of a row buffer and keeps their order within each bucket.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss.client.cluster.metadata import Metadata, set_path, set_spec
from fluss.doors import randomness
from fluss.formats.arrow.payload import numbers_array
from fluss.formats.rows.keys import BucketHash, assigner_for, partition_names
from fluss.model.config import Config
from fluss.model.errors import ErrorCode, NotFoundError
from fluss.model.infos import TableInfo
from fluss.model.partitions import PartitionSpec, spec_of_name
from fluss.model.paths import TablePath
from fluss.model.schema import Schema
from fluss.model.tables.options import DATALAKE_FORMAT
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb

# The least size of a slice of a row buffer, and of one where a row buffer is cut into more than a few: a thousand
# small batches cost more than an even spread is worth.
SLICE_ROWS_MIN = 1_000
SLICE_BYTES_MIN = 64 << 10
SMALL_SLICES_MAX = 8
LARGE_SLICE_BYTES_MIN = 512 << 10

BucketSplit: TypeAlias = Callable[[pa.RecordBatch], list[tuple[int, pa.RecordBatch]]]


def bucket_splitter(info: TableInfo, config: Config) -> BucketSplit:
    """How a writer of a table chooses buckets."""
    if info.num_buckets == 1:
        return OneBucket()
    keys = info.get_bucket_keys() or info.physical_primary_keys
    if keys:
        columns = {column.name: column for column in info.schema.columns}
        lake_format = info.properties.get(DATALAKE_FORMAT)
        assigner = assigner_for(
            [columns[key] for key in keys],
            info.num_buckets,
            lake_format and lake_format.upper(),
            BucketHash(config.bucket_hash),
        )
        return lambda rows: split_by_index(rows, assigner.assign(rows))
    if config.writer_bucket_no_key_assigner == "round_robin":
        return RoundRobin(info.num_buckets)
    if config.writer_bucket_no_key_assigner == "slices":
        return Slices(info.num_buckets)
    return Sticky(info.num_buckets)


class OneBucket:
    """All rows of a row buffer to one bucket, whatever they are; here to the only one."""

    def __call__(self, rows: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        return [(self.choose(), rows)]

    def choose(self) -> int:
        """The bucket of the next row buffer."""
        return 0


class Sticky(OneBucket):
    """All rows of a row buffer to one bucket, the next row buffer to another."""

    def __init__(self, bucket_count: int) -> None:
        self._count = bucket_count
        self._current = randomness.chance.randrange(bucket_count)

    def choose(self) -> int:
        self._current = (self._current + randomness.chance.randrange(1, self._count)) % self._count
        return self._current


class Slices(OneBucket):
    """The rows of a row buffer in slices of one size, each to another bucket; all to one bucket if they are few."""

    def __init__(self, bucket_count: int) -> None:
        self._count = bucket_count
        self._next = randomness.chance.randrange(bucket_count)

    def __call__(self, rows: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        count = self._slice_count(rows)
        first = self._take(count)
        ends = [rows.num_rows * number // count for number in range(count + 1)]
        return [
            ((first + number) % self._count, rows.slice(start, end - start))
            for number, (start, end) in enumerate(pairwise(ends))
        ]

    def choose(self) -> int:
        return self._take(1)

    def _slice_count(self, rows: pa.RecordBatch) -> int:
        row_count, size_bytes = int(rows.num_rows), int(rows.nbytes)
        small = max(1, row_count // SLICE_ROWS_MIN, size_bytes // SLICE_BYTES_MIN)
        wanted = max(min(small, SMALL_SLICES_MAX), size_bytes // LARGE_SLICE_BYTES_MIN)
        return min(self._count, wanted, max(1, row_count))

    def _take(self, count: int) -> int:
        """The first of so many buckets, behind those taken last.

        Now and then one is left out: if partitions take turns, one must not have the same bucket again every time.
        """
        first = self._next
        self._next = (first + count + randomness.chance.randrange(2)) % self._count
        return first


class RoundRobin:
    """Each row to the bucket after that of the row before it, going on where the last row buffer ended."""

    def __init__(self, bucket_count: int) -> None:
        self._count = bucket_count
        self._next = randomness.chance.randrange(bucket_count)

    def __call__(self, rows: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        first = self._next
        self._next = (first + rows.num_rows) % self._count
        return [
            ((first + row) % self._count, rows.take(row_numbers(rows.num_rows, row, self._count)))
            for row in range(min(self._count, rows.num_rows))
        ]


def row_numbers(end: int, first: int = 0, step: int = 1) -> pa.Array:
    """The numbers from `first` up to `end`."""
    return numbers_array(np.arange(first, end, step, dtype=np.int64))


def split_by_index(rows: pa.RecordBatch, indexes: pa.Array) -> list[tuple[int, pa.RecordBatch]]:
    """Rows by an index of each; Arrow's sort is stable, so rows of one index keep their order."""
    order = pc.sort_indices(indexes)
    ordered = rows.take(order)
    return [(index, ordered.slice(start, end - start)) for index, start, end in _runs(indexes.take(order))]


def _runs(ordered: pa.Array) -> Iterator[tuple[int, int, int]]:
    encoded = pc.run_end_encode(ordered)
    start = 0
    for index, end in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        yield index, start, end
        start = end


Route: TypeAlias = tuple[str | None, int, pa.RecordBatch]
"""(partition name or None, bucket, rows)"""


class RowPartitions(NamedTuple):
    """The index of the partition's name for each row."""

    indexes: pa.Array
    names: list[str]


Router: TypeAlias = Callable[[pa.RecordBatch], tuple[list[Route], RowPartitions | None]]


def router(info: TableInfo, config: Config) -> Router:
    """The router of a table's rows to buckets. Rows of one bucket keep their order."""
    split = bucket_splitter(info, config)
    return _PartitionRouter(info, split) if info.is_partitioned() else BucketRouter(split)


class BucketRouter:
    """Rows of a table without partitions."""

    def __init__(self, split: BucketSplit) -> None:
        self.one_bucket = split if isinstance(split, OneBucket) else None
        """Says where all rows of a row buffer go, if that does not depend on them."""
        self._split = split

    def __call__(self, rows: pa.RecordBatch) -> tuple[list[Route], RowPartitions | None]:
        return [(None, bucket, part) for bucket, part in self._split(rows)], None


class _PartitionRouter:
    def __init__(self, info: TableInfo, split: BucketSplit) -> None:
        columns = {column.name: column for column in info.schema.columns}
        self._columns = [columns[key] for key in info.partition_keys]
        self._split = split

    def __call__(self, rows: pa.RecordBatch) -> tuple[list[Route], RowPartitions | None]:
        indexes, names = partition_names(rows, self._columns)
        parts = [(0, rows)] if len(names) == 1 else split_by_index(rows, indexes)
        routes: list[Route] = [
            (names[index], bucket, piece) for index, part in parts for bucket, piece in self._split(part)
        ]
        return routes, RowPartitions(indexes, names)


def writable_schema(info: TableInfo) -> Schema:
    """The table's schema for writers: a row without a partition has no place, so partition columns can't be null."""
    keys = info.partition_keys
    if not keys:
        return info.schema
    columns = [
        dataclasses.replace(column, data_type=column.data_type.not_null()) if column.name in keys else column
        for column in info.schema.columns
    ]
    return Schema.of(columns, info.schema.get_primary_keys())


class PartitionFinder:
    """Looks partitions up for writers."""

    def __init__(self, metadata: Metadata, config: Config) -> None:
        self._metadata = metadata
        self._create: bool = config.writer_dynamic_create_partition_enabled
        self._timeout_s: float = config.request_timeout_ms / 1000

    async def find(self, info: TableInfo, name: str) -> int:
        """The id of a partition. A missing one is made where the option says so, otherwise it is an error."""
        spec = spec_of_name(name, info.partition_keys)
        spec.check_values()
        path = info.table_path
        found = await self._metadata.find_partitions(path, [name])
        if name not in found and self._create:
            await self._make(path, spec)
            found = await self._metadata.find_partitions(path, [name])
        if name not in found:
            raise NotFoundError(
                f"partition {name!r} of table {path} does not exist: create it with admin.create_partition(path, "
                f"{spec.get_spec_map()}), or set writer.dynamic-create-partition.enabled=true",
                ErrorCode.PARTITION_NOT_EXISTS,
            )
        return found[name]

    async def _make(self, path: TablePath, spec: PartitionSpec) -> None:
        request = pb.CreatePartitionRequest(ignore_if_exists=True)
        set_path(request.table_path, path)
        set_spec(request.partition_spec, spec)
        await self._metadata.ask_coordinator(api_keys.CREATE_PARTITION, request, self._timeout_s)

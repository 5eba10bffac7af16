"""Which partition rows belong to, and finding it, or making it where that is wanted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from fluss.client.cluster.metadata import Metadata
from fluss.client.cluster.views import set_path, set_spec
from fluss.client.write.routing import BucketSplit, OneBucket, bucket_splitter, split_by_index
from fluss.formats.rows.partition_values import partition_names
from fluss.model.config import Config
from fluss.model.errors import ErrorCode, NotFoundError
from fluss.model.infos import TableInfo
from fluss.model.partitions import PartitionSpec, spec_of_name
from fluss.model.paths import TablePath
from fluss.model.schema import Schema
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb

Route: TypeAlias = tuple[str | None, int, pa.RecordBatch]
"""(partition name or None, bucket, rows)"""


class RowPartitions(NamedTuple):
    """For each row the index of its partition's name."""

    indexes: pa.Array
    names: list[str]


Router: TypeAlias = Callable[[pa.RecordBatch], tuple[list[Route], RowPartitions | None]]


def router(info: TableInfo, config: Config) -> Router:
    """Where rows of a table go. Rows of one bucket keep their order."""
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

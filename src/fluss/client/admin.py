"""Databases, tables, partitions, offsets and statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fluss.client.alteration import ColumnLike, alter_request
from fluss.client.cluster.ask import ask
from fluss.client.cluster.cluster import Cluster
from fluss.client.cluster.offsets import BucketKey, list_offsets, table_stats
from fluss.client.cluster.views import partition_info, set_path, set_spec, table_info
from fluss.client.lake import get_lake_snapshot
from fluss.model.descriptor import DatabaseDescriptor, TableDescriptor, schema_from_bytes
from fluss.model.errors import ConnectError, ErrorCode, InvalidRequestError, NotFoundError
from fluss.model.infos import (
    ConfigEntry,
    DatabaseInfo,
    LakeSnapshot,
    PartitionInfo,
    SchemaInfo,
    ServerNode,
    TableInfo,
    TableStats,
)
from fluss.model.offsets import OffsetSpec
from fluss.model.partitions import PartitionBound, PartitionSpec
from fluss.model.paths import TablePath
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.api_keys import Api, Req, Resp


class AdminCore:
    """Coroutines on the I/O loop. All but the offsets are answered by the coordinator."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create_database(
        self, name: str, descriptor: DatabaseDescriptor | None = None, ignore_if_exists: bool = False
    ) -> None:
        """Make a database."""
        request = pb.CreateDatabaseRequest(database_name=name, ignore_if_exists=ignore_if_exists)
        if descriptor is not None:
            request.database_json = descriptor.to_json()
        await self._change(api_keys.CREATE_DATABASE, request)

    async def drop_database(self, name: str, ignore_if_not_exists: bool = False, cascade: bool = True) -> None:
        """Remove a database, with its tables when `cascade` is set."""
        request = pb.DropDatabaseRequest(database_name=name, ignore_if_not_exists=ignore_if_not_exists, cascade=cascade)
        known = self._cluster.metadata.tables_of(name)
        await self._change(api_keys.DROP_DATABASE, request)
        self._cluster.metadata.dropped(known)

    async def list_databases(self) -> list[str]:
        """All databases."""
        return list((await self._read(api_keys.LIST_DATABASES, pb.ListDatabasesRequest())).database_name)

    async def database_exists(self, name: str) -> bool:
        """Whether there is such a database."""
        request = pb.DatabaseExistsRequest(database_name=name)
        return (await self._read(api_keys.DATABASE_EXISTS, request)).exists

    async def get_database_info(self, name: str) -> DatabaseInfo:
        """Comment, properties and times of a database."""
        answer = await self._read(api_keys.GET_DATABASE_INFO, pb.GetDatabaseInfoRequest(database_name=name))
        descriptor = DatabaseDescriptor.from_json(answer.database_json)
        return DatabaseInfo(name, descriptor, answer.created_time, answer.modified_time)

    async def create_table(self, path: TablePath, descriptor: TableDescriptor, ignore_if_exists: bool = False) -> None:
        """Make a table."""
        request = pb.CreateTableRequest(table_json=descriptor.to_json(), ignore_if_exists=ignore_if_exists)
        set_path(request.table_path, path)
        await self._change(api_keys.CREATE_TABLE, request)

    async def drop_table(self, path: TablePath, ignore_if_not_exists: bool = False) -> None:
        """Remove a table."""
        request = pb.DropTableRequest(ignore_if_not_exists=ignore_if_not_exists)
        set_path(request.table_path, path)
        known = self._cluster.metadata.table(path)
        await self._change(api_keys.DROP_TABLE, request)
        self._cluster.metadata.dropped([] if known is None else [known])

    async def get_table_info(self, path: TablePath) -> TableInfo:
        """Schema, properties and ids of a table."""
        request = pb.GetTableInfoRequest()
        set_path(request.table_path, path)
        answer = await self._read(api_keys.GET_TABLE_INFO, request)
        return table_info(path, answer)

    async def list_tables(self, database: str) -> list[str]:
        """Names of a database's tables."""
        return list((await self._read(api_keys.LIST_TABLES, pb.ListTablesRequest(database_name=database))).table_name)

    async def table_exists(self, path: TablePath) -> bool:
        """Whether there is such a table."""
        request = pb.TableExistsRequest()
        set_path(request.table_path, path)
        return (await self._read(api_keys.TABLE_EXISTS, request)).exists

    async def alter_table(
        self,
        path: TablePath,
        add_columns: Iterable[ColumnLike] | None = None,
        set_properties: Mapping[str, str] | None = None,
        reset_properties: Sequence[str] | None = None,
        ignore_if_not_exists: bool = False,
    ) -> None:
        """Add columns, or change properties."""
        request = alter_request(path, add_columns, set_properties, reset_properties, ignore_if_not_exists)
        await self._change(api_keys.ALTER_TABLE, request)

    async def get_table_schema(self, path: TablePath, schema_id: int | None = None) -> SchemaInfo:
        """A schema of a table; the latest without `schema_id`."""
        request = pb.GetTableSchemaRequest()
        set_path(request.table_path, path)
        if schema_id is not None:
            request.schema_id = schema_id
        answer = await self._read(api_keys.GET_TABLE_SCHEMA, request)
        return SchemaInfo(answer.schema_id, schema_from_bytes(answer.schema_json))

    async def list_offsets(self, path: TablePath, bucket_ids: Sequence[int], spec: OffsetSpec) -> dict[int, int]:
        """One offset per bucket."""
        info = await self._cluster.ready_table(path)
        buckets = [(None, bucket) for bucket in bucket_ids]
        offsets = await list_offsets(self._cluster, info, buckets, spec)
        return {bucket: offset for (_, bucket), offset in offsets.items()}

    async def create_partition(
        self, path: TablePath, spec: PartitionSpec, ignore_if_exists: bool = False, bound: PartitionBound | None = None
    ) -> None:
        """Make a partition."""
        request = pb.CreatePartitionRequest(ignore_if_exists=ignore_if_exists)
        if bound is not None:
            request.newer_than_id, request.newer_max = bound
        set_path(request.table_path, path)
        set_spec(request.partition_spec, spec)
        await self._change(api_keys.CREATE_PARTITION, request)

    async def drop_partition(self, path: TablePath, spec: PartitionSpec, ignore_if_not_exists: bool = False) -> None:
        """Remove a partition and its rows."""
        request = pb.DropPartitionRequest(ignore_if_not_exists=ignore_if_not_exists)
        set_path(request.table_path, path)
        set_spec(request.partition_spec, spec)
        await self._change(api_keys.DROP_PARTITION, request)

    async def list_partition_infos(self, path: TablePath, spec: PartitionSpec | None = None) -> list[PartitionInfo]:
        """All partitions, or those that have the values of `spec`."""
        request = pb.ListPartitionInfosRequest()
        set_path(request.table_path, path)
        if spec is not None:
            set_spec(request.partial_partition_spec, spec)
        answer = await self._read(api_keys.LIST_PARTITION_INFOS, request)
        return list(map(partition_info, answer.partitions_info))

    async def list_partition_offsets(
        self, path: TablePath, partition_name: str, bucket_ids: Sequence[int], spec: OffsetSpec
    ) -> dict[int, int]:
        """One offset per bucket of a partition."""
        info = await self._cluster.ready_table(path)
        partition_id = await self._partition_id(info, partition_name)
        buckets: list[BucketKey] = [(partition_id, bucket) for bucket in bucket_ids]
        offsets = await list_offsets(self._cluster, info, buckets, spec)
        return {bucket: offset for (_, bucket), offset in offsets.items()}

    async def _partition_id(self, info: TableInfo, name: str) -> int:
        path = info.table_path
        if not info.is_partitioned():
            raise InvalidRequestError(f"Table {path} has no partitions.", ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION)
        found = await self._cluster.metadata.find_partitions(path, [name])
        if name not in found:
            raise NotFoundError(
                f"Table {path} has no partition {name!r}; admin.list_partition_infos(path) lists those it has.",
                ErrorCode.PARTITION_NOT_EXISTS,
            )
        return found[name]

    async def get_table_stats(self, path: TablePath, partition_name: str | None = None) -> TableStats:
        """How many rows a table, or one of its partitions, has."""
        info = await self._cluster.ready_table(path)
        metadata = self._cluster.metadata
        partition_ids: list[int | None] = [None]
        if partition_name is not None:
            partition_ids = [await self._partition_id(info, partition_name)]
        elif info.is_partitioned():
            names = [partition.partition_name for partition in await self.list_partition_infos(path)]
            partition_ids = list((await metadata.find_partitions(path, names)).values())
        buckets = [(partition_id, bucket) for partition_id in partition_ids for bucket in range(info.num_buckets)]
        counts = await table_stats(self._cluster, info, buckets)
        by_bucket = dict.fromkeys(range(info.num_buckets), 0)
        for (_, bucket), row_count in counts.items():
            by_bucket[bucket] += row_count
        return TableStats(sum(by_bucket.values()), by_bucket)

    async def get_latest_lake_snapshot(self, path: TablePath) -> LakeSnapshot:
        """How far a table has been tiered to the lake."""
        return await get_lake_snapshot(self._cluster, path)

    async def describe_cluster_configs(self) -> list[ConfigEntry]:
        """The cluster's settings that it tells."""
        answer = await self._read(api_keys.DESCRIBE_CLUSTER_CONFIGS, pb.DescribeClusterConfigsRequest())
        return [
            ConfigEntry(
                item.config_key, item.config_value if item.HasField("config_value") else None, item.config_source
            )
            for item in answer.configs
        ]

    async def get_server_nodes(self) -> list[ServerNode]:
        """The cluster's servers."""
        self._cluster.check_usable()
        await self._cluster.metadata.refresh()
        return self._cluster.metadata.cluster.nodes()

    async def _change(self, api: Api[Req, Resp], request: Req) -> Resp:
        """Sent once: after a lost connection nobody knows whether it was done."""
        self._cluster.check_usable()
        connection = await self._cluster.coordinator()
        try:
            return await connection.request(api, request, self._cluster.request_timeout_s)
        except ConnectError as error:
            raise ConnectError(
                f"{error.message} It is not known whether {api.name} was done; look before you repeat it."
            ) from error

    async def _read(self, api: Api[Req, Resp], request: Req) -> Resp:
        return await ask(self._cluster, api, request)

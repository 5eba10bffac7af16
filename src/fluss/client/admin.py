"""Administration: databases, tables, partitions, offsets, statistics, backups, and snapshots in the lake.

All requests about the lake may be repeated without harm: a prepared file that nobody commits is removed, and a table
that was handed out twice is due again when its job is silent. To register a snapshot again takes care: Apache Fluss
then counts it as its own predecessor, and removes the offsets file of both.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from fluss.client.cluster.cluster import BucketKey, Cluster, ask, ask_once, list_offsets, table_stats
from fluss.client.cluster.metadata import partition_info, set_path, set_spec, table_info
from fluss.client.net.connection import STALE_METADATA_CODES, server_error
from fluss.doors import randomness
from fluss.model.descriptor import DatabaseDescriptor, TableDescriptor, schema_from_bytes
from fluss.model.errors import (
    ConnectError,
    CorruptDataError,
    ErrorCode,
    FlussError,
    InvalidRequestError,
    NotFoundError,
    error_from_code,
)
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
from fluss.model.paths import TableBucket, TablePath
from fluss.model.schema import Column
from fluss.model.staging import LAKE_ERROR_CHARACTERS_MAX, Assigned, Heartbeat, LakeError
from fluss.model.types import DataType, type_to_json
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.api_keys import Api, Req, Resp

SET, DELETE = 0, 1
POSITION_LAST = 0

ColumnLike: TypeAlias = Column | tuple[Any, ...] | Any
"""A Column, (name, type), (name, type, comment) with a Fluss or PyArrow type, or a PyArrow field."""


def alter_request(
    path: TablePath,
    add_columns: Iterable[ColumnLike] | None,
    set_properties: Mapping[str, str] | None,
    reset_properties: Sequence[str] | None,
    ignore_if_not_exists: bool,
) -> pb.AlterTableRequest:
    """The request; code 56 when there is nothing to change or what can't be changed together."""
    columns = [column_of(item) for item in add_columns or ()]
    if isinstance(reset_properties, str):
        raise _bad("reset_properties takes a list of keys, not one string")
    both = set(set_properties or ()) & set(reset_properties or ())
    if both:
        raise _bad(f"The property {min(both)!r} can't be set and reset at once")
    if columns and (set_properties or reset_properties):
        raise _bad("Columns and properties can't be altered in one call; make two")
    if not columns and not set_properties and not reset_properties:
        raise _bad("Nothing to alter: pass add_columns, set_properties or reset_properties")
    request = pb.AlterTableRequest(ignore_if_not_exists=ignore_if_not_exists)
    set_path(request.table_path, path)
    for column in columns:
        item = request.add_columns.add(
            column_name=column.name,
            data_type_json=json.dumps(type_to_json(column.data_type)).encode(),
            comment=column.comment,
            column_position_type=POSITION_LAST,
        )
        if column.agg_function is not None:
            item.agg_function_type = column.agg_function.type
            for name, parameter in column.agg_function.parameters.items():
                item.agg_function_params.add(key=name, value=parameter)
    for key, value in (set_properties or {}).items():
        request.config_changes.add(config_key=key, config_value=_text(key, value), op_type=SET)
    for key in reset_properties or ():
        request.config_changes.add(config_key=key, op_type=DELETE)
    return request


def column_of(item: ColumnLike) -> Column:
    """A column in any of the spellings."""
    if isinstance(item, Column):
        column = item
    elif isinstance(item, tuple) and len(item) in (2, 3) and isinstance(item[0], str):
        column = Column(item[0], _data_type(item[0], item[1]), item[2] if len(item) == 3 else None)
    elif hasattr(item, "name") and hasattr(item, "type") and hasattr(item, "nullable"):
        data_type = _data_type(item.name, item.type)
        column = Column(item.name, data_type if item.nullable else data_type.not_null())
    else:
        raise _bad(f"A column is (name, type), (name, type, comment) or a PyArrow field, not {item!r:.80}")
    if not column.data_type.nullable:
        raise _bad(f"The new column {column.name!r} must be nullable: rows that are there already have no value for it")
    return column


def _data_type(name: str, data_type: Any) -> DataType:
    if isinstance(data_type, DataType):
        return data_type
    import pyarrow as pa

    from fluss.model.forms.arrow_types import from_arrow

    if not isinstance(data_type, pa.DataType):
        raise _bad(f"The type of column {name!r} must be of DataTypes or PyArrow, not {data_type!r:.80}")
    return from_arrow(data_type)


def _text(key: str, value: object) -> str:
    if not isinstance(key, str) or not isinstance(value, str):
        raise _bad(f"Properties map strings to strings, not {key!r} to {value!r:.80}")
    return value


def _bad(text: str) -> InvalidRequestError:
    return InvalidRequestError(f"{text}.", ErrorCode.INVALID_ALTER_TABLE_EXCEPTION)


POLL_S: Final = 0.1


class BackupStatus(NamedTuple):
    """How far a backup has come, or what it has in the end."""

    table_count: int
    bucket_count: int  # with rows
    bytes_done: int
    bytes_total: int  # 0: not known yet
    elapsed_ms: int


async def make_backup(cluster: Cluster, directory: str, on_status: Callable[[BackupStatus], None]) -> BackupStatus:
    """Let the server make a backup and return when it is on its disk; it goes on if the caller goes away."""
    cluster.check_usable()
    connection = await cluster.coordinator()
    if api_keys.START_BACKUP.key not in connection.versions:
        raise InvalidRequestError(
            f"Backups need a Flussbett server; the one at {connection.address} can't make one.",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    backup_id = randomness.new_uuid().hex
    await ask(cluster, api_keys.START_BACKUP, pb.StartBackupRequest(backup_id=backup_id, directory=directory))
    while True:
        answer = await ask(cluster, api_keys.GET_BACKUP, pb.GetBackupRequest(backup_id=backup_id))
        if answer.HasField("error_code"):
            raise error_from_code(answer.error_code, answer.error_message)
        status = BackupStatus(
            answer.table_count, answer.bucket_count, answer.bytes_done, answer.bytes_total, answer.elapsed_ms
        )
        if answer.is_done:
            return status
        on_status(status)
        await asyncio.sleep(POLL_S)


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


KEEP_ALL: Final = -1


async def get_lake_snapshot(cluster: Cluster, path: TablePath, snapshot_id: int | None = None) -> LakeSnapshot:
    """A registered lake snapshot; the latest without `snapshot_id`."""
    request = pb.GetLakeSnapshotRequest()
    set_path(request.table_path, path)
    if snapshot_id is not None:
        request.snapshot_id = snapshot_id
    answer = await ask(cluster, api_keys.GET_LAKE_SNAPSHOT, request)
    offsets = {
        TableBucket(
            answer.table_id, item.bucket_id, item.partition_id if item.HasField("partition_id") else None
        ): item.log_offset
        for item in answer.bucket_snapshots
        if item.HasField("log_offset")
    }
    return LakeSnapshot(answer.snapshot_id, offsets)


class LakeCore:
    """Coroutines on the I/O loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def find_snapshot(self, path: TablePath, snapshot_id: int | None = None) -> LakeSnapshot | None:
        """The snapshot that `get_lake_snapshot` returns, or None if the table has none."""
        try:
            return await get_lake_snapshot(self._cluster, path, snapshot_id)
        except FlussError as error:
            if error.error_code != ErrorCode.LAKE_SNAPSHOT_NOT_EXIST:
                raise
            return None

    async def prepare(self, info: TableInfo, offsets: Mapping[TableBucket, int]) -> str:
        """Let the server write down how far a snapshot reaches; returns the path of that file."""
        request = pb.PrepareLakeTableSnapshotRequest()
        table = request.bucket_offsets.add(table_id=info.table_id)
        set_path(table.table_path, info.table_path)
        for bucket, offset in offsets.items():
            table.bucket_offsets.add(
                partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, log_end_offset=offset
            )
        answer = await ask(self._cluster, api_keys.PREPARE_LAKE_TABLE_SNAPSHOT, request)
        for item in answer.prepare_lake_table_resp:
            _raise_if_failed(item)
            if item.lake_table_offsets_path:
                return item.lake_table_offsets_path
        raise _no_answer(info)

    async def commit(
        self,
        info: TableInfo,
        snapshot_id: int,
        offsets_path: str,
        offsets: Mapping[TableBucket, int],
        earliest_to_keep: int | None,
    ) -> None:
        """Register a snapshot that the lake has; one that is registered stays as it is."""
        if await self.find_snapshot(info.table_path, snapshot_id) is not None:
            return
        request = pb.CommitLakeTableSnapshotRequest()
        metadata = request.lake_table_snapshot_metadata.add(
            table_id=info.table_id,
            snapshot_id=snapshot_id,
            tiered_bucket_offsets_file_path=offsets_path,
            readable_bucket_offsets_file_path=offsets_path,
            earliest_snapshot_id_to_keep=earliest_to_keep,
        )
        # Without these, tablet servers of a cluster do not learn how far the lake reaches.
        table = request.tables_req.add(table_id=info.table_id, snapshot_id=snapshot_id)
        set_path(table.table_path, info.table_path)
        for bucket, offset in offsets.items():
            table.buckets_req.add(partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, log_end_offset=offset)
        try:
            answer = await ask_once(self._cluster, api_keys.COMMIT_LAKE_TABLE_SNAPSHOT, request)
        except FlussError as error:
            if error.error_code not in STALE_METADATA_CODES:
                raise
            # It may have been done. Then the snapshot is among those there are, and has to be kept.
            if earliest_to_keep is None:
                metadata.earliest_snapshot_id_to_keep = snapshot_id
            answer = await ask(self._cluster, api_keys.COMMIT_LAKE_TABLE_SNAPSHOT, request)
        for item in answer.table_resp:
            _raise_if_failed(item)
        if not answer.table_resp:
            raise _no_answer(info)

    async def heartbeat(
        self,
        tiering: Iterable[Assigned],
        finished: Iterable[Assigned],
        failed: Iterable[Assigned],
        request_table: bool,
    ) -> Heartbeat:
        """Tell which tables are being tiered, done or given up, and ask for another."""
        request = pb.LakeTieringHeartbeatRequest(
            tiering_tables=map(_reported, tiering),
            finished_tables=map(_reported, finished),
            failed_tables=map(_reported, failed),
            request_table=request_table,
        )
        answer = await ask(self._cluster, api_keys.LAKE_TIERING_HEARTBEAT, request)
        errors = {
            item.table_id: server_error(item.error.error_code, item.error.error_message)
            for items in (answer.tiering_table_resp, answer.finished_table_resp, answer.failed_table_resp)
            for item in items
            if item.HasField("error")
        }
        assigned = None
        if answer.HasField("tiering_table"):
            table = answer.tiering_table
            path = TablePath(table.table_path.database_name, table.table_path.table_name)
            assigned = Assigned(table.table_id, path, table.tiering_epoch, answer.coordinator_epoch)
        return Heartbeat(assigned, errors)

    async def report(self, table_id: int, error: str | None) -> None:
        """Tell how a round ended, for people to see: why it failed, None if it did not; Apache Fluss is not told."""
        if await self._knows(api_keys.REPORT_LAKE_ROUND):
            await ask(self._cluster, api_keys.REPORT_LAKE_ROUND, _round_report(table_id, error))

    async def last_error(self, table_id: int) -> LakeError | None:
        """Why the last round of a table failed; None if it did not, or if the server does not keep that."""
        if not await self._knows(api_keys.GET_LAKE_ERROR):
            return None
        answer = await ask(self._cluster, api_keys.GET_LAKE_ERROR, pb.GetLakeErrorRequest(table_id=table_id))
        return LakeError(answer.error, answer.time_ms) if answer.HasField("error") else None

    async def can_forget(self) -> bool:
        """Whether the server can forget snapshots while their table lives, which Apache Fluss can't."""
        return await self._knows(api_keys.FORGET_LAKE_SNAPSHOTS)

    async def forget(self, table_id: int) -> None:
        """Have the server forget all snapshots of a table."""
        request = pb.ForgetLakeSnapshotsRequest(table_id=table_id)
        await ask(self._cluster, api_keys.FORGET_LAKE_SNAPSHOTS, request)

    async def _knows(self, api: Api[Any, Any]) -> bool:
        self._cluster.check_usable()
        connection = await self._cluster.coordinator()
        return api.key in connection.versions


def _round_report(table_id: int, error: str | None) -> pb.ReportLakeRoundRequest:
    # Not all texts of Python are UTF-8.
    text = None if error is None else error[:LAKE_ERROR_CHARACTERS_MAX].encode(errors="replace").decode()
    return pb.ReportLakeRoundRequest(table_id=table_id, error=text)


def _reported(table: Assigned) -> pb.PbHeartbeatReqForTable:
    return pb.PbHeartbeatReqForTable(
        table_id=table.table_id, coordinator_epoch=table.coordinator_epoch, tiering_epoch=table.tiering_epoch
    )


def _raise_if_failed(item: pb.PbPrepareLakeTableRespForTable | pb.PbCommitLakeTableSnapshotRespForTable) -> None:
    if item.error_code:
        raise server_error(item.error_code, item.error_message)


def _no_answer(info: TableInfo) -> FlussError:
    return CorruptDataError(
        f"The server's answer says nothing of table {info.table_path}; is it a version that knows lake snapshots?",
        ErrorCode.CORRUPT_MESSAGE,
    )

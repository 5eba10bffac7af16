"""The table of all requests that the server answers: the way of each to its handler, and what it touches.

Of the resources that a request touches, and on which rights can be given: the cluster has databases, and they have
tables. Names and ids are taken as they come: whether there is such a table, and whether a name could be one, is the
handler's business. What a request touches follows Apache Fluss: to create a database touches the cluster, to create a
table the database, and all that is in a table touches the table.

A new request is a row here and an `Api` in `protocol/api_keys.py`; docs/hacking.md has all the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Protocol, TypeAlias

from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.paths import TablePath
from fluss.protocol import api_keys as apis
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.api_keys import Api, Req, Resp
from fluss.protocol.frames import Request
from fluss.protocol.protobuf import parse_request
from fluss.protocol.writes import parse_produce_log, parse_put_kv, parse_stage_write
from fluss.server.handlers import cluster as clusters
from fluss.server.handlers import connection, logs, lookups, snapshots, staging, tables, writes
from fluss.server.net.context import ConnectionContext, Handled, InTurn


class ResourceKind(Enum):
    """What is named, and how."""

    CLUSTER = auto()
    DATABASE = auto()
    """By name"""
    TABLE = auto()
    """By path"""
    TABLE_ID = auto()
    """A table, by its id"""
    PARTITION_ID = auto()
    """The table of a partition, by the id of that"""
    LEASE = auto()
    """The tables with snapshots that a lease keeps, by its name"""
    PRODUCER = auto()
    """The tables whose offsets a producer has registered, by its id"""


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that a request names."""

    kind: ResourceKind
    name: str | int | TablePath | None = None


Resources: TypeAlias = tuple[Resource, ...]
"""Each once, in the order of the request; none if anybody may ask it"""

_CLUSTER: Final = (Resource(ResourceKind.CLUSTER),)


class _NamesDatabase(Protocol):
    @property
    def database_name(self) -> str: ...


class _NamesTable(Protocol):
    @property
    def table_path(self) -> pb.PbTablePath: ...


class _NamesTableId(Protocol):
    @property
    def table_id(self) -> int: ...


def nothing(_: object) -> Resources:
    """No resources: anybody may ask."""
    return ()


def cluster(_: object) -> Resources:
    """The cluster as a whole."""
    return _CLUSTER


def database(request: _NamesDatabase) -> Resources:
    """The database that is named."""
    return (Resource(ResourceKind.DATABASE, request.database_name),)


def database_of_table(request: _NamesTable) -> Resources:
    """The database of a table that is to be."""
    return database(request.table_path)


def table(request: _NamesTable) -> Resources:
    """The table that is named."""
    return _tables([request.table_path])


def table_id(request: _NamesTableId) -> Resources:
    """The table whose id is given."""
    return _table_ids([request])


def written_tables(request: pb.InitWriterRequest) -> Resources:
    """The tables that are to be written; a writer that names none may write them all."""
    return _tables(request.table_path) or _CLUSTER


def described_tables(request: pb.MetadataRequest) -> Resources:
    """The tables that are named, those of partitions, too."""
    paths: list[pb.PbTablePath | pb.PbPhysicalTablePath] = [*request.table_path, *request.partitions_path]
    partitions = (Resource(ResourceKind.PARTITION_ID, partition_id) for partition_id in request.partitions_id)
    return _once([*_tables(paths), *partitions])


def fetched_tables(request: pb.FetchLogRequest) -> Resources:
    """The tables that are read."""
    return _table_ids(request.tables_req)


def scanned_table(request: pb.ScanKvRequest) -> Resources:
    """The table that a scan begins with; who goes on with one has named its table on the same connection."""
    return _table_ids([request.bucket_scan_req]) if request.HasField("bucket_scan_req") else ()


def prepared_tables(request: pb.PrepareLakeTableSnapshotRequest) -> Resources:
    """The tables whose offsets are told."""
    return _tables([item.table_path for item in request.bucket_offsets])


def committed_tables(request: pb.CommitLakeTableSnapshotRequest) -> Resources:
    """The tables whose snapshots are told."""
    return _table_ids([*request.lake_table_snapshot_metadata, *request.tables_req])


def tiered_tables(request: pb.LakeTieringHeartbeatRequest) -> Resources:
    """The cluster, of which a tiering job gets any table, and the tables that it reports."""
    reported = _table_ids([*request.tiering_tables, *request.finished_tables, *request.failed_tables])
    forced = (Resource(ResourceKind.TABLE_ID, number) for number in request.force_finished_tables)
    return _once([*_CLUSTER, *reported, *forced])


def leased_tables(request: pb.AcquireKvSnapshotLeaseRequest) -> Resources:
    """The tables whose snapshots are to be kept."""
    return _table_ids(request.snapshots_to_lease)


def released_tables(request: pb.ReleaseKvSnapshotLeaseRequest) -> Resources:
    """The tables whose snapshots need not be kept any more."""
    return _table_ids(request.buckets_to_release)


def tables_of_lease(request: pb.DropKvSnapshotLeaseRequest) -> Resources:
    """All tables of a lease."""
    return (Resource(ResourceKind.LEASE, request.lease_id),)


def registered_tables(request: pb.RegisterProducerOffsetsRequest) -> Resources:
    """The tables that a producer is going to write."""
    return _table_ids(request.table_offsets)


def tables_of_producer(request: pb.GetProducerOffsetsRequest | pb.DeleteProducerOffsetsRequest) -> Resources:
    """All tables of a producer."""
    return (Resource(ResourceKind.PRODUCER, request.producer_id),)


def _tables(paths: Sequence[pb.PbTablePath | pb.PbPhysicalTablePath]) -> Resources:
    return _once(Resource(ResourceKind.TABLE, TablePath(path.database_name, path.table_name)) for path in paths)


def _table_ids(items: Iterable[_NamesTableId]) -> Resources:
    return _once(Resource(ResourceKind.TABLE_ID, item.table_id) for item in items)


def _once(found: Iterable[Resource]) -> Resources:
    return tuple(dict.fromkeys(found))


class Reply(Enum):
    """When the next request of the connection begins."""

    IN_TURN = auto()
    """When this one is answered"""
    DEFERRED = auto()
    """When this one has begun; its answer waits for something that happens by itself"""
    CONCURRENT = auto()
    """At once: this one is worked on in a task of its own, unless it is done at once, too"""


@dataclass(frozen=True, slots=True)
class Route:
    """How one kind of request is answered."""

    api: Api[Any, Any]
    """Number, messages and versions; whether it needs a login, and whether it is of this package alone"""
    handle: Callable[..., Handled]
    """Called with the connection's context, the request and, if `is_versioned`, its version"""
    resources: Callable[[Any], Resources]
    """What a request touches: for rights, which are still to come"""
    reply: Reply = Reply.IN_TURN
    parse: Callable[[memoryview, int], Any] | None = None
    """Reads a body that carries rows, and how many buckets it may name; None: protobuf's message"""
    is_at_once: bool = False
    """Most clients wait for it, so that it waits for no turn"""
    is_versioned: bool = False
    needs_room: bool = False
    """It is refused while the disk is nearly full; appends are checked by the logs"""


def _in_turn(
    api: Api[Req, Resp],
    handle: Callable[[ConnectionContext, Req], InTurn],
    resources: Callable[[Req], Resources],
    *,
    needs_room: bool = False,
) -> Route:
    """A request as most are: read by the protobuf library, and answered before the next one begins."""
    return Route(api, handle, resources, needs_room=needs_room)


def _by_key(*routes: Route) -> dict[int, Route]:
    table = {route.api.key: route for route in routes}
    assert len(table) == len(routes), "a key has two rows"
    return table


ROUTES: Final = _by_key(
    # Connections and the cluster
    _in_turn(apis.API_VERSIONS, connection.api_versions, nothing),
    _in_turn(apis.AUTHENTICATE, connection.authenticate, nothing),
    _in_turn(apis.GET_FILE_SYSTEM_SECURITY_TOKEN, connection.get_file_system_security_token, nothing),
    _in_turn(apis.METADATA, connection.metadata, described_tables),
    _in_turn(apis.DESCRIBE_CLUSTER_CONFIGS, clusters.describe_cluster_configs, cluster),
    _in_turn(apis.ALTER_CLUSTER_CONFIGS, clusters.alter_cluster_configs, cluster),
    _in_turn(apis.ADD_SERVER_TAG, clusters.add_server_tag, cluster),
    _in_turn(apis.REMOVE_SERVER_TAG, clusters.remove_server_tag, cluster),
    _in_turn(apis.REBALANCE, clusters.rebalance, cluster),
    _in_turn(apis.LIST_REBALANCE_PROGRESS, clusters.list_rebalance_progress, cluster),
    _in_turn(apis.CANCEL_REBALANCE, clusters.cancel_rebalance, cluster),
    _in_turn(apis.GET_CLUSTER_HEALTH, clusters.get_cluster_health, cluster),
    # Databases, tables, partitions
    _in_turn(apis.CREATE_DATABASE, tables.create_database, cluster),
    _in_turn(apis.DROP_DATABASE, tables.drop_database, database),
    _in_turn(apis.LIST_DATABASES, tables.list_databases, cluster),
    _in_turn(apis.DATABASE_EXISTS, tables.database_exists, database),
    _in_turn(apis.GET_DATABASE_INFO, tables.get_database_info, database),
    _in_turn(apis.ALTER_DATABASE, tables.alter_database, database),
    _in_turn(apis.CREATE_TABLE, tables.create_table, database_of_table, needs_room=True),
    _in_turn(apis.ALTER_TABLE, tables.alter_table, table),
    _in_turn(apis.DROP_TABLE, tables.drop_table, table),
    _in_turn(apis.LIST_TABLES, tables.list_tables, database),
    _in_turn(apis.TABLE_EXISTS, tables.table_exists, table),
    _in_turn(apis.GET_TABLE_INFO, tables.get_table_info, table),
    _in_turn(apis.GET_TABLE_SCHEMA, tables.get_table_schema, table),
    _in_turn(apis.CREATE_PARTITION, tables.create_partition, table, needs_room=True),
    _in_turn(apis.DROP_PARTITION, tables.drop_partition, table),
    _in_turn(apis.LIST_PARTITION_INFOS, tables.list_partition_infos, table),
    # Writing
    _in_turn(apis.INIT_WRITER, writes.init_writer, written_tables),
    Route(apis.PRODUCE_LOG, writes.produce_log, table_id, Reply.DEFERRED, parse_produce_log, is_at_once=True),
    Route(
        apis.PUT_KV,
        writes.put_kv,
        table_id,
        Reply.DEFERRED,
        parse_put_kv,
        is_at_once=True,
        is_versioned=True,
    ),
    _in_turn(apis.REGISTER_PRODUCER_OFFSETS, clusters.register_producer_offsets, registered_tables),
    _in_turn(apis.GET_PRODUCER_OFFSETS, clusters.get_producer_offsets, tables_of_producer),
    _in_turn(apis.DELETE_PRODUCER_OFFSETS, clusters.delete_producer_offsets, tables_of_producer),
    Route(apis.STAGE_WRITE, staging.stage_write, table_id, Reply.CONCURRENT, parse_stage_write),
    Route(apis.COMMIT_STAGED, staging.commit_staged, table_id, Reply.CONCURRENT),
    _in_turn(apis.DROP_STAGED, staging.drop_staged, table_id),
    _in_turn(apis.LIST_STAGED, staging.list_staged, cluster),
    _in_turn(apis.ACCEPT_STAGED, staging.accept_staged, table_id),
    _in_turn(apis.RESET_STAGED, staging.reset_staged, table_id),
    # Reading
    Route(apis.FETCH_LOG, logs.fetch_log, fetched_tables, Reply.DEFERRED, is_at_once=True),
    _in_turn(apis.LIST_OFFSETS, logs.list_offsets, table_id),
    Route(apis.LOOKUP, lookups.lookup, table_id, Reply.CONCURRENT, is_at_once=True, is_versioned=True),
    Route(
        apis.PREFIX_LOOKUP,
        lookups.prefix_lookup,
        table_id,
        Reply.CONCURRENT,
        is_at_once=True,
        is_versioned=True,
    ),
    _in_turn(apis.LIMIT_SCAN, lookups.limit_scan, table_id),
    _in_turn(apis.SCAN_KV, lookups.scan_kv, scanned_table),
    _in_turn(apis.GET_TABLE_STATS, logs.get_table_stats, table_id),
    _in_turn(apis.GET_LATEST_KV_SNAPSHOTS, snapshots.get_latest_kv_snapshots, table),
    _in_turn(apis.GET_KV_SNAPSHOT_METADATA, snapshots.get_kv_snapshot_metadata, table_id),
    _in_turn(apis.LIST_KV_SNAPSHOTS, snapshots.list_kv_snapshots, table_id),
    _in_turn(apis.LIST_REMOTE_LOG_MANIFESTS, snapshots.list_remote_log_manifests, table_id),
    _in_turn(apis.ACQUIRE_KV_SNAPSHOT_LEASE, snapshots.acquire_kv_snapshot_lease, leased_tables),
    _in_turn(apis.RELEASE_KV_SNAPSHOT_LEASE, snapshots.release_kv_snapshot_lease, released_tables),
    _in_turn(apis.DROP_KV_SNAPSHOT_LEASE, snapshots.drop_kv_snapshot_lease, tables_of_lease),
    # The lake, backups
    _in_turn(apis.GET_LAKE_SNAPSHOT, snapshots.get_lake_snapshot, table),
    _in_turn(apis.PREPARE_LAKE_TABLE_SNAPSHOT, snapshots.prepare_lake_table_snapshot, prepared_tables),
    _in_turn(apis.COMMIT_LAKE_TABLE_SNAPSHOT, snapshots.commit_lake_table_snapshot, committed_tables),
    _in_turn(apis.LAKE_TIERING_HEARTBEAT, snapshots.lake_tiering_heartbeat, tiered_tables),
    _in_turn(apis.REPORT_LAKE_ROUND, snapshots.report_lake_round, table_id),
    _in_turn(apis.GET_LAKE_ERROR, snapshots.get_lake_error, table_id),
    _in_turn(apis.FORGET_LAKE_SNAPSHOTS, snapshots.forget_lake_snapshots, table_id),
    _in_turn(apis.START_BACKUP, connection.start_backup, cluster),
    _in_turn(apis.GET_BACKUP, connection.get_backup, cluster),
)


def dispatch(context: ConnectionContext, request: Request) -> Handled:
    """Begin a request: its answer, or what will give the answer."""
    route = ROUTES.get(request.api_key)
    if route is None:
        raise _unknown(request.api_key)
    api = route.api
    if not 0 <= request.api_version <= api.version_max:
        raise FlussError(
            f"This server serves {api.name} in versions 0 to {api.version_max}, not in version {request.api_version}.",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    context.server.metrics.requests[api.key] += 1
    if api.needs_login and context.is_stranger:
        raise connection.login_missing(api.name)
    parsed = _read(context, route, request.body)
    if route.is_versioned:
        return route.handle(context, parsed, request.api_version)
    return route.handle(context, parsed)


def _read(context: ConnectionContext, route: Route, body: memoryview) -> Any:
    limits = context.limits
    if route.parse is not None:
        return route.parse(body, limits.request_items_max)
    if len(body) > limits.control_request_bytes_max:
        raise InvalidRequestError(
            f"A {route.api.name} request may have {limits.control_request_bytes_max} bytes, not {len(body)}.",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )
    if route.needs_room:
        context.storage.disk_guard.admit()
    return parse_request(route.api, body)


def _unknown(api_key: int) -> FlussError:
    known = ", ".join(f"{route.api.name} ({key})" for key, route in sorted(ROUTES.items()) if not route.api.is_own)
    return FlussError(
        f"This server does not serve api key {api_key}; it serves {known}.", ErrorCode.UNSUPPORTED_VERSION
    )

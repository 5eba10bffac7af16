"""The table of all requests that the server answers, and the way of each to its handler.

A new request is a row here and an `Api` in `protocol/api_keys.py`; docs/hacking.md has all the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.protocol import api_keys as apis
from fluss.protocol.api_keys import Api, Req, Resp
from fluss.protocol.frames import Request
from fluss.protocol.protobuf import parse_request
from fluss.protocol.writes import parse_produce_log, parse_put_kv, parse_stage_write
from fluss.server.handlers import (
    backup,
    connection,
    databases,
    fetch,
    kv_snapshots,
    lake,
    lookup,
    offsets,
    produce,
    put_kv,
    scans,
    staging,
    tables,
)
from fluss.server.net import resources
from fluss.server.net.context import ConnectionContext, Handled, InTurn
from fluss.server.net.resources import Resources


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
    _in_turn(apis.API_VERSIONS, connection.api_versions, resources.nothing),
    _in_turn(apis.AUTHENTICATE, connection.authenticate, resources.nothing),
    _in_turn(apis.GET_FILE_SYSTEM_SECURITY_TOKEN, connection.get_file_system_security_token, resources.nothing),
    _in_turn(apis.METADATA, connection.metadata, resources.described_tables),
    _in_turn(apis.DESCRIBE_CLUSTER_CONFIGS, connection.describe_cluster_configs, resources.cluster),
    # Databases, tables, partitions
    _in_turn(apis.CREATE_DATABASE, databases.create_database, resources.cluster),
    _in_turn(apis.DROP_DATABASE, databases.drop_database, resources.database),
    _in_turn(apis.LIST_DATABASES, databases.list_databases, resources.cluster),
    _in_turn(apis.DATABASE_EXISTS, databases.database_exists, resources.database),
    _in_turn(apis.GET_DATABASE_INFO, databases.get_database_info, resources.database),
    _in_turn(apis.CREATE_TABLE, tables.create_table, resources.database_of_table, needs_room=True),
    _in_turn(apis.ALTER_TABLE, tables.alter_table, resources.table),
    _in_turn(apis.DROP_TABLE, tables.drop_table, resources.table),
    _in_turn(apis.LIST_TABLES, tables.list_tables, resources.database),
    _in_turn(apis.TABLE_EXISTS, tables.table_exists, resources.table),
    _in_turn(apis.GET_TABLE_INFO, tables.get_table_info, resources.table),
    _in_turn(apis.GET_TABLE_SCHEMA, tables.get_table_schema, resources.table),
    _in_turn(apis.CREATE_PARTITION, databases.create_partition, resources.table, needs_room=True),
    _in_turn(apis.DROP_PARTITION, databases.drop_partition, resources.table),
    _in_turn(apis.LIST_PARTITION_INFOS, databases.list_partition_infos, resources.table),
    # Writing
    _in_turn(apis.INIT_WRITER, produce.init_writer, resources.written_tables),
    Route(
        apis.PRODUCE_LOG, produce.produce_log, resources.table_id, Reply.DEFERRED, parse_produce_log, is_at_once=True
    ),
    Route(
        apis.PUT_KV,
        put_kv.put_kv,
        resources.table_id,
        Reply.DEFERRED,
        parse_put_kv,
        is_at_once=True,
        is_versioned=True,
    ),
    Route(apis.STAGE_WRITE, staging.stage_write, resources.table_id, Reply.CONCURRENT, parse_stage_write),
    Route(apis.COMMIT_STAGED, staging.commit_staged, resources.table_id, Reply.CONCURRENT),
    _in_turn(apis.DROP_STAGED, staging.drop_staged, resources.table_id),
    _in_turn(apis.LIST_STAGED, staging.list_staged, resources.cluster),
    _in_turn(apis.ACCEPT_STAGED, staging.accept_staged, resources.table_id),
    _in_turn(apis.RESET_STAGED, staging.reset_staged, resources.table_id),
    # Reading
    Route(apis.FETCH_LOG, fetch.fetch_log, resources.fetched_tables, Reply.DEFERRED, is_at_once=True),
    _in_turn(apis.LIST_OFFSETS, offsets.list_offsets, resources.table_id),
    Route(apis.LOOKUP, lookup.lookup, resources.table_id, Reply.CONCURRENT, is_at_once=True, is_versioned=True),
    Route(
        apis.PREFIX_LOOKUP,
        lookup.prefix_lookup,
        resources.table_id,
        Reply.CONCURRENT,
        is_at_once=True,
        is_versioned=True,
    ),
    _in_turn(apis.LIMIT_SCAN, scans.limit_scan, resources.table_id),
    _in_turn(apis.SCAN_KV, scans.scan_kv, resources.scanned_table),
    _in_turn(apis.GET_TABLE_STATS, offsets.get_table_stats, resources.table_id),
    _in_turn(apis.GET_LATEST_KV_SNAPSHOTS, kv_snapshots.get_latest_kv_snapshots, resources.table),
    _in_turn(apis.GET_KV_SNAPSHOT_METADATA, kv_snapshots.get_kv_snapshot_metadata, resources.table_id),
    _in_turn(apis.ACQUIRE_KV_SNAPSHOT_LEASE, kv_snapshots.acquire_kv_snapshot_lease, resources.leased_tables),
    _in_turn(apis.RELEASE_KV_SNAPSHOT_LEASE, kv_snapshots.release_kv_snapshot_lease, resources.released_tables),
    _in_turn(apis.DROP_KV_SNAPSHOT_LEASE, kv_snapshots.drop_kv_snapshot_lease, resources.tables_of_lease),
    # The lake, backups
    _in_turn(apis.GET_LAKE_SNAPSHOT, lake.get_lake_snapshot, resources.table),
    _in_turn(apis.PREPARE_LAKE_TABLE_SNAPSHOT, lake.prepare_lake_table_snapshot, resources.prepared_tables),
    _in_turn(apis.COMMIT_LAKE_TABLE_SNAPSHOT, lake.commit_lake_table_snapshot, resources.committed_tables),
    _in_turn(apis.LAKE_TIERING_HEARTBEAT, lake.lake_tiering_heartbeat, resources.tiered_tables),
    _in_turn(apis.REPORT_LAKE_ROUND, lake.report_lake_round, resources.table_id),
    _in_turn(apis.GET_LAKE_ERROR, lake.get_lake_error, resources.table_id),
    _in_turn(apis.FORGET_LAKE_SNAPSHOTS, lake.forget_lake_snapshots, resources.table_id),
    _in_turn(apis.START_BACKUP, backup.start_backup, resources.cluster),
    _in_turn(apis.GET_BACKUP, backup.get_backup, resources.cluster),
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

"""The table of requests: every key has its row, the row fits its handler, and names what a request touches."""

from __future__ import annotations

import inspect
import re
from typing import Any, get_type_hints

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from fluss.model.errors import CorruptDataError
from fluss.model.paths import TablePath
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.api_keys import Api
from fluss.protocol.protobuf import parse_request
from fluss.server.handlers.writes import DeferredWrite, WriteResponse
from fluss.server.net.context import Concurrent, Handled
from fluss.server.net.routes import ROUTES, Reply, Resource, ResourceKind, Resources, Route

ITEMS_MAX = 10
BY_NAME = pytest.mark.parametrize("route", ROUTES.values(), ids=lambda route: route.api.name)

CLUSTER = Resource(ResourceKind.CLUSTER)
DATABASE = Resource(ResourceKind.DATABASE, "d")
TABLE = Resource(ResourceKind.TABLE, TablePath("d", "t"))
PRODUCER = Resource(ResourceKind.PRODUCER, "p")
OTHER = Resource(ResourceKind.TABLE, TablePath("d", "other"))


def by_id(*table_ids: int) -> Resources:
    return tuple(Resource(ResourceKind.TABLE_ID, table_id) for table_id in table_ids)


def named(table: str = "t") -> pb.PbTablePath:
    return pb.PbTablePath(database_name="d", table_name=table)


def fetch(*table_ids: int) -> pb.FetchLogRequest:
    request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1)
    for table_id in table_ids:
        request.tables_req.add(table_id=table_id, projection_pushdown_enabled=False)
    return request


def metadata() -> pb.MetadataRequest:
    request = pb.MetadataRequest(table_path=[named(), named("other"), named()], partitions_id=[7, 7])
    request.partitions_path.add(database_name="d", table_name="t", partition_name="p")
    request.partitions_path.add(database_name="d", table_name="third", partition_name="p")
    return request


def prepared() -> pb.PrepareLakeTableSnapshotRequest:
    request = pb.PrepareLakeTableSnapshotRequest()
    for number, table in enumerate(("t", "other")):
        request.bucket_offsets.add(table_id=number, table_path=named(table))
    return request


def committed() -> pb.CommitLakeTableSnapshotRequest:
    request = pb.CommitLakeTableSnapshotRequest()
    for table_id in (1, 2):
        request.lake_table_snapshot_metadata.add(table_id=table_id, snapshot_id=1, tiered_bucket_offsets_file_path="f")
        request.tables_req.add(table_id=table_id + 1, snapshot_id=1)
    return request


def heartbeat() -> pb.LakeTieringHeartbeatRequest:
    request = pb.LakeTieringHeartbeatRequest(request_table=True, force_finished_tables=[4, 5])
    for table_id, listed in enumerate((request.tiering_tables, request.finished_tables, request.failed_tables), 1):
        listed.add(table_id=table_id, coordinator_epoch=0, tiering_epoch=0)
    request.finished_tables.add(table_id=4, coordinator_epoch=0, tiering_epoch=0)
    return request


def acquired() -> pb.AcquireKvSnapshotLeaseRequest:
    request = pb.AcquireKvSnapshotLeaseRequest(lease_id="lease", lease_duration_ms=1)
    for table_id in (1, 2):
        request.snapshots_to_lease.add(table_id=table_id).bucket_snapshots.add(bucket_id=0, snapshot_id=0)
    return request


def released() -> pb.ReleaseKvSnapshotLeaseRequest:
    request = pb.ReleaseKvSnapshotLeaseRequest(lease_id="lease")
    for table_id, bucket_id in ((1, 0), (1, 1), (2, 0)):
        request.buckets_to_release.add(table_id=table_id, bucket_id=bucket_id)
    return request


def registered() -> pb.RegisterProducerOffsetsRequest:
    request = pb.RegisterProducerOffsetsRequest(producer_id="p")
    for table_id in (1, 2, 1):
        request.table_offsets.add(table_id=table_id)
    return request


def scan() -> pb.ScanKvRequest:
    request = pb.ScanKvRequest(call_seq_id=0, batch_size_bytes=1)
    request.bucket_scan_req.table_id, request.bucket_scan_req.bucket_id = 3, 0
    return request


STAGED: Any = {"table_id": 3, "query_id": "q", "batch_id": 1}
A = api_keys
TOUCHED: list[tuple[Api[Any, Any], Message, Resources]] = [
    (A.API_VERSIONS, pb.ApiVersionsRequest(client_software_name="", client_software_version=""), ()),
    (A.AUTHENTICATE, pb.AuthenticateRequest(protocol="PLAIN", token=b""), ()),
    (A.GET_FILE_SYSTEM_SECURITY_TOKEN, pb.GetFileSystemSecurityTokenRequest(), ()),
    (A.METADATA, pb.MetadataRequest(), ()),
    (
        A.METADATA,
        metadata(),
        (
            TABLE,
            OTHER,
            Resource(ResourceKind.TABLE, TablePath("d", "third")),
            Resource(ResourceKind.PARTITION_ID, 7),
        ),
    ),
    (A.DESCRIBE_CLUSTER_CONFIGS, pb.DescribeClusterConfigsRequest(), (CLUSTER,)),
    (A.ALTER_CLUSTER_CONFIGS, pb.AlterClusterConfigsRequest(), (CLUSTER,)),
    (A.ADD_SERVER_TAG, pb.AddServerTagRequest(server_tag=0), (CLUSTER,)),
    (A.REMOVE_SERVER_TAG, pb.RemoveServerTagRequest(server_tag=0), (CLUSTER,)),
    (A.REBALANCE, pb.RebalanceRequest(), (CLUSTER,)),
    (A.LIST_REBALANCE_PROGRESS, pb.ListRebalanceProgressRequest(), (CLUSTER,)),
    (A.CANCEL_REBALANCE, pb.CancelRebalanceRequest(), (CLUSTER,)),
    (A.GET_CLUSTER_HEALTH, pb.GetClusterHealthRequest(), (CLUSTER,)),
    (A.ALTER_DATABASE, pb.AlterDatabaseRequest(database_name="d", ignore_if_not_exists=True), (DATABASE,)),
    (A.REGISTER_PRODUCER_OFFSETS, registered(), by_id(1, 2)),
    (A.GET_PRODUCER_OFFSETS, pb.GetProducerOffsetsRequest(producer_id="p"), (PRODUCER,)),
    (A.DELETE_PRODUCER_OFFSETS, pb.DeleteProducerOffsetsRequest(producer_id="p"), (PRODUCER,)),
    (A.LIST_KV_SNAPSHOTS, pb.ListKvSnapshotsRequest(table_id=3), by_id(3)),
    (A.LIST_REMOTE_LOG_MANIFESTS, pb.ListRemoteLogManifestsRequest(table_id=3), by_id(3)),
    (A.CREATE_DATABASE, pb.CreateDatabaseRequest(database_name="d", ignore_if_exists=True), (CLUSTER,)),
    (
        A.DROP_DATABASE,
        pb.DropDatabaseRequest(database_name="d", ignore_if_not_exists=True, cascade=True),
        (DATABASE,),
    ),
    (A.LIST_DATABASES, pb.ListDatabasesRequest(include_summary=True), (CLUSTER,)),
    (A.DATABASE_EXISTS, pb.DatabaseExistsRequest(database_name="d"), (DATABASE,)),
    (A.GET_DATABASE_INFO, pb.GetDatabaseInfoRequest(database_name="d"), (DATABASE,)),
    (
        A.CREATE_TABLE,
        pb.CreateTableRequest(table_path=named(), table_json=b"", ignore_if_exists=True),
        (DATABASE,),
    ),
    (A.ALTER_TABLE, pb.AlterTableRequest(table_path=named(), ignore_if_not_exists=True), (TABLE,)),
    (A.DROP_TABLE, pb.DropTableRequest(table_path=named(), ignore_if_not_exists=True), (TABLE,)),
    (A.LIST_TABLES, pb.ListTablesRequest(database_name="d"), (DATABASE,)),
    (A.TABLE_EXISTS, pb.TableExistsRequest(table_path=named()), (TABLE,)),
    (A.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=named()), (TABLE,)),
    (A.GET_TABLE_SCHEMA, pb.GetTableSchemaRequest(table_path=named()), (TABLE,)),
    (
        A.CREATE_PARTITION,
        pb.CreatePartitionRequest(table_path=named(), partition_spec=pb.PbPartitionSpec(), ignore_if_exists=True),
        (TABLE,),
    ),
    (
        A.DROP_PARTITION,
        pb.DropPartitionRequest(table_path=named(), partition_spec=pb.PbPartitionSpec(), ignore_if_not_exists=True),
        (TABLE,),
    ),
    (A.LIST_PARTITION_INFOS, pb.ListPartitionInfosRequest(table_path=named()), (TABLE,)),
    (A.INIT_WRITER, pb.InitWriterRequest(), (CLUSTER,)),
    (A.INIT_WRITER, pb.InitWriterRequest(table_path=[named(), named("other"), named()]), (TABLE, OTHER)),
    (A.PRODUCE_LOG, pb.ProduceLogRequest(acks=-1, table_id=3, timeout_ms=1), by_id(3)),
    (A.PUT_KV, pb.PutKvRequest(acks=-1, table_id=3, timeout_ms=1), by_id(3)),
    (
        A.STAGE_WRITE,
        pb.StageWriteRequest(**STAGED, task=0, attempt=0, sequence=0, timeout_ms=1),
        by_id(3),
    ),
    (A.COMMIT_STAGED, pb.CommitStagedRequest(**STAGED, timeout_ms=1), by_id(3)),
    (A.DROP_STAGED, pb.DropStagedRequest(**STAGED), by_id(3)),
    (A.LIST_STAGED, pb.ListStagedRequest(), (CLUSTER,)),
    (A.ACCEPT_STAGED, pb.AcceptStagedRequest(**STAGED), by_id(3)),
    (A.RESET_STAGED, pb.ResetStagedRequest(**STAGED), by_id(3)),
    (A.FETCH_LOG, fetch(2, 1, 2), by_id(2, 1)),
    (A.LIST_OFFSETS, pb.ListOffsetsRequest(follower_server_id=-1, offset_type=0, table_id=3), by_id(3)),
    (A.LOOKUP, pb.LookupRequest(table_id=3), by_id(3)),
    (A.PREFIX_LOOKUP, pb.PrefixLookupRequest(table_id=3), by_id(3)),
    (A.LIMIT_SCAN, pb.LimitScanRequest(table_id=3, bucket_id=0, limit=1), by_id(3)),
    (A.SCAN_KV, scan(), by_id(3)),
    (A.SCAN_KV, pb.ScanKvRequest(scanner_id=b"s", call_seq_id=1), ()),
    (A.GET_TABLE_STATS, pb.GetTableStatsRequest(table_id=3), by_id(3)),
    (A.GET_LATEST_KV_SNAPSHOTS, pb.GetLatestKvSnapshotsRequest(table_path=named(), partition_name="p"), (TABLE,)),
    (A.GET_KV_SNAPSHOT_METADATA, pb.GetKvSnapshotMetadataRequest(table_id=3, bucket_id=0, snapshot_id=1), by_id(3)),
    (A.ACQUIRE_KV_SNAPSHOT_LEASE, acquired(), by_id(1, 2)),
    (A.RELEASE_KV_SNAPSHOT_LEASE, released(), by_id(1, 2)),
    (
        A.DROP_KV_SNAPSHOT_LEASE,
        pb.DropKvSnapshotLeaseRequest(lease_id="lease"),
        (Resource(ResourceKind.LEASE, "lease"),),
    ),
    (A.GET_LAKE_SNAPSHOT, pb.GetLakeSnapshotRequest(table_path=named()), (TABLE,)),
    (A.PREPARE_LAKE_TABLE_SNAPSHOT, prepared(), (TABLE, OTHER)),
    (A.COMMIT_LAKE_TABLE_SNAPSHOT, committed(), by_id(1, 2, 3)),
    (A.LAKE_TIERING_HEARTBEAT, heartbeat(), (CLUSTER, *by_id(1, 2, 4, 3, 5))),
    (A.REPORT_LAKE_ROUND, pb.ReportLakeRoundRequest(table_id=3), by_id(3)),
    (A.GET_LAKE_ERROR, pb.GetLakeErrorRequest(table_id=3), by_id(3)),
    (A.FORGET_LAKE_SNAPSHOTS, pb.ForgetLakeSnapshotsRequest(table_id=3), by_id(3)),
    (A.START_BACKUP, pb.StartBackupRequest(backup_id="b", directory="/d"), (CLUSTER,)),
    (A.GET_BACKUP, pb.GetBackupRequest(backup_id="b"), (CLUSTER,)),
]


def test_every_api_has_one_row() -> None:
    assert sorted(ROUTES) == sorted(api_keys.BY_KEY)
    assert all(route.api is api_keys.BY_KEY[key] for key, route in ROUTES.items())


@BY_NAME
def test_a_handler_is_named_after_its_request(route: Route) -> None:
    assert route.handle.__name__ == re.sub(r"(?<!^)(?=[A-Z])", "_", route.api.name).lower()


@BY_NAME
def test_a_handler_takes_what_its_row_says(route: Route) -> None:
    read = route.api.request if route.parse is None else get_type_hints(route.parse)["return"]
    names = list(inspect.signature(route.handle).parameters)
    hints = get_type_hints(route.handle)
    taken = [hints[name] for name in names[1:]]
    assert taken == ([read, int] if route.is_versioned else [read])


@BY_NAME
def test_a_handler_answers_as_its_row_says(route: Route) -> None:
    """Those of IN_TURN may return nothing else than answers, see `_in_turn`: mypy checks that."""
    returned = get_type_hints(route.handle)["return"]
    if route.reply is Reply.CONCURRENT:
        assert returned == Concurrent
    elif route.reply is Reply.DEFERRED:
        assert returned in (Handled, WriteResponse | DeferredWrite)


def test_few_requests_are_of_a_special_kind() -> None:
    def names(wanted: Any) -> set[str]:
        return {route.api.name for route in ROUTES.values() if wanted(route)}

    assert names(lambda route: not route.api.needs_login) == {"ApiVersions", "Authenticate"}
    assert names(lambda route: route.needs_room) == {"CreateTable", "CreatePartition"}
    assert names(lambda route: route.is_at_once) == {"ProduceLog", "PutKv", "FetchLog", "Lookup", "PrefixLookup"}
    assert names(lambda route: route.is_versioned) == {"PutKv", "Lookup", "PrefixLookup"}
    assert names(lambda route: route.reply is Reply.DEFERRED) == {"ProduceLog", "PutKv", "FetchLog"}
    concurrent = {"Lookup", "PrefixLookup", "StageWrite", "CommitStaged"}
    assert names(lambda route: route.reply is Reply.CONCURRENT) == concurrent
    assert names(lambda route: route.api.is_own) == {api.name for api in api_keys.ALL if api.key > 20_000}


def read(route: Route, body: bytes) -> Any:
    if route.parse is not None:
        return route.parse(memoryview(body), ITEMS_MAX)
    return parse_request(route.api, memoryview(body))


@pytest.mark.parametrize(("api", "request_", "touched"), TOUCHED, ids=lambda value: getattr(value, "name", ""))
def test_a_row_names_what_a_request_touches(api: Api[Any, Any], request_: Message, touched: Resources) -> None:
    route = ROUTES[api.key]
    assert route.resources(read(route, request_.SerializeToString())) == touched


def test_what_each_request_touches_is_tried() -> None:
    assert {api.key for api, _, _ in TOUCHED} == set(api_keys.BY_KEY)


@given(sample=st.sampled_from(TOUCHED), place=st.integers(0, 100), value=st.integers(0, 255))
def test_what_can_be_read_has_resources_whatever_it_says(
    sample: tuple[Api[Any, Any], Message, Resources], place: int, value: int
) -> None:
    """Names and ids are checked by handlers, which come after the rights."""
    api, request, _ = sample
    body = bytearray(request.SerializeToString())
    if body:
        body[place % len(body)] = value
    try:
        parsed = read(ROUTES[api.key], bytes(body))
    except CorruptDataError:
        return
    touched = ROUTES[api.key].resources(parsed)
    assert len(set(touched)) == len(touched)

"""Requests of the protocol: number, versions, messages, and whether one must be logged in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

from fluss.protocol import messages_pb2 as pb

Req = TypeVar("Req", bound=Message)
Resp = TypeVar("Resp", bound=Message)


@dataclass(frozen=True, slots=True, eq=False)
class Api(Generic[Req, Resp]):
    """One kind of request."""

    key: int
    name: str
    request: type[Req]
    response: type[Resp]
    version_max: int = 0
    needs_login: bool = True  # on a listener with authentication
    is_own: bool = False  # not in Apache Fluss: named to clients of this package alone


API_VERSIONS = Api(1000, "ApiVersions", pb.ApiVersionsRequest, pb.ApiVersionsResponse, needs_login=False)
CREATE_DATABASE = Api(1001, "CreateDatabase", pb.CreateDatabaseRequest, pb.CreateDatabaseResponse)
DROP_DATABASE = Api(1002, "DropDatabase", pb.DropDatabaseRequest, pb.DropDatabaseResponse)
LIST_DATABASES = Api(1003, "ListDatabases", pb.ListDatabasesRequest, pb.ListDatabasesResponse)
DATABASE_EXISTS = Api(1004, "DatabaseExists", pb.DatabaseExistsRequest, pb.DatabaseExistsResponse)
CREATE_TABLE = Api(1005, "CreateTable", pb.CreateTableRequest, pb.CreateTableResponse)
DROP_TABLE = Api(1006, "DropTable", pb.DropTableRequest, pb.DropTableResponse)
GET_TABLE_INFO = Api(1007, "GetTableInfo", pb.GetTableInfoRequest, pb.GetTableInfoResponse)
LIST_TABLES = Api(1008, "ListTables", pb.ListTablesRequest, pb.ListTablesResponse)
LIST_PARTITION_INFOS = Api(1009, "ListPartitionInfos", pb.ListPartitionInfosRequest, pb.ListPartitionInfosResponse)
TABLE_EXISTS = Api(1010, "TableExists", pb.TableExistsRequest, pb.TableExistsResponse)
GET_TABLE_SCHEMA = Api(1011, "GetTableSchema", pb.GetTableSchemaRequest, pb.GetTableSchemaResponse)
METADATA = Api(1012, "Metadata", pb.MetadataRequest, pb.MetadataResponse)
PRODUCE_LOG = Api(1014, "ProduceLog", pb.ProduceLogRequest, pb.ProduceLogResponse)
FETCH_LOG = Api(1015, "FetchLog", pb.FetchLogRequest, pb.FetchLogResponse)
PUT_KV = Api(1016, "PutKv", pb.PutKvRequest, pb.PutKvResponse, version_max=2)
LOOKUP = Api(1017, "Lookup", pb.LookupRequest, pb.LookupResponse, version_max=1)
LIST_OFFSETS = Api(1021, "ListOffsets", pb.ListOffsetsRequest, pb.ListOffsetsResponse)
GET_LATEST_KV_SNAPSHOTS = Api(
    1023, "GetLatestKvSnapshots", pb.GetLatestKvSnapshotsRequest, pb.GetLatestKvSnapshotsResponse
)
GET_KV_SNAPSHOT_METADATA = Api(
    1024, "GetKvSnapshotMetadata", pb.GetKvSnapshotMetadataRequest, pb.GetKvSnapshotMetadataResponse
)
GET_FILE_SYSTEM_SECURITY_TOKEN = Api(
    1025,
    "GetFileSystemSecurityToken",
    pb.GetFileSystemSecurityTokenRequest,
    pb.GetFileSystemSecurityTokenResponse,
)
INIT_WRITER = Api(1026, "InitWriter", pb.InitWriterRequest, pb.InitWriterResponse)
COMMIT_LAKE_TABLE_SNAPSHOT = Api(
    1030, "CommitLakeTableSnapshot", pb.CommitLakeTableSnapshotRequest, pb.CommitLakeTableSnapshotResponse
)
GET_LAKE_SNAPSHOT = Api(1032, "GetLakeSnapshot", pb.GetLakeSnapshotRequest, pb.GetLakeSnapshotResponse)
LIMIT_SCAN = Api(1033, "LimitScan", pb.LimitScanRequest, pb.LimitScanResponse)
PREFIX_LOOKUP = Api(1034, "PrefixLookup", pb.PrefixLookupRequest, pb.PrefixLookupResponse, version_max=1)
GET_DATABASE_INFO = Api(1035, "GetDatabaseInfo", pb.GetDatabaseInfoRequest, pb.GetDatabaseInfoResponse)
CREATE_PARTITION = Api(1036, "CreatePartition", pb.CreatePartitionRequest, pb.CreatePartitionResponse)
DROP_PARTITION = Api(1037, "DropPartition", pb.DropPartitionRequest, pb.DropPartitionResponse)
AUTHENTICATE = Api(1038, "Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse, needs_login=False)
LAKE_TIERING_HEARTBEAT = Api(
    1042, "LakeTieringHeartbeat", pb.LakeTieringHeartbeatRequest, pb.LakeTieringHeartbeatResponse
)
ALTER_TABLE = Api(1044, "AlterTable", pb.AlterTableRequest, pb.AlterTableResponse)
DESCRIBE_CLUSTER_CONFIGS = Api(
    1045, "DescribeClusterConfigs", pb.DescribeClusterConfigsRequest, pb.DescribeClusterConfigsResponse
)
ALTER_CLUSTER_CONFIGS = Api(1046, "AlterClusterConfigs", pb.AlterClusterConfigsRequest, pb.AlterClusterConfigsResponse)
ADD_SERVER_TAG = Api(1047, "AddServerTag", pb.AddServerTagRequest, pb.AddServerTagResponse)
REMOVE_SERVER_TAG = Api(1048, "RemoveServerTag", pb.RemoveServerTagRequest, pb.RemoveServerTagResponse)
REBALANCE = Api(1049, "Rebalance", pb.RebalanceRequest, pb.RebalanceResponse)
LIST_REBALANCE_PROGRESS = Api(
    1050, "ListRebalanceProgress", pb.ListRebalanceProgressRequest, pb.ListRebalanceProgressResponse
)
CANCEL_REBALANCE = Api(1051, "CancelRebalance", pb.CancelRebalanceRequest, pb.CancelRebalanceResponse)
PREPARE_LAKE_TABLE_SNAPSHOT = Api(
    1052, "PrepareLakeTableSnapshot", pb.PrepareLakeTableSnapshotRequest, pb.PrepareLakeTableSnapshotResponse
)
REGISTER_PRODUCER_OFFSETS = Api(
    1053, "RegisterProducerOffsets", pb.RegisterProducerOffsetsRequest, pb.RegisterProducerOffsetsResponse
)
GET_PRODUCER_OFFSETS = Api(1054, "GetProducerOffsets", pb.GetProducerOffsetsRequest, pb.GetProducerOffsetsResponse)
DELETE_PRODUCER_OFFSETS = Api(
    1055, "DeleteProducerOffsets", pb.DeleteProducerOffsetsRequest, pb.DeleteProducerOffsetsResponse
)
ACQUIRE_KV_SNAPSHOT_LEASE = Api(
    1056, "AcquireKvSnapshotLease", pb.AcquireKvSnapshotLeaseRequest, pb.AcquireKvSnapshotLeaseResponse
)
RELEASE_KV_SNAPSHOT_LEASE = Api(
    1057, "ReleaseKvSnapshotLease", pb.ReleaseKvSnapshotLeaseRequest, pb.ReleaseKvSnapshotLeaseResponse
)
DROP_KV_SNAPSHOT_LEASE = Api(1058, "DropKvSnapshotLease", pb.DropKvSnapshotLeaseRequest, pb.DropKvSnapshotLeaseResponse)
GET_TABLE_STATS = Api(1059, "GetTableStats", pb.GetTableStatsRequest, pb.GetTableStatsResponse)
ALTER_DATABASE = Api(1060, "AlterDatabase", pb.AlterDatabaseRequest, pb.AlterDatabaseResponse)
SCAN_KV = Api(1061, "ScanKv", pb.ScanKvRequest, pb.ScanKvResponse)
GET_CLUSTER_HEALTH = Api(1062, "GetClusterHealth", pb.GetClusterHealthRequest, pb.GetClusterHealthResponse)
LIST_REMOTE_LOG_MANIFESTS = Api(
    1063, "ListRemoteLogManifests", pb.ListRemoteLogManifestsRequest, pb.ListRemoteLogManifestsResponse
)
LIST_KV_SNAPSHOTS = Api(1064, "ListKvSnapshots", pb.ListKvSnapshotsRequest, pb.ListKvSnapshotsResponse)
STAGE_WRITE = Api(20_001, "StageWrite", pb.StageWriteRequest, pb.StageWriteResponse, is_own=True)
COMMIT_STAGED = Api(20_002, "CommitStaged", pb.CommitStagedRequest, pb.CommitStagedResponse, is_own=True)
DROP_STAGED = Api(20_003, "DropStaged", pb.DropStagedRequest, pb.DropStagedResponse, is_own=True)
START_BACKUP = Api(20_004, "StartBackup", pb.StartBackupRequest, pb.StartBackupResponse, is_own=True)
GET_BACKUP = Api(20_005, "GetBackup", pb.GetBackupRequest, pb.GetBackupResponse, is_own=True)
LIST_STAGED = Api(20_006, "ListStaged", pb.ListStagedRequest, pb.ListStagedResponse, is_own=True)
ACCEPT_STAGED = Api(20_007, "AcceptStaged", pb.AcceptStagedRequest, pb.AcceptStagedResponse, is_own=True)
RESET_STAGED = Api(20_008, "ResetStaged", pb.ResetStagedRequest, pb.ResetStagedResponse, is_own=True)
REPORT_LAKE_ROUND = Api(20_009, "ReportLakeRound", pb.ReportLakeRoundRequest, pb.ReportLakeRoundResponse, is_own=True)
GET_LAKE_ERROR = Api(20_010, "GetLakeError", pb.GetLakeErrorRequest, pb.GetLakeErrorResponse, is_own=True)
FORGET_LAKE_SNAPSHOTS = Api(
    20_011, "ForgetLakeSnapshots", pb.ForgetLakeSnapshotsRequest, pb.ForgetLakeSnapshotsResponse, is_own=True
)

ALL: tuple[Api[Message, Message], ...] = tuple(value for value in globals().copy().values() if isinstance(value, Api))
BY_KEY = {api.key: api for api in ALL}

CLIENT_NAME = "flussbett"  # how clients of this package introduce themselves

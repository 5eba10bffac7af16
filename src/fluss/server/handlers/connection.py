"""Who is there and what can it do: versions, metadata, tokens."""

from __future__ import annotations

from typing import Final

from fluss.model.errors import ErrorCode, error_from_code
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.context import ConnectionContext, Handler
from fluss.server.lake_options import LakeOptions
from fluss.server.names import check_count, table_path
from fluss.storage.catalog import PartitionEntry, TableEntry

# One process plays both roles; clients keep connections to coordinators and tablet servers apart, so ids may be equal.
NODE_ID: Final = 0
LEADER_EPOCH: Final = 0


def _api_versions(_: ConnectionContext, request: pb.ApiVersionsRequest) -> pb.ApiVersionsResponse:
    # server_type stays out: with it, clients refuse to use one port for both roles.
    response = pb.ApiVersionsResponse()
    is_ours = request.client_software_name == api_keys.CLIENT_NAME
    for api in api_keys.ALL:
        if api.is_own and not is_ours:
            continue  # Real clients may stumble over keys that they do not know.
        response.api_versions.add(api_key=api.key, min_version=0, max_version=api.version_max)
    return response


def _metadata(context: ConnectionContext, request: pb.MetadataRequest) -> pb.MetadataResponse:
    named = len(request.table_path) + len(request.partitions_path) + len(request.partitions_id)
    check_count(named, context.limits.request_items_max, "tables and partitions")
    address = context.address
    response = pb.MetadataResponse()
    response.coordinator_server.CopyFrom(pb.PbServerNode(node_id=NODE_ID, host=address.host, port=address.port))
    response.tablet_servers.add(node_id=NODE_ID, host=address.host, port=address.port)
    catalog = context.storage.catalog
    tables = [catalog.table(table_path(path)) for path in request.table_path]
    partitions = [
        catalog.partition(catalog.table(table_path(path)), path.partition_name) for path in request.partitions_path
    ]
    partitions += [_partition_by_id(context, partition_id) for partition_id in request.partitions_id]
    # The tables of partitions come along: pyfluss panics on a partition of a table that it has not seen.
    tables += [catalog.table_of(partition) for partition in partitions]
    # Each once: a table may have very many buckets, and a request very many names.
    for table in dict.fromkeys(tables):
        _add_table(response, table, context.server.lake_options)
    for partition in dict.fromkeys(partitions):
        _add_partition(response, partition, catalog.table_of(partition).num_buckets)
    return response


def _partition_by_id(context: ConnectionContext, partition_id: int) -> PartitionEntry:
    partition = context.storage.catalog.partition_by_id(partition_id)
    if partition is None:
        raise error_from_code(ErrorCode.PARTITION_NOT_EXISTS, f"There is no partition with id {partition_id}.")
    return partition


def _add_table(response: pb.MetadataResponse, entry: TableEntry, lake_options: LakeOptions) -> None:
    table = response.table_metadata.add(
        table_path=pb.PbTablePath(database_name=entry.path.database, table_name=entry.path.table),
        table_id=entry.table_id,
        schema_id=entry.schema_id,
        table_json=lake_options.shown_json(entry.table_json),
        created_time=entry.created_time_ms,
        modified_time=entry.modified_time_ms,
    )
    if not entry.partition_keys:
        _add_buckets(table, entry.num_buckets)


def _add_partition(response: pb.MetadataResponse, entry: PartitionEntry, num_buckets: int) -> None:
    partition = response.partition_metadata.add(
        table_id=entry.table_id, partition_name=entry.name, partition_id=entry.partition_id
    )
    _add_buckets(partition, num_buckets)


def _add_buckets(owner: pb.PbTableMetadata | pb.PbPartitionMetadata, num_buckets: int) -> None:
    for bucket_id in range(num_buckets):
        owner.bucket_metadata.add(
            bucket_id=bucket_id, leader_id=NODE_ID, replica_id=[NODE_ID], leader_epoch=LEADER_EPOCH
        )


def _security_token(
    _: ConnectionContext, __: pb.GetFileSystemSecurityTokenRequest
) -> pb.GetFileSystemSecurityTokenResponse:
    # Clients ask before they scan; all data is served here, so there is no file system to log in to.
    return pb.GetFileSystemSecurityTokenResponse(schema="file", token=b"")


HANDLERS: Final[dict[int, Handler]] = {
    api_keys.API_VERSIONS.key: _api_versions,
    api_keys.METADATA.key: _metadata,
    api_keys.GET_FILE_SYSTEM_SECURITY_TOKEN.key: _security_token,
}

"""Requests about the connection and the server: versions, metadata, logins, tokens, backups.

Logins are SASL PLAIN. A client of Apache Fluss's Rust library answers the empty challenge of a successful login with a
second, empty Authenticate; so on a connection that is logged in the request has an empty answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fluss.model.errors import AuthenticationError, ErrorCode, InvalidRequestError, error_from_code
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import Encoded
from fluss.server.net.context import ConnectionContext, InTurn, code_and_text
from fluss.server.net.logins import MECHANISM, parse_plain
from fluss.server.tables.rules import MetadataResponse, check_count, table_path
from fluss.storage.catalog.catalog import PartitionEntry, TableEntry


async def authenticate(context: ConnectionContext, request: pb.AuthenticateRequest) -> pb.AuthenticateResponse:
    logins = context.server.logins
    if logins is None:
        raise _refused("This server has no users, so one can't log in; connect without SASL")
    if request.protocol.upper() != MECHANISM:
        raise _refused(f"This server knows the mechanism {MECHANISM} only; set security.sasl.mechanism to it")
    if context.user is None:
        user, password = parse_plain(request.token)
        try:
            await logins.check(user, password, context)
        except AuthenticationError:
            context.server.metrics.logins_refused += 1
            raise
        context.user = user
        return pb.AuthenticateResponse(challenge=b"")
    return pb.AuthenticateResponse()


def login_missing(api_name: str) -> AuthenticationError:
    """The error for a client that asks what only logged-in ones may."""
    return _refused(f"{api_name} needs a login; set security.protocol to sasl, with user name and password")


def _refused(text: str) -> AuthenticationError:
    return AuthenticationError(f"{text}.", ErrorCode.AUTHENTICATE_EXCEPTION)


_NAMES_AT_ONCE: Final = 64  # of a request that is answered in one go


def api_versions(_: ConnectionContext, request: pb.ApiVersionsRequest) -> pb.ApiVersionsResponse:
    # server_type stays out: with it, clients refuse to use one port for both roles.
    response = pb.ApiVersionsResponse()
    is_ours = request.client_software_name == api_keys.CLIENT_NAME
    for api in api_keys.ALL:
        if api.is_own and not is_ours:
            continue  # Real clients may stumble over keys that they do not know.
        response.api_versions.add(api_key=api.key, min_version=0, max_version=api.version_max)
    return response


def metadata(context: ConnectionContext, request: pb.MetadataRequest) -> InTurn:
    named = len(request.table_path) + len(request.partitions_path) + len(request.partitions_id)
    check_count(named, context.limits.request_items_max, "tables and partitions")
    response = MetadataResponse(context.address, context.limits.metadata_bytes_max)
    steps = _describe(context, request, response)
    if named > _NAMES_AT_ONCE:
        return _describe_many(context, steps, response)
    for _ in steps:
        pass
    return response.encoded()


async def _describe_many(context: ConnectionContext, steps: Iterator[None], response: MetadataResponse) -> Encoded:
    pace = context.pace()
    for _ in steps:
        await pace.rest()
    return response.encoded()


def _describe(context: ConnectionContext, request: pb.MetadataRequest, response: MetadataResponse) -> Iterator[None]:
    """Fill the response, a step for each name and then for each table and partition."""
    catalog = context.storage.catalog
    # Each once: a table may have very many buckets, and a request very many names.
    tables: dict[TableEntry, None] = {}
    partitions: dict[PartitionEntry, TableEntry] = {}
    for path in request.table_path:
        tables[catalog.table(table_path(path))] = None
        yield
    for partition_path in request.partitions_path:
        table = catalog.table(table_path(partition_path))
        partitions[catalog.partition(table, partition_path.partition_name)] = table
        yield
    for partition_id in request.partitions_id:
        partition = _partition_by_id(context, partition_id)
        partitions[partition] = catalog.table_of(partition)
        yield
    # The tables of partitions come along: pyfluss panics on a partition of a table that it has not seen.
    tables |= dict.fromkeys(partitions.values())
    for table in tables:
        response.add_table(table, context.server.lake_options.shown_json(table.table_json))
        yield
    for partition, table in partitions.items():
        response.add_partition(partition, table.num_buckets)
        yield


def _partition_by_id(context: ConnectionContext, partition_id: int) -> PartitionEntry:
    partition = context.storage.catalog.partition_by_id(partition_id)
    if partition is None:
        raise error_from_code(ErrorCode.PARTITION_NOT_EXISTS, f"There is no partition with id {partition_id}.")
    return partition


def get_file_system_security_token(
    _: ConnectionContext, __: pb.GetFileSystemSecurityTokenRequest
) -> pb.GetFileSystemSecurityTokenResponse:
    # Clients ask before they scan; all data is served here, so there is no file system to log in to.
    return pb.GetFileSystemSecurityTokenResponse(schema="file", token=b"")


ID_CHARACTERS_MAX: Final = 100
PATH_CHARACTERS_MAX: Final = 4_096


def start_backup(context: ConnectionContext, request: pb.StartBackupRequest) -> pb.StartBackupResponse:
    _check_text(request.backup_id, "backup_id", ID_CHARACTERS_MAX)
    _check_text(request.directory, "directory", PATH_CHARACTERS_MAX)
    context.server.backups.start(request.backup_id, Path(request.directory))
    return pb.StartBackupResponse()


def get_backup(context: ConnectionContext, request: pb.GetBackupRequest) -> pb.GetBackupResponse:
    found = context.server.backups.find(request.backup_id)
    backup = found.backup
    response = pb.GetBackupResponse(
        is_done=found.task.done(),
        table_count=backup.table_count,
        bucket_count=backup.bucket_count,
        bytes_done=backup.bytes_done,
        bytes_total=backup.bytes_total,
        elapsed_ms=found.elapsed_ms,
    )
    if found.error is not None:
        response.error_code, response.error_message = code_and_text(found.error)
    return response


def _check_text(text: object, name: str, characters_max: int) -> None:
    # protobuf leaves bytes where a text is not UTF-8.
    if not isinstance(text, str) or not 0 < len(text) <= characters_max or "\0" in text:
        raise InvalidRequestError(
            f"{name} must be a text of 1 to {characters_max} characters.", ErrorCode.INVALID_CONFIG_EXCEPTION
        )

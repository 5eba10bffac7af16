"""Requests about databases and partitions."""

from __future__ import annotations

from fluss.model.descriptor import DatabaseDescriptor
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.partitions import PartitionBound, PartitionSpec, spec_of_name
from fluss.model.tables import options
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.context import ConnectionContext
from fluss.server.tables.auto_partition import rule_of
from fluss.server.tables.rules import check_count, database_name, table_path
from fluss.storage.catalog.catalog import TableEntry
from fluss.storage.catalog.view import check_partitioned


async def create_database(context: ConnectionContext, request: pb.CreateDatabaseRequest) -> pb.CreateDatabaseResponse:
    name = database_name(request.database_name)
    given = request.database_json
    descriptor = DatabaseDescriptor.from_json(given) if given else DatabaseDescriptor()
    await context.storage.catalog.create_database(name, descriptor.to_json().decode(), request.ignore_if_exists)
    return pb.CreateDatabaseResponse()


async def drop_database(context: ConnectionContext, request: pb.DropDatabaseRequest) -> pb.DropDatabaseResponse:
    name = database_name(request.database_name)
    await context.storage.catalog.drop_database(name, request.cascade, request.ignore_if_not_exists)
    return pb.DropDatabaseResponse()


def list_databases(context: ConnectionContext, request: pb.ListDatabasesRequest) -> pb.ListDatabasesResponse:
    databases = context.storage.catalog.databases()
    response = pb.ListDatabasesResponse(database_name=[entry.name for entry in databases])
    if request.include_summary:
        for entry in databases:
            response.database_summary.add(
                database_name=entry.name,
                created_time=entry.created_time_ms,
                table_count=context.storage.catalog.table_count(entry.name),
            )
    return response


def database_exists(context: ConnectionContext, request: pb.DatabaseExistsRequest) -> pb.DatabaseExistsResponse:
    name = database_name(request.database_name)
    return pb.DatabaseExistsResponse(exists=context.storage.catalog.database_exists(name))


def get_database_info(context: ConnectionContext, request: pb.GetDatabaseInfoRequest) -> pb.GetDatabaseInfoResponse:
    entry = context.storage.catalog.database(database_name(request.database_name))
    return pb.GetDatabaseInfoResponse(
        database_json=entry.json, created_time=entry.created_time_ms, modified_time=entry.modified_time_ms
    )


async def create_partition(
    context: ConnectionContext, request: pb.CreatePartitionRequest
) -> pb.CreatePartitionResponse:
    entry, name = _table_and_name(context, request)
    _check_time(context, entry, name)
    bound = PartitionBound(request.newer_than_id, request.newer_max) if request.HasField("newer_max") else None
    await context.storage.catalog.create_partitions(entry.table_id, [name], request.ignore_if_exists, bound)
    return pb.CreatePartitionResponse()


async def drop_partition(context: ConnectionContext, request: pb.DropPartitionRequest) -> pb.DropPartitionResponse:
    entry, name = _table_and_name(context, request)
    await context.storage.catalog.drop_partitions(entry.table_id, [name], request.ignore_if_not_exists)
    return pb.DropPartitionResponse()


def list_partition_infos(
    context: ConnectionContext, request: pb.ListPartitionInfosRequest
) -> pb.ListPartitionInfosResponse:
    catalog = context.storage.catalog
    entry = catalog.table(table_path(request.table_path))
    partitions = catalog.partitions(entry)
    wanted = _spec(context, request.partial_partition_spec)
    unknown = wanted.get_spec_map().keys() - set(entry.partition_keys)
    if unknown:
        raise InvalidRequestError(
            f"{min(unknown)!r} is no partition column of {entry.path}; those are {', '.join(entry.partition_keys)}.",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )
    response = pb.ListPartitionInfosResponse()
    for partition in partitions:
        spec = spec_of_name(partition.name, entry.partition_keys)
        if wanted.matches(spec):
            info = response.partitions_info.add(partition_id=partition.partition_id)
            # Present even if nothing were in it: the field is required.
            info.partition_spec.SetInParent()
            for key, value in spec.get_spec_map().items():
                info.partition_spec.partition_key_values.add(key=key, value=value)
    return response


def _table_and_name(
    context: ConnectionContext, request: pb.CreatePartitionRequest | pb.DropPartitionRequest
) -> tuple[TableEntry, str]:
    entry = context.storage.catalog.table(table_path(request.table_path))
    check_partitioned(entry)
    spec = _spec(context, request.partition_spec)
    name = spec.name(entry.partition_keys)
    spec.check_values()
    return entry, name


def _spec(context: ConnectionContext, spec: pb.PbPartitionSpec) -> PartitionSpec:
    pairs = spec.partition_key_values
    check_count(len(pairs), context.limits.request_items_max, "partition columns")
    values = {pair.key: pair.value for pair in pairs}
    if len(values) != len(pairs):
        raise InvalidRequestError("A partition spec names a column twice.", ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION)
    return PartitionSpec(values)


def _check_time(context: ConnectionContext, entry: TableEntry, name: str) -> None:
    """In an auto-partitioned table, refuse what is no time, and what the next run would drop again."""
    rule = rule_of(entry)
    if rule is None or not rule.enabled:
        return
    value = rule.time_value(name)
    if not rule.could_have_made(value):
        raise InvalidRequestError(
            f"Table {entry.path} is auto-partitioned by {rule.unit}: {value!r} is not of the form {rule.pattern}.",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )
    oldest = rule.oldest_value(context.server.auto_partitioner.now())
    if oldest is not None and value < oldest:
        raise InvalidRequestError(
            f"Table {entry.path} keeps partitions from {oldest} on, {value} is older; raise "
            f"{options.AUTO_PARTITION_RETENTION} first.",
            ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION,
        )

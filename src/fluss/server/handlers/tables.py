"""Requests about databases, tables and partitions."""

from __future__ import annotations

import json
from functools import partial
from typing import Final

from fluss.model.aggregation import AggFunction
from fluss.model.descriptor import DatabaseDescriptor, TableDescriptor, refused, with_columns, with_properties
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.partitions import PartitionBound, PartitionSpec, spec_of_name
from fluss.model.schema import Column
from fluss.model.tables import options
from fluss.model.tables.auto_partition import AutoPartition
from fluss.model.types import parse_json, type_from_json
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.context import ConnectionContext
from fluss.server.tables.jobs import rule_of
from fluss.server.tables.rules import (
    check_count,
    check_table,
    completed,
    database_name,
    stored_json,
    table_path,
    with_default_ttl,
)
from fluss.storage.catalog.catalog import AlteredTable, TableEntry
from fluss.storage.catalog.view import check_partitioned


async def create_database(context: ConnectionContext, request: pb.CreateDatabaseRequest) -> pb.CreateDatabaseResponse:
    name = database_name(request.database_name)
    given = request.database_json
    descriptor = DatabaseDescriptor.from_json(given) if given else DatabaseDescriptor()
    await context.storage.catalog.create_database(name, descriptor.to_json().decode(), request.ignore_if_exists)
    return pb.CreateDatabaseResponse()


async def alter_database(context: ConnectionContext, request: pb.AlterDatabaseRequest) -> pb.AlterDatabaseResponse:
    name = database_name(request.database_name)
    check_count(len(request.config_changes), context.limits.request_items_max, "changes")
    changes = dict(map(_change, request.config_changes))

    def altered(json_: bytes) -> bytes:
        before = DatabaseDescriptor.from_json(json_)
        comment = request.comment if request.HasField("comment") else before.comment
        if not isinstance(comment, str | None):
            raise InvalidRequestError("The comment is not UTF-8.", ErrorCode.INVALID_DATABASE_EXCEPTION)
        properties = {**before.custom_properties, **changes}
        kept = {key: value for key, value in properties.items() if value is not None}
        return DatabaseDescriptor(comment, kept).to_json()

    await context.storage.catalog.alter_database(name, altered, request.ignore_if_not_exists)
    return pb.AlterDatabaseResponse()


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
    columns = TableDescriptor.from_json(entry.table_json, foreign_properties=True).schema.columns
    spec_of_name(name, entry.partition_keys).check_types(columns)
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
            f"{min(unknown)!r} is not a partition column of {entry.path}; those are {', '.join(entry.partition_keys)}.",
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
    """Refuse a partition of an auto-partitioned table that is not a time, or that the next run would drop again."""
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


_SET: Final = 0
_RESET: Final = 1
_LAST: Final = 0
_QUICK_BYTES_MAX: Final = 16 << 10  # of a definition that is read on the loop


async def create_table(context: ConnectionContext, request: pb.CreateTableRequest) -> pb.CreateTableResponse:
    path = table_path(request.table_path)
    descriptor, stored = await _read_definition(context, request.table_json)
    assert descriptor.bucket_count is not None
    if descriptor.has_primary_key:
        await context.storage.load_kv()
    await context.storage.catalog.create_table(
        path,
        *stored,
        descriptor.bucket_count,
        request.ignore_if_exists,
        partition_keys=descriptor.partition_keys,
        partitions=_first_partitions(context, descriptor),
    )
    return pb.CreateTableResponse()


async def _read_definition(context: ConnectionContext, table_json: bytes) -> tuple[TableDescriptor, tuple[str, str]]:
    """What a table is to be, and how that is stored; thousands of columns take long to read."""

    def read() -> tuple[TableDescriptor, tuple[str, str]]:
        descriptor = completed(TableDescriptor.from_json(table_json), context.server.config)
        return descriptor, stored_json(descriptor)

    return await context.storage.run_blocking(read) if len(table_json) > _QUICK_BYTES_MAX else read()


def _first_partitions(context: ConnectionContext, descriptor: TableDescriptor) -> list[str]:
    if not descriptor.partition_keys:
        return []
    rule = AutoPartition.of(descriptor.properties, descriptor.partition_keys)
    return rule.values_ahead(context.server.auto_partitioner.now()) if rule.enabled else []


async def alter_table(context: ConnectionContext, request: pb.AlterTableRequest) -> pb.AlterTableResponse:
    path = table_path(request.table_path)
    columns = len(request.add_columns) + len(request.drop_columns)
    columns += len(request.rename_columns) + len(request.modify_columns)
    check_count(columns + len(request.config_changes), context.limits.request_items_max, "changes")
    if columns and request.config_changes:
        raise refused("one request may change its columns or its properties, not both; send two")
    entry = await context.storage.catalog.alter_table(
        path, partial(_altered, context, request), request.ignore_if_not_exists
    )
    if entry is not None and entry.partition_keys:
        await context.server.auto_partitioner.run(entry.table_id)
    return pb.AlterTableResponse()


def _altered(
    context: ConnectionContext, request: pb.AlterTableRequest, entry: TableEntry, _: bytes
) -> AlteredTable | None:
    before = TableDescriptor.from_json(entry.table_json, foreign_properties=True)
    if request.config_changes:
        after = with_properties(before, [_change(change) for change in request.config_changes])
        after = with_default_ttl(after, before, context.server.config)
    else:
        _check_only_additions(request)
        after = with_columns(before, [_column(item) for item in request.add_columns])
    if after == before:
        return None
    check_table(after, context.server.config)
    table_json, schema_json = stored_json(after)
    return AlteredTable(table_json, schema_json if request.add_columns else None)


def _change(change: pb.PbAlterConfig) -> tuple[str, str | None]:
    if change.op_type == _RESET:
        return change.config_key, None
    if change.op_type != _SET:
        raise refused(f"{change.config_key[:100]} can be set and reset, nothing else (operation {change.op_type})")
    if not change.HasField("config_value"):
        raise refused(f"the new value of {change.config_key[:100]} is missing")
    return change.config_key, change.config_value


def _check_only_additions(request: pb.AlterTableRequest) -> None:
    for columns, word in (
        (request.drop_columns, "dropped"),
        (request.rename_columns, "renamed"),
        (request.modify_columns, "modified"),
    ):
        if columns:
            raise refused(f"columns can't be {word}, only added at the end")


def _column(item: pb.PbAddColumn) -> Column:
    if item.column_position_type != _LAST:
        raise refused(f"the new column {item.column_name!r} can only be the last one")
    try:
        value = parse_json(item.data_type_json)
        # An escape can spell half a character, which nobody could write down again.
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError as error:
        raise InvalidRequestError(
            f"The type of column {item.column_name!r} can't be read: {error}.", ErrorCode.INVALID_TABLE_EXCEPTION
        ) from None
    comment = item.comment if item.HasField("comment") else None
    return Column(item.column_name, type_from_json(value), comment, _agg_function(item))


def _agg_function(item: pb.PbAddColumn) -> AggFunction | None:
    if not item.HasField("agg_function_type"):
        return None
    return AggFunction(item.agg_function_type, {pair.key: pair.value for pair in item.agg_function_params})


async def drop_table(context: ConnectionContext, request: pb.DropTableRequest) -> pb.DropTableResponse:
    await context.storage.catalog.drop_table(table_path(request.table_path), request.ignore_if_not_exists)
    return pb.DropTableResponse()


def list_tables(context: ConnectionContext, request: pb.ListTablesRequest) -> pb.ListTablesResponse:
    tables = context.storage.catalog.tables(database_name(request.database_name))
    return pb.ListTablesResponse(table_name=[entry.path.table for entry in tables])


def table_exists(context: ConnectionContext, request: pb.TableExistsRequest) -> pb.TableExistsResponse:
    return pb.TableExistsResponse(exists=context.storage.catalog.table_exists(table_path(request.table_path)))


def get_table_info(context: ConnectionContext, request: pb.GetTableInfoRequest) -> pb.GetTableInfoResponse:
    entry = context.storage.catalog.table(table_path(request.table_path))
    return pb.GetTableInfoResponse(
        table_id=entry.table_id,
        schema_id=entry.schema_id,
        table_json=context.server.lake_options.shown_json(entry.table_json),
        created_time=entry.created_time_ms,
        modified_time=entry.modified_time_ms,
    )


def get_table_schema(context: ConnectionContext, request: pb.GetTableSchemaRequest) -> pb.GetTableSchemaResponse:
    entry = context.storage.catalog.table(table_path(request.table_path))
    schema_id = request.schema_id if request.HasField("schema_id") else entry.schema_id
    schema_json = context.storage.catalog.schema_json(entry.table_id, schema_id)
    return pb.GetTableSchemaResponse(schema_id=schema_id, schema_json=schema_json)

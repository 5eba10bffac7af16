"""Requests about tables."""

from __future__ import annotations

import json
from typing import Final

from fluss.model.descriptor import TableDescriptor
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.context import ConnectionContext, Handler
from fluss.server.names import database_name, table_path
from fluss.server.table_rules import completed


async def _create(context: ConnectionContext, request: pb.CreateTableRequest) -> pb.CreateTableResponse:
    path = table_path(request.table_path)
    descriptor = completed(TableDescriptor.from_json(request.table_json), context.server.config.default_bucket_number)
    assert descriptor.bucket_count is not None
    await context.storage.catalog.create_table(
        path,
        descriptor.to_json().decode(),
        json.dumps(descriptor.schema.to_json(), separators=(",", ":"), ensure_ascii=False),
        descriptor.bucket_count,
        request.ignore_if_exists,
    )
    return pb.CreateTableResponse()


async def _drop(context: ConnectionContext, request: pb.DropTableRequest) -> pb.DropTableResponse:
    await context.storage.catalog.drop_table(table_path(request.table_path), request.ignore_if_not_exists)
    return pb.DropTableResponse()


def _list(context: ConnectionContext, request: pb.ListTablesRequest) -> pb.ListTablesResponse:
    tables = context.storage.catalog.tables(database_name(request.database_name))
    return pb.ListTablesResponse(table_name=[entry.path.table for entry in tables])


def _exists(context: ConnectionContext, request: pb.TableExistsRequest) -> pb.TableExistsResponse:
    return pb.TableExistsResponse(exists=context.storage.catalog.table_exists(table_path(request.table_path)))


def _info(context: ConnectionContext, request: pb.GetTableInfoRequest) -> pb.GetTableInfoResponse:
    entry = context.storage.catalog.table(table_path(request.table_path))
    return pb.GetTableInfoResponse(
        table_id=entry.table_id,
        schema_id=entry.schema_id,
        table_json=entry.table_json,
        created_time=entry.created_time_ms,
        modified_time=entry.modified_time_ms,
    )


def _schema(context: ConnectionContext, request: pb.GetTableSchemaRequest) -> pb.GetTableSchemaResponse:
    entry = context.storage.catalog.table(table_path(request.table_path))
    schema_id = request.schema_id if request.HasField("schema_id") else entry.schema_id
    schema_json = context.storage.catalog.schema_json(entry.table_id, schema_id)
    return pb.GetTableSchemaResponse(schema_id=schema_id, schema_json=schema_json)


HANDLERS: Final[dict[int, Handler]] = {
    api_keys.CREATE_TABLE.key: _create,
    api_keys.DROP_TABLE.key: _drop,
    api_keys.LIST_TABLES.key: _list,
    api_keys.TABLE_EXISTS.key: _exists,
    api_keys.GET_TABLE_INFO.key: _info,
    api_keys.GET_TABLE_SCHEMA.key: _schema,
}

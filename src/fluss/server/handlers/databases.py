"""Requests about databases."""

from __future__ import annotations

from fluss.model.descriptor import DatabaseDescriptor
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.context import ConnectionContext
from fluss.server.tables.names import database_name


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

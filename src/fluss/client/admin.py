"""Databases, tables and offsets: one request per call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fluss.client.offsets import list_offsets
from fluss.client.retry import Backoff
from fluss.client.views import table_info
from fluss.model.descriptor import DatabaseDescriptor, TableDescriptor
from fluss.model.errors import ConnectError, FlussError
from fluss.model.infos import DatabaseInfo, ServerNode, TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TablePath
from fluss.model.schema import Schema
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.api_keys import Api, Req, Resp

if TYPE_CHECKING:
    from fluss.client.core import ClientCore


class AdminCore:
    """Coroutines on the I/O loop. All but the offsets are answered by the coordinator."""

    def __init__(self, client: ClientCore) -> None:
        self._client = client

    async def create_database(
        self, name: str, descriptor: DatabaseDescriptor | None = None, ignore_if_exists: bool = False
    ) -> None:
        """Make a database."""
        request = pb.CreateDatabaseRequest(database_name=name, ignore_if_exists=ignore_if_exists)
        if descriptor is not None:
            request.database_json = descriptor.to_json()
        await self._change(api_keys.CREATE_DATABASE, request)

    async def drop_database(self, name: str, ignore_if_not_exists: bool = False, cascade: bool = True) -> None:
        """Remove a database, with its tables when `cascade` is set."""
        request = pb.DropDatabaseRequest(database_name=name, ignore_if_not_exists=ignore_if_not_exists, cascade=cascade)
        await self._change(api_keys.DROP_DATABASE, request)

    async def list_databases(self) -> list[str]:
        """All databases."""
        return list((await self._read(api_keys.LIST_DATABASES, pb.ListDatabasesRequest())).database_name)

    async def database_exists(self, name: str) -> bool:
        """Whether there is such a database."""
        request = pb.DatabaseExistsRequest(database_name=name)
        return (await self._read(api_keys.DATABASE_EXISTS, request)).exists

    async def get_database_info(self, name: str) -> DatabaseInfo:
        """Comment, properties and times of a database."""
        answer = await self._read(api_keys.GET_DATABASE_INFO, pb.GetDatabaseInfoRequest(database_name=name))
        descriptor = DatabaseDescriptor.from_json(answer.database_json)
        return DatabaseInfo(name, descriptor, answer.created_time, answer.modified_time)

    async def create_table(self, path: TablePath, descriptor: TableDescriptor, ignore_if_exists: bool = False) -> None:
        """Make a table."""
        request = pb.CreateTableRequest(table_json=descriptor.to_json(), ignore_if_exists=ignore_if_exists)
        _set_path(request.table_path, path)
        await self._change(api_keys.CREATE_TABLE, request)

    async def drop_table(self, path: TablePath, ignore_if_not_exists: bool = False) -> None:
        """Remove a table."""
        request = pb.DropTableRequest(ignore_if_not_exists=ignore_if_not_exists)
        _set_path(request.table_path, path)
        await self._change(api_keys.DROP_TABLE, request)

    async def get_table_info(self, path: TablePath) -> TableInfo:
        """Schema, properties and ids of a table."""
        request = pb.GetTableInfoRequest()
        _set_path(request.table_path, path)
        answer = await self._read(api_keys.GET_TABLE_INFO, request)
        return table_info(path, answer)

    async def list_tables(self, database: str) -> list[str]:
        """Names of a database's tables."""
        return list((await self._read(api_keys.LIST_TABLES, pb.ListTablesRequest(database_name=database))).table_name)

    async def table_exists(self, path: TablePath) -> bool:
        """Whether there is such a table."""
        request = pb.TableExistsRequest()
        _set_path(request.table_path, path)
        return (await self._read(api_keys.TABLE_EXISTS, request)).exists

    async def get_table_schema(self, path: TablePath, schema_id: int | None = None) -> tuple[int, Schema]:
        """A schema of a table and its id; the latest without `schema_id`."""
        request = pb.GetTableSchemaRequest()
        _set_path(request.table_path, path)
        if schema_id is not None:
            request.schema_id = schema_id
        answer = await self._read(api_keys.GET_TABLE_SCHEMA, request)
        return answer.schema_id, Schema.from_json(json.loads(answer.schema_json))

    async def list_offsets(self, path: TablePath, bucket_ids: Sequence[int], spec: OffsetSpec) -> dict[int, int]:
        """One offset per bucket."""
        table = await self._client.table(path)
        buckets = [(None, bucket) for bucket in bucket_ids]
        offsets = await list_offsets(self._client.metadata, table.info, buckets, spec, self._client.request_timeout_s)
        return {bucket: offset for (_, bucket), offset in offsets.items()}

    async def get_server_nodes(self) -> list[ServerNode]:
        """The cluster's servers."""
        self._client.check_usable()
        await self._client.metadata.refresh()
        return self._client.metadata.cluster.nodes()

    async def _change(self, api: Api[Req, Resp], request: Req) -> Resp:
        """Sent once: after a lost connection nobody knows whether it was done."""
        self._client.check_usable()
        timeout_s = self._client.request_timeout_s
        connection = await self._client.metadata.coordinator(timeout_s)
        try:
            return await connection.request(api, request, timeout_s)
        except ConnectError as error:
            raise ConnectError(
                f"{error.message} It is not known whether {api.name} was done; look before you repeat it."
            ) from error

    async def _read(self, api: Api[Req, Resp], request: Req) -> Resp:
        """Repeated while the error says that it may help."""
        self._client.check_usable()
        backoff = Backoff(self._client.request_timeout_s * 1000)
        while True:
            try:
                connection = await self._client.metadata.coordinator(max(backoff.remaining_s, 0.001))
                return await connection.request(api, request, max(backoff.remaining_s, 0.001))
            except FlussError as error:
                if not isinstance(error, ConnectError) or not await backoff.pause():
                    raise


def _set_path(target: pb.PbTablePath, path: TablePath) -> None:
    target.database_name, target.table_name = path.database_name, path.table_name

"""Administration of databases and tables, awaited."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from fluss.api.arguments import offset_spec as spec_of
from fluss.client.admin import AdminCore
from fluss.client.runtime import bridge
from fluss.model.descriptor import DatabaseDescriptor, TableDescriptor
from fluss.model.infos import DatabaseInfo, ServerNode, TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TablePath


class FlussAdmin:
    """Creates, lists and drops databases and tables. Obtain with `conn.get_admin()`, awaited or not."""

    def __init__(self, core: AdminCore) -> None:
        self._core = core

    def __await__(self) -> Generator[Any, None, FlussAdmin]:
        return self
        yield  # makes this a generator, as __await__ must be

    async def create_database(
        self,
        database_name: str,
        database_descriptor: DatabaseDescriptor | None = None,
        ignore_if_exists: bool = False,
    ) -> None:
        """Create a database."""
        await bridge(self._core.create_database(database_name, database_descriptor, ignore_if_exists))

    async def drop_database(self, database_name: str, ignore_if_not_exists: bool = False, cascade: bool = True) -> None:
        """Drop a database; `cascade` drops its tables too."""
        await bridge(self._core.drop_database(database_name, ignore_if_not_exists, cascade))

    async def list_databases(self) -> list[str]:
        """Names of all databases."""
        return await bridge(self._core.list_databases())

    async def database_exists(self, database_name: str) -> bool:
        """Whether a database exists."""
        return await bridge(self._core.database_exists(database_name))

    async def get_database_info(self, database_name: str) -> DatabaseInfo:
        """A database's descriptor and times."""
        return await bridge(self._core.get_database_info(database_name))

    async def create_table(
        self, table_path: TablePath, table_descriptor: TableDescriptor, ignore_if_exists: bool | None = None
    ) -> None:
        """Create a table."""
        await bridge(self._core.create_table(table_path, table_descriptor, bool(ignore_if_exists)))

    async def drop_table(self, table_path: TablePath, ignore_if_not_exists: bool = False) -> None:
        """Drop a table and its rows."""
        await bridge(self._core.drop_table(table_path, ignore_if_not_exists))

    async def get_table_info(self, table_path: TablePath) -> TableInfo:
        """A table's id, schema, distribution and properties."""
        return await bridge(self._core.get_table_info(table_path))

    async def get_table(self, table_path: TablePath) -> TableInfo:
        """The older spelling of `get_table_info`."""
        return await self.get_table_info(table_path)

    async def list_tables(self, database_name: str) -> list[str]:
        """Names of a database's tables."""
        return await bridge(self._core.list_tables(database_name))

    async def table_exists(self, table_path: TablePath) -> bool:
        """Whether a table exists."""
        return await bridge(self._core.table_exists(table_path))

    async def list_offsets(
        self,
        table_path: TablePath,
        bucket_ids: list[int],
        offset_spec: OffsetSpec | None = None,
        *,
        offset_type: str | None = None,
        timestamp: int | None = None,
    ) -> dict[int, int]:
        """An offset per bucket: earliest, latest, or by time."""
        spec = spec_of(offset_spec, offset_type, timestamp)
        return await bridge(self._core.list_offsets(table_path, bucket_ids, spec))

    async def get_server_nodes(self) -> list[ServerNode]:
        """The servers of the cluster."""
        return await bridge(self._core.get_server_nodes())

    def __repr__(self) -> str:
        return "FlussAdmin()"

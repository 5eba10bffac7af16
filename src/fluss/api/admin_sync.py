"""Administration of databases and tables, blocking."""

from __future__ import annotations

from fluss.api.arguments import offset_spec as spec_of
from fluss.client.admin import AdminCore
from fluss.client.runtime import run
from fluss.model.descriptor import DatabaseDescriptor, TableDescriptor
from fluss.model.infos import DatabaseInfo, ServerNode, TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TablePath


class FlussAdmin:
    """Creates, lists and drops databases and tables. Obtain with `conn.get_admin()`."""

    def __init__(self, core: AdminCore) -> None:
        self._core = core

    def create_database(
        self,
        database_name: str,
        database_descriptor: DatabaseDescriptor | None = None,
        ignore_if_exists: bool = False,
    ) -> None:
        """Create a database."""
        run(self._core.create_database(database_name, database_descriptor, ignore_if_exists))

    def drop_database(self, database_name: str, ignore_if_not_exists: bool = False, cascade: bool = True) -> None:
        """Drop a database; `cascade` drops its tables too."""
        run(self._core.drop_database(database_name, ignore_if_not_exists, cascade))

    def list_databases(self) -> list[str]:
        """Names of all databases."""
        return run(self._core.list_databases())

    def database_exists(self, database_name: str) -> bool:
        """Whether a database exists."""
        return run(self._core.database_exists(database_name))

    def get_database_info(self, database_name: str) -> DatabaseInfo:
        """A database's descriptor and times."""
        return run(self._core.get_database_info(database_name))

    def create_table(
        self, table_path: TablePath, table_descriptor: TableDescriptor, ignore_if_exists: bool | None = None
    ) -> None:
        """Create a table."""
        run(self._core.create_table(table_path, table_descriptor, bool(ignore_if_exists)))

    def drop_table(self, table_path: TablePath, ignore_if_not_exists: bool = False) -> None:
        """Drop a table and its rows."""
        run(self._core.drop_table(table_path, ignore_if_not_exists))

    def get_table_info(self, table_path: TablePath) -> TableInfo:
        """A table's id, schema, distribution and properties."""
        return run(self._core.get_table_info(table_path))

    def get_table(self, table_path: TablePath) -> TableInfo:
        """The older spelling of `get_table_info`."""
        return self.get_table_info(table_path)

    def list_tables(self, database_name: str) -> list[str]:
        """Names of a database's tables."""
        return run(self._core.list_tables(database_name))

    def table_exists(self, table_path: TablePath) -> bool:
        """Whether a table exists."""
        return run(self._core.table_exists(table_path))

    def list_offsets(
        self,
        table_path: TablePath,
        bucket_ids: list[int],
        offset_spec: OffsetSpec | None = None,
        *,
        offset_type: str | None = None,
        timestamp: int | None = None,
    ) -> dict[int, int]:
        """An offset per bucket: earliest, latest, or by time."""
        return run(self._core.list_offsets(table_path, bucket_ids, spec_of(offset_spec, offset_type, timestamp)))

    def get_server_nodes(self) -> list[ServerNode]:
        """The servers of the cluster."""
        return run(self._core.get_server_nodes())

    def __repr__(self) -> str:
        return "FlussAdmin()"

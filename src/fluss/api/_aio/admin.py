"""Administration of databases, tables and partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fluss.api.arguments import offset_spec as spec_of
from fluss.api.awaiting import AdminWaiting, wait
from fluss.api.results import html_of_catalog
from fluss.client.admin import AdminCore
from fluss.client.alteration import ColumnLike
from fluss.model.descriptor import DatabaseDescriptor, TableDescriptor
from fluss.model.infos import (
    ConfigEntry,
    DatabaseInfo,
    LakeSnapshot,
    PartitionInfo,
    SchemaInfo,
    ServerNode,
    TableInfo,
    TableStats,
)
from fluss.model.offsets import OffsetSpec
from fluss.model.partitions import PartitionBound, PartitionSpec, PartitionSpecLike
from fluss.model.paths import TablePath


class FlussAdmin(AdminWaiting):
    """Creates, alters, lists and drops databases, tables and partitions. Obtain with `conn.get_admin()`."""

    def __init__(self, core: AdminCore) -> None:
        self._core = core

    async def create_database(
        self,
        database_name: str,
        database_descriptor: DatabaseDescriptor | None = None,
        ignore_if_exists: bool = False,
    ) -> None:
        """Create a database."""
        await wait(self._core.create_database(database_name, database_descriptor, ignore_if_exists))

    async def drop_database(self, database_name: str, ignore_if_not_exists: bool = False, cascade: bool = True) -> None:
        """Drop a database; `cascade` drops its tables too."""
        await wait(self._core.drop_database(database_name, ignore_if_not_exists, cascade))

    async def list_databases(self) -> list[str]:
        """Names of all databases."""
        return await wait(self._core.list_databases())

    async def database_exists(self, database_name: str) -> bool:
        """Whether a database exists."""
        return await wait(self._core.database_exists(database_name))

    async def get_database_info(self, database_name: str) -> DatabaseInfo:
        """A database's descriptor and times."""
        return await wait(self._core.get_database_info(database_name))

    async def create_table(
        self, table_path: TablePath, table_descriptor: TableDescriptor, ignore_if_exists: bool | None = None
    ) -> None:
        """Create a table."""
        await wait(self._core.create_table(table_path, table_descriptor, bool(ignore_if_exists)))

    async def drop_table(self, table_path: TablePath, ignore_if_not_exists: bool = False) -> None:
        """Drop a table and its rows."""
        await wait(self._core.drop_table(table_path, ignore_if_not_exists))

    async def get_table_info(self, table_path: TablePath) -> TableInfo:
        """A table's id, schema, distribution and properties."""
        return await wait(self._core.get_table_info(table_path))

    async def get_table(self, table_path: TablePath) -> TableInfo:
        """The older spelling of `get_table_info`."""
        return await self.get_table_info(table_path)

    async def list_tables(self, database_name: str) -> list[str]:
        """Names of a database's tables."""
        return await wait(self._core.list_tables(database_name))

    async def table_exists(self, table_path: TablePath) -> bool:
        """Whether a table exists."""
        return await wait(self._core.table_exists(table_path))

    async def get_table_schema(self, table_path: TablePath, schema_id: int | None = None) -> SchemaInfo:
        """A table's latest schema, or the one with this id."""
        return await wait(self._core.get_table_schema(table_path, schema_id))

    async def alter_table(
        self,
        table_path: TablePath,
        *,
        add_columns: Iterable[ColumnLike] | None = None,
        set_properties: Mapping[str, str] | None = None,
        reset_properties: Sequence[str] | None = None,
        ignore_if_not_exists: bool = False,
    ) -> None:
        """Add nullable columns, `(name, type)` or `(name, type, comment)` or a PyArrow field; or change properties."""
        await wait(
            self._core.alter_table(table_path, add_columns, set_properties, reset_properties, ignore_if_not_exists)
        )

    async def get_table_stats(self, table_path: TablePath, partition_name: str | None = None) -> TableStats:
        """How many rows a table, or one of its partitions, has."""
        return await wait(self._core.get_table_stats(table_path, partition_name))

    async def create_partition(
        self,
        table_path: TablePath,
        partition_spec: PartitionSpecLike,
        ignore_if_exists: bool = False,
        *,
        bound: PartitionBound | None = None,
    ) -> None:
        """Create a partition: `{"region": "US"}`, a value for each partition column.

        With `bound`, fail (code 45) where the table would have more new partitions than that; Apache Fluss ignores it.
        """
        await wait(self._core.create_partition(table_path, PartitionSpec.of(partition_spec), ignore_if_exists, bound))

    async def drop_partition(
        self, table_path: TablePath, partition_spec: PartitionSpecLike, ignore_if_not_exists: bool = False
    ) -> None:
        """Drop a partition and its rows."""
        await wait(self._core.drop_partition(table_path, PartitionSpec.of(partition_spec), ignore_if_not_exists))

    async def list_partition_infos(
        self, table_path: TablePath, partition_spec: PartitionSpecLike | None = None
    ) -> list[PartitionInfo]:
        """A table's partitions, or those that have the values given."""
        spec = None if partition_spec is None else PartitionSpec.of(partition_spec)
        return await wait(self._core.list_partition_infos(table_path, spec))

    async def list_partition_infos_with_spec(
        self, table_path: TablePath, partition_spec: PartitionSpecLike
    ) -> list[PartitionInfo]:
        """Same as `list_partition_infos` with a spec."""
        return await self.list_partition_infos(table_path, partition_spec)

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
        return await wait(self._core.list_offsets(table_path, bucket_ids, spec))

    async def list_partition_offsets(
        self,
        table_path: TablePath,
        partition_name: str,
        bucket_ids: list[int],
        offset_spec: OffsetSpec | None = None,
        *,
        offset_type: str | None = None,
        timestamp: int | None = None,
    ) -> dict[int, int]:
        """An offset per bucket of a partition: earliest, latest, or by time."""
        spec = spec_of(offset_spec, offset_type, timestamp)
        return await wait(self._core.list_partition_offsets(table_path, partition_name, bucket_ids, spec))

    async def get_latest_lake_snapshot(self, table_path: TablePath) -> LakeSnapshot:
        """How far a table has been tiered to the lake."""
        return await wait(self._core.get_latest_lake_snapshot(table_path))

    async def describe_cluster_configs(self) -> list[ConfigEntry]:
        """The cluster's settings that it tells."""
        return await wait(self._core.describe_cluster_configs())

    async def get_server_nodes(self) -> list[ServerNode]:
        """The servers of the cluster."""
        return await wait(self._core.get_server_nodes())

    def __repr__(self) -> str:
        return "FlussAdmin()"

    def _repr_html_(self) -> str:
        return html_of_catalog(self._core)

"""Administration of databases, tables and partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fluss.api.awaiting import AdminWaiting, wait
from fluss.api.conversions import html_of_catalog
from fluss.api.conversions import offset_spec as spec_of
from fluss.client.admin import AdminCore, ColumnLike
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
from fluss.model.paths import TablePath, TablePathLike


class FlussAdmin(AdminWaiting):
    """Creates, alters, lists and drops databases, tables and partitions. Obtain with `conn.get_admin()`.

    Tables are named by a TablePath, or as `"database.table"`. Each call asks the server. It raises ConnectError or
    TimeoutError when there is no answer within `request-timeout-ms`, and AuthenticationError when the login is missing
    or wrong.

    Examples:
        >>> admin = conn.get_admin()
        >>> await admin.list_tables("shop")
        ['clicks', 'orders', 'users', 'visits']
    """

    def __init__(self, core: AdminCore) -> None:
        self._core = core

    async def create_database(
        self,
        database_name: str,
        database_descriptor: DatabaseDescriptor | None = None,
        ignore_if_exists: bool = False,
    ) -> None:
        """Create a database.

        Args:
            database_name: Letters, digits, `-` and `_`, at most 200 characters.
            database_descriptor: Comment and properties of its own.
            ignore_if_exists: Do nothing if there is one already.

        Raises:
            AlreadyExistsError: There is a database of this name.
            InvalidRequestError: The name is not acceptable.

        Examples:
            >>> await admin.create_database("archive", fluss.DatabaseDescriptor("Past years"))
            >>> await admin.create_database("archive", ignore_if_exists=True)
        """
        await wait(self._core.create_database(database_name, database_descriptor, ignore_if_exists))

    async def drop_database(self, database_name: str, ignore_if_not_exists: bool = False, cascade: bool = True) -> None:
        """Drop a database.

        Args:
            database_name: The database.
            ignore_if_not_exists: Do nothing if there is none.
            cascade: Drop its tables, too.

        Raises:
            NotFoundError: There is no such database.
            InvalidRequestError: It has tables, and `cascade` is False.

        Examples:
            >>> await admin.drop_database("shop", cascade=True)
            >>> await admin.drop_database("shop", ignore_if_not_exists=True)
        """
        await wait(self._core.drop_database(database_name, ignore_if_not_exists, cascade))

    async def list_databases(self) -> list[str]:
        """List the names of all databases.

        Returns:
            The names, in no particular order.

        Examples:
            >>> sorted(await admin.list_databases())
            ['fluss', 'shop']
        """
        return await wait(self._core.list_databases())

    async def database_exists(self, database_name: str) -> bool:
        """Tell whether a database exists.

        Args:
            database_name: The database.

        Returns:
            True if there is one of this name.

        Examples:
            >>> await admin.database_exists("shop")
            True
        """
        return await wait(self._core.database_exists(database_name))

    async def get_database_info(self, database_name: str) -> DatabaseInfo:
        """Get a database's descriptor, and when it was created and changed.

        Args:
            database_name: The database.

        Returns:
            The descriptor, and times in milliseconds since 1970.

        Raises:
            NotFoundError: There is no such database.

        Examples:
            >>> info = await admin.get_database_info("shop")
            >>> info.database_name, info.created_time <= info.modified_time
            ('shop', True)
        """
        return await wait(self._core.get_database_info(database_name))

    async def create_table(
        self, table_path: TablePathLike, table_descriptor: TableDescriptor, ignore_if_exists: bool | None = None
    ) -> None:
        """Create a table.

        Args:
            table_path: Database and name. The database has to exist.
            table_descriptor: Schema, buckets, partition columns and properties. With a primary key in its schema the
                table has rows that are updated by key, without one it is a log.
            ignore_if_exists: Do nothing if there is a table of this name, whatever its schema.

        Raises:
            AlreadyExistsError: There is a table of this name.
            NotFoundError: There is no such database.
            InvalidRequestError: A name, type, property or the number of buckets is not acceptable.

        Examples:
            >>> schema = fluss.Schema.builder().column("id", fluss.DataTypes.int()).column("at", fluss.DataTypes.date())
            >>> descriptor = fluss.TableDescriptor(schema.primary_key(["id"]).build(), bucket_count=4)
            >>> await admin.create_table(fluss.TablePath("shop", "returns"), descriptor)
        """
        await wait(self._core.create_table(TablePath.of(table_path), table_descriptor, bool(ignore_if_exists)))

    async def drop_table(self, table_path: TablePathLike, ignore_if_not_exists: bool = False) -> None:
        """Drop a table and its rows.

        Args:
            table_path: Database and name.
            ignore_if_not_exists: Do nothing if there is none.

        Raises:
            NotFoundError: There is no such table.

        Examples:
            >>> await admin.drop_table(fluss.TablePath("shop", "clicks"))
        """
        await wait(self._core.drop_table(TablePath.of(table_path), ignore_if_not_exists))

    async def get_table_info(self, table_path: TablePathLike) -> TableInfo:
        """Get what a table is.

        Args:
            table_path: Database and name.

        Returns:
            Id, schema, distribution, partition columns and properties.

        Raises:
            NotFoundError: There is no such table.

        Examples:
            >>> info = await admin.get_table_info(fluss.TablePath("shop", "users"))
            >>> info.primary_keys, info.num_buckets
            (['id'], 1)
        """
        return await wait(self._core.get_table_info(TablePath.of(table_path)))

    async def get_table(self, table_path: TablePathLike) -> TableInfo:
        """Get what a table is: the older spelling of `get_table_info`.

        Args:
            table_path: Database and name.

        Returns:
            Id, schema, distribution, partition columns and properties.

        Raises:
            NotFoundError: There is no such table.

        Examples:
            >>> (await admin.get_table(fluss.TablePath("shop", "users"))).has_primary_key()
            True
        """
        return await self.get_table_info(table_path)

    async def list_tables(self, database_name: str) -> list[str]:
        """List the names of a database's tables.

        Args:
            database_name: The database.

        Returns:
            Names without the database.

        Raises:
            NotFoundError: There is no such database.

        Examples:
            >>> await admin.list_tables("shop")
            ['clicks', 'orders', 'users', 'visits']
        """
        return await wait(self._core.list_tables(database_name))

    async def table_exists(self, table_path: TablePathLike) -> bool:
        """Tell whether a table exists.

        Args:
            table_path: Database and name.

        Returns:
            True if there is one of this name.

        Examples:
            >>> await admin.table_exists(fluss.TablePath("shop", "nothing"))
            False
        """
        return await wait(self._core.table_exists(TablePath.of(table_path)))

    async def get_table_schema(self, table_path: TablePathLike, schema_id: int | None = None) -> SchemaInfo:
        """Get a schema of a table.

        Args:
            table_path: Database and name.
            schema_id: Which one; None: the latest. Ids count from 1, and each added column makes a new schema.

        Returns:
            The schema and its id.

        Raises:
            NotFoundError: There is no such table, or no such schema of it.

        Examples:
            >>> info = await admin.get_table_schema(fluss.TablePath("shop", "clicks"))
            >>> info.schema_id, info.schema.column_names
            (1, ['id', 'url'])
        """
        return await wait(self._core.get_table_schema(TablePath.of(table_path), schema_id))

    async def alter_table(
        self,
        table_path: TablePathLike,
        *,
        add_columns: Iterable[ColumnLike] | None = None,
        set_properties: Mapping[str, str] | None = None,
        reset_properties: Sequence[str] | None = None,
        ignore_if_not_exists: bool = False,
    ) -> None:
        """Add nullable columns, or change properties.

        Args:
            table_path: Database and name.
            add_columns: Columns to be added behind the others: `(name, type)`, `(name, type, comment)` or PyArrow
                fields.
            set_properties: Properties to be set, by key.
            reset_properties: Keys of properties that get their defaults again.
            ignore_if_not_exists: Do nothing if there is no such table.

        Raises:
            NotFoundError: There is no such table.
            InvalidRequestError: A column exists, or a property can't be changed.

        Examples:
            >>> clicks = fluss.TablePath("shop", "clicks")
            >>> await admin.alter_table(clicks, add_columns=[("agent", fluss.DataTypes.string(), "Browser")])
            >>> (await admin.get_table_info(clicks)).get_column_names()
            ['id', 'url', 'agent']
        """
        await wait(
            self._core.alter_table(
                TablePath.of(table_path), add_columns, set_properties, reset_properties, ignore_if_not_exists
            )
        )

    async def get_table_stats(self, table_path: TablePathLike, partition_name: str | None = None) -> TableStats:
        """Count the rows of a table, or of one of its partitions.

        Args:
            table_path: Database and name.
            partition_name: The partition, as `PartitionInfo.partition_name` spells it.

        Returns:
            The number of rows, in all and by bucket.

        Raises:
            NotFoundError: There is no such table or partition.

        Examples:
            >>> (await admin.get_table_stats(fluss.TablePath("shop", "clicks"))).row_count
            3
        """
        return await wait(self._core.get_table_stats(TablePath.of(table_path), partition_name))

    async def create_partition(
        self,
        table_path: TablePathLike,
        partition_spec: PartitionSpecLike,
        ignore_if_exists: bool = False,
        *,
        bound: PartitionBound | None = None,
    ) -> None:
        """Create a partition.

        Args:
            table_path: Database and name.
            partition_spec: A value for each partition column.
            ignore_if_exists: Do nothing if there is such a partition.
            bound: Fail (code 45) where the table would have more new partitions than that; Apache Fluss ignores it.

        Raises:
            AlreadyExistsError: There is such a partition.
            NotFoundError: There is no such table.
            InvalidRequestError: The table has no partitions, or others, or too many of them.

        Examples:
            >>> await admin.create_partition(fluss.TablePath("shop", "visits"), {"day": "2026-02-01"})
        """
        await wait(
            self._core.create_partition(
                TablePath.of(table_path), PartitionSpec.of(partition_spec), ignore_if_exists, bound
            )
        )

    async def drop_partition(
        self, table_path: TablePathLike, partition_spec: PartitionSpecLike, ignore_if_not_exists: bool = False
    ) -> None:
        """Drop a partition and its rows.

        Args:
            table_path: Database and name.
            partition_spec: A value for each partition column.
            ignore_if_not_exists: Do nothing if there is none.

        Raises:
            NotFoundError: There is no such table or partition.

        Examples:
            >>> await admin.drop_partition(fluss.TablePath("shop", "visits"), {"day": "2026-01-31"})
        """
        await wait(
            self._core.drop_partition(TablePath.of(table_path), PartitionSpec.of(partition_spec), ignore_if_not_exists)
        )

    async def list_partition_infos(
        self, table_path: TablePathLike, partition_spec: PartitionSpecLike | None = None
    ) -> list[PartitionInfo]:
        """List a table's partitions.

        Args:
            table_path: Database and name.
            partition_spec: Values of some partition columns: only partitions that have these.

        Returns:
            Ids, names and values.

        Raises:
            NotFoundError: There is no such table.
            InvalidRequestError: The table has no partitions.

        Examples:
            >>> partitions = await admin.list_partition_infos(fluss.TablePath("shop", "visits"))
            >>> [partition.partition_name for partition in partitions]
            ['2026-01-31']
        """
        spec = None if partition_spec is None else PartitionSpec.of(partition_spec)
        return await wait(self._core.list_partition_infos(TablePath.of(table_path), spec))

    async def list_partition_infos_with_spec(
        self, table_path: TablePathLike, partition_spec: PartitionSpecLike
    ) -> list[PartitionInfo]:
        """List the partitions that have some values, as `list_partition_infos` with a spec.

        Args:
            table_path: Database and name.
            partition_spec: Values of some partition columns.

        Returns:
            Ids, names and values.

        Raises:
            NotFoundError: There is no such table.
            InvalidRequestError: The table has no partitions.

        Examples:
            >>> path = fluss.TablePath("shop", "visits")
            >>> len(await admin.list_partition_infos_with_spec(path, {"day": "2026-01-31"}))
            1
        """
        return await self.list_partition_infos(table_path, partition_spec)

    async def list_offsets(
        self,
        table_path: TablePathLike,
        bucket_ids: list[int],
        offset_spec: OffsetSpec | None = None,
        *,
        offset_type: str | None = None,
        timestamp: int | None = None,
    ) -> dict[int, int]:
        """Get an offset of each bucket: the earliest, the latest, or by time.

        Args:
            table_path: Database and name of a table without partitions.
            bucket_ids: The buckets.
            offset_spec: `OffsetSpec.earliest()`, `.latest()` or `.timestamp(ms)`.
            offset_type: The older spelling: "earliest", "latest" or "timestamp".
            timestamp: Of `offset_type="timestamp"`: milliseconds since 1970.

        Returns:
            Offsets by bucket id. The latest is the offset that the next row will get.

        Raises:
            NotFoundError: There is no such table.
            InvalidRequestError: There is no such bucket, the time lies in the future, or neither `offset_spec` nor
                `offset_type` is right.

        Examples:
            >>> await admin.list_offsets(fluss.TablePath("shop", "clicks"), [0], fluss.OffsetSpec.latest())
            {0: 3}
        """
        spec = spec_of(offset_spec, offset_type, timestamp)
        return await wait(self._core.list_offsets(TablePath.of(table_path), bucket_ids, spec))

    async def list_partition_offsets(
        self,
        table_path: TablePathLike,
        partition_name: str,
        bucket_ids: list[int],
        offset_spec: OffsetSpec | None = None,
        *,
        offset_type: str | None = None,
        timestamp: int | None = None,
    ) -> dict[int, int]:
        """Get an offset of each bucket of a partition: the earliest, the latest, or by time.

        Args:
            table_path: Database and name.
            partition_name: The partition, as `PartitionInfo.partition_name` spells it.
            bucket_ids: The buckets.
            offset_spec: `OffsetSpec.earliest()`, `.latest()` or `.timestamp(ms)`.
            offset_type: The older spelling: "earliest", "latest" or "timestamp".
            timestamp: Of `offset_type="timestamp"`: milliseconds since 1970.

        Returns:
            Offsets by bucket id.

        Raises:
            NotFoundError: There is no such table or partition.
            InvalidRequestError: There is no such bucket, the time lies in the future, or neither `offset_spec` nor
                `offset_type` is right.

        Examples:
            >>> path = fluss.TablePath("shop", "visits")
            >>> await admin.list_partition_offsets(path, "2026-01-31", [0], fluss.OffsetSpec.latest())
            {0: 1}
        """
        spec = spec_of(offset_spec, offset_type, timestamp)
        return await wait(self._core.list_partition_offsets(TablePath.of(table_path), partition_name, bucket_ids, spec))

    async def get_latest_lake_snapshot(self, table_path: TablePathLike) -> LakeSnapshot:
        """Get how far a table has been tiered to the lake.

        Args:
            table_path: Database and name.

        Returns:
            The id of the latest snapshot, and the offset that it reaches in each bucket.

        Raises:
            NotFoundError: There is no such table, or nothing of it is in the lake.

        Examples:
            >>> try:
            ...     await admin.get_latest_lake_snapshot(fluss.TablePath("shop", "clicks"))
            ... except fluss.NotFoundError:
            ...     print("not tiered yet")
            not tiered yet
        """
        return await wait(self._core.get_latest_lake_snapshot(TablePath.of(table_path)))

    async def describe_cluster_configs(self) -> list[ConfigEntry]:
        """Get the cluster's settings, as far as it tells them.

        Returns:
            Keys, values, and where each comes from.

        Examples:
            >>> len(await admin.describe_cluster_configs()) > 0
            True
        """
        return await wait(self._core.describe_cluster_configs())

    async def get_server_nodes(self) -> list[ServerNode]:
        """Get the servers of the cluster.

        Returns:
            A node for each role of each server, with its address.

        Examples:
            >>> nodes = await admin.get_server_nodes()
            >>> sorted(node.server_type.name for node in nodes)
            ['COORDINATOR_SERVER', 'TABLET_SERVER']
        """
        return await wait(self._core.get_server_nodes())

    def __repr__(self) -> str:
        return "FlussAdmin()"

    def _repr_html_(self) -> str:
        return html_of_catalog(self._core)

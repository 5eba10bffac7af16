"""Connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Self, TypeVar

from fluss.api._aio.admin import FlussAdmin
from fluss.api._aio.table import FlussTable, TableWriting
from fluss.api.awaiting import beside, close, wait
from fluss.api.connect import CLOSING, FlussConnectionBase, leaving
from fluss.api.union import run_sql
from fluss.client.client import ClientCore
from fluss.model.config import Config
from fluss.model.paths import TablePath, TablePathLike

if TYPE_CHECKING:
    import pyarrow as pa

Table = TypeVar("Table", bound=TableWriting)


class ConnectionTo(FlussConnectionBase, Generic[Table]):
    """A connection whose tables are of a class, without `close`, which differs."""

    _table_class: type[Table]

    @classmethod
    async def create(cls, config: Config) -> Self:
        """Open a connection; the same as `connect`.

        Args:
            config: Address, login and settings.

        Returns:
            The connection.

        Raises:
            ConnectError: No server answers at that address within `connect-timeout-ms`.
            AuthenticationError: The server wants another login.

        Examples:
            >>> other = await fluss.FlussConnection.create(conn.reachable_config())
            >>> await other.close()
        """
        return cls(await wait(ClientCore.connect(config)))

    @classmethod
    async def connect(cls, config: Config) -> Self:
        """Connect: the older spelling of `create`.

        Args:
            config: Address, login and settings.

        Returns:
            The connection.

        Raises:
            ConnectError: No server answers at that address within `connect-timeout-ms`.
            AuthenticationError: The server wants another login.

        Examples:
            >>> other = await fluss.FlussConnection.connect(conn.config)
            >>> await other.close()
        """
        return await cls.create(config)

    def get_admin(self) -> FlussAdmin:
        """Get the administration of databases and tables.

        Returns:
            The admin, which uses this connection.

        Examples:
            >>> await conn.get_admin().database_exists("shop")
            True
        """
        return FlussAdmin(self._core.admin)

    async def get_table(self, table_path: TablePathLike) -> Table:
        """Get a table to read from and write to.

        Args:
            table_path: Database and name, as a TablePath or as `"database.table"`.

        Returns:
            The table, with the schema that it has at the call.

        Raises:
            NotFoundError: There is no such table.
            TimeoutError: Its buckets have no leaders within `request-timeout-ms`.

        Examples:
            >>> clicks = await conn.get_table(fluss.TablePath("shop", "clicks"))
            >>> clicks.arrow_schema.names
            ['id', 'url']
        """
        return self._table_class(await wait(self._core.table(TablePath.of(table_path))))

    async def sql(self, query: str, database: str = "fluss") -> pa.Table:
        """Run SQL in DuckDB's dialect on the server's tables, with their rows in the lake and those that came since.

        Statements that write are INSERT INTO, CREATE TABLE, and UPDATE and DELETE of one row by its key; see
        [SQL](../command-line.md#sql). Each is as of its own start.

        Args:
            query: A statement, or several with `;` between them.
            database: The database of tables that are named without one.

        Returns:
            The rows that the last statement answers.

        Raises:
            NotFoundError: There is no such table or database.
            FlussError: The statement is wrong, or DuckDB is not installed.

        Examples:
            >>> (await conn.sql("SELECT count(*) AS n FROM clicks", database="shop")).to_pylist()
            [{'n': 3}]
        """
        return await beside(run_sql, self._core, query, database)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        with leaving(error, CLOSING):
            await close(self._core)


class FlussConnection(ConnectionTo[FlussTable]):
    """A connection to a server or cluster. Obtain with `connect(address)`, or with `FlussConnection.create(config)`.

    It is closed at the end of its block, or by `close()`; see [Closing](../closing.md). Any thread may use it.

    Examples:
        >>> async with await fluss.FlussConnection.create(conn.config) as other:
        ...     users = await other.get_table(fluss.TablePath("shop", "users"))
        ...     print(users)
        FlussTable(shop.users, table_id=...)
    """

    _table_class = FlussTable

    async def close(self) -> None:
        """Close the connection when all rows are stored.

        Waits for up to `close.timeout-ms`; [Closing](../closing.md) says what becomes of rows then. Closing twice does
        nothing.

        Raises:
            FlussError: The first failure of a write that nobody was told of.

        Examples:
            >>> await conn.close()
            >>> conn
            FlussConnection('...', closed)
        """
        await close(self._core)

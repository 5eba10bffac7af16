"""Classes that only the facade `fluss` has: awaited ones as in `fluss.aio`, scanners as in `fluss.sync`."""

from __future__ import annotations

from typing import Any

from fluss.api import blocking
from fluss.api._aio.connection import ConnectionTo
from fluss.api._aio.table import TableWriting
from fluss.api._sync.readers import Changes
from fluss.api._sync.scan import TableReading
from fluss.api._sync.scanner import LogScanner
from fluss.api.connect import DONE, Connecting, Done, connect_config
from fluss.api.scan_base import TableScanBase
from fluss.client.runtime import run
from fluss.model.offsets import OffsetSpec
from fluss.model.positions import ChangesPosition


class TableScan(TableReading):
    __doc__ = TableScanBase.__doc__

    async def create_log_scanner(self) -> LogScanner:
        """Make a scanner of records: rows with offset, timestamp and change type.

        Returns:
            The scanner, not subscribed to any bucket yet.

        Raises:
            InvalidRequestError: The scan has a limit.

        Examples:
            >>> scanner = await clicks.new_scan().create_log_scanner()
            >>> scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            >>> [record.offset for record in scanner.poll(timeout_ms=1_000)]
            [0, 1, 2]
        """
        return LogScanner(self._scanner(records=True), records=True)

    async def create_record_batch_log_scanner(self) -> LogScanner:
        """Make a scanner of Arrow batches.

        Returns:
            The scanner, not subscribed to any bucket yet.

        Raises:
            InvalidRequestError: The scan has a limit, or the table's log is of rows that can't be read as batches.

        Examples:
            >>> scanner = await clicks.new_scan().create_record_batch_log_scanner()
            >>> scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            >>> scanner.poll_arrow(timeout_ms=1_000).num_rows
            3
        """
        return LogScanner(self._scanner(records=False), records=False)

    async def create_batch_scanner(self) -> LogScanner:
        """Make a scanner of Arrow batches: the older spelling of `create_record_batch_log_scanner`.

        Returns:
            The scanner, not subscribed to any bucket yet.

        Raises:
            InvalidRequestError: The scan has a limit, or the table's log is of rows that can't be read as batches.

        Examples:
            >>> scanner = await clicks.new_scan().create_batch_scanner()
        """
        return await self.create_record_batch_log_scanner()

    async def create_changelog_batch_scanner(self) -> LogScanner:
        """Make a scanner of Arrow batches with `_change_type`, `_log_offset` and `_commit_timestamp` in front.

        Returns:
            The scanner, not subscribed to any bucket yet.

        Raises:
            InvalidRequestError: The scan has a limit.

        Examples:
            >>> scanner = await users.new_scan().create_changelog_batch_scanner()
            >>> scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            >>> scanner.poll_arrow(timeout_ms=1_000).column("_change_type").to_pylist()
            ['+I', '+I']
        """
        return LogScanner(self._changelog_scanner(), records=False)


class FlussTable(TableWriting):
    __doc__ = TableWriting.__doc__

    def new_scan(self) -> TableScan:
        """Start reading: columns and rows are chosen first, then a scanner or a whole result.

        Returns:
            A scan of all rows and columns.

        Examples:
            >>> clicks.new_scan().project_by_name(["url"]).to_arrow().to_pylist()
            [{'url': '/'}, {'url': '/buy'}, {'url': '/bye'}]
        """
        return TableScan(self._core)

    def changes(self, start: str | OffsetSpec | ChangesPosition = "snapshot") -> Changes:
        """Follow the table's changes. Blocks until it is known where they begin.

        Args:
            start: "snapshot": the current rows first, then all changes; in a log table, which has no current rows, the
                same as "earliest". "earliest" or "latest", an offset spec, or the position of an earlier reader.

        Returns:
            A reader, which finds partitions that come later, too.

        Raises:
            InvalidRequestError: The position is not of this table.
            NotFoundError: The table is gone.

        Examples:
            >>> changes = users.changes("snapshot")
            >>> changes.poll(timeout_ms=1_000).column("name").to_pylist()
            ['ada', 'bob']
        """
        core = self._core.changes()
        run(core.start(start))
        return Changes(core)


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

    def close(self) -> Done:
        """Close the connection when all rows are stored.

        Waits for up to `close.timeout-ms`; [Closing](../closing.md) says what becomes of rows then. Closing twice does
        nothing. It blocks, so in a program with other tasks `async with` is better: it awaits.

        Returns:
            Something that may be awaited, and is done.

        Raises:
            FlussError: The first failure of a write that nobody was told of.

        Examples:
            >>> await conn.close()
            >>> conn
            FlussConnection('...', closed)
        """
        blocking.close(self._core)
        return DONE


def connect(address: str | None = None, **options: Any) -> Connecting[FlussConnection]:
    """Connect to a server or cluster.

    Args:
        address: `host:port`, `file:///directory` or `memory:`; None: 127.0.0.1:9123.
        **options: Settings, named like the attributes of Config.

    Returns:
        A connection to be awaited, or used in `async with`, which closes it at the end.

    Raises:
        ConnectError: No server answers there within `connect-timeout-ms`.
        AuthenticationError: The server wants another login.
        InvalidRequestError: There is no such option, or its value is not right.

    Examples:
        >>> async with fluss.connect("memory:", request_timeout_ms=10_000) as connection:
        ...     print(await connection.get_admin().database_exists("fluss"))
        True
    """
    return Connecting(FlussConnection.create(connect_config(address, options)))

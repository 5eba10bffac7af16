"""Classes that only the facade `fluss` has: awaited ones as in `fluss.aio`, scanners as in `fluss.sync`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fluss.api import blocking
from fluss.api._aio.connection import ConnectionTo
from fluss.api._aio.table import TableWriting
from fluss.api._sync.readers import BatchScanner, Changes, UnionScan
from fluss.api._sync.scanner import LogScanner
from fluss.api.connect import DONE, Connecting, Done, connect_config
from fluss.api.conversions import to_duckdb, to_pandas, to_polars
from fluss.api.scan_base import TableScanBase
from fluss.client.runtime import run
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TableBucket
from fluss.model.positions import ChangesPosition

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class TableScan(TableScanBase):
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

    def create_bucket_batch_scanner(self, bucket: TableBucket) -> BatchScanner:
        """Make a reader of some rows of a bucket; needs `limit(n)`.

        Args:
            bucket: The bucket.

        Returns:
            A reader, which asks the server at its first read.

        Raises:
            InvalidRequestError: The scan has no limit, or a filter, or the bucket is not of this table.

        Examples:
            >>> bucket = fluss.TableBucket(clicks.get_table_info().table_id, 0)
            >>> scanner = clicks.new_scan().limit(2).create_bucket_batch_scanner(bucket)
            >>> scanner.to_arrow().column("id").to_pylist()
            [2, 3]
        """
        return BatchScanner(self._limit_scan(bucket))

    def to_arrow(self) -> pa.Table:
        """Read all rows as they are now, or as many as a limit says. `to_arrow_with_offsets` says which these are.

        Returns:
            A PyArrow Table.

        Examples:
            >>> clicks.new_scan().to_arrow().column("id").to_pylist()
            [1, 2, 3]
        """
        if self._options.limit is not None:
            return self._first_rows()
        rows, _ = run(self._read())
        return rows

    def head(self, n: int = 5) -> pa.Table:
        """Read the first rows that are found, bucket by bucket.

        Args:
            n: How many at most.

        Returns:
            A PyArrow Table.

        Examples:
            >>> clicks.new_scan().head(2).column("id").to_pylist()
            [1, 2]
        """
        return self.limit(n).to_arrow()

    def count(self) -> int:
        """Count the rows as they are now. Without a filter the server tells, where it can.

        Returns:
            The number of rows that match.

        Examples:
            >>> clicks.new_scan().filter(fluss.col("id") > 1).count()
            2
        """
        return self._count()

    def to_arrow_with_offsets(self) -> tuple[pa.Table, dict[TableBucket, int]]:
        """Read all rows as they are now, and learn where each bucket's log, or changelog, goes on.

        Of a primary-key table these are the current rows, each bucket's as of its offset; of a log table all rows up to
        the latest. Partitions are those that exist at the call.

        Returns:
            A PyArrow Table, and for each bucket the offset that follows.

        Raises:
            InvalidRequestError: The scan has a limit.

        Examples:
            >>> rows, offsets = users.new_scan().to_arrow_with_offsets()
            >>> rows.num_rows, list(offsets.values())
            (2, [2])
        """
        return run(self._read())

    def to_pandas(self) -> pd.DataFrame:
        """Read all rows as they are now, or as many as a limit says, as a DataFrame.

        Returns:
            A pandas DataFrame.

        Raises:
            FlussError: pandas is not installed.

        Examples:
            >>> clicks.new_scan().to_pandas().shape
            (3, 2)
        """
        return to_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """Read all rows as they are now, or as many as a limit says, as a Polars DataFrame.

        Returns:
            A Polars DataFrame.

        Raises:
            FlussError: Polars is not installed.

        Examples:
            >>> clicks.new_scan().to_polars().shape
            (3, 2)
        """
        return to_polars(self.to_arrow())

    def to_duckdb(self, connection: Any = None) -> Any:
        """Read all rows as they are now, or as many as a limit says, as a relation of DuckDB.

        Args:
            connection: A connection of DuckDB; None: its default one.

        Returns:
            A DuckDB relation.

        Raises:
            FlussError: DuckDB is not installed.

        Examples:
            >>> clicks.new_scan().to_duckdb().aggregate("max(id)").fetchall()
            [(3,)]
        """
        return to_duckdb(self.to_arrow(), connection)

    def union(
        self, *, warehouse: str | None = None, catalog: Mapping[str, str] | None = None, mode: str = "auto"
    ) -> UnionScan:
        """Read the table's history in the lake, and the fresh rows behind it, as one.

        Args:
            warehouse: A folder that has the lake. Without it and `catalog` the lake is where the table's server says.
            catalog: A catalog that has the lake, with the keys of the server's `datalake.iceberg.` settings.
            mode: "auto", "none" (the log alone) or "only" (the lake alone).

        Returns:
            A reader of both.

        Raises:
            InvalidRequestError: The mode or the lake is not right, or the scan has a limit.
            FlussError: The packages of `flussbett[lake]` are not installed.

        Examples:
            >>> clicks.new_scan().union(mode="none").to_arrow().num_rows
            3
        """
        return UnionScan(self._core, self._union(warehouse, catalog, mode), mode)


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

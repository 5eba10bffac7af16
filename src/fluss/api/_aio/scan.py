"""Scans: which rows and columns of a table are read, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fluss.api._aio.readers import BatchScanner, UnionScan
from fluss.api._aio.scanner import LogScanner
from fluss.api.awaiting import beside, wait
from fluss.api.conversions import to_duckdb, to_pandas, to_polars
from fluss.api.scan_base import TableScanBase
from fluss.model.paths import TableBucket

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class TableReading(TableScanBase):
    """Scans that return a whole result, or a reader of one."""

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
            >>> (await scanner.to_arrow()).column("id").to_pylist()
            [2, 3]
        """
        return BatchScanner(self._limit_scan(bucket))

    async def to_arrow(self) -> pa.Table:
        """Read all rows as they are now, or as many as a limit says. `to_arrow_with_offsets` says which these are.

        Returns:
            A PyArrow Table.

        Examples:
            >>> (await clicks.new_scan().to_arrow()).column("id").to_pylist()
            [1, 2, 3]
        """
        if self._options.limit is not None:
            return await beside(self._first_rows)
        rows, _ = await wait(self._read())
        return rows

    async def head(self, n: int = 5) -> pa.Table:
        """Read the first rows that are found, bucket by bucket.

        Args:
            n: How many at most.

        Returns:
            A PyArrow Table.

        Examples:
            >>> (await clicks.new_scan().head(2)).column("id").to_pylist()
            [1, 2]
        """
        return await self.limit(n).to_arrow()

    async def count(self) -> int:
        """Count the rows as they are now. Without a filter the server tells, where it can.

        Returns:
            The number of rows that match.

        Examples:
            >>> await clicks.new_scan().filter(fluss.col("id") > 1).count()
            2
        """
        return await beside(self._count)

    async def to_arrow_with_offsets(self) -> tuple[pa.Table, dict[TableBucket, int]]:
        """Read all rows as they are now, and learn where each bucket's log, or changelog, goes on.

        Of a primary-key table these are the current rows, each bucket's as of its offset; of a log table all rows up to
        the latest. Partitions are those that exist at the call.

        Returns:
            A PyArrow Table, and for each bucket the offset that follows.

        Raises:
            InvalidRequestError: The scan has a limit.

        Examples:
            >>> rows, offsets = await users.new_scan().to_arrow_with_offsets()
            >>> rows.num_rows, list(offsets.values())
            (2, [2])
        """
        return await wait(self._read())

    async def to_pandas(self) -> pd.DataFrame:
        """Read all rows as they are now, or as many as a limit says, as a DataFrame.

        Returns:
            A pandas DataFrame.

        Raises:
            FlussError: pandas is not installed.

        Examples:
            >>> (await clicks.new_scan().to_pandas()).shape
            (3, 2)
        """
        return to_pandas(await self.to_arrow())

    async def to_polars(self) -> Any:
        """Read all rows as they are now, or as many as a limit says, as a Polars DataFrame.

        Returns:
            A Polars DataFrame.

        Raises:
            FlussError: Polars is not installed.

        Examples:
            >>> (await clicks.new_scan().to_polars()).shape
            (3, 2)
        """
        return to_polars(await self.to_arrow())

    async def to_duckdb(self, connection: Any = None) -> Any:
        """Read all rows as they are now, or as many as a limit says, as a relation of DuckDB.

        Args:
            connection: A connection of DuckDB; None: its default one.

        Returns:
            A DuckDB relation.

        Raises:
            FlussError: DuckDB is not installed.

        Examples:
            >>> (await clicks.new_scan().to_duckdb()).aggregate("max(id)").fetchall()
            [(3,)]
        """
        return to_duckdb(await self.to_arrow(), connection)

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
            >>> (await clicks.new_scan().union(mode="none").to_arrow()).num_rows
            3
        """
        return UnionScan(self._core, self._union(warehouse, catalog, mode), mode)


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
            >>> [record.offset for record in await scanner.poll(timeout_ms=1_000)]
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
            >>> (await scanner.poll_arrow(timeout_ms=1_000)).num_rows
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
            >>> (await scanner.poll_arrow(timeout_ms=1_000)).column("_change_type").to_pylist()
            ['+I', '+I']
        """
        return LogScanner(self._changelog_scanner(), records=False)

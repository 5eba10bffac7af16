# Made of _aio/readers.py by tools/unasync.py: change that file, and run `make sync`.
"""Readers besides log scanners: some rows of a bucket, a table's changes, lake and log as one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

from fluss.api.blocking import ITERATION_POLL_MS, BatchScannerWaiting, ChangesWaiting, beside, settled, wait
from fluss.api.conversions import to_duckdb, to_pandas, to_polars
from fluss.api.union import UnionRows
from fluss.client.current.changes import ChangesCore
from fluss.client.scan.batches import FetchedBatch, to_record_batches, to_table
from fluss.client.scan.table_read import LimitScanCore
from fluss.client.table import TableCore
from fluss.doors import threads
from fluss.model.paths import TableBucket
from fluss.model.positions import ChangesPosition
from fluss.model.records import RecordBatch

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class BatchScanner(BatchScannerWaiting):
    """Reads some rows of one bucket, once. Obtain with `new_scan().limit(n).create_bucket_batch_scanner(bucket)`.

    The server is asked at the first read; afterwards, also after a failure, the scanner is spent.

    Examples:
        >>> bucket = fluss.TableBucket(clicks.get_table_info().table_id, 0)
        >>> scanner = clicks.new_scan().limit(1).create_bucket_batch_scanner(bucket)
        >>> scanner.to_arrow().to_pylist()
        [{'id': 3, 'url': '/bye'}]
    """

    def __init__(self, core: LimitScanCore) -> None:
        self._core = core

    @property
    def bucket(self) -> TableBucket:
        """The bucket that is read.

        Examples:
            >>> scanner.bucket.bucket_id
            0
        """
        return self._core.bucket

    def _record_batch(self, fetched: FetchedBatch | None) -> RecordBatch | None:
        return None if fetched is None else to_record_batches([fetched])[0]

    def _table(self, fetched: FetchedBatch | None) -> pa.Table:
        return to_table([] if fetched is None else [fetched], self._core.arrow_schema)

    def next_batch(self) -> RecordBatch | None:
        """Get the rows at the first call, then None.

        Returns:
            An Arrow batch with bucket and offsets, or None when the scanner is spent.

        Examples:
            >>> scanner.next_batch().batch.num_rows
            2
            >>> scanner.next_batch()
        """
        return self._record_batch(wait(self._core.next_batch()))

    def collect_all_batches(self) -> list[RecordBatch]:
        """Get all batches that there are.

        Returns:
            One batch, or none when the scanner is spent.

        Examples:
            >>> len(scanner.collect_all_batches())
            1
        """
        batch = self.next_batch()
        return [] if batch is None else [batch]

    def to_arrow(self) -> pa.Table:
        """Get the rows.

        Returns:
            A PyArrow Table; without rows when the scanner is spent.

        Examples:
            >>> scanner.to_arrow().column("id").to_pylist()
            [2, 3]
        """
        return self._table(wait(self._core.next_batch()))

    def to_pandas(self) -> pd.DataFrame:
        """Get the rows as a DataFrame.

        Returns:
            A pandas DataFrame.

        Raises:
            FlussError: pandas is not installed.

        Examples:
            >>> scanner.to_pandas().shape
            (2, 2)
        """
        return to_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """Get the rows as a Polars DataFrame.

        Returns:
            A Polars DataFrame.

        Raises:
            FlussError: Polars is not installed.

        Examples:
            >>> scanner.to_polars().shape
            (2, 2)
        """
        return to_polars(self.to_arrow())

    def to_duckdb(self, connection: Any = None) -> Any:
        """Get the rows as a relation of DuckDB.

        Args:
            connection: A connection of DuckDB; None: its default one.

        Returns:
            A DuckDB relation.

        Raises:
            FlussError: DuckDB is not installed.

        Examples:
            >>> scanner.to_duckdb().aggregate("count(*)").fetchall()
            [(2,)]
        """
        return to_duckdb(self.to_arrow(), connection)

    def __repr__(self) -> str:
        return f"BatchScanner({self._core.bucket})"


class Changes(ChangesWaiting):
    """A table's changes, and before them its current rows where they are wanted. Obtain with `table.changes(start)`.

    Rows are PyArrow tables with `_change_type` (`+I`, `-U`, `+U`, `-D`; `+A` in log tables), `_log_offset` and
    `_commit_timestamp` in front of the table's columns. A row that was there at the start comes as `+I` with the offset
    that its bucket's changes go on from, and no timestamp. Iterating yields such tables without end.
    A reader of changes is for one caller at a time.

    Examples:
        >>> with users.changes() as changes:
        ...     for rows in changes:
        ...         print(rows.select(["_change_type", "name"]).to_pylist())
        ...         break
        [{'_change_type': '+I', 'name': 'ada'}, {'_change_type': '+I', 'name': 'bob'}]
    """

    def __init__(self, core: ChangesCore, starting: Future[None] | None = None) -> None:
        self._core = core
        self._starting = starting

    def _started(self) -> Self:
        if self._starting is not None:
            settled(self._starting)
            self._starting = None
        return self

    @property
    def arrow_schema(self) -> pa.Schema:
        """The PyArrow schema of what polls return.

        Examples:
            >>> changes.arrow_schema.names
            ['_change_type', '_log_offset', '_commit_timestamp', 'id', 'name']
        """
        return self._core.arrow_schema

    @property
    def position(self) -> ChangesPosition:
        """How far polls have come; store it (`to_json()`) with what they returned, and go on with `table.changes(it)`.

        What is read from there on, folded by key into what was returned before, is the table; also when the position is
        one in the middle of the current rows, and rows have changed or gone meanwhile.

        Examples:
            >>> rows = changes.poll(timeout_ms=1_000)
            >>> stored = changes.position.to_json()
            >>> later = users.changes(fluss.ChangesPosition.from_json(stored))
        """
        if self._starting is not None:
            threads.result(self._starting)  # blocks where nobody has awaited anything yet
        return self._core.position

    def _taken(self, changes: pa.Table) -> pa.Table:
        """Called where the caller can't be interrupted any more before it has them."""
        self._core.taken()
        return changes

    def close(self) -> None:
        """Stop reading.

        Examples:
            >>> changes.close()
        """
        if self._starting is not None:
            self._starting.cancel()
        self._core.close()

    def poll(self, timeout_ms: int) -> pa.Table:
        """Get the next changes.

        Args:
            timeout_ms: How long to wait while there are none.

        Returns:
            A PyArrow Table; without rows if none came in time.

        Raises:
            NotFoundError: The table is gone.

        Examples:
            >>> changes.poll(timeout_ms=1_000).column("id").to_pylist()
            [1, 2]
        """
        self._started()
        return self._taken(wait(self._core.poll(timeout_ms)))

    def __iter__(self) -> Iterator[pa.Table]:
        while True:
            changes = self.poll(ITERATION_POLL_MS)
            if changes.num_rows:
                yield changes

    def __enter__(self) -> Self:
        return self._started()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Changes({self._core.info.table_path})"


class UnionScan:
    """Reads a table's history in the lake and the fresh rows behind it as one, each row once.

    Obtain with `new_scan().union()`. Each read is of the rows as of its call. Columns have the table's types, but the
    lake keeps times in microseconds, and finer ones are cut to these. Rows of partitions that were dropped since they
    were tiered are history, and are read.

    Examples:
        >>> union = clicks.new_scan().filter(fluss.col("id") > 1).union(mode="none")
        >>> union.to_arrow().column("url").to_pylist()
        ['/buy', '/bye']
    """

    def __init__(self, core: TableCore, read: UnionRows, mode: str) -> None:
        self._core = core
        self._read = read
        self._mode = mode

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """Make a PyArrow reader over all rows as of now, in bounded memory but for the keys that fresh changes touch.

        Its reads block in all facades, and may be made in any thread.

        Returns:
            The reader.

        Examples:
            >>> union.to_arrow_batch_reader().read_all().num_rows
            3
        """
        return self._read.batch_reader()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow_batch_reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """Read all rows as of now.

        Returns:
            A PyArrow Table.

        Examples:
            >>> union.to_arrow().num_rows
            3
        """
        return beside(self._read.to_arrow)

    def to_pandas(self) -> pd.DataFrame:
        """Read all rows as of now, as a DataFrame.

        Returns:
            A pandas DataFrame.

        Raises:
            FlussError: pandas is not installed.

        Examples:
            >>> union.to_pandas().shape
            (3, 2)
        """
        return to_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """Read all rows as of now, as a Polars DataFrame.

        Returns:
            A Polars DataFrame.

        Raises:
            FlussError: Polars is not installed.

        Examples:
            >>> union.to_polars().shape
            (3, 2)
        """
        return to_polars(self.to_arrow())

    def to_duckdb(self, connection: Any = None) -> Any:
        """Read all rows as of now, as a relation of DuckDB.

        DuckDB reads the lake's files itself, only what a query needs of them; fresh rows are in memory. Rows that match
        a `filter()` are in memory, too: leave it to the query's WHERE.

        Args:
            connection: A connection of DuckDB; None: its default one.

        Returns:
            A DuckDB relation.

        Raises:
            FlussError: DuckDB is not installed.

        Examples:
            >>> union.to_duckdb().aggregate("max(id)").fetchall()
            [(3,)]
        """
        return beside(self._read.to_duckdb, connection)

    def __repr__(self) -> str:
        return f"UnionScan({self._core.info.table_path}, mode={self._mode!r})"

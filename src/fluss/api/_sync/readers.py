# Made of _aio/readers.py by tools/unasync.py: change that file, and run `make sync`.
"""Readers besides log scanners: some rows of a bucket, a table's changes, lake and log as one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from fluss.api.blocking import ITERATION_POLL_MS, BatchScannerWaiting, ChangesWaiting, beside, wait
from fluss.api.results import to_duckdb, to_pandas, to_polars
from fluss.api.union import UnionRows
from fluss.client.changes import ChangesCore
from fluss.client.decode import to_record_batches, to_table
from fluss.client.fetched import FetchedBatch
from fluss.client.limit_scan import LimitScanCore
from fluss.client.table import TableCore
from fluss.model.paths import TableBucket
from fluss.model.positions import ChangesPosition
from fluss.model.records import RecordBatch

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class BatchScanner(BatchScannerWaiting):
    """Reads the last rows of one bucket, once. Make one with `new_scan().limit(n).create_bucket_batch_scanner(bucket)`.

    The server is asked at the first read; afterwards, also after a failure, the scanner is spent.
    """

    def __init__(self, core: LimitScanCore) -> None:
        self._core = core

    @property
    def bucket(self) -> TableBucket:
        """The bucket that is read."""
        return self._core.bucket

    def _record_batch(self, fetched: FetchedBatch | None) -> RecordBatch | None:
        return None if fetched is None else to_record_batches([fetched])[0]

    def _table(self, fetched: FetchedBatch | None) -> pa.Table:
        return to_table([] if fetched is None else [fetched], self._core.arrow_schema)

    def next_batch(self) -> RecordBatch | None:
        """The rows at the first call, then None."""
        return self._record_batch(wait(self._core.next_batch()))

    def collect_all_batches(self) -> list[RecordBatch]:
        """All batches there are: one, or none when the scanner is spent."""
        batch = self.next_batch()
        return [] if batch is None else [batch]

    def to_arrow(self) -> pa.Table:
        """The rows as a PyArrow Table."""
        return self._table(wait(self._core.next_batch()))

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame."""
        return to_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """The rows as a Polars DataFrame."""
        return to_polars(self.to_arrow())

    def to_duckdb(self, connection: Any = None) -> Any:
        """The rows as a DuckDB relation of `connection`."""
        return to_duckdb(self.to_arrow(), connection)

    def __repr__(self) -> str:
        return f"BatchScanner({self._core.bucket})"


class Changes(ChangesWaiting):
    """A table's changes, and before them its current rows where they are wanted. Made by `table.changes(start)`.

    Rows are PyArrow tables with `_change_type` (`+I`, `-U`, `+U`, `-D`; `+A` in log tables), `_log_offset` and
    `_commit_timestamp` in front of the table's columns. A row that was there at the start comes as `+I` with the offset
    that its bucket's changes go on from, and no timestamp. Iterating yields such tables without end.
    A reader of changes is for one caller at a time.
    """

    def __init__(self, core: ChangesCore) -> None:
        self._core = core

    @property
    def arrow_schema(self) -> pa.Schema:
        """The PyArrow schema of what polls return."""
        return self._core.arrow_schema

    @property
    def position(self) -> ChangesPosition:
        """How far polls have come; store it (`to_json()`) with what they returned, and go on with `table.changes(it)`.

        What is read from there on, folded by key into what was returned before, is the table; also when the position is
        one in the middle of the current rows, and rows have changed or gone meanwhile.
        """
        return self._core.position

    def _taken(self, changes: pa.Table) -> pa.Table:
        """Called where the caller can't be interrupted any more before it has them."""
        self._core.taken()
        return changes

    def close(self) -> None:
        """Stop reading."""
        self._core.close()

    def poll(self, timeout_ms: int) -> pa.Table:
        """The next changes, at the latest after `timeout_ms`; empty if none came."""
        return self._taken(wait(self._core.poll(timeout_ms)))

    def __iter__(self) -> Iterator[pa.Table]:
        while True:
            changes = self.poll(ITERATION_POLL_MS)
            if changes.num_rows:
                yield changes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Changes({self._core.info.table_path})"


class UnionScan:
    """Reads a table's history in the lake and the fresh rows behind it as one, each row once.

    Make one with `new_scan().union()`. Each read is of the rows as of its call. Columns have the table's types, but the
    lake keeps times in microseconds, and finer ones are cut to these. Rows of partitions that were dropped since they
    were tiered are history, and are read.
    """

    def __init__(self, core: TableCore, read: UnionRows, mode: str) -> None:
        self._core = core
        self._read = read
        self._mode = mode

    def to_arrow_batch_reader(self) -> pa.RecordBatchReader:
        """A PyArrow reader over all rows as of now, in bounded memory but for the keys that fresh changes touch.

        Its reads block, and may be made in any thread.
        """
        return self._read.batch_reader()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow_batch_reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """All rows as of now, as a PyArrow Table."""
        return beside(self._read.to_arrow)

    def to_pandas(self) -> pd.DataFrame:
        """All rows as of now, as a pandas DataFrame."""
        return to_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """All rows as of now, as a Polars DataFrame."""
        return to_polars(self.to_arrow())

    def to_duckdb(self, connection: Any = None) -> Any:
        """All rows as of now, as a DuckDB relation of `connection`.

        DuckDB reads the lake's files itself, only what a query needs of them; fresh rows are in memory. Rows that match
        a `filter()` are in memory, too: leave it to the query's WHERE.
        """
        return beside(self._read.to_duckdb, connection)

    def __repr__(self) -> str:
        return f"UnionScan({self._core.info.table_path}, mode={self._mode!r})"

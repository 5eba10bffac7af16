"""The log scanner whose reads block: for `fluss` and `fluss.sync`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from fluss.api.extras import to_duckdb, to_pandas, to_polars
from fluss.api.scanner_base import LogScannerBase
from fluss.client.decode import to_record_batches, to_records, to_table
from fluss.client.fetched import FetchedBatch
from fluss.client.runtime import run
from fluss.formats.records import ScanRecord, ScanRecords
from fluss.model.records import RecordBatch

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ITERATION_POLL_MS = 1_000


class LogScanner(LogScannerBase):
    __doc__ = LogScannerBase.__doc__

    def poll(self, timeout_ms: int) -> ScanRecords:
        """The next records, at the latest after `timeout_ms`; empty if none came."""
        self._check_records("poll")
        return to_records(self._poll(timeout_ms, self._core.max_poll_records))

    def poll_record_batch(self, timeout_ms: int) -> list[RecordBatch]:
        """The next batches with bucket and offsets, at the latest after `timeout_ms`."""
        self._check_batches("poll_record_batch")
        return to_record_batches(self._poll(timeout_ms))

    def poll_batches(self, timeout_ms: int) -> list[RecordBatch]:
        """The older spelling of `poll_record_batch`."""
        return self.poll_record_batch(timeout_ms)

    def poll_arrow(self, timeout_ms: int) -> pa.Table:
        """The next rows as a PyArrow Table, at the latest after `timeout_ms`."""
        self._check_batches("poll_arrow")
        return to_table(self._poll(timeout_ms), self._core.arrow_schema)

    def _poll(self, timeout_ms: int, limit: int | None = None) -> list[FetchedBatch]:
        return self._core.ready_batches(timeout_ms, limit) or run(self._core.poll_batches(timeout_ms, limit))

    def to_arrow(self) -> pa.Table:
        """All rows from the subscribed offsets to the latest, as a PyArrow Table. Does not move the poll position."""
        self._check_batches("to_arrow")
        return to_table(run(self._core.read_to_latest()), self._core.arrow_schema)

    def to_pandas(self) -> pd.DataFrame:
        """All rows from the subscribed offsets to the latest, as a DataFrame. Does not move the poll position."""
        self._check_batches("to_pandas")
        return to_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """All rows from the subscribed offsets to the latest, as a Polars DataFrame."""
        self._check_batches("to_polars")
        return to_polars(self.to_arrow())

    def to_duckdb(self, connection: Any = None) -> Any:
        """All rows from the subscribed offsets to the latest, as a DuckDB relation of `connection`."""
        self._check_batches("to_duckdb")
        return to_duckdb(self.to_arrow(), connection)

    def __iter__(self) -> Iterator[ScanRecord | RecordBatch]:
        while True:
            if self._records:
                yield from self.poll(ITERATION_POLL_MS)
            else:
                yield from self.poll_record_batch(ITERATION_POLL_MS)

    async def __aiter__(self) -> AsyncIterator[ScanRecord | RecordBatch]:
        limit = self._core.max_poll_records if self._records else None
        while True:
            batches = await self._awaited_poll(ITERATION_POLL_MS, limit)
            for item in to_records(batches) if self._records else to_record_batches(batches):
                yield item

    def __enter__(self) -> LogScanner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

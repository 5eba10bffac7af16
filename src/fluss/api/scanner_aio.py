"""The log scanner whose reads are awaited: for `fluss.aio`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from fluss.api.extras import to_duckdb, to_pandas, to_polars
from fluss.api.scanner import ITERATION_POLL_MS
from fluss.api.scanner_base import LogScannerBase
from fluss.client.decode import to_record_batches, to_records, to_table
from fluss.client.runtime import bridge
from fluss.formats.records import ScanRecord, ScanRecords
from fluss.model.records import RecordBatch

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class LogScanner(LogScannerBase):
    __doc__ = LogScannerBase.__doc__

    async def poll(self, timeout_ms: int) -> ScanRecords:
        """The next records, at the latest after `timeout_ms`; empty if none came."""
        self._check_records("poll")
        return to_records(await self._awaited_poll(timeout_ms, self._core.max_poll_records))

    async def poll_record_batch(self, timeout_ms: int) -> list[RecordBatch]:
        """The next batches with bucket and offsets, at the latest after `timeout_ms`."""
        self._check_batches("poll_record_batch")
        return to_record_batches(await self._awaited_poll(timeout_ms))

    async def poll_batches(self, timeout_ms: int) -> list[RecordBatch]:
        """The older spelling of `poll_record_batch`."""
        return await self.poll_record_batch(timeout_ms)

    async def poll_arrow(self, timeout_ms: int) -> pa.Table:
        """The next rows as a PyArrow Table, at the latest after `timeout_ms`."""
        self._check_batches("poll_arrow")
        return to_table(await self._awaited_poll(timeout_ms), self._core.arrow_schema)

    async def to_arrow(self) -> pa.Table:
        """All rows from the subscribed offsets to the latest, as a PyArrow Table. Does not move the poll position."""
        self._check_batches("to_arrow")
        return to_table(await bridge(self._core.read_to_latest()), self._core.arrow_schema)

    async def to_pandas(self) -> pd.DataFrame:
        """All rows from the subscribed offsets to the latest, as a DataFrame. Does not move the poll position."""
        self._check_batches("to_pandas")
        return to_pandas(await self.to_arrow())

    async def to_polars(self) -> Any:
        """All rows from the subscribed offsets to the latest, as a Polars DataFrame."""
        self._check_batches("to_polars")
        return to_polars(await self.to_arrow())

    async def to_duckdb(self, connection: Any = None) -> Any:
        """All rows from the subscribed offsets to the latest, as a DuckDB relation of `connection`."""
        self._check_batches("to_duckdb")
        return to_duckdb(await self.to_arrow(), connection)

    async def __aiter__(self) -> AsyncIterator[ScanRecord | RecordBatch]:
        while True:
            if self._records:
                for record in await self.poll(ITERATION_POLL_MS):
                    yield record
            else:
                for batch in await self.poll_record_batch(ITERATION_POLL_MS):
                    yield batch

    async def __aenter__(self) -> LogScanner:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

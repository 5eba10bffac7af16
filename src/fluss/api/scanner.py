"""The log scanner whose reads block: for `fluss` and `fluss.sync`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fluss.api.scanner_base import LogScannerBase
from fluss.client.decode import to_record_batches, to_records, to_table
from fluss.client.runtime import run
from fluss.model.records import RecordBatch, ScanRecord, ScanRecords

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ITERATION_POLL_MS = 1_000


class LogScanner(LogScannerBase):
    __doc__ = LogScannerBase.__doc__

    def poll(self, timeout_ms: int) -> ScanRecords:
        """The next records, at the latest after `timeout_ms`; empty if none came."""
        self._check_records("poll")
        return to_records(run(self._core.poll_batches(timeout_ms, self._core.max_poll_records)))

    def poll_record_batch(self, timeout_ms: int) -> list[RecordBatch]:
        """The next batches with bucket and offsets, at the latest after `timeout_ms`."""
        self._check_batches("poll_record_batch")
        return to_record_batches(run(self._core.poll_batches(timeout_ms, None)))

    def poll_batches(self, timeout_ms: int) -> list[RecordBatch]:
        """The older spelling of `poll_record_batch`."""
        return self.poll_record_batch(timeout_ms)

    def poll_arrow(self, timeout_ms: int) -> pa.Table:
        """The next rows as a PyArrow Table, at the latest after `timeout_ms`."""
        self._check_batches("poll_arrow")
        return to_table(run(self._core.poll_batches(timeout_ms, None)), self._core.arrow_schema)

    def to_arrow(self) -> pa.Table:
        """All rows from the subscribed offsets to the latest, as a PyArrow Table. Does not move the poll position."""
        self._check_batches("to_arrow")
        return to_table(run(self._core.read_to_latest()), self._core.arrow_schema)

    def to_pandas(self) -> pd.DataFrame:
        """All rows from the subscribed offsets to the latest, as a DataFrame. Does not move the poll position."""
        self._check_batches("to_pandas")
        return self.to_arrow().to_pandas()

    def __iter__(self) -> Iterator[ScanRecord | RecordBatch]:
        while True:
            if self._records:
                yield from self.poll(ITERATION_POLL_MS)
            else:
                yield from self.poll_record_batch(ITERATION_POLL_MS)

    def __enter__(self) -> LogScanner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

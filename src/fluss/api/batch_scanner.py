"""The batch scanner whose reads block: for `fluss` and `fluss.sync`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fluss.api.batch_scanner_base import BatchScannerBase
from fluss.api.extras import to_duckdb, to_pandas, to_polars
from fluss.client.runtime import run
from fluss.model.records import RecordBatch

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class BatchScanner(BatchScannerBase):
    __doc__ = BatchScannerBase.__doc__

    def next_batch(self) -> RecordBatch | None:
        """The rows at the first call, then None."""
        return self._record_batch(run(self._core.next_batch()))

    def collect_all_batches(self) -> list[RecordBatch]:
        """All batches there are: one, or none when the scanner is spent."""
        batch = self.next_batch()
        return [] if batch is None else [batch]

    def to_arrow(self) -> pa.Table:
        """The rows as a PyArrow Table."""
        return self._table(run(self._core.next_batch()))

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame."""
        return to_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """The rows as a Polars DataFrame."""
        return to_polars(self.to_arrow())

    def to_duckdb(self, connection: Any = None) -> Any:
        """The rows as a DuckDB relation of `connection`."""
        return to_duckdb(self.to_arrow(), connection)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

"""The batch scanner whose reads are awaited: for `fluss.aio`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fluss.api.batch_scanner_base import BatchScannerBase
from fluss.api.extras import to_duckdb, to_pandas, to_polars
from fluss.client.runtime import bridge
from fluss.model.records import RecordBatch

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class BatchScanner(BatchScannerBase):
    __doc__ = BatchScannerBase.__doc__

    async def next_batch(self) -> RecordBatch | None:
        """The rows at the first call, then None."""
        return self._record_batch(await bridge(self._core.next_batch()))

    async def collect_all_batches(self) -> list[RecordBatch]:
        """All batches there are: one, or none when the scanner is spent."""
        batch = await self.next_batch()
        return [] if batch is None else [batch]

    async def to_arrow(self) -> pa.Table:
        """The rows as a PyArrow Table."""
        return self._table(await bridge(self._core.next_batch()))

    async def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame."""
        return to_pandas(await self.to_arrow())

    async def to_polars(self) -> Any:
        """The rows as a Polars DataFrame."""
        return to_polars(await self.to_arrow())

    async def to_duckdb(self, connection: Any = None) -> Any:
        """The rows as a DuckDB relation of `connection`."""
        return to_duckdb(await self.to_arrow(), connection)

"""The union scan whose reads are awaited: for `fluss.aio`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fluss.api.extras import to_pandas, to_polars
from fluss.api.union_base import UnionScanBase
from fluss.doors import threads

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class UnionScan(UnionScanBase):
    __doc__ = UnionScanBase.__doc__

    async def to_arrow(self) -> pa.Table:
        """All rows as of now, as a PyArrow Table."""
        return await threads.to_thread(self._read.to_arrow)

    async def to_pandas(self) -> pd.DataFrame:
        """All rows as of now, as a pandas DataFrame."""
        return to_pandas(await self.to_arrow())

    async def to_polars(self) -> Any:
        """All rows as of now, as a Polars DataFrame."""
        return to_polars(await self.to_arrow())

    async def to_duckdb(self, connection: Any = None) -> Any:
        """All rows as of now, as a DuckDB relation of `connection`.

        DuckDB reads the lake's files itself, only what a query needs of them; fresh rows are in memory. Rows that match
        a `filter()` are in memory, too: leave it to the query's WHERE.
        """
        return await threads.to_thread(self._read.to_duckdb, connection)

"""Scans: which rows and columns of a table are read, and how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fluss.api._aio.readers import BatchScanner, UnionScan
from fluss.api._aio.scanner import LogScanner
from fluss.api.awaiting import wait
from fluss.api.results import to_pandas
from fluss.api.scan_base import TableScanBase
from fluss.model.paths import TableBucket

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class TableScan(TableScanBase):
    __doc__ = TableScanBase.__doc__

    async def create_log_scanner(self) -> LogScanner:
        """A scanner that returns records with offset, timestamp and change type."""
        return LogScanner(self._scanner(records=True), records=True)

    async def create_record_batch_log_scanner(self) -> LogScanner:
        """A scanner that returns Arrow batches."""
        return LogScanner(self._scanner(records=False), records=False)

    async def create_batch_scanner(self) -> LogScanner:
        """The older spelling of `create_record_batch_log_scanner`."""
        return await self.create_record_batch_log_scanner()

    async def create_changelog_batch_scanner(self) -> LogScanner:
        """A scanner that returns Arrow batches with `_change_type`, `_log_offset` and `_commit_timestamp` in front."""
        return LogScanner(self._changelog_scanner(), records=False)

    def create_bucket_batch_scanner(self, bucket: TableBucket) -> BatchScanner:
        """A reader of some rows of a bucket; needs `limit(n)`. It asks the server at its first read."""
        return BatchScanner(self._limit_scan(bucket))

    async def to_arrow(self) -> pa.Table:
        """All rows as they are now, as a PyArrow Table: see `to_arrow_with_offsets`."""
        return (await wait(self._read()))[0]

    async def to_arrow_with_offsets(self) -> tuple[pa.Table, dict[TableBucket, int]]:
        """All rows as they are now, and for each bucket the offset that its log, or changelog, goes on from.

        Of a primary-key table these are the current rows, each bucket's as of its offset; of a log table all rows up to
        the latest. Partitions are those that exist at the call.
        """
        return await wait(self._read())

    async def to_pandas(self) -> pd.DataFrame:
        """All rows as they are now, as a DataFrame."""
        return to_pandas(await self.to_arrow())

    def union(
        self, *, warehouse: str | None = None, catalog: Mapping[str, str] | None = None, mode: str = "auto"
    ) -> UnionScan:
        """Read the table's history in the lake, and the fresh rows behind it, as one.

        The lake is where the table's server says, or in a `warehouse` folder, or in a `catalog` with the keys of the
        server's `datalake.iceberg.` settings. `mode` is "auto", "none" (the log alone) or "only" (the lake alone).
        """
        return UnionScan(self._core, self._union(warehouse, catalog, mode), mode)

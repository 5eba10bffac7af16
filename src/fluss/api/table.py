"""Tables of the facade `fluss`: making scanners is awaited, reading from them blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fluss.api.batch_scanner import BatchScanner
from fluss.api.changes import Changes
from fluss.api.extras import to_pandas
from fluss.api.scan_base import TableScanBase
from fluss.api.scanner import LogScanner
from fluss.api.table_awaited import AwaitedTable
from fluss.api.table_base import FlussTableBase
from fluss.api.union import UnionScan
from fluss.client.runtime import run
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TableBucket
from fluss.model.positions import ChangesPosition

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

    def to_arrow(self) -> pa.Table:
        """All rows as they are now, as a PyArrow Table: see `to_arrow_with_offsets`."""
        return run(self._read())[0]

    def to_arrow_with_offsets(self) -> tuple[pa.Table, dict[TableBucket, int]]:
        """All rows as they are now, and for each bucket the offset that its log, or changelog, goes on from.

        Of a primary-key table these are the current rows, each bucket's as of its offset; of a log table all rows up to
        the latest. Partitions are those that exist at the call.
        """
        return run(self._read())

    def to_pandas(self) -> pd.DataFrame:
        """All rows as they are now, as a DataFrame."""
        return to_pandas(self.to_arrow())

    def union(
        self, *, warehouse: str | None = None, catalog: Mapping[str, str] | None = None, mode: str = "auto"
    ) -> UnionScan:
        """Read the table's history in the lake, and the fresh rows behind it, as one.

        The lake is where the table's server says, or in a `warehouse` folder, or in a `catalog` with the keys of the
        server's `datalake.iceberg.` settings. `mode` is "auto", "none" (the log alone) or "only" (the lake alone).
        """
        return self._union(UnionScan, warehouse, catalog, mode)


class FlussTable(AwaitedTable):
    __doc__ = FlussTableBase.__doc__

    def new_scan(self) -> TableScan:
        """Start a scan."""
        return TableScan(self._core)

    def changes(self, start: str | OffsetSpec | ChangesPosition = "snapshot") -> Changes:
        """Follow the table's changes: after its current rows ("snapshot"), from "earliest" or "latest", or a position.

        A log table has no current rows: there "snapshot" is "earliest". Partitions that come later are found.
        """
        core = self._core.changes()
        run(core.start(start))
        return Changes(core)

"""Tables of the facade `fluss.aio`: scans are awaited."""

from __future__ import annotations

from fluss.api.append import AppendableTable
from fluss.api.batch_scanner_aio import BatchScanner
from fluss.api.scan_base import TableScanBase
from fluss.api.scanner_aio import LogScanner
from fluss.api.table_base import FlussTableBase
from fluss.model.paths import TableBucket


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

    def create_bucket_batch_scanner(self, bucket: TableBucket) -> BatchScanner:
        """A reader of the last rows of a bucket; needs `limit(n)`. It asks the server at its first read."""
        return BatchScanner(self._limit_scan(bucket))


class FlussTable(AppendableTable):
    __doc__ = FlussTableBase.__doc__

    def new_scan(self) -> TableScan:
        """Start a scan."""
        return TableScan(self._core)

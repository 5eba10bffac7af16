"""The classes that only the facade `fluss` has: what it awaits is of `fluss.aio`, its scanners are of `fluss.sync`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fluss.api import blocking
from fluss.api._aio.connection import ConnectionTo
from fluss.api._aio.table import TableWriting
from fluss.api._sync.readers import BatchScanner, Changes, UnionScan
from fluss.api._sync.scanner import LogScanner
from fluss.api.connect import DONE, Connecting, Done, FlussConnectionBase, connect_config
from fluss.api.results import to_pandas
from fluss.api.scan_base import TableScanBase
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
        return UnionScan(self._core, self._union(warehouse, catalog, mode), mode)


class FlussTable(TableWriting):
    __doc__ = TableWriting.__doc__

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


class FlussConnection(ConnectionTo[FlussTable]):
    __doc__ = FlussConnectionBase.__doc__
    _table_class = FlussTable

    def close(self) -> Done:
        """Wait until all rows are stored, for up to `close.timeout-ms`, then close; raises the first failure.

        Blocks, so in a program with other tasks `async with` is better: it awaits. What this returns may be awaited.
        """
        blocking.close(self._core)
        return DONE


def connect(address: str | None = None, **options: Any) -> Connecting[FlussConnection]:
    """Connect to `host:port`, `file:///directory`, `memory:` or, without an address, to 127.0.0.1:9123.

    Options are named like the attributes of Config. `await` the result, or use it in `async with`.
    """
    return Connecting(FlussConnection.create(connect_config(address, options)))

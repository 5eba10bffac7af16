"""Tables of the facade `fluss.sync`: nothing is awaited."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fluss.api.append_sync import AppendWriter, TableAppend
from fluss.api.batch_scanner import BatchScanner
from fluss.api.changes import Changes
from fluss.api.extras import to_pandas
from fluss.api.lookup_sync import TableLookup
from fluss.api.scan_base import TableScanBase
from fluss.api.scanner import LogScanner
from fluss.api.staging_sync import StagedWrite
from fluss.api.table_base import FlussTableBase
from fluss.api.union import UnionScan
from fluss.api.upsert_sync import TableUpsert
from fluss.client.runtime import run
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TableBucket
from fluss.model.positions import ChangesPosition

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class TableScan(TableScanBase):
    __doc__ = TableScanBase.__doc__

    def create_log_scanner(self) -> LogScanner:
        """A scanner that returns records with offset, timestamp and change type."""
        return LogScanner(self._scanner(records=True), records=True)

    def create_record_batch_log_scanner(self) -> LogScanner:
        """A scanner that returns Arrow batches."""
        return LogScanner(self._scanner(records=False), records=False)

    def create_batch_scanner(self) -> LogScanner:
        """The older spelling of `create_record_batch_log_scanner`."""
        return self.create_record_batch_log_scanner()

    def create_changelog_batch_scanner(self) -> LogScanner:
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


class FlussTable(FlussTableBase):
    __doc__ = FlussTableBase.__doc__

    def new_scan(self) -> TableScan:
        """Start a scan."""
        return TableScan(self._core)

    def new_lookup(self) -> TableLookup:
        """Start looking rows up; for tables with a primary key."""
        return TableLookup(self._core)

    def changes(self, start: str | OffsetSpec | ChangesPosition = "snapshot") -> Changes:
        """Follow the table's changes: after its current rows ("snapshot"), from "earliest" or "latest", or a position.

        A log table has no current rows: there "snapshot" is "earliest". Partitions that come later are found.
        """
        core = self._core.changes()
        run(core.start(start))
        return Changes(core)

    def new_append(self) -> TableAppend:
        """Start appending."""
        return TableAppend(self._core)

    def new_append_writer(self) -> AppendWriter:
        """The older spelling of `new_append().create_writer()`."""
        return self.new_append().create_writer()

    def new_staged_write(self, query_id: str, batch_id: int) -> StagedWrite:
        """Start writing a batch of a query, which is stored once; needs a Flussbett server."""
        return StagedWrite(self._core.staged_write(query_id, batch_id))

    def check_staged_writes(self) -> None:
        """Raise unless the server can do what `new_staged_write` needs."""
        run(self._core.check_staged_writes())

    def new_upsert(self, columns: list[str] | None = None) -> TableUpsert:
        """Start upserting; `columns` makes it a partial update of these."""
        upsert = TableUpsert(self._core)
        return upsert if columns is None else upsert.partial_update_by_name(columns)

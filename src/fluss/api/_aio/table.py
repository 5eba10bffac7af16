"""Tables: where scans, writers and lookups come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss.api._aio.lookup import TableLookup
from fluss.api._aio.readers import Changes
from fluss.api._aio.scan import TableScan
from fluss.api._aio.staging import StagedWrite
from fluss.api._aio.writers import AppendWriter, TableAppend, TableUpsert
from fluss.api.awaiting import wait
from fluss.client.runtime import run
from fluss.client.table import TableCore
from fluss.model.infos import TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TablePath
from fluss.model.positions import ChangesPosition

if TYPE_CHECKING:
    import pyarrow as pa


class TableWriting:
    """A table to read from and write to. Obtain with `conn.get_table(path)`."""

    def __init__(self, core: TableCore) -> None:
        self._core = core

    @property
    def arrow_schema(self) -> pa.Schema:
        """The PyArrow schema of the table's rows."""
        return self._core.arrow_schema

    @property
    def table_path(self) -> TablePath:
        return self._core.info.table_path

    def get_table_info(self) -> TableInfo:
        """Id, schema, distribution and properties."""
        return self._core.info

    def get_table_path(self) -> TablePath:
        """Database and name."""
        return self._core.info.table_path

    def has_primary_key(self) -> bool:
        """Whether rows are updated by key."""
        return self._core.info.has_primary_key()

    def new_append(self) -> TableAppend:
        """Start appending."""
        return TableAppend(self._core)

    async def new_append_writer(self) -> AppendWriter:
        """The older spelling of `new_append().create_writer()`."""
        return self.new_append().create_writer()

    def new_staged_write(self, query_id: str, batch_id: int) -> StagedWrite:
        """Start writing a batch of a query, which is stored once; needs a Flussbett server."""
        return StagedWrite(self._core.staged_write(query_id, batch_id))

    async def check_staged_writes(self) -> None:
        """Raise unless the server can do what `new_staged_write` needs."""
        await wait(self._core.check_staged_writes())

    def new_upsert(self, columns: list[str] | None = None) -> TableUpsert:
        """Start upserting; `columns` makes it a partial update of these."""
        upsert = TableUpsert(self._core)
        return upsert if columns is None else upsert.partial_update_by_name(columns)

    def new_lookup(self) -> TableLookup:
        """Start looking rows up; for tables with a primary key."""
        return TableLookup(self._core)

    def __repr__(self) -> str:
        return f"FlussTable({self._core.info.table_path}, table_id={self._core.info.table_id})"

    def _repr_html_(self) -> str:
        return self._core.info._repr_html_()


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

"""What the tables of the facades that await share: where writers and lookupers come from."""

from __future__ import annotations

from fluss.api.append import AppendWriter, TableAppend
from fluss.api.lookup import TableLookup
from fluss.api.staging import StagedWrite
from fluss.api.table_base import FlussTableBase
from fluss.api.upsert import TableUpsert
from fluss.client.runtime import bridge


class AwaitedTable(FlussTableBase):
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
        await bridge(self._core.check_staged_writes())

    def new_upsert(self, columns: list[str] | None = None) -> TableUpsert:
        """Start upserting; `columns` makes it a partial update of these."""
        upsert = TableUpsert(self._core)
        return upsert if columns is None else upsert.partial_update_by_name(columns)

    def new_lookup(self) -> TableLookup:
        """Start looking rows up; for tables with a primary key."""
        return TableLookup(self._core)

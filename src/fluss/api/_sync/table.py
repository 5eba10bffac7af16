# Made of _aio/table.py by tools/unasync.py: change that file, and run `make sync`.
"""Tables: where scans, writers and lookups come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss.api._sync.lookup import TableLookup
from fluss.api._sync.readers import Changes
from fluss.api._sync.scan import TableScan
from fluss.api._sync.staging import StagedWrite
from fluss.api._sync.upserts import TableUpsert
from fluss.api._sync.writers import AppendWriter, TableAppend
from fluss.api.blocking import begun, wait
from fluss.client.table import TableCore
from fluss.model.infos import TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TablePath
from fluss.model.positions import ChangesPosition

if TYPE_CHECKING:
    import pyarrow as pa


class TableWriting:
    """A table to read from and write to. Obtain with `conn.get_table(path)`.

    Examples:
        >>> users = conn.get_table(fluss.TablePath("shop", "users"))
        >>> with users.new_upsert().create_writer() as writer:
        ...     handle = writer.upsert({"id": 3, "name": "cleo"})
        >>> users.new_lookup().lookup([3])
        {'id': 3, 'name': 'cleo'}
    """

    def __init__(self, core: TableCore) -> None:
        self._core = core

    @property
    def arrow_schema(self) -> pa.Schema:
        """The PyArrow schema of the table's rows.

        Examples:
            >>> clicks.arrow_schema.field("id").type
            DataType(int64)
        """
        return self._core.arrow_schema

    @property
    def table_path(self) -> TablePath:
        """Database and name.

        Examples:
            >>> str(clicks.table_path)
            'shop.clicks'
        """
        return self._core.info.table_path

    def get_table_info(self) -> TableInfo:
        """Get what the table is, as it was when it was obtained.

        Returns:
            Id, schema, distribution, partition columns and properties.

        Examples:
            >>> users.get_table_info().primary_keys
            ['id']
        """
        return self._core.info

    def get_table_path(self) -> TablePath:
        """Get database and name, as `table_path`.

        Returns:
            The path.

        Examples:
            >>> clicks.get_table_path().table_name
            'clicks'
        """
        return self._core.info.table_path

    def has_primary_key(self) -> bool:
        """Tell whether rows are updated by key.

        Returns:
            True for a primary-key table, False for a log table.

        Examples:
            >>> clicks.has_primary_key(), users.has_primary_key()
            (False, True)
        """
        return self._core.info.has_primary_key()

    def new_append(self) -> TableAppend:
        """Start appending to a log table.

        Returns:
            A maker of writers.

        Examples:
            >>> writer = clicks.new_append().create_writer()
        """
        return TableAppend(self._core)

    def new_append_writer(self) -> AppendWriter:
        """Make an append writer: the older spelling of `new_append().create_writer()`.

        Returns:
            The writer.

        Raises:
            InvalidRequestError: The table has a primary key.

        Examples:
            >>> writer = clicks.new_append_writer()
        """
        return self.new_append().create_writer()

    def new_staged_write(self, query_id: str, batch_id: int) -> StagedWrite:
        """Start writing a batch of a query, which is stored once however often it is written. Needs a Flussbett server.

        Args:
            query_id: A name of the query, which no other has.
            batch_id: The number of the batch; batches of a query are committed in their order.

        Returns:
            The write, to which any number of tasks contribute.

        Examples:
            >>> clicks.new_staged_write("nightly", 17)
            StagedWrite(shop.clicks, query_id='nightly', batch_id=17)
        """
        return StagedWrite(self._core.staged_write(query_id, batch_id))

    def check_staged_writes(self) -> None:
        """Raise unless the server can do what `new_staged_write` needs.

        Raises:
            InvalidRequestError: The server is an Apache Fluss cluster, or too old.

        Examples:
            >>> clicks.check_staged_writes()
        """
        wait(self._core.check_staged_writes())

    def new_upsert(self, columns: list[str] | None = None) -> TableUpsert:
        """Start upserting and deleting in a primary-key table.

        Args:
            columns: Write only these, a partial update; they must have the key's. Others keep their values.

        Returns:
            A maker of writers, which also writes by itself.

        Raises:
            InvalidRequestError: The table has no primary key, or the columns are not right.

        Examples:
            >>> writer = users.new_upsert().create_writer()
            >>> names_only = users.new_upsert(columns=["id", "name"])
        """
        upsert = TableUpsert(self._core)
        return upsert if columns is None else upsert.partial_update_by_name(columns)

    def new_lookup(self) -> TableLookup:
        """Start looking rows up in a primary-key table.

        Returns:
            A maker of lookupers, which also looks up by itself.

        Raises:
            InvalidRequestError: The table has no primary key.

        Examples:
            >>> users.new_lookup().lookup({"id": 1})
            {'id': 1, 'name': 'ada'}
        """
        return TableLookup(self._core)

    def __repr__(self) -> str:
        return f"FlussTable({self._core.info.table_path}, table_id={self._core.info.table_id})"

    def _repr_html_(self) -> str:
        return self._core.info._repr_html_()


class FlussTable(TableWriting):
    __doc__ = TableWriting.__doc__

    def new_scan(self) -> TableScan:
        """Start reading: columns and rows are chosen first, then a scanner or a whole result.

        Returns:
            A scan of all rows and columns.

        Examples:
            >>> clicks.new_scan().project_by_name(["url"]).to_arrow().to_pylist()
            [{'url': '/'}, {'url': '/buy'}, {'url': '/bye'}]
        """
        return TableScan(self._core)

    def changes(self, start: str | OffsetSpec | ChangesPosition = "snapshot") -> Changes:
        """Follow the table's changes. Where they begin is asked for at once; `fluss.aio` does not wait for it here.

        There the first poll waits, or `await table.changes()`, and raises what goes wrong.

        Args:
            start: "snapshot": the current rows first, then all changes; in a log table, which has no current rows, the
                same as "earliest". "earliest" or "latest", an offset spec, or the position of an earlier reader.

        Returns:
            A reader, which finds partitions that come later, too.

        Raises:
            InvalidRequestError: The position is not of this table.
            NotFoundError: The table is gone.

        Examples:
            >>> changes = users.changes("snapshot")
            >>> changes.poll(timeout_ms=1_000).column("name").to_pylist()
            ['ada', 'bob']
        """
        core = self._core.changes()
        return Changes(core, begun(core.start(start)))

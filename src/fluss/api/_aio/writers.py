"""Writers: rows and batches are appended or upserted through a buffer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from fluss.api.arguments import arrow_table, pandas_table
from fluss.api.awaiting import HandleWaiting, WriterWaiting, flush, stored
from fluss.api.connect import FLUSHING, leaving
from fluss.client.append import AppendWriterCore
from fluss.client.handles import WriteHandle
from fluss.client.table import TableCore
from fluss.client.upsert import UpsertWriterCore
from fluss.client.upsert_columns import UpsertColumns
from fluss.client.writer import WriterCore
from fluss.model.errors import InvalidRequestError
from fluss.model.merge_mode import MergeMode
from fluss.model.table_options import MERGE_ENGINE

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Core = TypeVar("Core", bound=WriterCore)


class WriteResultHandle(HandleWaiting):
    """A write under way: ignore it, or wait for it until the server has stored the rows."""

    __slots__ = ("_handle",)

    def __init__(self, handle: WriteHandle) -> None:
        self._handle = handle

    async def wait(self) -> None:
        """Wait until the server has stored the rows."""
        await stored(self._handle)

    def __repr__(self) -> str:
        return f"WriteResultHandle(done={self._handle.done()})"


class Writer(WriterWaiting, Generic[Core]):
    """Rows are buffered and sent in batches; `flush` waits until all are stored.

    When the buffer is full the write methods wait for room; in async code await `drain()` between writes instead.
    """

    _core: Core

    def __init__(self, core: Core) -> None:
        core.shell = WriteResultHandle
        self._core = core
        # A million rows a second go this way: every call in between counts.
        self._take = core.gate.take

    def write_arrow(self, table: pa.Table) -> None:
        """Write a PyArrow Table, or anything with `__arrow_c_stream__`."""
        self._core.write_table(arrow_table(table))

    def write_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Write a PyArrow RecordBatch."""
        handle: WriteResultHandle = self._core.write_batch(batch)
        return handle

    def write_pandas(self, df: pd.DataFrame) -> None:
        """Write a pandas DataFrame. Its index is not written, except for levels that are named as a column."""
        self._core.write_table(pandas_table(df, self._core.arrow_schema))

    async def flush(self) -> None:
        """Send everything buffered and wait until it is stored; raises the first failure."""
        await flush(self._core)

    async def drain(self) -> None:
        """Wait until the buffer has room, so that the next write does not block.

        In coroutines this lets other tasks run now and then, so a loop of writes may call it after each of them.
        """
        await self._drain()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        with leaving(error, FLUSHING):
            await self.flush()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._core.table_path}, pending_rows={self._core.pending_rows})"


class AppendWriter(Writer[AppendWriterCore]):
    """Appends rows to a log table. Rows are buffered and sent in batches; `flush` waits until all are stored.

    When the buffer is full the write methods wait for room; in async code await `drain()` between writes instead.
    """

    def append(self, row: Mapping[str, Any] | Sequence[Any]) -> WriteResultHandle:
        """Append one row: a dict by column name, or a list or tuple in column order."""
        handle: WriteResultHandle = self._take(row) or self._core.append(row)
        return handle

    def append_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Same as `write_arrow_batch`."""
        return self.write_arrow_batch(batch)


class TableAppend:
    """Makes append writers. Obtain with `table.new_append()`."""

    def __init__(self, core: TableCore) -> None:
        self._core = core

    def create_writer(self) -> AppendWriter:
        """A writer for the table."""
        return AppendWriter(self._core.append_writer())

    def __repr__(self) -> str:
        return f"TableAppend({self._core.info.table_path})"


class UpsertWriter(Writer[UpsertWriterCore]):
    """Upserts and deletes rows of a primary-key table, by key in the order of the calls.

    Rows are buffered and sent in batches; `flush` waits until all are stored. When the buffer is full the write methods
    wait for room; in async code await `drain()` between writes instead. `write_arrow`, `write_arrow_batch` and
    `write_pandas` upsert.
    """

    def upsert(self, row: Mapping[str, Any] | Sequence[Any]) -> WriteResultHandle:
        """Insert a row, or update the one with its key: a dict by column name, or a list or tuple in column order.

        In a partial update the row has the chosen columns only, in the order named; a list or tuple may also have all
        columns of the table, with None for those not chosen.
        """
        handle: WriteResultHandle = self._take(row) or self._core.upsert(row)
        return handle

    def delete(self, pk: Mapping[str, Any] | Sequence[Any]) -> WriteResultHandle:
        """Delete the row with a key: a dict with the key columns, or a list or tuple in the order of the primary key.

        The table's other columns may be there too and do not matter: a whole row as a dict, list, tuple or GenericRow.
        In a partial update the chosen columns become null, and the row goes when all others are null.
        """
        handle: WriteResultHandle = self._core.delete(pk)
        return handle

    def delete_arrow(self, keys: pa.Table) -> WriteResultHandle:
        """Delete the rows with the keys in a PyArrow Table or RecordBatch, or anything with `__arrow_c_stream__`."""
        handle: WriteResultHandle = self._core.delete_table(arrow_table(keys))
        return handle


class TableUpsert:
    """Makes upsert writers. Obtain with `table.new_upsert()`.

    It is also a writer itself: its own methods go to one writer, made at the first call. No step changes a builder;
    each makes a new one.
    """

    def __init__(
        self, core: TableCore, columns: UpsertColumns | None = None, merge_mode: MergeMode = MergeMode.DEFAULT
    ) -> None:
        core.check_upserts()
        self._core = core
        self._columns = columns
        self._merge_mode = merge_mode
        self._own_writer: UpsertWriter | None = None

    def partial_update_by_name(self, columns: Iterable[str]) -> Self:
        """Write only these columns; they must have the key's. Other columns keep their values, or are null."""
        return type(self)(self._core, UpsertColumns.named(self._core.info, columns), self._merge_mode)

    def partial_update_by_index(self, column_indices: Iterable[int]) -> Self:
        """Write only the columns with these indexes, counted from 0; see `partial_update_by_name`."""
        return type(self)(self._core, UpsertColumns.numbered(self._core.info, column_indices), self._merge_mode)

    def partial_update(self, column_indices: Iterable[int] | None) -> Self:
        """Write only the columns with these indexes; None: whole rows."""
        if column_indices is None:
            return type(self)(self._core, None, self._merge_mode)
        return self.partial_update_by_index(column_indices)

    def partial_update_with_column_names(self, names: Iterable[str]) -> Self:
        """Same as `partial_update_by_name`."""
        return self.partial_update_by_name(names)

    def merge_mode(self, mode: MergeMode) -> Self:
        """`MergeMode.OVERWRITE` writes rows as they are, past the table's merge engine."""
        if not isinstance(mode, MergeMode):
            raise InvalidRequestError(f"merge_mode takes MergeMode.DEFAULT or MergeMode.OVERWRITE, not {mode!r}.")
        if mode is MergeMode.OVERWRITE and MERGE_ENGINE not in self._core.info.properties:
            raise InvalidRequestError(
                f"Table {self._core.info.table_path} has no merge engine, so its rows are overwritten anyway; "
                "leave MergeMode.OVERWRITE out."
            )
        return type(self)(self._core, self._columns, mode)

    def create_writer(self) -> UpsertWriter:
        """A writer for the table."""
        return UpsertWriter(self._core.upsert_writer(self._columns, self._merge_mode))

    @property
    def _writer(self) -> UpsertWriter:
        if self._own_writer is None:
            self._own_writer = self.create_writer()
        return self._own_writer

    def upsert(self, row: Mapping[str, Any] | Sequence[Any]) -> WriteResultHandle:
        """See `UpsertWriter.upsert`."""
        return self._writer.upsert(row)

    def delete(self, pk: Mapping[str, Any] | Sequence[Any]) -> WriteResultHandle:
        """See `UpsertWriter.delete`."""
        return self._writer.delete(pk)

    def write_arrow(self, table: pa.Table) -> None:
        """See `UpsertWriter.write_arrow`."""
        self._writer.write_arrow(table)

    def write_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """See `UpsertWriter.write_arrow_batch`."""
        return self._writer.write_arrow_batch(batch)

    def write_pandas(self, df: pd.DataFrame) -> None:
        """See `UpsertWriter.write_pandas`."""
        self._writer.write_pandas(df)

    def delete_arrow(self, keys: pa.Table) -> WriteResultHandle:
        """See `UpsertWriter.delete_arrow`."""
        return self._writer.delete_arrow(keys)

    async def flush(self) -> None:
        """See `UpsertWriter.flush`."""
        await self._writer.flush()

    async def drain(self) -> None:
        """See `UpsertWriter.drain`."""
        await self._writer.drain()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._own_writer is not None:
            await self._own_writer.__aexit__(kind, error, traceback)

    def __repr__(self) -> str:
        columns = "" if self._columns is None else f", columns={self._columns.schema.column_names}"
        return f"TableUpsert({self._core.info.table_path}{columns})"

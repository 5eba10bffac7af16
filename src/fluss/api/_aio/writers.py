"""Writers: rows and batches go through a buffer; and those that append."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from fluss.api.awaiting import HandleWaiting, WriterWaiting, flush, stored
from fluss.api.connect import FLUSHING, leaving
from fluss.api.conversions import arrow_table, pandas_table
from fluss.client.table import TableCore
from fluss.client.write.row_buffer import WriteHandle
from fluss.client.write.writer import AppendWriterCore, WriterCore

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Core = TypeVar("Core", bound=WriterCore)


class WriteResultHandle(HandleWaiting):
    """A write under way: ignore it, or wait until the server has stored the rows. Returned by the write methods.

    Examples:
        >>> handle = clicks.new_append().create_writer().append([4, "/"])
        >>> await handle.wait()
        >>> handle
        WriteResultHandle(done=True)
    """

    __slots__ = ("_handle",)

    def __init__(self, handle: WriteHandle) -> None:
        self._handle = handle

    async def wait(self) -> None:
        """Wait until the server has stored the rows.

        Raises:
            FlussError: The rows are not stored, and why.

        Examples:
            >>> await handle.wait()
        """
        await stored(self._handle)

    def __repr__(self) -> str:
        return f"WriteResultHandle(done={self._handle.done()})"


class Writer(WriterWaiting, Generic[Core]):
    """Rows are buffered and sent in batches; `flush` waits until all are stored.

    When the buffer is full the write methods wait for room; coroutines call `drain()` between writes instead.
    """

    _core: Core

    def __init__(self, core: Core) -> None:
        core.shell = WriteResultHandle
        self._core = core
        # A million rows a second go this way: every call in between counts.
        self._take = core.gate.take

    def write_arrow(self, table: pa.Table) -> None:
        """Write a table of rows.

        Args:
            table: A PyArrow Table, or anything with `__arrow_c_stream__`, as a Polars DataFrame. Columns are matched by
                name; nullable ones may be missing.

        Raises:
            SchemaMismatchError: A column does not exist, or does not fit the table's schema.
            InvalidRequestError: The argument is no table.
            FlussError: The connection is closed, or an earlier write failed and nobody was told yet.

        Examples:
            >>> writer.write_arrow(pa.table({"id": [4, 5]}))
            >>> await writer.flush()
        """
        self._core.write_table(arrow_table(table))

    def write_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Write a batch of rows.

        Args:
            batch: A PyArrow RecordBatch; columns are matched by name.

        Returns:
            A handle to wait until the rows are stored.

        Raises:
            SchemaMismatchError: A column does not exist, or does not fit the table's schema.
            FlussError: The connection is closed, or an earlier write failed and nobody was told yet.

        Examples:
            >>> handle = writer.write_arrow_batch(pa.record_batch({"id": [4]}))
            >>> await handle.wait()
        """
        handle: WriteResultHandle = self._core.write_batch(batch)
        return handle

    def write_pandas(self, df: pd.DataFrame) -> None:
        """Write a DataFrame.

        Args:
            df: A pandas DataFrame. Its index is not written, except for levels that are named as a column.

        Raises:
            SchemaMismatchError: A column does not exist, or does not fit the table's schema.
            InvalidRequestError: The argument is no DataFrame.
            FlussError: The connection is closed, or an earlier write failed and nobody was told yet.

        Examples:
            >>> writer.write_pandas(pd.DataFrame({"id": [4, 5]}))
            >>> await writer.flush()
        """
        self._core.write_table(pandas_table(df, self._core.arrow_schema))

    async def flush(self) -> None:
        """Send everything buffered and wait until it is stored.

        Raises:
            FlussError: The first failure that nobody was told of. Those rows are not sent again.

        Examples:
            >>> writer.write_arrow(pa.table({"id": [4]}))
            >>> await writer.flush()
        """
        await flush(self._core)

    async def drain(self) -> None:
        """Wait until the buffer has room, so that the next write does not block.

        In coroutines this lets other tasks run now and then, so a loop of writes may call it after each of them.

        Examples:
            >>> for number in range(4, 1_000):
            ...     handle = writer.write_arrow_batch(pa.record_batch({"id": [number]}))
            ...     await writer.drain()
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
    """Appends rows to a log table. Obtain with `table.new_append().create_writer()`.

    Rows are buffered and sent in batches; `flush` waits until all are stored, and so does the end of a block. When the
    buffer is full the write methods wait for room; coroutines call `drain()` between writes instead.

    Examples:
        >>> async with clicks.new_append().create_writer() as writer:
        ...     for number in (4, 5):
        ...         handle = writer.append({"id": number, "url": "/"})
        >>> (await clicks.new_scan().to_arrow()).num_rows
        5
    """

    def append(self, row: Mapping[str, Any] | Sequence[Any]) -> WriteResultHandle:
        """Append a row.

        Args:
            row: A dict by column name, or a list or tuple in column order.

        Returns:
            A handle to wait until the row is stored; it may be ignored.

        Raises:
            SchemaMismatchError: A column does not exist, or a value does not fit it.
            FlussError: The connection is closed, or an earlier write failed and nobody was told yet.

        Examples:
            >>> handle = writer.append({"id": 4, "url": "/"})
            >>> handle = writer.append([5, "/buy"])
            >>> await writer.flush()
        """
        handle: WriteResultHandle = self._take(row) or self._core.append(row)
        return handle

    def append_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Append a batch of rows, as `write_arrow_batch`.

        Args:
            batch: A PyArrow RecordBatch; columns are matched by name.

        Returns:
            A handle to wait until the rows are stored.

        Raises:
            SchemaMismatchError: A column does not exist, or does not fit the table's schema.
            FlussError: The connection is closed, or an earlier write failed and nobody was told yet.

        Examples:
            >>> handle = writer.append_arrow_batch(pa.record_batch({"id": [4], "url": ["/"]}))
            >>> await handle.wait()
        """
        return self.write_arrow_batch(batch)


class TableAppend:
    """Makes append writers. Obtain with `table.new_append()`.

    Examples:
        >>> clicks.new_append()
        TableAppend(shop.clicks)
    """

    def __init__(self, core: TableCore) -> None:
        self._core = core

    def create_writer(self) -> AppendWriter:
        """Make a writer for the table.

        Returns:
            The writer.

        Raises:
            InvalidRequestError: The table has a primary key.
            FlussError: The connection is closed.

        Examples:
            >>> clicks.new_append().create_writer()
            AppendWriter(shop.clicks, pending_rows=0)
        """
        return AppendWriter(self._core.append_writer())

    def __repr__(self) -> str:
        return f"TableAppend({self._core.info.table_path})"

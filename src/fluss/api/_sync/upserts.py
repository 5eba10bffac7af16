# Made of _aio/upserts.py by tools/unasync.py: change that file, and run `make sync`.
"""Writers that upsert and delete by key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from fluss.api._sync.writers import Writer, WriteResultHandle
from fluss.api.conversions import arrow_table
from fluss.client.table import TableCore
from fluss.client.write.upsert import UpsertColumns, UpsertWriterCore
from fluss.model.errors import InvalidRequestError
from fluss.model.merge_mode import MergeMode
from fluss.model.tables.options import MERGE_ENGINE

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class UpsertWriter(Writer[UpsertWriterCore]):
    """Upserts and deletes rows of a primary-key table, by key in the order of the calls.

    Obtain with `table.new_upsert().create_writer()`. Rows are buffered and sent in batches; `flush` waits until all are
    stored, and so does the end of a block. When the buffer is full the write methods wait for room; coroutines call
    `drain()` between writes instead. `write_arrow`, `write_arrow_batch` and `write_pandas` upsert.

    Examples:
        >>> with users.new_upsert().create_writer() as writer:
        ...     stored = writer.upsert({"id": 3, "name": "cleo"})
        ...     deleted = writer.delete({"id": 1})
        >>> users.new_scan().to_arrow().column("name").to_pylist()
        ['bob', 'cleo']
    """

    def upsert(self, row: Mapping[str, Any] | Sequence[Any]) -> WriteResultHandle:
        """Insert a row, or update the one with its key.

        In a partial update the row has the chosen columns only, in the order named; a list or tuple may also have all
        columns of the table, with None for those not chosen.

        Args:
            row: A dict by column name, or a list or tuple in column order.

        Returns:
            A handle to wait until the row is stored; it may be ignored.

        Raises:
            SchemaMismatchError: A column does not exist, a value does not fit it, or the key is null or missing.
            FlussError: The connection is closed, or an earlier write failed and nobody was told yet.

        Examples:
            >>> handle = writer.upsert({"id": 1, "name": "ada l."})
            >>> writer.flush()
        """
        handle: WriteResultHandle = self._take(row) or self._core.upsert(row)
        return handle

    def delete(self, pk: Mapping[str, Any] | Sequence[Any]) -> WriteResultHandle:
        """Delete the row with a key.

        The table's other columns may be there too and do not matter: a whole row as a dict, list, tuple or GenericRow.
        In a partial update the chosen columns become null, and the row goes when all others are null.

        Args:
            pk: A dict with the key columns, or a list or tuple in the order of the primary key.

        Returns:
            A handle to wait until the row is deleted; it may be ignored.

        Raises:
            SchemaMismatchError: A column does not exist, a value does not fit it, or the key is null or missing.
            FlussError: The connection is closed, or an earlier write failed and nobody was told yet.

        Examples:
            >>> handle = writer.delete([1])
            >>> writer.flush()
        """
        handle: WriteResultHandle = self._core.delete(pk)
        return handle

    def delete_arrow(self, keys: pa.Table) -> WriteResultHandle:
        """Delete the rows with many keys.

        Args:
            keys: A PyArrow Table or RecordBatch with the key columns, or anything with `__arrow_c_stream__`.

        Returns:
            A handle to wait until the rows are deleted; it may be ignored.

        Raises:
            SchemaMismatchError: A column of the key is missing, or does not fit.
            FlussError: The connection is closed, or an earlier write failed and nobody was told yet.

        Examples:
            >>> handle = writer.delete_arrow(pa.table({"id": [1, 2]}))
            >>> writer.flush()
        """
        handle: WriteResultHandle = self._core.delete_table(arrow_table(keys))
        return handle


class TableUpsert:
    """Makes upsert writers. Obtain with `table.new_upsert()`.

    It is also a writer itself: its own methods go to one writer, made at the first call, which is flushed at the end of
    a block. No step changes a builder; each makes a new one.

    Examples:
        >>> with users.new_upsert() as upsert:
        ...     handle = upsert.upsert([3, "cleo"])
        >>> users.new_lookup().lookup([3])
        {'id': 3, 'name': 'cleo'}
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
        """Write only some columns, by name.

        Args:
            columns: Names of columns, which must have the key's. Others keep their values, or are null.

        Returns:
            A new maker of writers.

        Raises:
            InvalidRequestError: A column does not exist, one of the key is missing, or one left out is NOT NULL.

        Examples:
            >>> users.new_upsert().partial_update_by_name(["id", "name"])
            TableUpsert(shop.users, columns=['id', 'name'])
        """
        return type(self)(self._core, UpsertColumns.named(self._core.info, columns), self._merge_mode)

    def partial_update_by_index(self, column_indices: Iterable[int]) -> Self:
        """Write only some columns, by index.

        Args:
            column_indices: Indexes of columns, counted from 0, which must have the key's. Others keep their values, or
                are null.

        Returns:
            A new maker of writers.

        Raises:
            InvalidRequestError: A column does not exist, one of the key is missing, or one left out is NOT NULL.

        Examples:
            >>> users.new_upsert().partial_update_by_index([0, 1])
            TableUpsert(shop.users, columns=['id', 'name'])
        """
        return type(self)(self._core, UpsertColumns.numbered(self._core.info, column_indices), self._merge_mode)

    def partial_update(self, column_indices: Iterable[int] | None) -> Self:
        """Write only some columns, by index, or whole rows again.

        Args:
            column_indices: Indexes of columns, counted from 0, which must have the key's; None: whole rows.

        Returns:
            A new maker of writers.

        Raises:
            InvalidRequestError: A column does not exist, one of the key is missing, or one left out is NOT NULL.

        Examples:
            >>> users.new_upsert().partial_update([0, 1])
            TableUpsert(shop.users, columns=['id', 'name'])
        """
        if column_indices is None:
            return type(self)(self._core, None, self._merge_mode)
        return self.partial_update_by_index(column_indices)

    def partial_update_with_column_names(self, names: Iterable[str]) -> Self:
        """Write only some columns, by name: another spelling of `partial_update_by_name`.

        Args:
            names: Names of columns, which must have the key's. Others keep their values, or are null.

        Returns:
            A new maker of writers.

        Raises:
            InvalidRequestError: A column does not exist, one of the key is missing, or one left out is NOT NULL.

        Examples:
            >>> users.new_upsert().partial_update_with_column_names(["id", "name"])
            TableUpsert(shop.users, columns=['id', 'name'])
        """
        return self.partial_update_by_name(names)

    def merge_mode(self, mode: MergeMode) -> Self:
        """Choose what happens in a table with a merge engine.

        Args:
            mode: `MergeMode.OVERWRITE` writes rows as they are, past the merge engine; `MergeMode.DEFAULT` merges.

        Returns:
            A new maker of writers.

        Raises:
            InvalidRequestError: The table has no merge engine to overwrite past.

        Examples:
            >>> upsert = users.new_upsert().merge_mode(fluss.MergeMode.DEFAULT)
        """
        if not isinstance(mode, MergeMode):
            raise InvalidRequestError(f"merge_mode takes MergeMode.DEFAULT or MergeMode.OVERWRITE, not {mode!r}.")
        if mode is MergeMode.OVERWRITE and MERGE_ENGINE not in self._core.info.properties:
            raise InvalidRequestError(
                f"Table {self._core.info.table_path} has no merge engine, so its rows are overwritten anyway; "
                "leave MergeMode.OVERWRITE out."
            )
        return type(self)(self._core, self._columns, mode)

    def create_writer(self) -> UpsertWriter:
        """Make a writer for the table.

        Returns:
            The writer.

        Raises:
            FlussError: The connection is closed.

        Examples:
            >>> users.new_upsert().create_writer()
            UpsertWriter(shop.users, pending_rows=0)
        """
        return UpsertWriter(self._core.upsert_writer(self._columns, self._merge_mode))

    @property
    def _writer(self) -> UpsertWriter:
        if self._own_writer is None:
            self._own_writer = self.create_writer()
        return self._own_writer

    def upsert(self, row: Mapping[str, Any] | Sequence[Any]) -> WriteResultHandle:
        """Insert a row, or update the one with its key.

        It goes to the one writer that this builder has.

        In a partial update the row has the chosen columns only, in the order named; a list or tuple may also have all
        columns of the table, with None for those not chosen.

        Args:
            row: A dict by column name, or a list or tuple in column order.

        Returns:
            A handle to wait until the row is stored; it may be ignored.

        Raises:
            SchemaMismatchError: A column does not exist, a value does not fit it, or the key is null or missing.
            FlussError: The connection is closed, or an earlier write failed and nobody was told yet.

        Examples:
            >>> handle = upsert.upsert({"id": 1, "name": "ada l."})
            >>> upsert.flush()
        """
        return self._writer.upsert(row)

    def delete(self, pk: Mapping[str, Any] | Sequence[Any]) -> WriteResultHandle:
        """Delete the row with a key.

        It goes to the one writer that this builder has.

        The table's other columns may be there too and do not matter: a whole row as a dict, list, tuple or GenericRow.
        In a partial update the chosen columns become null, and the row goes when all others are null.

        Args:
            pk: A dict with the key columns, or a list or tuple in the order of the primary key.

        Returns:
            A handle to wait until the row is deleted; it may be ignored.

        Raises:
            SchemaMismatchError: A column does not exist, a value does not fit it, or the key is null or missing.
            FlussError: The connection is closed, or an earlier write failed and nobody was told yet.

        Examples:
            >>> handle = upsert.delete([1])
            >>> upsert.flush()
        """
        return self._writer.delete(pk)

    def write_arrow(self, table: pa.Table) -> None:
        """Write a table of rows.

        It goes to the one writer that this builder has.

        Args:
            table: A PyArrow Table, or anything with `__arrow_c_stream__`, as a Polars DataFrame. Columns are matched by
                name; nullable ones may be missing.

        Raises:
            SchemaMismatchError: A column does not exist, or does not fit the table's schema.
            InvalidRequestError: The argument is no table.
            FlussError: The connection is closed, or an earlier write failed and nobody was told yet.

        Examples:
            >>> upsert.write_arrow(pa.table({"id": [4, 5]}))
            >>> upsert.flush()
        """
        self._writer.write_arrow(table)

    def write_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Write a batch of rows.

        It goes to the one writer that this builder has.

        Args:
            batch: A PyArrow RecordBatch; columns are matched by name.

        Returns:
            A handle to wait until the rows are stored.

        Raises:
            SchemaMismatchError: A column does not exist, or does not fit the table's schema.
            FlussError: The connection is closed, or an earlier write failed and nobody was told yet.

        Examples:
            >>> handle = upsert.write_arrow_batch(pa.record_batch({"id": [4]}))
            >>> handle.wait()
        """
        return self._writer.write_arrow_batch(batch)

    def write_pandas(self, df: pd.DataFrame) -> None:
        """Write a DataFrame.

        It goes to the one writer that this builder has.

        Args:
            df: A pandas DataFrame. Its index is not written, except for levels that are named as a column.

        Raises:
            SchemaMismatchError: A column does not exist, or does not fit the table's schema.
            InvalidRequestError: The argument is no DataFrame.
            FlussError: The connection is closed, or an earlier write failed and nobody was told yet.

        Examples:
            >>> upsert.write_pandas(pd.DataFrame({"id": [4, 5]}))
            >>> upsert.flush()
        """
        self._writer.write_pandas(df)

    def delete_arrow(self, keys: pa.Table) -> WriteResultHandle:
        """Delete the rows with many keys.

        It goes to the one writer that this builder has.

        Args:
            keys: A PyArrow Table or RecordBatch with the key columns, or anything with `__arrow_c_stream__`.

        Returns:
            A handle to wait until the rows are deleted; it may be ignored.

        Raises:
            SchemaMismatchError: A column of the key is missing, or does not fit.
            FlussError: The connection is closed, or an earlier write failed and nobody was told yet.

        Examples:
            >>> handle = upsert.delete_arrow(pa.table({"id": [1, 2]}))
            >>> upsert.flush()
        """
        return self._writer.delete_arrow(keys)

    def flush(self) -> None:
        """Send everything buffered and wait until it is stored.

        It goes to the one writer that this builder has.

        Raises:
            FlussError: The first failure that nobody was told of. Those rows are not sent again.

        Examples:
            >>> upsert.write_arrow(pa.table({"id": [4]}))
            >>> upsert.flush()
        """
        self._writer.flush()

    def drain(self) -> None:
        """Wait until the buffer has room, so that the next write does not block.

        It goes to the one writer that this builder has.

        In coroutines this lets other tasks run now and then, so a loop of writes may call it after each of them.

        Examples:
            >>> for number in range(4, 1_000):
            ...     handle = upsert.write_arrow_batch(pa.record_batch({"id": [number]}))
            ...     upsert.drain()
        """
        self._writer.drain()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._own_writer is not None:
            self._own_writer.__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        columns = "" if self._columns is None else f", columns={self._columns.schema.column_names}"
        return f"TableUpsert({self._core.info.table_path}{columns})"

"""What the upsert writers of all facades share, and the builder that makes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from fluss.api.arguments import arrow_table
from fluss.api.writer_base import Handle, WriterBase
from fluss.client.table import TableCore
from fluss.client.upsert import UpsertWriterCore
from fluss.client.upsert_columns import UpsertColumns
from fluss.model.errors import InvalidRequestError
from fluss.model.merge_mode import MergeMode
from fluss.model.table_options import MERGE_ENGINE

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class UpsertMethods(WriterBase[UpsertWriterCore, Handle]):
    """Upserts and deletes rows of a primary-key table, by key in the order of the calls.

    Rows are buffered and sent in batches; `flush` waits until all are stored. When the buffer is full the write methods
    wait for room; in async code await `drain()` between writes instead. `write_arrow`, `write_arrow_batch` and
    `write_pandas` upsert.
    """

    def upsert(self, row: Mapping[str, Any] | Sequence[Any]) -> Handle:
        """Insert a row, or update the one with its key: a dict by column name, or a list or tuple in column order.

        In a partial update the row has the chosen columns only, in the order named; a list or tuple may also have all
        columns of the table, with None for those not chosen.
        """
        handle: Handle = self._take(row) or self._core.upsert(row)
        return handle

    def delete(self, pk: Mapping[str, Any] | Sequence[Any]) -> Handle:
        """Delete the row with a key: a dict with the key columns, or a list or tuple in the order of the primary key.

        The table's other columns may be there too and do not matter: a whole row as a dict, list, tuple or GenericRow.
        In a partial update the chosen columns become null, and the row goes when all others are null.
        """
        handle: Handle = self._core.delete(pk)
        return handle

    def delete_arrow(self, keys: pa.Table) -> Handle:
        """Delete the rows with the keys in a PyArrow Table or RecordBatch, or anything with `__arrow_c_stream__`."""
        handle: Handle = self._core.delete_table(arrow_table(keys))
        return handle


Writer = TypeVar("Writer", bound=UpsertMethods[Any])


class TableUpsertBase(Generic[Writer, Handle]):
    """Makes upsert writers. Obtain with `table.new_upsert()`.

    It is also a writer itself: its own methods go to one writer, made at the first call. No step changes a builder;
    each makes a new one.
    """

    _writer_class: type[Writer]

    def __init__(
        self, core: TableCore, columns: UpsertColumns | None = None, merge_mode: MergeMode = MergeMode.DEFAULT
    ) -> None:
        core.check_upserts()
        self._core = core
        self._columns = columns
        self._merge_mode = merge_mode
        self._own_writer: Writer | None = None

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

    def create_writer(self) -> Writer:
        """A writer for the table."""
        return self._writer_class(self._core.upsert_writer(self._columns, self._merge_mode))

    @property
    def _writer(self) -> Writer:
        if self._own_writer is None:
            self._own_writer = self.create_writer()
        return self._own_writer

    def upsert(self, row: Mapping[str, Any] | Sequence[Any]) -> Handle:
        """See `UpsertWriter.upsert`."""
        return self._writer.upsert(row)  # type: ignore[no-any-return]

    def delete(self, pk: Mapping[str, Any] | Sequence[Any]) -> Handle:
        """See `UpsertWriter.delete`."""
        return self._writer.delete(pk)  # type: ignore[no-any-return]

    def write_arrow(self, table: pa.Table) -> None:
        """See `UpsertWriter.write_arrow`."""
        self._writer.write_arrow(table)

    def write_arrow_batch(self, batch: pa.RecordBatch) -> Handle:
        """See `UpsertWriter.write_arrow_batch`."""
        return self._writer.write_arrow_batch(batch)  # type: ignore[no-any-return]

    def write_pandas(self, df: pd.DataFrame) -> None:
        """See `UpsertWriter.write_pandas`."""
        self._writer.write_pandas(df)

    def delete_arrow(self, keys: pa.Table) -> Handle:
        """See `UpsertWriter.delete_arrow`."""
        return self._writer.delete_arrow(keys)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        columns = "" if self._columns is None else f", columns={self._columns.schema.column_names}"
        return f"TableUpsert({self._core.info.table_path}{columns})"

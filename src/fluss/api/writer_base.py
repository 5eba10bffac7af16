"""What the writers of all facades and tables share: rows and batches go into the buffer at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from fluss.api.arguments import arrow_table, pandas_table
from fluss.client.handles import WriteHandle
from fluss.client.writer import WriterCore

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class WriteResultHandleBase:
    """A write under way."""

    __slots__ = ("_handle",)

    def __init__(self, handle: WriteHandle) -> None:
        self._handle = handle

    def __repr__(self) -> str:
        return f"WriteResultHandle(done={self._handle.done()})"


Core = TypeVar("Core", bound=WriterCore)
Handle = TypeVar("Handle", bound=WriteResultHandleBase)


class WriterBase(Generic[Core, Handle]):
    """Rows are buffered and sent in batches; `flush` waits until all are stored.

    When the buffer is full the write methods wait for room; in async code await `drain()` between writes instead.
    """

    _handle_class: type[Handle]

    def __init__(self, core: Core) -> None:
        core.shell = self._handle_class
        self._core = core
        # A million rows a second go this way: every call in between counts.
        self._take = core.gate.take

    def write_arrow(self, table: pa.Table) -> None:
        """Write a PyArrow Table, or anything with `__arrow_c_stream__`."""
        self._core.write_table(arrow_table(table))

    def write_arrow_batch(self, batch: pa.RecordBatch) -> Handle:
        """Write a PyArrow RecordBatch."""
        handle: Handle = self._core.write_batch(batch)
        return handle

    def write_pandas(self, df: pd.DataFrame) -> None:
        """Write a pandas DataFrame. Its index is not written, except for levels that are named as a column."""
        self._core.write_table(pandas_table(df, self._core.arrow_schema))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._core.table_path}, pending_rows={self._core.pending_rows})"

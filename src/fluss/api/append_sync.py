"""Appending to log tables; flush and acknowledgements block."""

from __future__ import annotations

from fluss.api.append_base import AppendWriterBase, WriteResultHandleBase
from fluss.client.runtime import run
from fluss.client.table import TableCore


class WriteResultHandle(WriteResultHandleBase):
    """A write under way: ignore it, or `wait()` until the server has stored the rows."""

    __slots__ = ()

    def wait(self) -> None:
        """Wait until the server has stored the rows."""
        run(self._handle.wait())


class AppendWriter(AppendWriterBase[WriteResultHandle]):
    __doc__ = AppendWriterBase.__doc__
    _handle_class = WriteResultHandle

    def flush(self) -> None:
        """Send everything buffered and wait until it is stored; raises the first failure."""
        run(self._core.flush())

    def drain(self) -> None:
        """Wait until the buffer has room."""
        run(self._core.drain())

    def __enter__(self) -> AppendWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()


class TableAppend:
    """Makes append writers. Obtain with `table.new_append()`."""

    def __init__(self, core: TableCore) -> None:
        self._core = core

    def create_writer(self) -> AppendWriter:
        """A writer for the table."""
        return AppendWriter(self._core.append_writer())

    def __repr__(self) -> str:
        return f"TableAppend({self._core.info.table_path})"

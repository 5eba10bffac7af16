"""Appending to log tables; flush and acknowledgements are awaited."""

from __future__ import annotations

from fluss.api.append_base import AppendMethods
from fluss.api.writer import AwaitedWriter, WriteResultHandle
from fluss.client.append import AppendWriterCore
from fluss.client.table import TableCore


class AppendWriter(AppendMethods[WriteResultHandle], AwaitedWriter[AppendWriterCore]):
    __doc__ = AppendMethods.__doc__


class TableAppend:
    """Makes append writers. Obtain with `table.new_append()`."""

    def __init__(self, core: TableCore) -> None:
        self._core = core

    def create_writer(self) -> AppendWriter:
        """A writer for the table."""
        return AppendWriter(self._core.append_writer())

    def __repr__(self) -> str:
        return f"TableAppend({self._core.info.table_path})"

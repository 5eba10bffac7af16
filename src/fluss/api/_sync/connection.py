# Made of _aio/connection.py by tools/unasync.py: change that file, and run `make sync`.
"""Connections."""

from __future__ import annotations

from typing import Generic, Self, TypeVar

from fluss.api._sync.admin import FlussAdmin
from fluss.api._sync.table import FlussTable, TableWriting
from fluss.api.blocking import close, wait
from fluss.api.connect import CLOSING, FlussConnectionBase, leaving
from fluss.client.core import ClientCore
from fluss.model.config import Config
from fluss.model.paths import TablePath

Table = TypeVar("Table", bound=TableWriting)


class ConnectionTo(FlussConnectionBase, Generic[Table]):
    """A connection whose tables are of a class, without `close`, which differs."""

    _table_class: type[Table]

    @classmethod
    def create(cls, config: Config) -> Self:
        """Connect."""
        return cls(wait(ClientCore.connect(config)))

    @classmethod
    def connect(cls, config: Config) -> Self:
        """The older spelling of `create`."""
        return cls.create(config)

    def get_admin(self) -> FlussAdmin:
        """Administration of databases and tables; may be awaited."""
        return FlussAdmin(self._core.admin)

    def get_table(self, table_path: TablePath) -> Table:
        """A table to read from and write to."""
        return self._table_class(wait(self._core.table(table_path)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        with leaving(error, CLOSING):
            close(self._core)


class FlussConnection(ConnectionTo[FlussTable]):
    __doc__ = FlussConnectionBase.__doc__
    _table_class = FlussTable

    def close(self) -> None:
        """Wait until all rows are stored, for up to `close.timeout-ms`, then close; raises the first failure."""
        close(self._core)

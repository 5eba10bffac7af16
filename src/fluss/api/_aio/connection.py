"""Connections."""

from __future__ import annotations

from typing import Generic, Self, TypeVar

from fluss.api._aio.admin import FlussAdmin
from fluss.api._aio.table import FlussTable, TableWriting
from fluss.api.awaiting import close, wait
from fluss.api.connect import CLOSING, FlussConnectionBase, leaving
from fluss.client.core import ClientCore
from fluss.model.config import Config
from fluss.model.paths import TablePath

Table = TypeVar("Table", bound=TableWriting)


class ConnectionTo(FlussConnectionBase, Generic[Table]):
    """A connection whose tables are of a class, without `close`, which differs."""

    _table_class: type[Table]

    @classmethod
    async def create(cls, config: Config) -> Self:
        """Connect."""
        return cls(await wait(ClientCore.connect(config)))

    @classmethod
    async def connect(cls, config: Config) -> Self:
        """The older spelling of `create`."""
        return await cls.create(config)

    def get_admin(self) -> FlussAdmin:
        """Administration of databases and tables; may be awaited."""
        return FlussAdmin(self._core.admin)

    async def get_table(self, table_path: TablePath) -> Table:
        """A table to read from and write to."""
        return self._table_class(await wait(self._core.table(table_path)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        with leaving(error, CLOSING):
            await close(self._core)


class FlussConnection(ConnectionTo[FlussTable]):
    __doc__ = FlussConnectionBase.__doc__
    _table_class = FlussTable

    async def close(self) -> None:
        """Wait until all rows are stored, for up to `close.timeout-ms`, then close; raises the first failure."""
        await close(self._core)

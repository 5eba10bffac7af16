"""What the connections of the facades share."""

from __future__ import annotations

from typing import Generic, Self, TypeVar

from fluss.api.admin import FlussAdmin
from fluss.api.contexts import CLOSING, leaving
from fluss.api.table_base import FlussTableBase
from fluss.client.core import ClientCore
from fluss.client.runtime import bridge
from fluss.model.config import Config
from fluss.model.paths import TablePath

Table = TypeVar("Table", bound=FlussTableBase)


class FlussConnectionBase:
    """A connection to a server or cluster. Make one with `FlussConnection.create(config)`."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core

    @property
    def config(self) -> Config:
        return self._core.config

    def reachable_config(self) -> Config:
        """The settings with which other processes reach the same server; that of an embedded one has its secret."""
        return self._core.reachable_config()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        with leaving(error, CLOSING):
            self._core.close_blocking()

    def __repr__(self) -> str:
        state = "closed" if self._core.closed else "open"
        return f"FlussConnection({self._core.config.bootstrap_servers!r}, {state})"


class AwaitedConnection(FlussConnectionBase, Generic[Table]):
    """The connection of the facades that await."""

    _table_class: type[Table]

    @classmethod
    async def create(cls, config: Config) -> Self:
        """Connect."""
        return cls(await bridge(ClientCore.connect(config)))

    @classmethod
    async def connect(cls, config: Config) -> Self:
        """The older spelling of `create`."""
        return await cls.create(config)

    def get_admin(self) -> FlussAdmin:
        """Administration of databases and tables; may be awaited."""
        return FlussAdmin(self._core.admin)

    async def get_table(self, table_path: TablePath) -> Table:
        """A table to read from and write to."""
        return self._table_class(await bridge(self._core.table(table_path)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        with leaving(error, CLOSING):
            await self._core.close_on_loop()

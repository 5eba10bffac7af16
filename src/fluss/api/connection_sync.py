"""The connection of the facade `fluss.sync`."""

from __future__ import annotations

from typing import Any, Self

from fluss.api.admin_sync import FlussAdmin
from fluss.api.connect import connect_config
from fluss.api.connection_base import FlussConnectionBase
from fluss.api.table_sync import FlussTable
from fluss.client.core import ClientCore
from fluss.client.runtime import run
from fluss.model.config import Config
from fluss.model.paths import TablePath


class FlussConnection(FlussConnectionBase):
    __doc__ = FlussConnectionBase.__doc__

    @classmethod
    def create(cls, config: Config) -> Self:
        """Connect."""
        return cls(run(ClientCore.connect(config)))

    @classmethod
    def connect(cls, config: Config) -> Self:
        """The older spelling of `create`."""
        return cls.create(config)

    def close(self) -> None:
        """Wait until all rows are stored, for up to `close.timeout-ms`, then close; raises the first failure."""
        self._core.close_blocking()

    def get_admin(self) -> FlussAdmin:
        """Administration of databases and tables."""
        return FlussAdmin(self._core.admin)

    def get_table(self, table_path: TablePath) -> FlussTable:
        """A table to read from and write to."""
        return FlussTable(run(self._core.table(table_path)))


def connect(address: str | None = None, **options: Any) -> FlussConnection:
    """Connect to `host:port`, `file:///directory`, `memory:` or, without an address, to 127.0.0.1:9123.

    Options are named like the attributes of Config.
    """
    return FlussConnection.create(connect_config(address, options))

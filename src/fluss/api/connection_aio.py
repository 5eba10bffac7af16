"""The connection of the facade `fluss.aio`."""

from __future__ import annotations

from typing import Any

from fluss.api.connect import Connecting, connect_config
from fluss.api.connection_base import AwaitedConnection, FlussConnectionBase
from fluss.api.table_aio import FlussTable


class FlussConnection(AwaitedConnection[FlussTable]):
    __doc__ = FlussConnectionBase.__doc__
    _table_class = FlussTable

    async def close(self) -> None:
        """Wait until all rows are stored, for up to `close.timeout-ms`, then close; raises the first failure."""
        await self._core.close_on_loop()


def connect(address: str | None = None, **options: Any) -> Connecting[FlussConnection]:
    """Connect to `host:port`, `file:///directory`, `memory:` or, without an address, to 127.0.0.1:9123.

    Options are named like the attributes of Config. `await` the result, or use it in `async with`.
    """
    return Connecting(FlussConnection.create(connect_config(address, options)))

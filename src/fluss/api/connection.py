"""The connection of the facade `fluss`."""

from __future__ import annotations

from typing import Any

from fluss.api.awaitables import DONE, Done
from fluss.api.connect import Connecting, connect_config
from fluss.api.connection_base import AwaitedConnection, FlussConnectionBase
from fluss.api.table import FlussTable


class FlussConnection(AwaitedConnection[FlussTable]):
    __doc__ = FlussConnectionBase.__doc__
    _table_class = FlussTable

    def close(self) -> Done:
        """Wait until all rows are stored, for up to `close.timeout-ms`, then close; raises the first failure.

        Blocks, so in a program with other tasks `async with` is better: it awaits. What this returns may be awaited.
        """
        self._core.close_blocking()
        return DONE


def connect(address: str | None = None, **options: Any) -> Connecting[FlussConnection]:
    """Connect to `host:port`, `file:///directory`, `memory:` or, without an address, to 127.0.0.1:9123.

    Options are named like the attributes of Config. `await` the result, or use it in `async with`.
    """
    return Connecting(FlussConnection.create(connect_config(address, options)))

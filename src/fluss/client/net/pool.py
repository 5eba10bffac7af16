"""A pool of connections by address: at most one each, opened when needed, opened again when lost."""

from __future__ import annotations

import asyncio

from fluss.client.net.connection import Connection
from fluss.client.net.login import Credentials
from fluss.model.addresses import Address
from fluss.model.errors import FlussError
from fluss.model.infos import ServerType


class ConnectionPool:
    """The open connections of one client on one event loop. `parent` has the credentials for those of other loops."""

    def __init__(
        self,
        connect_timeout_s: float,
        credentials: Credentials | None = None,
        parent: ConnectionPool | None = None,
    ) -> None:
        self._connect_timeout_s = connect_timeout_s
        self.credentials = credentials
        self._parent = parent
        self._open: dict[Address, Connection] = {}
        self._opening: dict[Address, asyncio.Task[Connection]] = {}
        self._wanted: dict[Address, int] = {}
        self._closed = False

    def ready(self, address: Address) -> Connection | None:
        """The connection to an address if there is one right now."""
        connection = self._open.get(address)
        return connection if connection is not None and not connection.closed else None

    def want(self, address: Address, role: ServerType) -> Connection | None:
        """The connection to an address if there is one right now, for somebody who can do without.

        If not, it is opened for those who come again; after failures each next try waits for twice as many of them.
        """
        connection = self.ready(address)
        if connection is not None:
            return connection
        wanted = self._wanted[address] = self._wanted.get(address, 0) + 1
        if wanted > 1 and wanted & (wanted - 1) == 0 and not self._closed:
            self._opening_of(address, role, self._connect_timeout_s)
        return None

    async def get(self, address: Address, role: ServerType | None = None, timeout_s: float | None = None) -> Connection:
        """The connection to an address; callers that come while it is being opened share the attempt."""
        connection = self.ready(address)
        if connection is not None:
            return connection
        if self._closed:
            raise FlussError("The client is closed.")
        limit_s = self._connect_timeout_s if timeout_s is None else min(timeout_s, self._connect_timeout_s)
        opening = self._opening_of(address, role, limit_s)
        # A caller that gives up leaves the attempt to the others.
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if self._closed and opening.cancelled():
                raise FlussError("The client was closed.") from None
            raise

    def _opening_of(self, address: Address, role: ServerType | None, timeout_s: float) -> asyncio.Task[Connection]:
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.ensure_future(self._connect(address, role, timeout_s))
            opening.add_done_callback(lambda task: self._opened(address, task))
        return opening

    async def _connect(self, address: Address, role: ServerType | None, timeout_s: float) -> Connection:
        credentials = (self._parent or self).credentials
        connection = await Connection.open(address, timeout_s, role, credentials)
        if self._closed:
            connection.close()
            raise FlussError("The client is closed.")
        self._open[address] = connection
        return connection

    def _opened(self, address: Address, task: asyncio.Task[Connection]) -> None:
        self._opening.pop(address, None)
        if not task.cancelled():
            task.exception()  # whoever still waits has it; without waiters it is no cause for a warning

    def cut(self) -> None:
        """Let nothing more leave any connection; from any thread. `close` follows on the loop."""
        self._closed = True
        for connection in list(self._open.values()):
            connection.cut()

    def close(self) -> None:
        """Close all connections."""
        self._closed = True
        for task in self._opening.values():
            task.cancel()
        for connection in self._open.values():
            connection.close()
        self._open.clear()

"""One client: what it shares with the cluster, and what sends, looks up and administrates for it."""

from __future__ import annotations

import asyncio
from typing import NoReturn

from fluss.client import runtime
from fluss.client.admin import AdminCore
from fluss.client.client import Closing
from fluss.client.cluster.cluster import Cluster
from fluss.client.cluster.metadata import Metadata
from fluss.client.lookup.lookuper import ClientLookups
from fluss.client.lookup.queue import Lookups
from fluss.client.net.own_loop import PerLoop
from fluss.client.table import TableCore
from fluss.client.write.sender import Sender
from fluss.model.config import Config
from fluss.model.errors import FlussError
from fluss.model.paths import TablePath


class ClientCore:
    """Made by `connect`. Coroutines run on the I/O loop where nothing else is said."""

    def __init__(self, config: Config) -> None:
        cluster = self.cluster = Cluster(config)
        timeout_s = cluster.request_timeout_s
        self.sender = Sender(cluster.config, cluster.metadata, cluster.own_loops)
        on_io_loop = Lookups(cluster.metadata, cluster.pool, timeout_s, runtime.call_soon)
        self.lookups = ClientLookups(on_io_loop, PerLoop(self._lookups_of))
        self.admin = AdminCore(cluster)
        self._closing = Closing(self.sender, config.bootstrap_servers, config.close_timeout_ms / 1000, self.end)

    def _lookups_of(self, loop: asyncio.AbstractEventLoop) -> Lookups:
        cluster = self.cluster
        return Lookups(cluster.metadata, cluster.own_loops.pool(), cluster.request_timeout_s, loop.call_soon)

    @classmethod
    async def connect(cls, config: Config) -> ClientCore:
        """Connect to the first server of the bootstrap list that answers."""
        client = cls(config)
        await client.cluster.connect()
        runtime.register_drainable(client.sender)
        return client

    @property
    def config(self) -> Config:
        return self.cluster.config

    @property
    def metadata(self) -> Metadata:
        return self.cluster.metadata

    @property
    def request_timeout_s(self) -> float:
        return self.cluster.request_timeout_s

    def reachable_config(self) -> Config:
        """The settings with which other processes reach the same server; they never start one."""
        return self.cluster.reachable_config()

    @property
    def closed(self) -> bool:
        return self.cluster.closed

    async def table(self, path: TablePath) -> TableCore:
        """A table whose buckets all have leaders. They appear a moment after a table's creation."""
        return TableCore(self, await self.cluster.ready_table(path))

    async def close(self) -> None:
        """Wait for what was taken, close all connections, raise the first failure that nobody was told of."""
        self.cluster.check_process()
        self.cluster.closed = True
        await self._closing.close()

    def close_blocking(self) -> None:
        """As `close`, in any thread but the I/O thread."""
        if self._begin_close():
            self._closing.close_blocking()

    async def close_on_loop(self) -> None:
        """As `close`, on any loop."""
        if self._begin_close():
            await self._closing.close_on_loop()

    def _begin_close(self) -> bool:
        """Whether there is something to close."""
        if self.cluster.is_foreign:
            return False
        self.cluster.closed = True
        return True

    def end(self, reason: FlussError) -> None:
        """Send nothing any more: what is not acknowledged fails for this reason. On the I/O loop."""
        self.sender.close(reason)
        self.lookups.io.close()
        self.cluster.own_loops.cut()
        self.lookups.per_loop.close()
        self.cluster.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A Fluss connection can't be pickled: it holds sockets of this process. "
            "Ship Config.to_dict() instead and connect again on the other side."
        )


async def resolve(config: Config) -> Config:
    """The settings with which other processes reach the server of `config`; an embedded one is started if need be."""
    client = await ClientCore.connect(config)
    try:
        return client.reachable_config()
    finally:
        await client.close()

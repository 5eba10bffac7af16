"""One client: its connections, what it knows of the cluster, and its sender."""

from __future__ import annotations

import asyncio
import weakref
from typing import NoReturn

from fluss.client import runtime
from fluss.client.absence import Absence
from fluss.client.address import parse_bootstrap
from fluss.client.admin import AdminCore
from fluss.client.closing import Closing
from fluss.client.embedded import EMBEDDED_HOST, embedded_server
from fluss.client.lookup import Lookups
from fluss.client.metadata import Metadata
from fluss.client.per_loop import PerLoop
from fluss.client.pool import ConnectionPool
from fluss.client.sasl import Credentials
from fluss.client.sender import Sender
from fluss.client.table import TableCore
from fluss.model.config import Config
from fluss.model.endpoint import EMBEDDED_USER
from fluss.model.errors import ErrorCode, FlussError, TimeoutError
from fluss.model.paths import TablePath


class ClientCore:
    """Made by `connect`. Coroutines run on the I/O loop where nothing else is said."""

    def __init__(self, config: Config) -> None:
        self.config = config.copy()
        self.request_timeout_s: float = config.request_timeout_ms / 1000
        self._pid = runtime.process_id
        self.closed = False
        self._closing = Closing(self, config.close_timeout_ms / 1000)
        self.pool = ConnectionPool(config.connect_timeout_ms / 1000, Credentials.of(config))
        embedded = embedded_server(config.bootstrap_servers)
        bootstrap = [] if embedded is not None else parse_bootstrap(config.bootstrap_servers)
        self.metadata = Metadata(self.pool, bootstrap, self.request_timeout_s, Absence.of(config), embedded)
        self.loop_pools = PerLoop(self._loop_pool)
        self.sender = Sender(self.config, self.metadata, self.loop_pools)
        self.lookups = Lookups(self.metadata, self.pool, self.request_timeout_s, runtime.call_soon)
        self.loop_lookups = PerLoop(self._lookups_of)
        self.admin = AdminCore(self)

    def _loop_pool(self, _: asyncio.AbstractEventLoop) -> ConnectionPool:
        return ConnectionPool(self.config.connect_timeout_ms / 1000, parent=self.pool)

    def _lookups_of(self, loop: asyncio.AbstractEventLoop) -> Lookups:
        return Lookups(self.metadata, self.loop_pools.here(), self.request_timeout_s, loop.call_soon)

    @classmethod
    async def connect(cls, config: Config) -> ClientCore:
        """Connect to the first server of the bootstrap list that answers."""
        client = cls(config)
        try:
            await client.metadata.refresh()
        except BaseException:
            client.pool.close()
            raise
        runtime.register_drainable(client.sender)
        # Sockets belong to the loop: without this a client that is forgotten, not closed, would keep them open.
        weakref.finalize(client, _close_forgotten, client.pool, runtime.process_id).atexit = False
        return client

    def reachable_config(self) -> Config:
        """The settings with which other processes reach the same server; they never start one."""
        config = self.config.copy()
        endpoint = self.metadata.endpoint
        if endpoint is not None:
            config.bootstrap_servers = f"{EMBEDDED_HOST}:{endpoint.port}"
            config.security_protocol = "sasl"
            config.security_sasl_username, config.security_sasl_password = EMBEDDED_USER, endpoint.secret
        return config

    def check_usable(self) -> None:
        """Raise when this client is closed or belongs to another process."""
        runtime.check_process(self._pid, "connection")
        if self.closed:
            raise FlussError("The connection is closed; open a new one.")

    async def table(self, path: TablePath) -> TableCore:
        """A table whose buckets all have leaders. They appear a moment after a table's creation."""
        self.check_usable()
        backoff = self.metadata.backoff(self.request_timeout_s)
        while True:
            problem: FlussError | None = None
            try:
                await self.metadata.refresh(path)
            except FlussError as error:
                if not error.is_retriable:
                    raise
                problem = error
            view = self.metadata.table(path)
            if problem is None and view is not None:
                # The buckets of a partitioned table are those of its partitions.
                leaderless = [] if view.info.is_partitioned() else view.without_leader()
                if not leaderless:
                    return TableCore(self, view.info)
                problem = TimeoutError(
                    f"Buckets {leaderless[:10]} of table {path} have no leader after {self.request_timeout_s:g} s; "
                    "are the cluster's tablet servers up?",
                    ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
                )
            if not await backoff.pause():
                raise problem or TimeoutError(f"Table {path} was not ready within {self.request_timeout_s:g} s.")

    async def close(self) -> None:
        """Wait for what was taken, close all connections, raise the first failure that nobody was told of."""
        runtime.check_process(self._pid, "connection")
        self.closed = True
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
        """Whether there is something to close: a forked child has nothing of its parent's, an ended process nothing."""
        if self._pid != runtime.process_id or runtime.has_ended():
            return False
        self.closed = True
        return True

    def end(self, reason: FlussError) -> None:
        """Send nothing any more: what is not acknowledged fails for this reason. On the I/O loop."""
        self.sender.close(reason)
        self.lookups.close()
        for pool in self.loop_pools.all():
            pool.cut()
        self.loop_lookups.close()
        self.loop_pools.close()
        self.metadata.close()
        self.pool.close()

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


def _close_forgotten(pool: ConnectionPool, made_in: int) -> None:
    if made_in == runtime.process_id:
        runtime.call_soon(pool.close)

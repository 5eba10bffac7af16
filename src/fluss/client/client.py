"""One client: its cluster, its sender, its lookups, and how it is closed.

Closing settles what was taken within a limit; then nothing is ever sent again. There is one way to it for all facades,
and it is taken once however many threads and loops close: those that come later wait with the first. A caller that
stops waiting, by an interrupt or a cancellation, ends the time limit with it, so that nothing is sent once any of these
calls has returned or raised.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import Callable
from typing import Final, NoReturn

from fluss.client import runtime
from fluss.client.admin import AdminCore
from fluss.client.cluster.cluster import Cluster
from fluss.client.cluster.metadata import Metadata
from fluss.client.lookup.lookuper import ClientLookups
from fluss.client.lookup.table_lookups import LookupLimits, Lookups
from fluss.client.net.own_loop import PerLoop
from fluss.client.table import TableCore
from fluss.client.write.sender import Sender
from fluss.model.config import Config
from fluss.model.errors import FlussError, TimeoutError
from fluss.model.paths import TablePath

# A close that waits for longer says so in the log.
QUIET_S_MAX: Final = 2.0
# What a blocking close waits beyond its limit: the I/O loop may be held up, by a lock that the caller itself holds if
# it was called in a signal handler.
GRACE_S: Final = 10.0

_log = logging.getLogger(__name__)


class Closing:
    """Made with its client. Coroutines run on the I/O loop where nothing else is said."""

    def __init__(self, sender: Sender, servers: str, timeout_s: float, end: Callable[[FlussError], None]) -> None:
        """`end` closes what the client has, with the reason for which the rest fails."""
        self._sender = sender
        self._servers = servers
        self._timeout_s = timeout_s
        self._end_client = end
        self._ending: asyncio.Task[None] | None = None
        self._given_up: asyncio.Event = asyncio.Event()

    async def close(self) -> None:
        """Settle and end; raises the first failure that nobody was told of."""
        await asyncio.shield(self._begin())
        failure = self._sender.take_failure()
        if failure is not None:
            raise failure

    def close_blocking(self) -> None:
        """Close in the calling thread, which may have a running loop: what that was sending is taken over."""
        try:
            runtime.run(self.close(), self._timeout_s + GRACE_S)
        except FlussError:
            raise
        except builtins.TimeoutError:
            raise TimeoutError(
                "The client's I/O thread does not answer, so the connection could not be closed. Was close() called in "
                "a signal handler? Let the handler end the program's loop, and close there."
            ) from None
        except BaseException:
            runtime.run(self._give_up())
            raise

    async def close_on_loop(self) -> None:
        """Close on any loop."""
        try:
            await runtime.bridge(self.close())
        except asyncio.CancelledError:
            if runtime.on_io_thread():
                self._given_up.set()  # the end goes on by itself, on this loop
            else:
                # Takes no time worth a change of threads, and a second cancellation can't leave it half done.
                runtime.run(self._give_up())
            raise
        finally:
            await asyncio.sleep(0)  # the loop's own connections are closed in this turn

    async def _give_up(self) -> None:
        """Wait no longer. Failures nobody was told of go to the log: the caller of close gets another error."""
        self._given_up.set()
        await asyncio.shield(self._begin())
        failure = self._sender.take_failure()
        if failure is not None:
            _log.warning("A connection was closed without waiting any longer: %s", failure)

    def _begin(self) -> asyncio.Task[None]:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())
        return self._ending

    async def _end(self) -> None:
        sender = self._sender
        sender.refuse_rows()
        reason = FlussError("the connection was closed before they were acknowledged")
        try:
            if sender.unsent() and not await self._settled():
                reason = self._late()
        finally:
            self._end_client(reason)
        await asyncio.sleep(0)  # then the sockets are closed, too

    async def _settled(self) -> bool:
        """Whether everything was stored or has failed within the time limit; False also when it was given up."""
        draining = asyncio.ensure_future(self._sender.drain())
        giving_up = asyncio.ensure_future(self._given_up.wait())
        either = {draining, giving_up}
        try:
            quiet_s = min(QUIET_S_MAX, self._timeout_s)
            await asyncio.wait(either, timeout=quiet_s, return_when=asyncio.FIRST_COMPLETED)
            if not draining.done() and not giving_up.done() and quiet_s < self._timeout_s:
                self._say_what_is_left()
                await asyncio.wait(either, timeout=self._timeout_s - quiet_s, return_when=asyncio.FIRST_COMPLETED)
            return draining.done()
        finally:
            draining.cancel()
            giving_up.cancel()

    def _say_what_is_left(self) -> None:
        tables = ", ".join(f"{row_count} of {table}" for table, row_count in self._sender.unsent())
        _log.warning(
            "Closing the connection to %s waits for rows that are not acknowledged yet (%s), "
            "for up to %g s more (close.timeout-ms).",
            self._servers,
            tables,
            self._timeout_s - QUIET_S_MAX,
        )

    def _late(self) -> FlussError:
        if self._given_up.is_set():
            return FlussError("the connection was closed before they were acknowledged, without waiting any longer")
        return TimeoutError(
            f"the connection was closed before they were acknowledged: {self._timeout_s:g} s have passed "
            "(close.timeout-ms)"
        )


class ClientCore:
    """Made by `connect`. Coroutines run on the I/O loop where nothing else is said."""

    def __init__(self, config: Config) -> None:
        cluster = self.cluster = Cluster(config)
        self._lookup_limits = LookupLimits.of(config)
        self.sender = Sender(cluster.config, cluster.metadata, cluster.own_loops)
        on_io_loop = Lookups(cluster.metadata, cluster.pool, self._lookup_limits, runtime.call_soon)
        self.lookups = ClientLookups(on_io_loop, PerLoop(self._lookups_of))
        self.admin = AdminCore(cluster)
        self._closing = Closing(self.sender, config.bootstrap_servers, config.close_timeout_ms / 1000, self.end)

    def _lookups_of(self, loop: asyncio.AbstractEventLoop) -> Lookups:
        cluster = self.cluster
        return Lookups(cluster.metadata, cluster.own_loops.pool(), self._lookup_limits, loop.call_soon)

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
        """Close in any thread but the I/O thread."""
        if self._begin_close():
            self._closing.close_blocking()

    async def close_on_loop(self) -> None:
        """Close on any loop."""
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

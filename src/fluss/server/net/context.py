"""The context of request handlers: what they may use, and the shapes of what they return."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from fluss.model.errors import ConnectError
from fluss.server.config import Address, ServerConfig
from fluss.server.metrics import Metrics
from fluss.server.net.answers import Answer
from fluss.server.net.budgets import RequestBudget, ResponseBudget
from fluss.server.net.logins import Logins
from fluss.server.net.turns import Pace, Turns
from fluss.server.read.kv_scanners import ConnectionScanners, ServerScanners
from fluss.server.tables.auto_partition import AutoPartitioner
from fluss.server.tables.backups import Backups
from fluss.server.tables.lake import LakeLocations
from fluss.server.tables.tiering import Tiering
from fluss.storage.kv.snapshots import KvSnapshots
from fluss.storage.store import Storage

if TYPE_CHECKING:
    from fluss.storage.damage.scrub import Scrubber


SCRUB_WAIT_S: Final = 60.0  # for the first table


class ServerContext:
    """What all connections of a server share."""

    def __init__(self, config: ServerConfig, storage: Storage, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self.limits = config.limits
        self.storage = storage
        self.auto_partitioner = AutoPartitioner(storage.catalog, storage.clock)
        self.loop = loop
        self.turns = Turns(loop)
        self.request_budget = RequestBudget(config.limits.request_bytes_total_max, loop.call_soon)
        self.response_budget = ResponseBudget(config.limits.response_bytes_total_max)
        self.scanners = ServerScanners()
        self.kv_snapshots = KvSnapshots(storage, lambda bucket: storage.kv.bucket(bucket))
        self.backups = Backups(storage, self.kv_snapshots)
        self.lake_options = LakeLocations(config.datalake_iceberg, storage.root)
        self.tiering = Tiering(storage.catalog, wall_ms=storage.clock.now_ms)
        self.metrics = Metrics()
        self.logins: Logins | None = None  # None: nobody needs to log in

    @cached_property
    def scrubber(self) -> Scrubber:
        """What looks for damage. Loaded when it is needed: a server without tables does without."""
        from fluss.storage.damage.scrub import Scrubber

        return Scrubber(
            self.storage,
            self.kv_snapshots,
            bytes_per_second=self.config.scrub_bytes_per_second,
            interval_ms=self.config.scrub_interval_ms,
        )

    async def scrub(self) -> None:
        """Look for damage once there are tables, until cancelled."""
        while not self.storage.catalog.all_tables():
            await asyncio.sleep(min(SCRUB_WAIT_S, self.config.scrub_interval_ms / 1_000))
        await self.scrubber.run()


class ConnectionContext:
    """What the requests of one connection share."""

    def __init__(
        self, server: ServerContext, address: Address, peer_host: str, is_connected: Callable[[], bool]
    ) -> None:
        self.server = server
        self.is_connected = is_connected  # whether the client has neither closed nor reset the connection
        self.limits = server.limits
        self.storage = server.storage
        self.address = address  # where clients find this server
        self.peer_host = peer_host
        self.user: str | None = None  # once logged in
        self.failed_logins = 0
        self.fetches = 0  # answered so far
        self.fetches_waiting = 0
        self.reads_running = 0  # lookups that others overtake
        self.scanners = ConnectionScanners(server.scanners, server.limits)

    @property
    def is_stranger(self) -> bool:
        """Whether the client has to log in and has not."""
        return self.user is None and self.server.logins is not None

    def check_connected(self) -> None:
        """Raise when the client has closed the connection: it may have written anew by now what it sent here before.

        So no batch is taken from a connection after its client was told that it is closed, however late it is read.
        """
        if not self.is_connected():
            raise ConnectError("The client closed the connection before its batch was taken; it is not stored.")

    def pace(self) -> Pace:
        """For an answer that may take long to make."""
        return Pace(self.server.turns, self.is_connected)

    def close(self) -> None:
        """The connection is gone."""
        self.scanners.close()


# Makes a response; returns None when that is done, or a future when it takes longer.
GateCallback: TypeAlias = Callable[[], "asyncio.Future[None] | None"]


class Replier(Protocol):
    """Where a request whose answer was deferred delivers it."""

    def reply(self, answer: Answer) -> None: ...

    def fail(self, error: BaseException) -> None: ...

    def when_writable(self, make_response: GateCallback) -> None:
        """Call back now, or once the client has taken enough of what was sent before; not after it has gone."""


class Deferred(Protocol):
    """A reply that is given later, while the connection's next requests begin."""

    wait_ms: int  # then `expire` is called; the server's own limit may be shorter

    def start(self, replier: Replier) -> None: ...

    def expire(self) -> None:
        """The time is over: reply or fail now."""

    def hurry(self) -> None:
        """The server stops: do not wait for more to happen."""

    def abandon(self) -> None:
        """The client has gone, or the server stops: hold nothing any more."""


# A coroutine is awaited before the connection's next request begins.
InTurn: TypeAlias = Answer | Coroutine[Any, Any, Answer]
Handled: TypeAlias = Answer | Deferred | Coroutine[Any, Any, Answer | Deferred]

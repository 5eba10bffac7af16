"""Requests on the caller's own event loop, which saves two changes of threads: writes, fetches and lookups.

A loop has connections of its own, made when somebody on it first asks for them. Writers and readers use one that is
open and do without it otherwise; lookups wait for it. Writes that a loop has sent and hears no answer of, because it
has ended or stands still, the I/O loop takes back after a second: `OwnLoopSends`. Fetches of a loop are taken back by
whoever polls next, and lookups have nobody but the callers on their loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from fluss.client import runtime
from fluss.client.cluster.metadata import address_of
from fluss.client.net.connection import Connection, ConnectionPool
from fluss.doors import clock
from fluss.model.infos import ServerNode, ServerType

# How long an event loop may leave an answer unread before what it sent is sent again by the I/O loop.
UNREAD_S_MAX = 1.0


class Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)
K = TypeVar("K")


class PerLoop(Generic[T]):
    """One object for each loop, made on it when first asked for."""

    def __init__(self, make: Callable[[asyncio.AbstractEventLoop], T]) -> None:
        self._make = make
        self._by_loop: dict[asyncio.AbstractEventLoop, T] = {}

    def here(self) -> T:
        """What belongs to the running loop, made on first use."""
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            # What belongs to a closed loop can't be used any more, nor closed.
            for closed in [known for known in list(self._by_loop) if known.is_closed()]:
                self._by_loop.pop(closed, None)
            found = self._by_loop[loop] = self._make(loop)
        return found

    def all(self) -> list[T]:
        """Those of all loops; from any thread."""
        return list(self._by_loop.values())

    def close(self) -> None:
        """Close all, each on its loop; from any thread."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        for loop in list(self._by_loop):
            found = self._by_loop.pop(loop, None)
            if found is None:
                continue
            if loop is here:
                found.close()
            else:
                runtime.call_on(loop, found.close)


class OwnLoopConnections:
    """The connections of a client on loops of its callers. Those log in as the client's `parent` pool does."""

    def __init__(self, connect_timeout_s: float, parent: ConnectionPool) -> None:
        self._pools = PerLoop(lambda _: ConnectionPool(connect_timeout_s, parent=parent))

    def pool(self) -> ConnectionPool:
        """The connections of the running loop."""
        return self._pools.here()

    def to_leader(self, leader: ServerNode) -> Connection | None:
        """The running loop's connection to a server if there is one right now, opened for the next time if not.

        The I/O loop has none besides the client's.
        """
        if runtime.on_io_thread():
            return None
        return self._pools.here().want(address_of(leader), ServerType.TABLET_SERVER)

    def cut(self) -> None:
        """Let nothing more leave any of them; from any thread. `close` follows."""
        for pool in self._pools.all():
            pool.cut()

    def close(self) -> None:
        """Close all, each on its loop; from any thread."""
        self._pools.close()


class OwnLoopSends(Generic[K]):
    """What callers' loops have sent for each key, until it is answered or taken back. All calls are under `lock`.

    `is_answered` says whether nothing of a key is under way on a connection any more. `send_again` takes over what is,
    and `resume` is called when that was done for all.
    """

    def __init__(
        self,
        lock: threading.RLock,
        is_answered: Callable[[K, Connection], bool],
        send_again: Callable[[K, Connection], None],
        resume: Callable[[], None],
    ) -> None:
        self._lock = lock
        self._is_answered = is_answered
        self._send_again = send_again
        self._resume = resume
        self._sent: dict[K, tuple[Connection, float]] = {}
        """On which connection, and when last"""
        self._watches = False

    def sent(self, key: K, connection: Connection, now: float) -> None:
        """The running loop sends something, and will hear the answer if it goes on running."""
        self._sent[key] = (connection, now)
        if not self._watches:
            self._watches = True
            runtime.call_soon(self._watch)

    def take_back(self, sent_before: float) -> None:
        """Send again what loops have sent before a time and heard no answer of. On the I/O loop."""
        for key, (connection, sent_at) in list(self._sent.items()):
            is_answered = self._is_answered(key, connection)
            if not is_answered and sent_at > sent_before:
                continue
            del self._sent[key]
            if not is_answered:
                self._send_again(key, connection)
        self._resume()

    def stop(self) -> None:
        """Take nothing back any more."""
        self._sent.clear()

    def _watch(self) -> None:
        """Loops may have ended, or stand still. On the I/O loop."""
        with self._lock:
            self.take_back(clock.monotonic() - UNREAD_S_MAX)
            self._watches = bool(self._sent)
        if self._watches:
            asyncio.get_running_loop().call_later(UNREAD_S_MAX, self._watch)

"""A TCP proxy that understands frames and injects faults, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import socket
import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TypeVar

from fluss.testing.faults import Action, Direction, Fault, FaultRules, ProxyCounters
from fluss.testing.ports import LOOPBACK, parse_address
from fluss.testing.proxy_link import Link, Streams

_CALL_TIMEOUT_S = 10.0
_BACKLOG = 128

_T = TypeVar("_T")


class FaultProxy:
    """Listens on a free loopback port and forwards to `target` (`HOST:PORT`).

    The port is taken by the constructor: a server that starts later can advertise `address`, and `set_target` then
    says where it is. A client that connects without a target, or to one that is down, is cut off. The same seed
    makes the same draws for the same frames of the n-th connection. All methods can be called from any thread and
    have taken effect when they return; every started proxy must be stopped.
    """

    def __init__(self, target: str | None = None, *, seed: int = 0) -> None:
        self.seed = seed
        self._target = None if target is None else parse_address(target)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.bind((LOOPBACK, 0))
        self.port: int = self._socket.getsockname()[1]
        self._rules = FaultRules()
        self._counters = ProxyCounters()
        self._links: set[Link] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def start(self) -> FaultProxy:
        started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(self._loop, started), name="fault-proxy", daemon=True)
        self._thread.start()
        if not started.wait(_CALL_TIMEOUT_S):
            raise RuntimeError(f"the proxy did not start on {self.address}")
        return self

    def stop(self) -> None:
        """Cut all connections and close the port."""
        if self._loop is None or self._thread is None:
            self._socket.close()
            return
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def set_target(self, target: str | None) -> None:
        """Forward new connections to another address; open ones stay where they are."""
        self._target = None if target is None else parse_address(target)

    def add(self, fault: Fault) -> Fault:
        """Apply a rule from the next frame on; returns it, as the handle for `remove`."""
        self._call(lambda: self._rules.add(fault))
        return fault

    def remove(self, fault: Fault) -> None:
        self._call(lambda: self._rules.remove(fault))

    def clear(self) -> None:
        """Remove all rules."""
        self._call(self._rules.clear)

    def drop_responses(
        self,
        api_keys: Iterable[int] | None = None,
        *,
        probability: float = 1.0,
        skip: int = 0,
        limit: int | None = None,
        cut: bool = True,
    ) -> Fault:
        """Swallow answers: the server did the work, the client never hears of it."""
        keys = None if api_keys is None else frozenset(api_keys)
        action = Action.DROP_AND_CUT if cut else Action.DROP
        return self.add(Fault(action, Direction.RESPONSE, keys, probability, skip, limit))

    def cut_mid_frame(
        self,
        direction: Direction,
        api_keys: Iterable[int] | None = None,
        *,
        probability: float = 1.0,
        skip: int = 0,
        limit: int | None = None,
    ) -> Fault:
        """Cut connections inside frames, at a random byte."""
        keys = None if api_keys is None else frozenset(api_keys)
        return self.add(Fault(Action.CUT_MID_FRAME, direction, keys, probability, skip, limit))

    def delay(self, direction: Direction, seconds: float, api_keys: Iterable[int] | None = None) -> Fault:
        """Make frames late."""
        keys = None if api_keys is None else frozenset(api_keys)
        return self.add(Fault(Action.DELAY, direction, keys, delay_s=seconds))

    def cut_all(self) -> int:
        """Cut every open connection now; returns how many."""
        return self._call(self._cut_all)

    def freeze(self) -> None:
        """Stop forwarding, as a network that swallows packets does; connections stay open."""
        self._call(self._thawed.clear)

    def unfreeze(self) -> None:
        """Forward what was held back, and go on."""
        self._call(self._thawed.set)

    @property
    def counters(self) -> ProxyCounters:
        """A copy of the counts so far."""
        return self._call(lambda: copy.deepcopy(self._counters))

    def __enter__(self) -> FaultProxy:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _call(self, function: Callable[[], _T]) -> _T:
        """Run on the proxy's loop, where all of its state lives; before and after its life there is no other user."""
        if self._loop is None:
            return function()

        async def run() -> _T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(_CALL_TIMEOUT_S)

    def _run(self, loop: asyncio.AbstractEventLoop, started: threading.Event) -> None:
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(asyncio.start_server(self._serve, sock=self._socket, backlog=_BACKLOG))
        loop.call_soon(started.set)
        try:
            loop.run_forever()
        finally:
            server.close()
            self._cut_all()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.close()

    def _cut_all(self) -> int:
        links = list(self._links)
        for link in links:
            link.cut()
        return len(links)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Only `stop` cancels; asyncio would log a cancelled handler as an error.
        with contextlib.suppress(asyncio.CancelledError):
            await self._link(reader, writer)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = await self._connect()
        if target is None:
            self._counters.refused_connections += 1
            writer.transport.abort()
            return
        self._counters.connections += 1
        link = Link(
            (reader, writer),
            target,
            rules=self._rules,
            counters=self._counters,
            thawed=self._thawed,
            seed=f"{self.seed}/{self._counters.connections}",
        )
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    async def _connect(self) -> Streams | None:
        if self._target is None:
            return None
        with contextlib.suppress(OSError):
            return await asyncio.open_connection(*self._target)
        return None

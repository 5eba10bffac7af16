"""A TCP proxy that understands frames and injects faults, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import enum
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from fluss.testing.processes import LOOPBACK, parse_address


class Direction(enum.Enum):
    REQUEST = "request"
    RESPONSE = "response"


class Action(enum.Enum):
    DROP = "drop"
    """Swallow the frame and leave the connection open."""
    DROP_AND_CUT = "drop and cut"
    """Swallow the frame, then cut the connection."""
    CUT_MID_FRAME = "cut mid-frame"
    """Forward a part of the frame, at least one byte and never all, then cut the connection."""
    FORWARD_AND_CUT = "forward and cut"
    """Forward the whole frame, then cut the connection."""
    DELAY = "delay"
    """Hold the frame, and those behind it in its direction, for the fault's `delay_s`."""


@dataclass(frozen=True, eq=False)
class Fault:
    """One rule. A frame that matches suffers the action with the given probability.

    `api_keys` None matches every frame; a response matches by the key of its request. The first `skip` matching frames
    pass unharmed, and the rule is spent after `limit` injections.
    """

    action: Action
    direction: Direction
    api_keys: frozenset[int] | None = None
    probability: float = 1.0
    skip: int = 0
    limit: int | None = None
    delay_s: float = 0.0


@dataclass
class ProxyCounters:
    """Frames and bytes that reached the other side, whole or (bytes only) in part; faults by action."""

    connections: int = 0
    refused_connections: int = 0
    invalid_frames: int = 0
    frames: Counter[Direction] = field(default_factory=Counter)
    bytes: Counter[Direction] = field(default_factory=Counter)
    requests_by_api: Counter[int] = field(default_factory=Counter)
    responses_by_api: Counter[int] = field(default_factory=Counter)
    faults: Counter[Action] = field(default_factory=Counter)
    dropped_by_api: Counter[int] = field(default_factory=Counter)
    """Frames that did not arrive whole, by api key."""

    def forwarded(self, direction: Direction, api_key: int | None, size: int) -> None:
        self.frames[direction] += 1
        self.bytes[direction] += size
        if api_key is not None:
            by_api = self.requests_by_api if direction is Direction.REQUEST else self.responses_by_api
            by_api[api_key] += 1


class FaultRules:
    """The active rules and how often each has matched and struck."""

    def __init__(self) -> None:
        self._rules: dict[Fault, _Usage] = {}

    def add(self, fault: Fault) -> None:
        self._rules[fault] = _Usage()

    def remove(self, fault: Fault) -> None:
        self._rules.pop(fault, None)

    def clear(self) -> None:
        self._rules.clear()

    def strike(self, direction: Direction, api_key: int | None, chance: random.Random) -> list[Fault]:
        """The faults this frame suffers: any delays, and at most one of the others, the oldest rule first."""
        struck: list[Fault] = []
        for fault, usage in self._rules.items():
            if fault.direction is not direction or (fault.api_keys is not None and api_key not in fault.api_keys):
                continue
            ends_frame = fault.action is not Action.DELAY
            if ends_frame and any(other.action is not Action.DELAY for other in struck):
                continue
            usage.matched += 1
            spent = fault.limit is not None and usage.injected >= fault.limit
            if usage.matched <= fault.skip or spent or chance.random() >= fault.probability:
                continue
            usage.injected += 1
            struck.append(fault)
        return struck


@dataclass
class _Usage:
    matched: int = 0
    injected: int = 0


_LENGTH = struct.Struct(">i")
_REQUEST_HEAD = struct.Struct(">hhi")  # api key, api version, request id
_RESPONSE_HEAD = struct.Struct(">Bi")  # type, request id

_FRAME_BYTES_MAX = 256 * 1024 * 1024

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Link:
    """Forwards whole frames between a client and the target until one side closes or a fault cuts it."""

    def __init__(
        self,
        client: Streams,
        target: Streams,
        *,
        rules: FaultRules,
        counters: ProxyCounters,
        thawed: asyncio.Event,
        seed: str,
    ) -> None:
        self._client, self._target = client, target
        self._rules, self._counters, self._thawed = rules, counters, thawed
        # Each direction draws for itself, so that the two cannot change each other's luck by timing.
        self._chance = {direction: random.Random(f"{seed}/{direction.value}") for direction in Direction}
        self._api_keys: dict[int, int] = {}

    async def run(self) -> None:
        (client_in, client_out), (target_in, target_out) = self._client, self._target
        pumps = [
            asyncio.ensure_future(self._pump(Direction.REQUEST, client_in, target_out)),
            asyncio.ensure_future(self._pump(Direction.RESPONSE, target_in, client_out)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            # `close` still delivers what is written: a frame cut in the middle arrives up to the cut.
            client_out.close()
            target_out.close()

    def cut(self) -> None:
        """End the connection at once on both sides; what is on the way is lost."""
        self._client[1].transport.abort()
        self._target[1].transport.abort()

    async def _pump(self, direction: Direction, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while (frame := await self._read_frame(source)) is not None:
                api_key = self._identify(direction, frame)
                if not await self._forward(direction, api_key, frame, sink):
                    return

    async def _read_frame(self, source: asyncio.StreamReader) -> bytes | None:
        prefix = await source.readexactly(_LENGTH.size)
        (length,) = _LENGTH.unpack(prefix)
        if not 0 <= length <= _FRAME_BYTES_MAX:
            self._counters.invalid_frames += 1
            return None
        return prefix + await source.readexactly(length)

    def _identify(self, direction: Direction, frame: bytes) -> int | None:
        """The api key of a frame; a response is known by its request, None when it names none."""
        body = memoryview(frame)[_LENGTH.size :]
        if direction is Direction.REQUEST:
            if len(body) < _REQUEST_HEAD.size:
                return None
            api_key, _, request_id = _REQUEST_HEAD.unpack_from(body)
            self._api_keys[request_id] = api_key
            return int(api_key)
        if len(body) < _RESPONSE_HEAD.size:
            return None
        return self._api_keys.pop(_RESPONSE_HEAD.unpack_from(body)[1], None)

    async def _forward(
        self, direction: Direction, api_key: int | None, frame: bytes, sink: asyncio.StreamWriter
    ) -> bool:
        """Forward one frame or do to it what the rules say; False ends the connection."""
        struck = self._rules.strike(direction, api_key, self._chance[direction])
        for fault in struck:
            self._counters.faults[fault.action] += 1
        if struck:
            await asyncio.sleep(sum(fault.delay_s for fault in struck))
        await self._thawed.wait()
        harm = next((fault for fault in struck if fault.action is not Action.DELAY), None)
        payload = self._surviving_part(direction, frame, harm)
        sink.write(payload)
        if len(payload) == len(frame):
            self._counters.forwarded(direction, api_key, len(frame))
        else:
            self._counters.bytes[direction] += len(payload)
            if api_key is not None:
                self._counters.dropped_by_api[api_key] += 1
        await sink.drain()
        return harm is None or harm.action is Action.DROP

    def _surviving_part(self, direction: Direction, frame: bytes, harm: Fault | None) -> bytes:
        if harm is None or harm.action is Action.FORWARD_AND_CUT:
            return frame
        if harm.action is Action.CUT_MID_FRAME:
            return frame[: self._chance[direction].randint(1, len(frame) - 1)]
        return b""


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

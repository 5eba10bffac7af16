"""Lookups of all threads and loops of one client, gathered into few requests and handed back together.

A caller puts its encoded key into a queue and wakes the I/O loop; whatever is queued by then goes out as one request
per leader and table. Callers of one event loop wake it once per turn of theirs, so a thousand lookups that are started
together are one request, and so is what gathers while requests are under way. There is no timed window.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fluss.client import runtime
from fluss.client.lookup_lane import Lane
from fluss.client.lookup_values import ValueReader
from fluss.client.lookup_wire import LookupKind
from fluss.client.metadata import Metadata
from fluss.model.errors import FlussError, TimeoutError
from fluss.model.infos import TableInfo

# Each has a caller that waits for it; whoever starts more at a time should look up many keys in one call.
WAITING_LOOKUPS_MAX = 1_000_000
# The lane ends a lookup at its deadline; this is for a process whose I/O thread has ended.
GRACE_S = 5.0

Read = Callable[[ValueReader, Sequence[Any], int, int], Any]
"""Makes the result of a lookup from what the server has for its keys: entries `start` to `end` of an answer's"""


class Lookup:
    """Keys of one bucket that somebody looks up."""

    __slots__ = (
        "_gate",
        "attempts",
        "bucket",
        "deadline",
        "error",
        "future",
        "is_ended",
        "keys",
        "lane",
        "loop",
        "partition",
        "partition_id",
        "read",
        "result",
        "size_bytes",
    )

    def __init__(
        self,
        lane: Lane,
        partition: str | None,
        bucket: int,
        keys: Sequence[bytes],
        read: Read,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        """Without `loop` a thread waits for it."""
        self.lane = lane
        self.partition = partition
        self.partition_id: int | None = None
        self.bucket = bucket
        self.keys = keys
        self.size_bytes = sum(map(len, keys))
        self.read = read
        self.deadline = time.monotonic() + lane.timeout_s
        self.attempts = 0
        self.result: Any = None
        self.error: FlussError | None = None
        self.is_ended = False
        self.loop = loop
        self.future: asyncio.Future[Any] | None = None
        self._gate: threading.Lock | None = None
        if loop is not None:
            self.future = loop.create_future()
        else:
            self._gate = threading.Lock()
            self._gate.acquire()

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.future is not None and self.future.cancelled()

    def resolve(self) -> None:
        """Tell the waiting caller; in the thread of its loop, or anywhere if a thread waits."""
        if self._gate is not None:
            self._gate.release()
        elif self.future is not None and not self.future.done():
            if self.error is not None:
                self.future.set_exception(_own(self.error))
            else:
                self.future.set_result(self.result)

    def wait(self) -> Any:
        """Wait in the calling thread."""
        assert self._gate is not None
        if not self._gate.acquire(timeout=max(0.0, self.deadline - time.monotonic()) + GRACE_S):
            raise TimeoutError("The lookup was not answered in time.")
        if self.error is not None:
            raise _own(self.error)
        return self.result


def _own(error: FlussError) -> FlussError:
    """One exception per caller: a traceback grows with every raise of the same object."""
    own = type(error)(error.message, error.error_code)
    own.__cause__ = error.__cause__
    return own


def _resolve_all(lookups: list[Lookup]) -> None:
    for lookup in lookups:
        lookup.resolve()


class Lookups:
    """The lookups of one client. `start` and `lane` may be called from any thread."""

    def __init__(self, metadata: Metadata, timeout_s: float) -> None:
        self._metadata = metadata
        self._timeout_s = timeout_s
        self._queue: deque[Lookup] = deque()
        self._under_way = 0
        self._is_woken = False
        # Loops that will wake the I/O loop when their turn is over.
        self._gathering: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
        self._lanes: weakref.WeakValueDictionary[Any, Lane] = weakref.WeakValueDictionary()
        self._closed = False

    def lane(self, info: TableInfo, kind: LookupKind, values: Callable[[], ValueReader]) -> Lane:
        """Where lookups of a table queue; lookupers of the same kind share it, and with it their requests."""
        key = (info.table_id, info.schema_id, kind)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(self._metadata, info, kind, values(), self._timeout_s, self._hand_back)
        return lane

    def start(self, lookup: Lookup) -> None:
        """Send a lookup soon."""
        if len(self._queue) + self._under_way >= WAITING_LOOKUPS_MAX:
            raise FlussError(f"{WAITING_LOOKUPS_MAX} lookups are waiting already; use lookup_many for many keys.")
        self._queue.append(lookup)
        loop = lookup.loop
        if loop is None:
            self._wake()
        elif loop not in self._gathering:
            self._gathering.add(loop)
            loop.call_soon(self._wake_for, loop)

    def _wake_for(self, loop: asyncio.AbstractEventLoop) -> None:
        self._gathering.discard(loop)
        self._wake()

    def _wake(self) -> None:
        # The I/O loop clears the mark before it empties the queue, so what was queued before the mark is seen.
        if not self._is_woken:
            self._is_woken = True
            runtime.call_soon(self._send_queued)

    def _send_queued(self) -> None:
        self._is_woken = False
        self.send([self._queue.popleft() for _ in range(len(self._queue))])

    def send(self, lookups: list[Lookup]) -> None:
        """Send lookups at once. On the I/O loop."""
        self._under_way += len(lookups)
        by_lane: dict[Lane, list[Lookup]] = {}
        for lookup in lookups:
            by_lane.setdefault(lookup.lane, []).append(lookup)
        for lane, queued in by_lane.items():
            if self._closed:
                lane.close()
            lane.add(queued)

    def _hand_back(self, lookups: Iterable[Lookup]) -> None:
        """Tell the callers of lookups that ended together, with one call per event loop. On the I/O loop."""
        here = asyncio.get_running_loop()
        by_loop: dict[asyncio.AbstractEventLoop | None, list[Lookup]] = {}
        for lookup in lookups:
            if not lookup.is_ended:
                lookup.is_ended = True
                self._under_way -= 1
                by_loop.setdefault(lookup.loop, []).append(lookup)
        for loop, ended in by_loop.items():
            if loop is None or loop is here:
                _resolve_all(ended)
                continue
            try:
                loop.call_soon_threadsafe(_resolve_all, ended)
            except RuntimeError:
                pass  # the loop was closed, and with it whoever waited

    def close(self) -> None:
        """End all lookups with an error, now and from now on. On the I/O loop."""
        self._closed = True
        for lane in list(self._lanes.values()):
            lane.close()
        self._send_queued()

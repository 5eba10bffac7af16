"""Lookups of one client, gathered into few requests.

Those of an event loop are sent and answered on that loop, over connections of its own: to hand them to the I/O thread
and back would take longer than everything else. Those of threads go through the I/O loop. Either way whatever is queued
when the loop comes to send goes out as one request per leader and table, so a thousand lookups that are started
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

from fluss.client.lookup_lane import Lane
from fluss.client.lookup_values import ValueReader
from fluss.client.lookup_wire import LookupKind
from fluss.client.metadata import Metadata
from fluss.client.pool import ConnectionPool
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
        future: asyncio.Future[Any] | None,
    ) -> None:
        """Without `future` a thread waits for it."""
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
        self.future = future
        self._gate: threading.Lock | None = None
        if future is None:
            self._gate = threading.Lock()
            self._gate.acquire()

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.future is not None and self.future.cancelled()

    def resolve(self) -> None:
        """Tell the waiting caller; on its loop, or anywhere if a thread waits."""
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


class Lookups:
    """The lookups of one client on one event loop.

    `call_soon` is the loop's. On the I/O loop it may be called from any thread, and so may `start` and `lane`.
    """

    def __init__(
        self, metadata: Metadata, pool: ConnectionPool, timeout_s: float, call_soon: Callable[..., object]
    ) -> None:
        self._metadata = metadata
        self._pool = pool
        self._timeout_s = timeout_s
        self._call_soon = call_soon
        self._queue: deque[Lookup] = deque()
        self._under_way = 0
        self._is_woken = False
        self._lanes: weakref.WeakValueDictionary[Any, Lane] = weakref.WeakValueDictionary()
        self._closed = False

    def lane(self, info: TableInfo, kind: LookupKind, values: Callable[[], ValueReader]) -> Lane:
        """Where lookups of a table queue; lookupers of the same kind share it, and with it their requests."""
        key = (info.table_id, info.schema_id, kind)
        lane = self._lanes.get(key)
        if lane is None:
            timeout_s, end = self._timeout_s, self._end
            lane = self._lanes[key] = Lane(self._metadata, self._pool, info, kind, values(), timeout_s, end)
        return lane

    def start(self, lookup: Lookup) -> None:
        """Send a lookup soon."""
        if len(self._queue) + self._under_way >= WAITING_LOOKUPS_MAX:
            raise FlussError(f"{WAITING_LOOKUPS_MAX} lookups are waiting already; use lookup_many for many keys.")
        self._queue.append(lookup)
        # The loop clears the mark before it empties the queue, so what was queued before the mark is seen.
        if not self._is_woken:
            self._is_woken = True
            self._call_soon(self._send_queued)

    def _send_queued(self) -> None:
        self._is_woken = False
        self.send([self._queue.popleft() for _ in range(len(self._queue))])

    def send(self, lookups: list[Lookup]) -> None:
        """Send lookups at once. On the loop."""
        self._under_way += len(lookups)
        by_lane: dict[Lane, list[Lookup]] = {}
        for lookup in lookups:
            by_lane.setdefault(lookup.lane, []).append(lookup)
        for lane, queued in by_lane.items():
            if self._closed:
                lane.close()
            lane.add(queued)

    def _end(self, lookups: Iterable[Lookup]) -> None:
        """Tell the callers of lookups that have ended. On the loop."""
        for lookup in lookups:
            if not lookup.is_ended:
                lookup.is_ended = True
                self._under_way -= 1
                lookup.resolve()

    def close(self) -> None:
        """End all lookups with an error, now and from now on. On the loop."""
        self._closed = True
        for lane in list(self._lanes.values()):
            lane.close()
        self._send_queued()


class LoopLookups:
    """The lookups of one client on its callers' event loops, each with connections of its own."""

    def __init__(self, metadata: Metadata, pool: ConnectionPool, connect_timeout_s: float, timeout_s: float) -> None:
        self._metadata = metadata
        self._pool = pool
        self._connect_timeout_s = connect_timeout_s
        self._timeout_s = timeout_s
        self._by_loop: dict[asyncio.AbstractEventLoop, tuple[Lookups, ConnectionPool]] = {}

    def here(self) -> Lookups:
        """Those of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            # What belongs to a closed loop can't be used any more, nor closed.
            for closed in [known for known in list(self._by_loop) if known.is_closed()]:
                self._by_loop.pop(closed, None)
            pool = ConnectionPool(self._connect_timeout_s, parent=self._pool)
            found = self._by_loop[loop] = (Lookups(self._metadata, pool, self._timeout_s, loop.call_soon), pool)
        return found[0]

    def close(self) -> None:
        """End all lookups with an error and close their connections; from any thread."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        for loop in list(self._by_loop):
            found = self._by_loop.pop(loop, None)
            if found is None:
                continue
            if loop is here:
                _close(*found)
                continue
            try:
                loop.call_soon_threadsafe(_close, *found)
            except RuntimeError:
                pass  # the loop was closed, and with it whoever waited


def _close(lookups: Lookups, pool: ConnectionPool) -> None:
    lookups.close()
    pool.close()

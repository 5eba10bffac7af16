"""Lookups of one client, gathered into few requests.

Those of an event loop are sent and answered on that loop, over connections of its own: to hand them to the I/O thread
and back would take longer than everything else. Those of threads go through the I/O loop. Either way whatever is queued
when the loop comes to send is sorted by bucket and from then on handled as one: a caller costs a key and a future. It
goes out in the few requests that may be under way to a leader, and so does what gathers meanwhile. There is no timed
window.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from fluss.client.lookup_lane import Lane
from fluss.client.lookup_values import ValueReader
from fluss.client.lookup_wire import LookupKind
from fluss.client.metadata import Metadata
from fluss.client.pool import ConnectionPool
from fluss.doors import clock
from fluss.model.errors import FlussError, TimeoutError
from fluss.model.infos import TableInfo

# Each has a caller that waits for it; whoever starts more at a time should look up many keys in one call.
WAITING_LOOKUPS_MAX = 1_000_000
# The lane ends a lookup at its deadline; this is for a process whose I/O thread has ended.
GRACE_S = 5.0

Read: TypeAlias = Callable[[ValueReader, Sequence[Any]], Sequence[Any]]
"""Makes a result for each caller of what the server has for their keys; an error is one, too"""

Place: TypeAlias = "tuple[Lane, Read, str | None, int]"
"""What lookups have in common that travel as one: lane, what is made of the answer, partition, bucket"""


class Caller(Protocol):
    """Who waits for a lookup: a future of the loop, or a thread."""

    def cancelled(self) -> bool: ...
    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class WaitingThread:
    """A thread that waits for a lookup, told once."""

    __slots__ = ("_error", "_gate", "_result")

    def __init__(self) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._gate = threading.Lock()
        self._gate.acquire()

    def cancelled(self) -> bool:
        return False

    def done(self) -> bool:
        return False

    def set_result(self, result: Any) -> None:
        self._result = result
        self._gate.release()

    def set_exception(self, exception: BaseException) -> None:
        self._error = exception
        self._gate.release()

    def wait(self, timeout_s: float) -> Any:
        """Wait in the calling thread."""
        if not self._gate.acquire(timeout=timeout_s + GRACE_S):
            raise TimeoutError("The lookup was not answered in time.")
        if self._error is not None:
            raise self._error
        return self._result


class Lookup:
    """Keys of one bucket, and those who look them up: each one of them, or one all of them."""

    __slots__ = (
        "attempts",
        "bucket",
        "callers",
        "deadline",
        "error",
        "is_ended",
        "keys",
        "lane",
        "partition",
        "partition_id",
        "read",
        "results",
    )

    def __init__(self, place: Place, keys: list[bytes], callers: list[Caller]) -> None:
        self.lane, self.read, self.partition, self.bucket = place
        self.partition_id: int | None = None
        self.keys = keys
        self.callers = callers
        self.deadline = clock.monotonic() + self.lane.timeout_s
        self.attempts = 0
        self.results: Sequence[Any] = ()
        self.error: FlussError | None = None
        self.is_ended = False

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for it any more."""
        return all(caller.cancelled() for caller in self.callers)

    @property
    def is_divisible(self) -> bool:
        return len(self.callers) > 1

    def split(self, count: int) -> tuple[Lookup, Lookup]:
        """The first so many callers, and the others."""
        return self._part(slice(count)), self._part(slice(count, None))

    def _part(self, which: slice) -> Lookup:
        part = Lookup((self.lane, self.read, self.partition, self.bucket), self.keys[which], self.callers[which])
        part.partition_id, part.deadline, part.attempts = self.partition_id, self.deadline, self.attempts
        return part

    def resolve(self) -> None:
        """Tell the callers; on their loop, or anywhere if they are threads."""
        if self.error is not None:
            for caller in self.callers:
                if not caller.done():
                    caller.set_exception(_own(self.error))
            return
        for caller, result in zip(self.callers, self.results, strict=True):
            if caller.done():
                continue
            if isinstance(result, FlussError):
                caller.set_exception(self._unreadable(result))
            else:
                caller.set_result(result)

    def _unreadable(self, error: FlussError) -> FlussError:
        place = f"bucket {self.bucket} of table {self.lane.info.table_path}"
        return type(error)(f"Can't read a row of {place}: {error.message}", error.error_code)


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
        self._queue: deque[tuple[Place, bytes, Caller]] = deque()
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

    def start(self, place: Place, key: bytes, caller: Caller) -> None:
        """Send a lookup of one key soon."""
        if len(self._queue) + self._under_way >= WAITING_LOOKUPS_MAX:
            raise FlussError(f"{WAITING_LOOKUPS_MAX} lookups are waiting already; use lookup_many for many keys.")
        self._queue.append((place, key, caller))
        # The loop clears the mark before it empties the queue, so what was queued before the mark is seen.
        if not self._is_woken:
            self._is_woken = True
            self._call_soon(self._send_queued)

    def _send_queued(self) -> None:
        self._is_woken = False
        take = self._queue.popleft
        together: dict[Place, tuple[list[bytes], list[Caller]]] = {}
        for _ in range(len(self._queue)):
            place, key, caller = take()
            if caller.cancelled():
                continue
            found = together.get(place)
            if found is None:
                found = together[place] = ([], [])
            found[0].append(key)
            found[1].append(caller)
        self.send([Lookup(place, keys, callers) for place, (keys, callers) in together.items()])

    def send(self, lookups: list[Lookup]) -> None:
        """Send lookups at once. On the loop."""
        by_lane: dict[Lane, list[Lookup]] = {}
        for lookup in lookups:
            self._under_way += len(lookup.callers)
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
                self._under_way -= len(lookup.callers)
                lookup.resolve()

    def close(self) -> None:
        """End all lookups with an error, now and from now on. On the loop."""
        self._closed = True
        for lane in list(self._lanes.values()):
            lane.close()
        self._send_queued()

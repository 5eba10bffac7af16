"""Lookups of one client, gathered into few requests.

Lookups of an event loop are sent and answered on that loop, over connections of its own: to hand them to the I/O thread
and back would take longer than everything else. Those of threads go through the I/O loop. Either way whatever is queued
when the loop comes to send is sorted by bucket and from then on handled as one: a caller costs a key and a future. It
goes out in the few requests that may be under way to a leader, and so does what gathers meanwhile. There is no timed
window.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from fluss.client.cluster.metadata import Metadata
from fluss.client.lookup.pending import Caller, Lookup, LookupQueue, Place
from fluss.client.lookup.table_lookups import TableLookups
from fluss.client.lookup.values import ValueReader
from fluss.client.net.pool import ConnectionPool
from fluss.model.errors import FlussError
from fluss.model.infos import TableInfo
from fluss.protocol.lookups import LookupKind

# Each has a caller that waits for it; whoever starts more at a time should look up many keys in one call.
WAITING_LOOKUPS_MAX = 1_000_000


class Lookups:
    """The lookups of one client on one event loop.

    `call_soon` is the loop's. On the I/O loop it may be called from any thread, and so may `start` and `of_table`.
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
        self._tables: weakref.WeakValueDictionary[Any, TableLookups] = weakref.WeakValueDictionary()
        self._closed = False

    def of_table(self, info: TableInfo, kind: LookupKind, values: Callable[[], ValueReader]) -> TableLookups:
        """Where lookups of a table queue; lookupers of the same kind share it, and with it their requests."""
        key = (info.table_id, info.schema_id, kind)
        table = self._tables.get(key)
        if table is None:
            timeout_s, end = self._timeout_s, self._end
            table = self._tables[key] = TableLookups(self._metadata, self._pool, info, kind, values(), timeout_s, end)
        return table

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
        by_queue: dict[LookupQueue, list[Lookup]] = {}
        for lookup in lookups:
            self._under_way += len(lookup.callers)
            by_queue.setdefault(lookup.queue, []).append(lookup)
        for queue, queued in by_queue.items():
            if self._closed:
                queue.close()
            queue.add(queued)

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
        for table in list(self._tables.values()):
            table.close()
        self._send_queued()

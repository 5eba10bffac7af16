"""The pool of open stores, which has a limit.

A store is opened when first used and stays open until others need its place: one of the table that has most of them,
the longest unused first. So a table with a thousand partitions closes its own stores and not those of others. One in
use, or asked for, is never closed; when all are, or the others have no more than their share, the limit is exceeded
until the next is given back. When many are asked for at once, a few are opened at a time, tables in turn, of each the
first asked for first: opened together, they would close one another before anybody came to use them. Closing flushes,
so on a slow disk it takes long; a table that has several to be closed opens no more meanwhile, while others do. Stores
that hold many unflushed rows but are not written to any more are flushed when memory gets short, for RocksDB flushes
only those that are written to. All calls are made on the loop; opening, closing and flushing run in worker threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket
from fluss.storage.kv.store import KvState, KvStore
from fluss.storage.table_turns import TableTurns

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

OPEN_STORES_MAX: Final = 64
# Stores that are being opened at a time.
OPENINGS_MAX: Final = 4
# A table that has so many to be closed opens no more meanwhile.
CLOSINGS_MAX: Final = 4

OpenStore: TypeAlias = Callable[[TableBucket], Coroutine[Any, Any, KvStore]]


class RunBlocking(Protocol):
    """Does blocking work on a table in a thread."""

    def __call__(self, table_id: int, work: Callable[[], _T]) -> Awaitable[_T]: ...


class _Entry:
    def __init__(self, opened: asyncio.Task[KvStore]) -> None:
        self.opened = opened
        self.users = 1  # the opening is one, and so are those who wait for it
        self.closed: asyncio.Future[None] | None = None  # there from when it is not to be used any more
        self.flushed: KvState | None = None

    @property
    def store(self) -> KvStore:
        return self.opened.result()


class KvPool:
    def __init__(
        self,
        open_store: OpenStore,
        run_closing: RunBlocking,
        is_pressed: Callable[[], bool],
        open_max: int = OPEN_STORES_MAX,
    ) -> None:
        self._open_store = open_store
        self._run_closing = run_closing
        self._is_pressed = is_pressed
        self._open_max = open_max
        self._loop = asyncio.get_running_loop()
        self._entries: OrderedDict[TableBucket, _Entry] = OrderedDict()
        self._openings = TableTurns(OPENINGS_MAX)
        self._closings: dict[asyncio.Task[None], int] = {}  # and the table of each
        self._relieving: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @asynccontextmanager
    async def use(self, bucket: TableBucket) -> AsyncIterator[KvStore]:
        """The open store of a bucket; it stays open until the block ends."""
        entry = await self._take(bucket)
        try:
            yield entry.store
        finally:
            self._give_back(bucket, entry)

    def opened(self, bucket: TableBucket) -> KvStore | None:
        """The store of a bucket if it is open, to be used before the loop goes on."""
        entry = self._entries.get(bucket)
        if entry is None or entry.closed is not None or not entry.opened.done() or entry.opened.exception():
            return None
        self._entries.move_to_end(bucket)
        return entry.store

    def is_open(self, bucket: TableBucket) -> bool:
        """Whether a store is open, or being opened or closed."""
        return bucket in self._entries

    def is_changing(self, bucket: TableBucket) -> bool:
        """Whether a store is being opened, and perhaps rebuilt, or closed."""
        entry = self._entries.get(bucket)
        return entry is not None and (not entry.opened.done() or entry.closed is not None)

    def discard(self, bucket: TableBucket) -> asyncio.Future[None]:
        """Close a store, if it is open, when its last user gives it back; who asks for it meanwhile waits for that.

        The future completes when it is closed.
        """
        entry = self._entries.get(bucket)
        if entry is None:
            done: asyncio.Future[None] = self._loop.create_future()
            done.set_result(None)
            return done
        return self._retire(bucket, entry)

    async def close(self, which: Callable[[TableBucket], bool] = lambda _: True) -> bool:
        """Close stores, each when nobody uses it any more; returns when all are closed, and whether any was open."""
        any_open = False
        while buckets := list(filter(which, self._entries)):
            any_open = True
            await asyncio.wait(list(map(self.discard, buckets)))
        return any_open

    def relieve(self) -> None:
        """Flush the longest unused stores, one after another, until memory is no longer short; does not wait."""
        if self._is_pressed() and (self._relieving is None or self._relieving.done()):
            self._relieving = self._loop.create_task(self._relieve())

    async def _relieve(self) -> None:
        for bucket, entry in list(self._entries.items()):
            if not self._is_pressed():
                return
            if entry.users or entry.closed is not None or entry.store.state == entry.flushed:
                continue
            entry.users += 1
            try:
                state = entry.store.state
                await self._run_closing(bucket.table_id, entry.store.flush)
                entry.flushed = state
            except FlussError as error:
                _log.error("%s", error)
            finally:
                self._give_back(bucket, entry)

    async def _take(self, bucket: TableBucket) -> _Entry:
        while True:
            entry = self._entries.get(bucket)
            if entry is None:
                async with self._openings.turn(bucket.table_id):
                    while len(closings := self._closings_of(bucket.table_id)) >= CLOSINGS_MAX:
                        await asyncio.wait(closings, return_when=asyncio.FIRST_COMPLETED)
                    # Another one who waited may have opened it.
                    entry = self._entries.get(bucket) or self._open(bucket)
                    if entry.closed is None:
                        return await self._join(bucket, entry)
            elif entry.closed is None:
                return await self._join(bucket, entry)
            else:
                # `asyncio.wait` does not cancel what others wait for, too.
                await asyncio.wait([entry.closed])

    def _open(self, bucket: TableBucket) -> _Entry:
        entry = self._entries[bucket] = _Entry(self._loop.create_task(self._open_store(bucket)))
        entry.opened.add_done_callback(partial(self._opened, bucket, entry))
        return entry

    async def _join(self, bucket: TableBucket, entry: _Entry) -> _Entry:
        """Use a store that is open or being opened."""
        entry.users += 1
        self._entries.move_to_end(bucket)
        try:
            if not entry.opened.done():
                await asyncio.wait([entry.opened])
            entry.opened.result()
        except BaseException:
            self._give_back(bucket, entry)
            raise
        return entry

    def _opened(self, bucket: TableBucket, entry: _Entry, _: object) -> None:
        if entry.opened.exception() is None:
            self._give_back(bucket, entry)
            return
        # Those who wait for it are told; the next one tries again.
        del self._entries[bucket]
        if entry.closed is not None:
            entry.closed.set_result(None)

    def _give_back(self, bucket: TableBucket, entry: _Entry) -> None:
        entry.users -= 1
        if entry.users:
            return
        if entry.closed is not None:
            self._start_closing(bucket, entry)
        if len(self._entries) > self._open_max:
            self._shrink()

    def _shrink(self) -> None:
        kept = [bucket for bucket, entry in self._entries.items() if entry.closed is None]
        counts = Counter(bucket.table_id for bucket in kept)
        share = self._open_max // len(counts) if counts else 0
        idle = [bucket for bucket in kept if not self._entries[bucket].users]
        for _ in range(len(kept) - self._open_max):
            # The first one of those with the most: the longest unused.
            bucket = max(idle, key=lambda one: counts[one.table_id], default=None)
            if bucket is None or counts[bucket.table_id] <= share:
                return
            idle.remove(bucket)
            counts[bucket.table_id] -= 1
            self._retire(bucket, self._entries[bucket])

    def _retire(self, bucket: TableBucket, entry: _Entry) -> asyncio.Future[None]:
        if entry.closed is None:
            entry.closed = self._loop.create_future()
            if not entry.users:
                self._start_closing(bucket, entry)
        return entry.closed

    def _start_closing(self, bucket: TableBucket, entry: _Entry) -> None:
        task = self._loop.create_task(self._close(bucket, entry))
        self._closings[task] = bucket.table_id
        task.add_done_callback(self._closings.pop)

    def _closings_of(self, table_id: int) -> list[asyncio.Task[None]]:
        return [task for task, table in self._closings.items() if table == table_id]

    async def _close(self, bucket: TableBucket, entry: _Entry) -> None:
        try:
            await self._run_closing(bucket.table_id, entry.store.close)
        except Exception as error:
            _log.error("%s could not be closed: %s", entry.store.path, error)
        del self._entries[bucket]
        assert entry.closed is not None
        entry.closed.set_result(None)

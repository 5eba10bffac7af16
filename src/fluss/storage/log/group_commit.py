"""Group commit: one sync makes all batches before it durable; what a failed one means, the log decides.

The first append of a loop turn asks for a sync at the end of that turn, so all appends of the turn share it; appends
that arrive while it runs are covered by the next one. That starts the moment the first returns, or earlier, beside it,
where the log says that it pays: much of a sync is waiting for the disk. There are no timers.

Syncs run in threads, but a small one that has nothing beside it runs on the loop as long as the last small ones were
quick: a thread costs 0.1 to 0.2 ms until it has begun and the loop knows that it is done, which is what such a sync
takes on a disk with a safe cache. The loop stands still meanwhile, so a slow disk is left to the threads: it takes both
the last ones of all logs and the last ones of this log, because others may lie on a quick disk and be many.

A table has its part of the threads and no more, so that one on a slow disk leaves the others theirs. Other work on the
disk has threads of its own.

What a failed sync means is the log's business; here it is only carried back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from fluss.doors import clock, threads
from fluss.storage.files import StorageStats, lacks_descriptor

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

THREADS: Final = 16
SYNCS_PER_TABLE_MAX: Final = 4
SYNCS_PER_LOG_MAX: Final = 2
# For other work; and how much of it is done at a time for one table.
WORK_THREADS: Final = 8
WORK_PER_TABLE_MAX: Final = 2
# A sync may run on the loop while no more than this is expected of it: so long it keeps all others waiting.
LOOP_SYNC_S_MAX: Final = 0.0005
UNPROVEN_SYNC_S: Final = 2 * LOOP_SYNC_S_MAX  # what is expected of the first ones
# Of the latest small sync in what is expected of the next: one that is very slow, or a few, and the threads take over.
_LATEST_SHARE: Final = 1 / 8


class Durable(asyncio.Future[None]):
    """Completes when the batches appended before a sync are on disk; shared by all of them.

    It refuses `cancel`, so a waiter that gives up can't take the others with it: a cancelled task ends when the sync
    does. To stop waiting earlier, use `asyncio.wait` with a timeout.
    """

    def cancel(self, msg: Any | None = None) -> bool:
        return False

    def fail(self, error: Exception) -> None:
        if not self.done():
            self.set_exception(error)
            # Nobody need be waiting (acks = 0): mark it as seen, or asyncio complains.
            self.exception()

    def complete(self) -> None:
        if not self.done():
            self.set_result(None)

    @property
    def is_complete(self) -> bool:
        """Whether the batches are on disk."""
        return self.done() and self.exception() is None


class SyncJob(Protocol):
    @property
    def is_small(self) -> bool:
        """Whether it is one sync of few bytes."""

    def run(self) -> None:
        """Do the syncs; called in a thread, small ones also on the loop."""


class Syncable(Hashable, Protocol):
    """What group commit needs of a log; all is called on the loop."""

    # How long the next small sync is expected to take; group commit keeps it here.
    small_sync_s: float

    @property
    def syncs_with(self) -> Hashable:
        """What shares its part of the threads: the table."""

    def may_overlap(self) -> bool:
        """Whether the next sync may begin beside the one in flight."""

    def begin_sync(self) -> SyncJob | None:
        """What is to be synced now, or None when all is durable."""

    def finish_sync(self, job: Any, error: Exception | None) -> None:
        """The job is done, or failed."""


class GroupCommit:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, thread_count: int = THREADS, stats: StorageStats | None = None
    ) -> None:
        self._loop = loop
        self._stats = stats or StorageStats()
        self._pool = threads.pool(thread_count, "fluss-sync")
        self._work_pool = threads.pool(WORK_THREADS, "fluss-disk")
        self._work_turns: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()
        self._requested: dict[Syncable, None] = {}
        self._in_flight: dict[Syncable, list[asyncio.Future[None]]] = {}
        self._syncs_of_table: Counter[Hashable] = Counter()
        self._start_scheduled = False
        self._small_sync_s = UNPROVEN_SYNC_S

    def request(self, log: Syncable) -> None:
        """Ask for a sync of all that is appended in this turn of the loop."""
        self._requested[log] = None
        if not self._start_scheduled and self._may_begin(log):
            self._start_scheduled = True
            self._loop.call_soon(self._start)

    def is_busy(self, log: Syncable) -> bool:
        return log in self._in_flight or log in self._requested

    async def settle(self, log: Syncable) -> None:
        """Return when no sync of the log is in flight."""
        while log in self._in_flight:
            await asyncio.wait(self._in_flight[log])

    async def run(self, work: Callable[[], _T], table: Hashable = None) -> _T:
        """Run other blocking disk work in a thread; that for a table, if one is named, takes only a part of them."""
        if table is None:
            return await self._loop.run_in_executor(self._work_pool, work)
        turns = self._work_turns.get(table)
        if turns is None:
            turns = self._work_turns[table] = asyncio.Semaphore(WORK_PER_TABLE_MAX)
        async with turns:
            return await self._loop.run_in_executor(self._work_pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        self._work_pool.shutdown(wait=True)

    def _start(self) -> None:
        self._start_scheduled = False
        for log in filter(self._may_begin, list(self._requested)):
            self._launch(log)

    def _may_begin(self, log: Syncable) -> bool:
        if not self._in_flight:
            return True
        if self._syncs_of_table[log.syncs_with] >= SYNCS_PER_TABLE_MAX:
            return False
        in_flight = self._in_flight.get(log)
        return in_flight is None or (len(in_flight) < SYNCS_PER_LOG_MAX and log.may_overlap())

    def _launch(self, log: Syncable) -> None:
        del self._requested[log]
        job = log.begin_sync()
        if job is None:
            return
        is_alone = not self._in_flight and not self._requested
        is_quick = self._small_sync_s <= LOOP_SYNC_S_MAX and log.small_sync_s <= LOOP_SYNC_S_MAX
        if job.is_small and is_alone and is_quick:
            self._finish(log, job, *_run(job))
            return
        ended = self._loop.create_future()
        self._in_flight.setdefault(log, []).append(ended)
        self._syncs_of_table[log.syncs_with] += 1
        self._pool.submit(self._sync, log, job, ended)

    def _sync(self, log: Syncable, job: SyncJob, ended: asyncio.Future[None]) -> None:
        outcome = _run(job)
        try:
            self._loop.call_soon_threadsafe(self._land, log, job, ended, *outcome)
        except RuntimeError:
            _log.warning("a sync ended after its event loop was closed")

    def _land(
        self, log: Syncable, job: SyncJob, ended: asyncio.Future[None], error: Exception | None, seconds: float
    ) -> None:
        ended.set_result(None)
        in_flight = self._in_flight[log]
        in_flight.remove(ended)
        if not in_flight:
            del self._in_flight[log]
        table = log.syncs_with
        had_its_part = self._syncs_of_table[table] >= SYNCS_PER_TABLE_MAX
        self._syncs_of_table[table] -= 1
        if not self._syncs_of_table[table]:
            del self._syncs_of_table[table]
        self._finish(log, job, error, seconds)
        # One that waited for its part comes before the next sync of this log.
        waiting = [other for other in self._requested if other.syncs_with == table] if had_its_part else [log]
        for other in waiting:
            if other in self._requested and self._may_begin(other):
                self._launch(other)

    def _finish(self, log: Syncable, job: SyncJob, error: Exception | None, seconds: float) -> None:
        self._stats.synced(seconds, failed=error is not None and not lacks_descriptor(error))
        if job.is_small:
            self._small_sync_s += (seconds - self._small_sync_s) * _LATEST_SHARE
            log.small_sync_s += (seconds - log.small_sync_s) * _LATEST_SHARE
        log.finish_sync(job, error)


def _run(job: SyncJob) -> tuple[Exception | None, float]:
    """What became of a sync, and how long it took."""
    error: Exception | None = None
    began_s = clock.monotonic()
    try:
        job.run()
    except Exception as raised:
        error = raised
    return error, clock.monotonic() - began_s

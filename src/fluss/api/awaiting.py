"""Waiting for the core by awaiting, for the shells of `fluss.aio`.

`fluss.api.blocking` has the same names for shells that block. The two modules are all that differs between the facades:
tools/unasync.py makes `_sync` of `_aio` by dropping `await` and taking these names from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fluss.client.client import ClientCore
from fluss.client.lookup.lookuper import LookuperCore, PrefixLookuperCore
from fluss.client.runtime import begin, bridge
from fluss.client.scan.batches import FetchedBatch
from fluss.client.scan.scanner import LogScannerCore
from fluss.client.write.row_buffer import WriteHandle
from fluss.client.write.writer import WriterCore
from fluss.doors import clock, threads

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

# Writes that do not wait keep the event loop for no longer than this before other tasks have a turn.
TURN_S_MAX = 0.005
# How long an iteration waits at a time; in a thread that blocks, Ctrl-C is noticed in between.
ITERATION_POLL_MS = 1_000

batches_to_latest = LogScannerCore.batches_to_latest_alone
begun = begin
close = ClientCore.close_on_loop
flush = WriterCore.flush
look = LookuperCore.begin
look_prefix = PrefixLookuperCore.begin
look_prefix_arrow = PrefixLookuperCore.begin_arrow
stored = WriteHandle.wait
wait = bridge


def look_many(core: LookuperCore, keys: Any) -> Coroutine[Any, Any, pa.Table]:
    """A row for each key, in their order."""
    return wait(core.lookup_many(keys))


async def beside(function: Callable[..., T], *args: Any) -> T:
    """Call a function that blocks, in a thread of its own."""
    return await threads.to_thread(function, *args)


async def poll(core: LogScannerCore, timeout_ms: int, limit: int | None = None) -> list[FetchedBatch]:
    """The next batches of a scanner, at the latest after `timeout_ms`."""
    await asyncio.sleep(0)  # where there are always rows, other tasks get their turn all the same
    return core.ready_batches(timeout_ms, limit) or await core.poll_batches_here(timeout_ms, limit)


async def settled(starting: Future[None]) -> None:
    """Wait for what was begun; it goes on if the caller does not."""
    await asyncio.shield(asyncio.wrap_future(starting))


class AdminWaiting:
    """What lets `conn.get_admin()` be awaited, as it was with older clients."""

    def __await__(self) -> Generator[Any, None, Self]:
        return self
        yield  # makes this a generator, as __await__ must be


class HandleWaiting:
    """What lets the handle of a write be awaited itself."""

    __slots__ = ()
    _handle: WriteHandle

    def __await__(self) -> Generator[Any, None, None]:
        return self._handle.wait().__await__()


class WriterWaiting:
    """A writer's wait for room in its buffer."""

    _core: WriterCore
    _yielded_at = 0.0

    async def _drain(self) -> None:
        if self._core.is_full:
            await wait(self._core.drain())
        elif clock.monotonic() - self._yielded_at < TURN_S_MAX:
            return
        else:
            await asyncio.sleep(0)
        self._yielded_at = clock.monotonic()


class ScannerWaiting:
    """Nothing: a log scanner that is awaited is iterated in one way, and it has that itself."""


class ChangesWaiting:
    """What lets `table.changes()` be awaited until it is known where they begin; the first poll waits for that, too."""

    async def _started(self) -> Self:
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, Self]:
        return self._started().__await__()


class BatchScannerWaiting:
    """Nothing: an Arrow stream can't be awaited."""

"""Waiting for the core by blocking, for the shells of `fluss.sync` and the scanners of `fluss`.

`fluss.api.awaiting` has the same names for shells that await.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from fluss.api import awaiting
from fluss.client.client import ClientCore
from fluss.client.current.changes import ChangesCore
from fluss.client.lookup.lookuper import LookuperCore, PrefixLookuperCore
from fluss.client.runtime import bridge, run
from fluss.client.scan.batches import FetchedBatch, to_record_batches, to_records
from fluss.client.scan.scanner import LogScannerCore
from fluss.client.write.row_buffer import WriteHandle
from fluss.client.write.writer import WriterCore
from fluss.doors import threads
from fluss.formats.rows.records import ScanRecord
from fluss.model.records import RecordBatch

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

ITERATION_POLL_MS = awaiting.ITERATION_POLL_MS

batches_to_latest = LogScannerCore.batches_to_latest
close = ClientCore.close_blocking
flush = WriterCore.flush_blocking
look = LookuperCore.lookup
look_many = LookuperCore.look_many
look_prefix = PrefixLookuperCore.lookup
look_prefix_arrow = PrefixLookuperCore.lookup_arrow
stored = WriteHandle.result
wait = run


def begun(coro: Coroutine[Any, Any, None]) -> Future[None] | None:
    """Do it now: nothing is left to be waited for."""
    run(coro)
    return None


def settled(starting: Future[None]) -> None:
    """Wait for what was begun."""
    threads.result(starting)


def beside(function: Callable[..., T], *args: Any) -> T:
    """Call a function that blocks, here."""
    return function(*args)


def poll(core: LogScannerCore, timeout_ms: int, limit: int | None = None) -> list[FetchedBatch]:
    """The next batches of a scanner, at the latest after `timeout_ms`."""
    return core.ready_batches(timeout_ms, limit) or wait(core.poll_batches(timeout_ms, limit))


class AdminWaiting:
    """Nothing: there is nothing to await."""


class HandleWaiting:
    """Nothing: a handle that blocks has `wait()`."""

    __slots__ = ()


class WriterWaiting:
    """A writer's wait for room in its buffer."""

    _core: WriterCore

    def _drain(self) -> None:
        wait(self._core.drain())


class ScannerWaiting:
    """Iteration with `async for`, for coroutines that use the scanners of `fluss`."""

    _core: LogScannerCore
    _records: bool

    async def __aiter__(self) -> AsyncIterator[ScanRecord | RecordBatch]:
        limit = self._core.max_poll_records if self._records else None
        while True:
            batches = await awaiting.poll(self._core, ITERATION_POLL_MS, limit)
            for item in to_records(batches) if self._records else to_record_batches(batches):
                yield item


class ChangesWaiting:
    """Iteration with `async for`, for coroutines that use the readers of `fluss`."""

    _core: ChangesCore

    async def __aiter__(self) -> AsyncIterator[pa.Table]:
        while True:
            changes = await bridge(self._core.poll(ITERATION_POLL_MS))
            self._core.taken()
            if changes.num_rows:
                yield changes


class BatchScannerWaiting:
    """The Arrow stream interface, whose reads block."""

    if TYPE_CHECKING:

        def to_arrow(self) -> pa.Table:
            """The rows as a PyArrow Table."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

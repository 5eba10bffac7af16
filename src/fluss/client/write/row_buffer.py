"""Rows on their way from a writer to the wire: a row buffer is closed as one, and its rows share one outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import pyarrow as pa

from fluss.client import runtime
from fluss.doors import clock, threads
from fluss.formats.arrow.payload import Codec
from fluss.formats.kernel import RowAppender
from fluss.formats.rows.python_rows import RowBuilder
from fluss.model.errors import FlussError, TimeoutError
from fluss.model.paths import TablePath
from fluss.protocol.writes import PRODUCE_LOG, WriteRequest

if TYPE_CHECKING:
    from fluss.client.net.connection import Connection
    from fluss.client.write.routing import RowPartitions


class Source(Protocol):
    """The writer that rows come from, as those who wait for the rows need it."""

    def expedite(self, *, on_loop: bool) -> None: ...
    def seen(self, error: FlussError) -> None: ...
    def left(self) -> None: ...
    def error_of(self, start: int, stop: int) -> FlussError | None: ...


class Outcome:
    """How rows that travel together fared. Set on an event loop, read and waited for from anywhere."""

    __slots__ = ("_callbacks", "_source", "awaited", "done", "error", "told")

    def __init__(self, source: Source) -> None:
        self.done = False
        self.error: FlussError | None = None
        self.awaited = False
        """Somebody waits, and will be told of a failure."""
        self.told = False
        self._source = source
        self._callbacks: list[Callable[[], None]] = []

    def set(self, error: FlussError | None) -> None:
        """The rows are stored, or have failed."""
        self.error = error
        self.done = True
        for callback in self._callbacks:
            callback()
        self._callbacks.clear()

    async def settled(self) -> None:
        """Wait on any event loop until it is known, without caring how it went."""
        if self.done:
            return
        runtime.check_running()
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._callbacks.append(lambda: _release_on(loop, waiter))
        # Looked at again behind the callback's place in the list: it may have been set in between.
        if not self.done:
            await waiter

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait in the calling thread until it is known; False when that took too long."""
        if self.done:
            return True
        runtime.check_may_block()
        released = threads.event()
        self._callbacks.append(released.set)
        return self.done or released.wait(timeout_s)

    def expedite(self, *, on_loop: bool) -> None:
        """Let unsent rows be sent soon: somebody waits for them, on the running loop or in the calling thread."""
        self._source.expedite(on_loop=on_loop)

    def check(self) -> None:
        """Raise when the rows have failed."""
        if self.error is not None:
            self.told = True
            _raise(self._source, self.error)

    def leave(self) -> None:
        """Somebody stopped waiting before he was told: a failure is the writer's to report."""
        if not self.told:
            self._source.left()


class RowsOutcome:
    """How some of the rows that travel together fared, where rows of one partition may fail and others not."""

    __slots__ = ("_outcome", "_source", "_start", "_stop", "awaited")

    def __init__(self, source: Source, outcome: Outcome, start: int, stop: int) -> None:
        self.awaited = False
        self._source = source
        self._outcome = outcome
        self._start, self._stop = start, stop

    @property
    def done(self) -> bool:
        return self._outcome.done

    async def settled(self) -> None:
        """Wait on any event loop until it is known, without caring how it went."""
        await self._outcome.settled()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait in the calling thread until it is known; False when that took too long."""
        return self._outcome.join(timeout_s)

    def expedite(self, *, on_loop: bool) -> None:
        """Let unsent rows be sent soon: somebody waits for them, on the running loop or in the calling thread."""
        self._source.expedite(on_loop=on_loop)

    def check(self) -> None:
        """Raise when the rows have failed."""
        error = self._source.error_of(self._start, self._stop)
        if error is not None:
            _raise(self._source, error)

    def leave(self) -> None:
        """The writer reports failures of such rows whether somebody waits or not, until somebody was told."""


def _release_on(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    if asyncio.get_running_loop() is loop:
        _release(waiter)
    else:
        runtime.call_on(loop, _release, waiter)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _raise(source: Source, error: FlussError) -> NoReturn:
    source.seen(error)
    raise own_copy(error)


def own_copy(error: FlussError) -> FlussError:
    """One exception per caller: a traceback grows with every raise of the same object."""
    own = type(error)(error.message, error.error_code)
    own.__cause__ = error.__cause__
    for note in getattr(error, "__notes__", ()):
        own.add_note(note)
    return own


class WriteHandle:
    """Rows under way to the server. Rows of one batch share one handle."""

    __slots__ = ("_outcomes",)

    def __init__(self, *outcomes: Outcome | RowsOutcome) -> None:
        self._outcomes = outcomes

    def done(self) -> bool:
        """Whether the server has stored the rows, or the write has failed."""
        return all(outcome.done for outcome in self._outcomes)

    async def wait(self) -> None:
        """Wait on any event loop until the rows are stored; raises if they are not."""
        told = 0
        try:
            for outcome in self._begin():
                if not outcome.done:
                    outcome.expedite(on_loop=True)
                    await outcome.settled()
                told += 1
                outcome.check()
        except BaseException:
            self._leave(told)
            raise

    def result(self, timeout_s: float | None = None) -> None:
        """Wait in the calling thread until the rows are stored; raises if they are not."""
        deadline = None if timeout_s is None else clock.monotonic() + timeout_s
        told = 0
        try:
            for outcome in self._begin():
                if not outcome.done:
                    outcome.expedite(on_loop=False)
                    if not outcome.join(None if deadline is None else max(0.0, deadline - clock.monotonic())):
                        raise TimeoutError(
                            f"The rows were not acknowledged within {timeout_s:g} s; they are still on the way."
                        )
                told += 1
                outcome.check()
        except BaseException:
            self._leave(told)
            raise

    def _begin(self) -> tuple[Outcome | RowsOutcome, ...]:
        for outcome in self._outcomes:
            outcome.awaited = True
        return self._outcomes

    def _leave(self, told: int) -> None:
        """The caller was told of so many outcomes, and waits for no others."""
        for outcome in self._outcomes[told:]:
            outcome.leave()


class WireBatch:
    """One encoded batch of one bucket, with its place in the writer's sequence once it was sent."""

    __slots__ = (
        "attempts",
        "bucket",
        "buffer",
        "header",
        "in_doubt",
        "partition",
        "payload",
        "request",
        "row_count",
        "sequence",
        "size_bytes",
        "taken_from",
        "writer_id",
    )

    def __init__(
        self,
        buffer: RowBuffer,
        bucket: int,
        header: bytearray,
        payload: memoryview,
        row_count: int,
        partition: str | None = None,
        request: WriteRequest = PRODUCE_LOG,
    ) -> None:
        self.buffer = buffer
        self.request = request
        self.partition = partition
        self.bucket = bucket
        self.header = header
        self.payload = payload
        self.size_bytes = len(header) + len(payload)
        self.row_count = row_count
        self.attempts = 0
        self.writer_id = -1
        self.sequence = -1
        self.in_doubt = False
        """An attempt ended without a clear answer: the server may have stored the batch."""
        self.taken_from: Connection | None = None
        """The connection of a caller's loop that the batch was taken back from: it may still be in its send buffer."""

    def number(self, writer_id: int, sequence: int) -> None:
        """Give the batch its place among those of a writer."""
        self.writer_id, self.sequence = writer_id, sequence
        self.request.set_writer(self.header, writer_id, sequence, self.payload)

    def forget_bytes(self) -> None:
        """It is done. A batch and its row buffer refer to each other, so they stay until such cycles are collected."""
        self.header, self.payload = bytearray(), memoryview(b"")


class BufferOwner(Protocol):
    """The writer whose rows a row buffer holds."""

    @property
    def table_path(self) -> TablePath: ...
    def grow(self, buffer: RowBuffer) -> None: ...
    def give_back(self, builder: RowBuilder) -> None: ...
    def expedite(self, buffer: RowBuffer, *, on_loop: bool) -> None: ...
    def finished(self, buffer: RowBuffer, error: FlussError | None) -> None: ...
    def seen(self, error: FlussError) -> None: ...
    def left(self, buffer: RowBuffer) -> None: ...


class RowBuffer:
    """Rows of one writer that were closed together and share an outcome."""

    __slots__ = (
        "_builder",
        "_row_count",
        "_size_bytes",
        "add_row",
        "batches",
        "deadline",
        "deletes",
        "error",
        "failures",
        "handle",
        "opened_at",
        "outcome",
        "partitions",
        "prepared",
        "records",
        "reserved_bytes",
        "unfinished",
        "writer",
    )

    def __init__(
        self,
        writer: BufferOwner,
        delivery_timeout_s: float,
        builder: RowBuilder | None = None,
        *,
        deletes: bool = False,
    ) -> None:
        self.writer = writer
        self.deletes = deletes
        """The Arrow batches are keys of rows to delete."""
        self._builder = builder
        self.add_row = None if builder is None else builder.append
        """Takes a row; None when the row buffer gathers Arrow batches."""
        self.records: list[pa.RecordBatch] = []
        self._row_count = 0
        self._size_bytes = 0
        self.reserved_bytes = 0
        self.opened_at = clock.monotonic()
        self.deadline = self.opened_at + delivery_timeout_s
        self.outcome = Outcome(self)
        self.handle: Any = None
        """What a writer's callers get for all rows."""
        self.prepared = False
        self.batches: list[WireBatch] = []
        self.unfinished = 0
        self.error: FlussError | None = None
        self.failures: dict[str | None, FlussError] = {}
        """The first failure of each partition; rows of other partitions are stored."""
        self.partitions: RowPartitions | None = None

    @property
    def row_count(self) -> int:
        builder = self._builder  # a worker may take it away meanwhile
        return self._row_count if builder is None else builder.row_count

    @property
    def size_bytes(self) -> int:
        """About what the rows take in Arrow."""
        builder = self._builder
        return self._size_bytes if builder is None else self._size_bytes + builder.estimated_bytes

    @property
    def appender(self) -> RowAppender | None:
        """Takes rows as they are; None when there is more to do for a row."""
        return self._builder.appender if type(self._builder) is RowBuilder else None

    def filled(self) -> None:
        """The bytes reserved are used; called with the writer's lock held."""
        self.writer.grow(self)

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Take an Arrow batch."""
        self.records.append(batch)
        self._row_count += batch.num_rows
        self._size_bytes += batch.nbytes

    def outcome_of(self, row_count: int) -> RowsOutcome:
        """The outcome of the rows taken last."""
        stop = self.row_count
        return RowsOutcome(self, self.outcome, stop - row_count, stop)

    def error_of(self, start: int, stop: int) -> FlussError | None:
        """The failure of some of the rows, once the outcome is known."""
        if self.partitions is None or not self.failures:
            return self.error
        for index in self.partitions.indexes.slice(start, stop - start).unique().to_pylist():
            error = self.failures.get(self.partitions.names[index])
            if error is not None:
                return error
        return None

    def expedite(self, *, on_loop: bool) -> None:
        """Somebody waits for these rows, on the running loop or in the calling thread."""
        self.writer.expedite(self, on_loop=on_loop)

    def seen(self, error: FlussError) -> None:
        """Somebody was told this failure of these rows."""
        self.writer.seen(error)

    def left(self) -> None:
        """Note that nobody waits for these rows any more."""
        self.writer.left(self)

    def take_payload(self, codec: Codec) -> bytearray | None:
        """All rows as the payload of a batch, if they are few: see `RowBuilder.build_payload`."""
        builder = self._builder
        if type(builder) is not RowBuilder:
            return None
        row_count, size_bytes = self.row_count, self.size_bytes
        payload = builder.build_payload(codec)
        if payload is not None:
            self._row_count, self._size_bytes = row_count, size_bytes
            self._give_back(builder)
        return payload

    def _give_back(self, builder: RowBuilder) -> None:
        self._builder, self.add_row = None, None
        self.writer.give_back(builder)

    def take_rows(self) -> pa.RecordBatch:
        """All rows as one record batch; the builder is free again."""
        self._row_count, self._size_bytes = self.row_count, self.size_bytes
        if self._builder is not None:
            builder = self._builder
            batch = builder.build()
            self._give_back(builder)
            return batch
        records, self.records = self.records, []
        return records[0] if len(records) == 1 else pa.concat_batches(records)

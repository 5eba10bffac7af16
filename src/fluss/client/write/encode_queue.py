"""From writers to the buckets' queues: row buffers are encoded and handed on in the order in which they were closed."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

from fluss.client import runtime
from fluss.client.cluster.tasks import KeyedTasks
from fluss.client.write.encoder import Encoder
from fluss.client.write.memory import BufferMemory
from fluss.client.write.outcome import own_copy
from fluss.client.write.row_buffer import BufferOwner, RowBuffer, WireBatch
from fluss.model.errors import FlussError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath

# Encoding a row buffer of this size takes less time than handing it to a worker and back.
INLINE_BUFFER_BYTES_MAX = 32 << 10
# Failures that are told together with another one.
NOTES_MAX = 20
IN_DOUBT = "; they may have been stored"


class QueuedWriter(BufferOwner, Protocol):
    """A writer whose closed row buffers are to be encoded and sent."""

    @property
    def info(self) -> TableInfo: ...
    @property
    def encoder(self) -> Encoder: ...
    @property
    def preparing(self) -> deque[RowBuffer]: ...
    @property
    def is_under_way(self) -> bool: ...
    @property
    def pending_rows(self) -> int: ...
    def close_open(self) -> None: ...
    def take_failures(self) -> list[FlussError]: ...
    async def settle(self) -> None: ...


class EncodeQueue:
    """The row buffers of all writers of a client. Runs on the I/O loop where nothing else is said."""

    def __init__(
        self,
        memory: BufferMemory,
        tasks: KeyedTasks,
        enqueue: Callable[[TableInfo, WireBatch], None],
        pump: Callable[[], None],
        expect: Callable[[TableInfo], None],
        lock: threading.RLock,
    ) -> None:
        self.memory = memory
        self._writers: weakref.WeakSet[QueuedWriter] = weakref.WeakSet()
        self.failed: dict[QueuedWriter, None] = {}
        """Writers with failures that nobody was told of: theirs are reported even if they are forgotten."""
        self.refuses = False
        """Rows are not taken any more."""
        self.closed: FlussError | None = None
        """Nothing is sent any more, and why."""
        self._tasks = tasks
        self._enqueue = enqueue
        self._pump = pump
        self.expect = expect
        """Batches of a table will come: what can be found out before is."""
        self._lock = lock
        self._submitted: deque[QueuedWriter] = deque()
        self._woken = False

    # ---- any thread ----

    def register(self, writer: QueuedWriter) -> None:
        """A new writer; kept by weak reference."""
        with self._lock:
            self._writers.add(writer)

    @property
    def writers(self) -> list[QueuedWriter]:
        """All writers."""
        with self._lock:
            return list(self._writers)

    def submit(self, writer: QueuedWriter) -> None:
        """The writer has closed a row buffer."""
        self._submitted.append(writer)
        if not self._woken:
            self._woken = True
            runtime.call_soon(self._wake)

    def relieve(self) -> None:
        """The write memory is full: send what writers are still gathering, unless something under way will make room.

        Otherwise every row that waits for room would be sent alone as soon as the next one comes.
        """
        writers = self.writers
        if not any(writer.is_under_way for writer in writers):
            for writer in writers:
                writer.close_open()

    # ---- row buffers in ----

    def _wake(self) -> None:
        self._woken = False
        with self._lock:
            while self._submitted:
                self._prepare(self._submitted.popleft())
            self._pump()

    def prepare_here(self, writer: QueuedWriter) -> RowBuffer | None:
        """Encode and hand on a row buffer here if it is small and the only one; with the lock held."""
        if len(writer.preparing) != 1 or self.closed is not None:
            return None
        buffer = writer.preparing[0]
        if buffer.prepared or buffer.size_bytes > INLINE_BUFFER_BYTES_MAX:
            return None
        self._prepare(writer)
        return buffer

    def _prepare(self, writer: QueuedWriter) -> None:
        """Encode what is new; large row buffers beside the loop."""
        for buffer in list(writer.preparing):
            if buffer.prepared or buffer in self._tasks:
                continue
            if self.closed is not None:
                buffer.error, buffer.prepared = self.closed, True
            elif buffer.size_bytes <= INLINE_BUFFER_BYTES_MAX:
                writer.encoder.prepare(buffer)
                buffer.prepared = True
            else:
                self._tasks.start(buffer, self._prepare_aside, writer, buffer)
        self._distribute(writer)

    async def _prepare_aside(self, writer: QueuedWriter, buffer: RowBuffer) -> None:
        await runtime.in_worker(writer.encoder.prepare, buffer)
        with self._lock:
            buffer.prepared = True
            self._distribute(writer)

    def _distribute(self, writer: QueuedWriter) -> None:
        """Move encoded row buffers into the queues of their buckets, in the order in which they were closed."""
        while writer.preparing and writer.preparing[0].prepared:
            buffer = writer.preparing.popleft()
            if self.closed is not None and buffer.error is None:
                buffer.error = self.closed
            if buffer.error is not None:
                self._release(buffer, buffer.reserved_bytes)
                writer.finished(buffer, _named(buffer.error, buffer.row_count, "", writer.table_path))
                continue
            buffer.unfinished = len(buffer.batches)
            self._release(buffer, buffer.reserved_bytes - sum(batch.size_bytes for batch in buffer.batches))
            for batch in buffer.batches:
                self._enqueue(writer.info, batch)

    def _release(self, buffer: RowBuffer, size_bytes: int) -> None:
        buffer.reserved_bytes -= size_bytes
        self.memory.release(size_bytes)

    # ---- batches done ----

    def finish(self, batch: WireBatch, error: FlussError | None) -> None:
        """A batch is stored or given up; its row buffer is when all its batches are."""
        buffer = batch.buffer
        if error is not None:
            self._fail(buffer, batch, error)
        self._release(buffer, batch.size_bytes)
        batch.forget_bytes()
        buffer.unfinished -= 1
        if buffer.unfinished == 0:
            buffer.writer.finished(buffer, buffer.error)

    def _fail(self, buffer: RowBuffer, batch: WireBatch, error: FlussError) -> None:
        doubt = IN_DOUBT if batch.in_doubt else ""
        named = _named(error, batch.row_count, _place(batch), buffer.writer.table_path, doubt)
        known = buffer.failures.setdefault(batch.partition, named)
        buffer.error = buffer.error or named
        if known is not named:
            _note(known, named)

    # ---- the end ----

    def close(self, reason: FlussError) -> None:
        """Row buffers not handed on fail; so does what comes later."""
        self.refuses, self.closed = True, reason
        for writer in self.writers:
            for buffer in writer.preparing:
                buffer.error, buffer.prepared = reason, True
            self._distribute(writer)


def summed_up(failures: list[FlussError]) -> FlussError:
    """The first failure, with the others as notes."""
    first = own_copy(failures[0])
    for other in failures[1:]:
        _note(first, other)
    return first


def _note(error: FlussError, other: FlussError) -> None:
    if len(getattr(error, "__notes__", ())) < NOTES_MAX:
        error.add_note(f"Also: {other.message}")


def _place(batch: WireBatch) -> str:
    return f"bucket {batch.bucket} of " + (f"partition {batch.partition!r} of " if batch.partition is not None else "")


def _named(error: FlussError, row_count: int, bucket: str, path: TablePath, doubt: str = "") -> FlussError:
    """The error with the rows it is about."""
    rows = "1 row" if row_count == 1 else f"{row_count} rows"
    text = f"{error.message.rstrip('.')}{doubt}" if doubt else error.message
    named = type(error)(f"{rows} for {bucket}table {path} failed: {text}", error.error_code)
    named.__cause__ = error
    return named

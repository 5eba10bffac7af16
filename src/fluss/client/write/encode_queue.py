"""The encode queue: closed row buffers become batches of a limited size, in order, within the client's memory."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import pyarrow as pa

from fluss.client import runtime
from fluss.client.cluster.retry import KeyedTasks
from fluss.client.write.routing import Route, Router
from fluss.client.write.row_buffer import BufferOwner, RowBuffer, WireBatch, own_copy
from fluss.doors import clock, threads
from fluss.model.config import Config
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, TimeoutError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath
from fluss.protocol.writes import WriteRequest


class BufferMemory:
    """A count shared by all writers of a client.

    Rows are counted after they are taken, so the limit may be passed by one write per thread. Threads wait on a
    condition, coroutines of the I/O loop on futures.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.full = False
        self.waiting = 0
        self._room = threads.condition()
        self._waiters: list[asyncio.Future[None]] = []

    def add(self, size_bytes: int) -> None:
        """Count bytes; never waits."""
        with self._room:
            self.used_bytes += size_bytes
            self.full = self.used_bytes >= self.limit_bytes

    def release(self, size_bytes: int) -> None:
        """Give bytes back; from any thread."""
        with self._room:
            self.used_bytes -= size_bytes
            self.full = self.used_bytes >= self.limit_bytes
            if self.full:
                return
            if self.waiting:
                self._room.notify_all()
        if self._waiters:
            runtime.call_soon(self._release_waiters)

    def _release_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def wait_for_room(self, timeout_s: float) -> None:
        """Block the calling thread until there is room."""
        if runtime.on_io_thread():
            raise FlussError("The write buffer is full, and the I/O thread can't wait for itself to empty it.")
        deadline = clock.monotonic() + timeout_s
        with self._room:
            self.waiting += 1
            try:
                while self.full:
                    remaining_s = deadline - clock.monotonic()
                    if remaining_s <= 0 or not self._room.wait(min(remaining_s, threading.TIMEOUT_MAX)):
                        raise TimeoutError(
                            f"The write buffer of {self.limit_bytes} bytes stayed full for {timeout_s:g} s; the row "
                            "was not taken. Is the server up? See writer.buffer.memory-size and .wait-timeout."
                        )
            finally:
                self.waiting -= 1

    async def room(self) -> None:
        """Wait on the I/O loop until there is room."""
        while self.full:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            # Looked at again behind the waiter's place in the list: another thread may have made room in between.
            if self.full:
                await waiter


REQUEST_OVERHEAD_BYTES = 1024


class BatchLimits(NamedTuple):
    """How large batches are."""

    batch_size_bytes: int
    request_size_bytes_max: int

    @classmethod
    def of(cls, config: Config) -> BatchLimits:
        """The limits that a client's settings say."""
        request_size_bytes_max = max(1, config.writer_request_max_size - REQUEST_OVERHEAD_BYTES)
        return cls(min(config.writer_batch_size, request_size_bytes_max), request_size_bytes_max)


class Encoder:
    """Cuts a table's row buffers into wire batches. Has no state of its own, so that workers can share it."""

    __slots__ = ("_info", "_limits", "_request", "_route")
    record_count_max = 1 << 31

    def __init__(self, info: TableInfo, limits: BatchLimits, route: Router, request: WriteRequest) -> None:
        self._info = info
        self._limits = limits
        self._route = route
        self._request = request

    def prepare(self, buffer: RowBuffer) -> None:
        """Fill the row buffer's wire batches, or its error. Never raises: the row buffer would wait for ever."""
        try:
            self._fill(buffer)
        except FlussError as error:
            buffer.error = error
        except Exception as error:
            buffer.error = FlussError(f"Rows for table {self._info.table_path} could not be encoded: {error!r}")
            buffer.error.__cause__ = error
        if buffer.error is not None:
            buffer.batches.clear()

    def _fill(self, buffer: RowBuffer) -> None:
        # Encoded keys and rows take a little more than the Arrow that a buffer is measured by: no reason to halve it.
        size_bytes = self._limits.batch_size_bytes * 5 // 4
        for partition, bucket, rows in self._routes(buffer):
            for piece in pieces(rows, size_bytes):
                self._encode(buffer, partition, bucket, piece)

    def _routes(self, buffer: RowBuffer) -> Iterable[Route]:
        """The bucket of each of the row buffer's rows; rows of one bucket keep their order."""
        raise NotImplementedError

    def _batch(self, rows: pa.RecordBatch) -> tuple[bytearray, memoryview]:
        """Header and payload."""
        raise NotImplementedError

    def _encode(self, buffer: RowBuffer, partition: str | None, bucket: int, rows: pa.RecordBatch) -> None:
        if rows.num_rows <= self.record_count_max:
            header, payload = self._batch(rows)
            batch = WireBatch(buffer, bucket, header, payload, rows.num_rows, partition, self._request)
            if batch.size_bytes <= self._limits.request_size_bytes_max:
                buffer.batches.append(batch)
                return
            if rows.num_rows == 1:
                raise InvalidRequestError(
                    f"One row for table {self._info.table_path} takes {batch.size_bytes} bytes on the wire; the limit "
                    f"writer.request-max-size leaves {self._limits.request_size_bytes_max}.",
                    ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
                )
        half = rows.num_rows // 2
        self._encode(buffer, partition, bucket, rows.slice(0, half))
        self._encode(buffer, partition, bucket, rows.slice(half))


def pieces(rows: pa.RecordBatch, size_bytes: int) -> list[pa.RecordBatch]:
    """Slices of about `size_bytes` each."""
    # Quick to get, but it counts all of a slice's parent.
    if rows.num_rows and rows.get_total_buffer_size() <= size_bytes:
        return [rows]
    count = min(max(1, -(-rows.nbytes // size_bytes)), rows.num_rows)
    if count <= 1:
        return [rows] if rows.num_rows else []
    step = -(-rows.num_rows // count)
    return [rows.slice(start, step) for start in range(0, rows.num_rows, step)]


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
        self._writers: weakref.WeakKeyDictionary[QueuedWriter, None] = weakref.WeakKeyDictionary()  # in their order
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
            self._writers[writer] = None

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
            try:
                runtime.call_soon(self._wake)
            except BaseException:  # an interrupt: the next one has to wake the loop
                self._woken = False
                raise

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

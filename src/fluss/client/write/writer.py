"""Writers: rows and Arrow batches gather in row buffers, which the sender empties; and those of log tables."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from fluss.client import runtime
from fluss.client.cluster.cluster import Cluster
from fluss.client.write.encode_queue import BatchLimits, Encoder, pieces, summed_up
from fluss.client.write.routing import BucketRouter, OneBucket, Route, Router, router, writable_schema
from fluss.client.write.row_buffer import Outcome, RowBuffer, RowsOutcome, WireBatch, WriteHandle
from fluss.client.write.sender import Sender
from fluss.doors import clock, threads
from fluss.formats.arrow import payload as arrow_payload
from fluss.formats.arrow.cast import ArrowCaster
from fluss.formats.arrow.payload import Codec
from fluss.formats.batches import statistics
from fluss.formats.batches.log_batch import encode_header
from fluss.formats.kernel import RowGate
from fluss.formats.rows import codecs
from fluss.formats.rows.python_rows import RowBuilder
from fluss.model.descriptor import LogFormat
from fluss.model.errors import FlussError, TimeoutError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath
from fluss.model.schema import Schema
from fluss.model.tables.options import LOG_FORMAT, choice
from fluss.protocol.writes import PRODUCE_LOG

# A row buffer that is split over partitions or buckets holds a batch for each of them, up to this many.
ROW_BUFFER_BATCHES_MAX = 8
# Bytes are counted against the write memory in steps, so that a row costs no lock.
RESERVE_STEP_BYTES = 64 << 10
_BUILDERS_KEPT_MAX = 4
# Failures that nobody awaited, until a write or a flush raises the first.
FAILURES_KEPT_MAX = 100
FAILED_WRITERS_MAX = 1_000
# A flush sends at once unless this many row buffers are under way already.
FLUSH_OUTSTANDING_MAX = 5


_writers: weakref.WeakSet[WriterCore] = weakref.WeakSet()


class WriterCore:
    """Write methods are for user threads, any number of them; `flush` and `settle` for any event loop."""

    _buffer_class = RowBuffer

    def __init__(self, cluster: Cluster, sender: Sender, info: TableInfo, encoder: Encoder, schema: Schema) -> None:
        config, encode_queue = cluster.config, sender.encode_queue
        self._cluster = cluster  # a writer keeps its connection open
        self._sender = sender
        self._encode_queue = encode_queue
        self._info = info
        self._pid = runtime.process_id
        self._memory = encode_queue.memory
        self._wait_timeout_s: float = config.writer_buffer_wait_timeout_ms / 1000
        self._linger_s: float = config.writer_batch_timeout_ms / 1000
        self._delivery_s: float = config.writer_delivery_timeout_ms / 1000
        self.encoder = encoder
        batch_size = BatchLimits.of(config).batch_size_bytes
        spread = info.num_buckets if info.get_bucket_keys() or config.writer_bucket_no_key_assigner != "sticky" else 1
        if info.is_partitioned():
            spread = ROW_BUFFER_BATCHES_MAX
        share = max(1, config.writer_buffer_memory_size // 4)
        self._buffer_size_bytes = min(batch_size * min(spread, ROW_BUFFER_BATCHES_MAX), max(batch_size, share))
        self._schema = schema
        self._caster = ArrowCaster(schema)
        self._lock = threads.lock()
        self.gate = RowGate(self._lock)
        """Takes rows into the open row buffer, a million a second and more; `take_row` does what is due in between."""
        self.shell: Callable[[WriteHandle], Any] = _unchanged
        """What callers get instead of a handle of ours."""
        self._open: RowBuffer | None = None
        self._builders: list[RowBuilder] = []
        self._lingers = False
        self._lingers_until = 0.0
        self._outstanding: dict[RowBuffer, None] = {}
        self._close_below = 0
        """Somebody waits for the open row buffer: close it when fewer row buffers than this are outstanding."""
        self._partitioned = info.is_partitioned()
        """Rows of one row buffer may fare differently, so each write has a handle of its own."""
        self._failures: list[FlussError] = []
        self.preparing: deque[RowBuffer] = deque()
        """Closed row buffers in order, until the sender has put their batches into the buckets' queues."""
        encode_queue.register(self)
        _writers.add(self)

    @property
    def table_path(self) -> TablePath:
        return self._info.table_path

    @property
    def info(self) -> TableInfo:
        return self._info

    @property
    def arrow_schema(self) -> pa.Schema:
        """What Arrow data is brought to."""
        return self._caster.target

    @property
    def is_full(self) -> bool:
        """Whether the next write would wait for room in the write memory."""
        return self._memory.full

    @property
    def is_under_way(self) -> bool:
        """Whether rows are with the sender."""
        return bool(self._outstanding)

    @property
    def pending_rows(self) -> int:
        """Rows taken and not acknowledged yet."""
        with self._lock:
            buffers = [self._open] if self._open is not None else []
            return sum(buffer.row_count for buffer in (*buffers, *self._outstanding))

    # ---- user threads ----

    def handle(self, *outcomes: Outcome | RowsOutcome) -> Any:
        """What callers get for rows under way."""
        return self.shell(WriteHandle(*outcomes))

    def take_row(self, row: Mapping[str, Any] | Sequence[Any]) -> Any:
        """Take one row; waits while the write memory is full. Most rows go through the gate instead."""
        if self._failures or self._memory.full or self._pid != runtime.process_id:
            self._admit()
        with self._lock:
            buffer = self._open
            if buffer is None or buffer.add_row is None:
                buffer = self._open_rows()
            assert buffer.add_row is not None
            buffer.add_row(row)  # type: ignore[arg-type]
            return self._taken(buffer)

    def write_batch(self, batch: pa.RecordBatch) -> Any:
        """Take an Arrow batch of any layout that fits the table; waits while the write memory is full."""
        return self._write([self._caster.cast(batch)])

    def write_table(self, table: pa.Table) -> Any:
        """Take an Arrow table. A column that does not fit is refused before any row is taken."""
        return self._write(list(self._caster.cast_all(table)))

    def _write(self, batches: list[pa.RecordBatch], *, deletes: bool = False) -> Any:
        taken: list[Outcome | RowsOutcome] = []
        row_count = 0
        for batch in batches:
            for piece in pieces(batch, self._buffer_size_bytes):
                try:
                    self._admit()
                except TimeoutError as error:
                    if row_count:
                        raise TimeoutError(f"{error.message} {row_count} rows before it were.") from None
                    raise
                outcome = self._take(piece, deletes)
                row_count += piece.num_rows
                if not taken or taken[-1] is not outcome:
                    taken.append(outcome)
        return self.handle(*taken)

    def _take(self, piece: pa.RecordBatch, deletes: bool) -> Outcome | RowsOutcome:
        size_bytes = piece.nbytes
        with self._lock:
            buffer = self._open
            if (
                buffer is None
                or buffer.add_row is not None
                or buffer.deletes is not deletes
                or buffer.size_bytes + size_bytes > self._buffer_size_bytes
            ):
                buffer = self._open_buffer(None, deletes=deletes)
            buffer.add_batch(piece)
            outcome = buffer.outcome_of(piece.num_rows) if self._partitioned else buffer.outcome
            self.grow(buffer)
        return outcome

    def _admit(self) -> None:
        """Before a write: raise what failed unseen, and wait for room."""
        runtime.check_process(self._pid, "writer")
        self._raise_failure()
        if self._memory.full:
            self._encode_queue.relieve()
            self._memory.wait_for_room(self._wait_timeout_s)
        if self._encode_queue.refuses:
            raise self._closed()

    def _closed(self) -> FlussError:
        return FlussError(f"The writer of table {self.table_path} was closed with its connection.")

    def _raise_failure(self) -> None:
        failures = self.take_failures() if self._failures else []
        if failures:
            raise summed_up(failures)

    # ---- with the lock held ----

    def _open_rows(self) -> RowBuffer:
        return self._open_buffer(self._builders.pop() if self._builders else self._new_builder())

    def _new_builder(self) -> RowBuilder:
        return RowBuilder(self._schema)

    def _open_buffer(self, builder: RowBuilder | None, *, deletes: bool = False) -> RowBuffer:
        if self._encode_queue.refuses:
            raise self._closed()
        self._close_open()
        buffer = self._open = self._buffer_class(self, self._delivery_s, builder, deletes=deletes)
        buffer.handle = self.handle(buffer.outcome)
        self._lingers_until = buffer.opened_at + self._linger_s
        if not self._lingers:
            runtime.call_soon(self._opened)
            self._lingers = True  # behind it, in case of an interrupt; the lock keeps the callback waiting
        return buffer

    def _taken(self, buffer: RowBuffer) -> Any:
        """The handle of a row or key that the row buffer has taken."""
        if buffer.size_bytes >= buffer.reserved_bytes:
            self.grow(buffer)
        return self.handle(buffer.outcome_of(1)) if self._partitioned else buffer.handle

    def grow(self, buffer: RowBuffer) -> None:
        """Reserve memory for what the row buffer holds and a step more, or close it when it is full."""
        full = buffer.size_bytes >= self._buffer_size_bytes
        wanted = buffer.size_bytes if full else min(buffer.size_bytes + RESERVE_STEP_BYTES, self._buffer_size_bytes)
        self._memory.add(wanted - buffer.reserved_bytes)
        buffer.reserved_bytes = wanted
        if full:
            self._close_full(buffer)
        elif self._memory.full or self._failures:
            self.gate.close()
        elif buffer.appender is not None and not self._partitioned:
            self.gate.open(buffer.appender, wanted, buffer.handle, buffer.filled)

    def _close_full(self, buffer: RowBuffer) -> None:
        """The open row buffer is full."""
        self._close_open()

    def _close_open(self) -> None:
        if self._take_open():
            self._encode_queue.submit(self)

    def _take_open(self) -> bool:
        """Close the open row buffer; whether there is something to send now."""
        self.gate.close()
        buffer, self._open = self._open, None
        self._close_below = 0
        if buffer is None:
            return False
        if buffer.row_count == 0:
            buffer.outcome.done = True  # opened by a row that was refused
            return False
        self._outstanding[buffer] = None
        self.preparing.append(buffer)
        return True

    def _close_when(self, fewer_than: int) -> bool:
        """Close now, or when fewer row buffers than this are outstanding; whether there is something to send now.

        Rows that come while others travel gather, so that many small writes with a wait become few batches.
        """
        if len(self._outstanding) < fewer_than:
            return self._take_open()
        self._close_below = max(self._close_below, fewer_than)
        return False

    def _keep_failure(self, buffer: RowBuffer, error: FlussError) -> None:
        failures = list(buffer.failures.values()) or [error]
        self._failures = [*self._failures, *failures][:FAILURES_KEPT_MAX]
        if len(self._encode_queue.failed) < FAILED_WRITERS_MAX:
            self._encode_queue.failed[self] = None
        self.gate.close()

    # ---- any thread ----

    def close_open(self) -> None:
        """Let the sender have the rows gathered so far."""
        with self._lock:
            self._close_open()

    def give_back(self, builder: RowBuilder) -> None:
        """An empty builder for the next row buffer."""
        if len(self._builders) < _BUILDERS_KEPT_MAX:
            self._builders.append(builder)

    # ---- I/O loop ----

    def _opened(self) -> None:
        """Rows are gathered, for the first time or after a pause."""
        self._encode_queue.expect(self._info)
        self._linger()

    def _linger(self) -> None:
        """Close the open row buffer when its time is up. One timer for all: most are closed earlier, by a flush."""
        with self._lock:
            remaining_s = self._lingers_until - clock.monotonic()
            if remaining_s <= 0:
                self._lingers = False
                self._close_open()
                return
        asyncio.get_running_loop().call_later(remaining_s, self._linger)

    def seen(self, error: FlussError) -> None:
        """A failure was raised by a handle; the writer need not report it."""
        with self._lock:
            self._failures = [other for other in self._failures if other is not error]
            if not self._failures:
                self._encode_queue.failed.pop(self, None)

    def left(self, buffer: RowBuffer) -> None:
        """Note that nobody waits for a row buffer any more: a failure of it is to be reported otherwise."""
        with self._lock:
            buffer.outcome.awaited = False
            if buffer.outcome.done and buffer.error is not None:
                self._keep_failure(buffer, buffer.error)

    def take_failures(self) -> list[FlussError]:
        """The failures that nobody was told of, for somebody who tells."""
        with self._lock:
            failures, self._failures = self._failures, []
            self._encode_queue.failed.pop(self, None)
        return failures

    def finished(self, buffer: RowBuffer, error: FlussError | None) -> None:
        """The sender is done with a row buffer."""
        buffer.error = error
        if error is None:
            buffer.partitions = None
        with self._lock:
            if error is not None and not buffer.outcome.awaited:
                self._keep_failure(buffer, error)
            self._outstanding.pop(buffer, None)
            # Under the lock, so that a flush finds the row buffer either outstanding or done.
            buffer.outcome.set(error)
            if len(self._outstanding) < self._close_below:
                self._close_open()
        if self._memory.full:
            self._encode_queue.relieve()

    async def drain(self) -> None:
        """Wait until the write memory has room."""
        runtime.check_process(self._pid, "writer")
        if self._memory.full:
            self._encode_queue.relieve()
            await self._memory.room()

    # ---- any thread, any event loop ----

    def expedite(self, buffer: RowBuffer, *, on_loop: bool) -> None:
        """Somebody waits for a row buffer: close it as soon as nothing else is under way."""
        with self._lock:
            is_closed = self._open is buffer and self._close_when(1)
        if is_closed and on_loop:
            self._sender.send_here(self)
        elif is_closed:
            self._encode_queue.submit(self)

    async def flush(self) -> None:
        """Wait until all rows taken before are stored; raises the first failure that nobody awaited."""
        runtime.check_process(self._pid, "writer")
        await self.settle()
        self._raise_failure()

    async def settle(self) -> None:
        """Wait until all rows taken before are stored or have failed."""
        for buffer in self._begin_flush(self._sender.send_here):
            await buffer.outcome.settled()

    def flush_blocking(self) -> None:
        """Flush in the calling thread."""
        runtime.check_process(self._pid, "writer")
        for buffer in self._begin_flush(self._encode_queue.submit):
            buffer.outcome.join()
        self._raise_failure()

    def _begin_flush(self, send: Callable[[WriterCore], None]) -> list[RowBuffer]:
        """Let everything be sent; returns what is to be waited for."""
        with self._lock:
            self._close_when(FLUSH_OUTSTANDING_MAX)
            buffers = list(self._outstanding)
            if self._open is not None and self._open.row_count:
                buffers.append(self._open)
        if self.preparing:  # also of a flush that an interrupt ended just here
            send(self)
        return buffers


def _unchanged(handle: WriteHandle) -> WriteHandle:
    return handle


def _after_fork_in_child() -> None:
    """The next row has to be refused."""
    for writer in list(_writers):
        writer.gate.close()


os.register_at_fork(after_in_child=_after_fork_in_child)


# What a column can take at most of a batch that is encoded without Arrow.
SMALL_COLUMN_BYTES_MAX = 1024


class AppendWriterCore(WriterCore):
    """Takes rows and Arrow batches of a log table."""

    append = WriterCore.take_row

    def __init__(self, cluster: Cluster, sender: Sender, info: TableInfo) -> None:
        encoder = LogEncoder(info, BatchLimits.of(cluster.config), router(info, cluster.config))
        super().__init__(cluster, sender, info, encoder, writable_schema(info))


class LogEncoder(Encoder):
    """Batches of log tables."""

    __slots__ = ("_bucket_of_small", "_codec", "_log_format", "_statistics_columns", "_types")

    def __init__(self, info: TableInfo, limits: BatchLimits, route: Router) -> None:
        super().__init__(info, limits, route, PRODUCE_LOG)
        self._codec = Codec.of(info.properties)
        self._log_format = choice(info.properties, LOG_FORMAT)
        columns = [(column.name, column.data_type) for column in info.schema.columns]
        self._types = [data_type for _, data_type in columns]
        self._statistics_columns = statistics.columns_of(info.properties, columns)
        self._bucket_of_small: OneBucket | None = None
        is_plain = self._log_format == LogFormat.ARROW and not self._statistics_columns
        if is_plain and limits.batch_size_bytes >= SMALL_COLUMN_BYTES_MAX * (1 + len(columns)):
            self._bucket_of_small = route.one_bucket if isinstance(route, BucketRouter) else None

    def _fill(self, buffer: RowBuffer) -> None:
        """Most batches of somebody who waits for each row are small, and then all that can be spared counts."""
        payload = None if self._bucket_of_small is None else buffer.take_payload(self._codec)
        if self._bucket_of_small is None or payload is None:
            super()._fill(buffer)
            return
        header = encode_header(payload, schema_id=self._info.schema_id, record_count=buffer.row_count)
        bucket = self._bucket_of_small.choose()
        buffer.batches.append(WireBatch(buffer, bucket, header, memoryview(payload), buffer.row_count))

    def _routes(self, buffer: RowBuffer) -> Iterable[Route]:
        routes, buffer.partitions = self._route(buffer.take_rows())
        return routes

    def _batch(self, rows: pa.RecordBatch) -> tuple[bytearray, memoryview]:
        if self._log_format == LogFormat.ARROW:
            payload = memoryview(arrow_payload.encode(rows, self._codec)).cast("B")
        else:
            payload = memoryview(codecs.encode(rows, self._info.schema, self._log_format))
        wanted = self._statistics_columns
        header = encode_header(
            payload,
            schema_id=self._info.schema_id,
            record_count=rows.num_rows,
            statistics=statistics.encode(rows, self._types, wanted) if wanted else b"",
        )
        return header, payload

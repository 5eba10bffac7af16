"""Sends the batches of all writers of a client: one request per leader and table carries many buckets."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING

from fluss.client import runtime
from fluss.client.answers import STALE_METADATA_CODES, parse, server_error
from fluss.client.bucket_queue import BucketQueue
from fluss.client.chunk import Chunk, WireBatch
from fluss.client.connection import Connection
from fluss.client.memory import BufferMemory
from fluss.client.metadata import Metadata
from fluss.client.partition_routing import PartitionFinder
from fluss.client.produce import ACKS, DUPLICATE, LOST_SEQUENCE_CODES, REFUSAL_CODES, request_parts
from fluss.client.tasks import KeyedTasks
from fluss.client.writer_ids import WriterIds
from fluss.model.config import Config
from fluss.model.errors import ConnectError, ErrorCode, FlussError, NotFoundError, TimeoutError
from fluss.model.infos import ServerNode, TableInfo
from fluss.model.paths import TablePath
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb

if TYPE_CHECKING:
    from fluss.client.append import AppendWriterCore

# Encoding a chunk of this size takes less time than handing it to a worker and back.
INLINE_CHUNK_BYTES_MAX = 32 << 10


class Sender:
    """One per client. Everything but `submit`, `relieve` and `register` runs on the I/O loop."""

    def __init__(self, config: Config, metadata: Metadata) -> None:
        self._metadata = metadata
        self._timeout_ms: int = config.request_timeout_ms
        self._retries: int = config.writer_retries
        self._acks = ACKS[config.writer_acks]
        self._idempotent: bool = config.writer_enable_idempotence
        self._in_flight_max: int = config.writer_max_inflight_requests_per_bucket if self._idempotent else 1
        self._request_size_bytes_max: int = config.writer_request_max_size
        self.memory = BufferMemory(config.writer_buffer_memory_size)
        self.closed = False
        self._ids = WriterIds(metadata, config.request_timeout_ms / 1000)
        self._writers: weakref.WeakSet[AppendWriterCore] = weakref.WeakSet()
        self._submitted: deque[AppendWriterCore] = deque()
        self._woken = False
        self._partitions = PartitionFinder(metadata, config)
        self._queues: dict[tuple[int, str | None, int], BucketQueue] = {}
        self._busy: set[BucketQueue] = set()  # queues with waiting batches
        self._tasks = KeyedTasks(on_end=self._pump)
        self._timer: asyncio.TimerHandle | None = None

    # ---- any thread ----

    def register(self, writer: AppendWriterCore) -> None:
        """A new writer; kept by weak reference."""
        self._writers.add(writer)

    def submit(self, writer: AppendWriterCore) -> None:
        """The writer has closed a chunk."""
        self._submitted.append(writer)
        if not self._woken:
            self._woken = True
            runtime.call_soon(self._wake)

    def relieve(self) -> None:
        """The buffer is full: send what writers are still gathering."""
        for writer in list(self._writers):
            writer.close_open()

    # ---- chunks ----

    def _wake(self) -> None:
        self._woken = False
        while self._submitted:
            self._prepare(self._submitted.popleft())
        self._pump()

    def _prepare(self, writer: AppendWriterCore) -> None:
        """Encode what is new; large chunks beside the loop."""
        for chunk in list(writer.preparing):
            if chunk.prepared or chunk in self._tasks:
                continue
            if self.closed:
                chunk.error, chunk.prepared = _closed(), True
            elif chunk.size_bytes <= INLINE_CHUNK_BYTES_MAX:
                writer.encoder.prepare(chunk, writer.route)
                chunk.prepared = True
            else:
                self._tasks.start(chunk, self._prepare_aside, writer, chunk)
        self._distribute(writer)

    async def _prepare_aside(self, writer: AppendWriterCore, chunk: Chunk) -> None:
        await runtime.in_worker(writer.encoder.prepare, chunk, writer.route)
        chunk.prepared = True
        self._distribute(writer)

    def _distribute(self, writer: AppendWriterCore) -> None:
        """Move encoded chunks into the queues of their buckets, in the order in which they were closed."""
        while writer.preparing and writer.preparing[0].prepared:
            chunk = writer.preparing.popleft()
            if self.closed and chunk.error is None:
                chunk.error = _closed()
            if chunk.error is not None:
                self._release(chunk, chunk.reserved_bytes)
                writer.finished(chunk, _named(chunk.error, chunk.row_count, "", writer.table_path))
                continue
            chunk.unfinished = len(chunk.batches)
            self._release(chunk, chunk.reserved_bytes - sum(batch.size_bytes for batch in chunk.batches))
            for batch in chunk.batches:
                queue = self._queue(writer.info, batch.partition, batch.bucket)
                queue.waiting.append(batch)
                self._busy.add(queue)

    def _queue(self, info: TableInfo, partition: str | None, bucket: int) -> BucketQueue:
        key = (info.table_id, partition, bucket)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = BucketQueue(info, bucket, partition)
        return queue

    def _release(self, chunk: Chunk, size_bytes: int) -> None:
        chunk.reserved_bytes -= size_bytes
        self.memory.release(size_bytes)

    def _finish(self, batch: WireBatch, error: FlussError | None) -> None:
        """A batch is stored or given up; its chunk is when all its batches are."""
        chunk = batch.chunk
        if error is not None and batch.partition not in chunk.failures:
            named = _named(error, batch.row_count, _place(batch), chunk.writer.table_path)
            chunk.failures[batch.partition] = named
            chunk.error = chunk.error or named
        self._release(chunk, batch.size_bytes)
        chunk.unfinished -= 1
        if chunk.unfinished == 0:
            chunk.writer.finished(chunk, chunk.error)

    # ---- sending ----

    def _pump(self) -> None:
        """Send everything that can be sent now, and come back when more can."""
        now = time.monotonic()
        for queue in list(self._busy):
            self._tidy(queue, now)
        while True:
            groups: dict[tuple[Connection, int], list[BucketQueue]] = {}
            for queue in self._busy:
                connection = self._connection_for(queue, now)
                if connection is not None:
                    groups.setdefault((connection, queue.info.table_id), []).append(queue)
            if not groups:
                break
            for (connection, _), queues in groups.items():
                self._send_group(connection, queues)
            self._busy = {queue for queue in self._busy if queue.waiting}
        self._set_timer(now)

    def _tidy(self, queue: BucketQueue, now: float) -> None:
        """Give up what is too late, and renew spent numbers once nothing is under way."""
        for batch in queue.expired(now):
            queue.failed(batch)
            self._finish(batch, TimeoutError("writer.delivery-timeout-ms has passed"))
        view = self._metadata.table(queue.info.table_path)
        if view is not None and view.info.table_id != queue.info.table_id:
            self._give_up(queue, NotFoundError("the table was dropped and made anew", ErrorCode.TABLE_NOT_EXIST))
        if queue.spent and not queue.in_flight:
            self._ids.give_up(queue.writer_id)
            for batch in queue.renumber():
                self._finish(
                    batch,
                    FlussError(
                        "the server has lost track of this writer, so it is not known whether they are stored",
                        ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION,
                    ),
                )
        if not queue.waiting:
            self._busy.discard(queue)

    def _connection_for(self, queue: BucketQueue, now: float) -> Connection | None:
        """The connection to send the queue's next batch on; None when it can't be sent now."""
        if queue.next_to_send(now, self._in_flight_max) is None:
            return None
        path = queue.info.table_path
        if self._idempotent and queue.writer_id is None and self._ids.current is None:
            self._tasks.start("writer id", self._renew_id, path)
            return None
        partition_id = None if queue.partition is None else self._metadata.partition_id(path, queue.partition)
        if partition_id is not None and not queue.belongs_to(partition_id):
            return None
        known = queue.partition is None or partition_id is not None
        leader = self._metadata.leader(path, partition_id, queue.bucket) if known else None
        if leader is None:
            self._look_for_leaders(queue)
            return None
        connection = self._metadata.ready(leader)
        if connection is None:
            self._tasks.start(leader, self._connect, leader, path)
        return connection

    def _send_group(self, connection: Connection, queues: list[BucketQueue]) -> None:
        """One batch of each queue, in as few requests as the size limit allows."""
        batches: list[tuple[BucketQueue, WireBatch]] = []
        size_bytes = 0
        for queue in queues:
            batch = queue.sent(self._ids.current if self._idempotent else None)
            if batches and size_bytes + batch.size_bytes > self._request_size_bytes_max:
                self._send(connection, batches)
                batches, size_bytes = [], 0
            batches.append((queue, batch))
            size_bytes += batch.size_bytes
        self._send(connection, batches)

    def _send(self, connection: Connection, batches: list[tuple[BucketQueue, WireBatch]]) -> None:
        remaining_s = min(batch.chunk.deadline for _, batch in batches) - time.monotonic()
        timeout_s = min(self._timeout_ms / 1000, max(remaining_s, 0.001))
        parts = request_parts(
            batches[0][0].info.table_id,
            self._acks,
            self._timeout_ms,
            ((queue.partition_id, batch.bucket, batch.header, batch.payload) for queue, batch in batches),
        )
        try:
            future = connection.send(api_keys.PRODUCE_LOG, parts, timeout_s)
        except FlussError as error:
            self._all_failed(batches, error, sent=False)
            return
        future.add_done_callback(lambda done: self._answered(connection, batches, done))

    def _answered(
        self, connection: Connection, batches: list[tuple[BucketQueue, WireBatch]], done: asyncio.Future[memoryview]
    ) -> None:
        if self.closed:
            return
        try:
            answer = parse(pb.ProduceLogResponse, done.result(), connection.address)
        except FlussError as error:
            if isinstance(error, TimeoutError):
                # Its bytes may still be on the way; a new connection keeps them behind what is sent again.
                connection.close()
            self._all_failed(batches, error, sent=True)
        else:
            results = {
                (item.partition_id if item.HasField("partition_id") else None, item.bucket_id): item
                for item in answer.buckets_resp
            }
            now = time.monotonic()
            for queue, batch in batches:
                item = results.get((queue.partition_id, batch.bucket))
                if item is None:
                    self._failed(queue, batch, FlussError("the server's answer leaves the bucket out"), now)
                elif item.error_code and item.error_code != DUPLICATE:
                    self._failed(queue, batch, server_error(item.error_code, item.error_message), now)
                else:
                    queue.stored(batch)
                    self._finish(batch, None)
        self._pump()

    # ---- failures ----

    def _all_failed(self, batches: list[tuple[BucketQueue, WireBatch]], error: FlussError, *, sent: bool) -> None:
        now = time.monotonic()
        for queue, batch in batches:
            self._failed(queue, batch, error, now, sent=sent)

    def _failed(
        self, queue: BucketQueue, batch: WireBatch, error: FlussError, now: float, *, sent: bool = True
    ) -> None:
        """Try again where that may help, give up otherwise."""
        code = error.error_code
        self._busy.add(queue)
        dropped = code == ErrorCode.PARTITION_NOT_EXISTS  # there may be a new one of that name
        if dropped or code in STALE_METADATA_CODES:
            self._look_for_leaders(queue)
        if code in LOST_SEQUENCE_CODES and batch.sequence >= 0:
            queue.out_of_order(batch, now)
        elif (error.is_retriable or dropped) and batch.attempts <= self._retries:
            queue.again(batch, now, in_doubt=sent and code not in REFUSAL_CODES)
        else:
            queue.failed(batch)
            self._finish(batch, error)

    def _give_up(self, queue: BucketQueue, error: FlussError) -> None:
        for batch in list(queue.waiting):
            queue.failed(batch)
            self._finish(batch, error)

    def _give_up_table(self, path: TablePath, error: FlussError, partition: str | None = None) -> None:
        """Fail what waits for a table, or for one partition of it."""
        for queue in list(self._busy):
            if queue.info.table_path == path and partition in (None, queue.partition):
                self._give_up(queue, error)
                if isinstance(error, NotFoundError) and not queue.in_flight:
                    self._queues.pop((queue.info.table_id, queue.partition, queue.bucket), None)

    # ---- background work ----

    async def _renew_id(self, path: TablePath) -> None:
        error = await self._tasks.attempt("writer id", self._ids.fetch(path))
        if error is None:
            return
        if isinstance(error, ConnectError):
            await self._find_leaders(path)
        elif not error.is_retriable:
            self._give_up_table(path, error)

    def _look_for_leaders(self, queue: BucketQueue) -> None:
        path = queue.info.table_path
        if queue.partition is None:
            self._tasks.start(path, self._find_leaders, path)
        else:
            self._tasks.start((path, queue.partition), self._find_partition, queue.info, queue.partition)

    async def _find_leaders(self, path: TablePath) -> None:
        error = await self._tasks.attempt(path, self._look(path))
        if error is not None and not error.is_retriable:
            self._give_up_table(path, error)

    async def _find_partition(self, info: TableInfo, partition: str) -> None:
        path = info.table_path
        error = await self._tasks.attempt((path, partition), self._look_for_partition(info, partition))
        if error is not None and not error.is_retriable:
            self._give_up_table(path, error, partition)

    async def _look(self, path: TablePath) -> None:
        await self._metadata.refresh(path)
        view = self._metadata.table(path)
        if view is not None and not view.info.is_partitioned() and view.without_leader():
            raise FlussError(f"Table {path} has no leader yet.", ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION)

    async def _look_for_partition(self, info: TableInfo, partition: str) -> None:
        partition_id = await self._partitions.find(info, partition)
        view = self._metadata.table(info.table_path)
        if view is not None and view.without_leader(partition_id):
            raise FlussError(
                f"Partition {partition!r} of table {info.table_path} has no leader yet.",
                ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
            )

    async def _connect(self, leader: ServerNode, path: TablePath) -> None:
        error = await self._tasks.attempt(leader, self._metadata.tablet(leader, self._timeout_ms / 1000))
        if error is not None:
            await self._find_leaders(path)

    def _set_timer(self, now: float) -> None:
        """Wake up for the next retry or the next batch that will be too late."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [queue.retry_at if queue.retry_at > now else queue.waiting[0].chunk.deadline for queue in self._busy]
        if times and not self.closed:
            delay_s = max(0.001, min(times) - now)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._pump)

    # ---- the end ----

    def unsent(self) -> list[tuple[str, int]]:
        """Tables and how many of their rows are not acknowledged."""
        rows: dict[str, int] = {}
        for writer in list(self._writers):
            if writer.pending_rows:
                rows[str(writer.table_path)] = rows.get(str(writer.table_path), 0) + writer.pending_rows
        return list(rows.items())

    async def drain_at_exit(self) -> None:
        """Send what there is and wait for it; failures are not raised here, unsent rows are counted by `unsent`."""
        for writer in list(self._writers):
            await writer.settle()

    def close(self) -> None:
        """Stop; rows not acknowledged fail."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.stop()
        for writer in list(self._writers):
            writer.close_open()
        for queue in self._queues.values():
            for batch in (*queue.in_flight, *queue.waiting):
                self._finish(batch, _closed())
            queue.in_flight.clear()
            queue.waiting.clear()
        for writer in list(self._writers):
            for chunk in writer.preparing:
                chunk.error, chunk.prepared = _closed(), True
            self._distribute(writer)


def _closed() -> FlussError:
    return FlussError("the connection was closed before they were acknowledged")


def _place(batch: WireBatch) -> str:
    return f"bucket {batch.bucket} of " + (f"partition {batch.partition!r} of " if batch.partition is not None else "")


def _named(error: FlussError, row_count: int, bucket: str, path: TablePath) -> FlussError:
    """The error with the rows it is about."""
    rows = "1 row" if row_count == 1 else f"{row_count} rows"
    named = type(error)(f"{rows} for {bucket}table {path} failed: {error.message}", error.error_code)
    named.__cause__ = error
    return named

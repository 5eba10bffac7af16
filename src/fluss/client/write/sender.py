"""The sender of all writers of a client: finds leaders; one request per leader and table carries many buckets."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from typing import Protocol, TypeAlias

from fluss.client import runtime
from fluss.client.cluster.metadata import Metadata
from fluss.client.cluster.retry import KeyedTasks, pause_s
from fluss.client.net.connection import STALE_METADATA_CODES, Connection, server_error
from fluss.client.net.own_loop import OwnLoopConnections, OwnLoopSends
from fluss.client.write.bucket_queue import BucketQueue, WriterIds
from fluss.client.write.encode_queue import BatchLimits, BufferMemory, EncodeQueue, QueuedWriter, summed_up
from fluss.client.write.routing import PartitionFinder
from fluss.client.write.row_buffer import RowBuffer, WireBatch
from fluss.doors import clock, threads
from fluss.model.config import Config
from fluss.model.errors import ConnectError, ErrorCode, FlussError, NotFoundError, TimeoutError
from fluss.model.infos import ServerNode, TableInfo
from fluss.model.paths import TablePath
from fluss.protocol.protobuf import parse_answer
from fluss.protocol.writes import (
    ACKS,
    BUCKET_OVERHEAD_BYTES,
    DUPLICATE,
    LOST_SEQUENCE_CODES,
    REFUSAL_CODES,
    WriteRequest,
    leaves_doubt,
    says_stored,
)


class GiveUp(Protocol):
    """Fails what waits for a table, or for one partition of it."""

    def __call__(self, path: TablePath, error: FlussError, partition: str | None = None) -> None: ...


class LeaderFinder:
    """Connections to the leaders of buckets, and writer ids. Runs on the I/O loop."""

    def __init__(self, config: Config, metadata: Metadata, tasks: KeyedTasks, give_up: GiveUp) -> None:
        self._timeout_s: float = config.request_timeout_ms / 1000
        self._idempotent: bool = config.writer_enable_idempotence
        self.ids = WriterIds(metadata, self._timeout_s)
        self._metadata = metadata
        self._tasks = tasks
        self._give_up = give_up
        self._partitions = PartitionFinder(metadata, config)

    def expect(self, info: TableInfo) -> None:
        """Rows are gathered: a writer id can be asked for meanwhile."""
        if self._idempotent and self.ids.current is None:
            self._tasks.start("writer id", self._renew_id, info.table_path)

    def connection(self, queue: BucketQueue) -> Connection | None:
        """The connection to send the queue's next batch on; None when that has to be found out first."""
        path = queue.info.table_path
        if self._lacks_id(queue):
            self._tasks.start("writer id", self._renew_id, path)
            return None
        partition_id = None if queue.partition is None else self._metadata.partition_id(path, queue.partition)
        if partition_id is not None and not queue.belongs_to(partition_id):
            return None
        if self._metadata.routing_problem(queue.info, partition_id) is not None:
            self.look_again(queue)  # which fails what waits, unless it is over by then
            return None
        known = queue.partition is None or partition_id is not None
        leader = self._metadata.leader(path, partition_id, queue.bucket) if known else None
        if leader is None:
            self.look_again(queue)
            return None
        connection = self._metadata.ready(leader)
        if connection is None:
            self._tasks.start(leader, self._connect, leader, path)
        return connection

    def known_leader(self, queue: BucketQueue) -> ServerNode | None:
        """The server to send the queue's next batch to, if nothing is to be found out first; from any thread."""
        path = queue.info.table_path
        view = self._metadata.table(path)
        if self._lacks_id(queue) or view is None or view.info.table_id != queue.info.table_id:
            return None
        partition_id = None if queue.partition is None else self._metadata.partition_id(path, queue.partition)
        if self._metadata.routing_problem(queue.info, partition_id) is not None:
            return None
        return self._metadata.leader(path, partition_id, queue.bucket) if partition_id == queue.partition_id else None

    def _lacks_id(self, queue: BucketQueue) -> bool:
        return self._idempotent and queue.writer_id is None and self.ids.current is None

    def look_again(self, queue: BucketQueue) -> None:
        """The leader may be another one now."""
        path = queue.info.table_path
        if queue.partition is None:
            self._tasks.start(path, self._find_leaders, path)
        else:
            self._tasks.start((path, queue.partition), self._find_partition, queue.info, queue.partition)

    async def _renew_id(self, path: TablePath) -> None:
        error = await self._tasks.attempt("writer id", self.ids.fetch(path))
        if error is None:
            return
        if isinstance(error, ConnectError):
            await self._find_leaders(path)
        elif not error.is_retriable:
            self._give_up(path, error)

    async def _find_leaders(self, path: TablePath) -> None:
        error = await self._tasks.attempt(path, self._look(path))
        if error is not None and not error.is_retriable:
            self._give_up(path, error)

    async def _find_partition(self, info: TableInfo, partition: str) -> None:
        path = info.table_path
        error = await self._tasks.attempt((path, partition), self._look_for_partition(info, partition))
        if error is not None and not error.is_retriable:
            self._give_up(path, error, partition)

    async def _look(self, path: TablePath) -> None:
        await self._metadata.refresh(path)
        view = self._metadata.table(path)
        if view is not None and not view.info.is_partitioned() and view.without_leader():
            raise FlussError(f"Table {path} has no leader yet.", ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION)

    async def _look_for_partition(self, info: TableInfo, partition: str) -> None:
        partition_id = await self._partitions.find(info, partition)
        problem = self._metadata.routing_problem(info, partition_id)
        if problem is not None:
            raise problem
        view = self._metadata.table(info.table_path)
        if view is not None and view.without_leader(partition_id):
            raise FlussError(
                f"Partition {partition!r} of table {info.table_path} has no leader yet.",
                ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
            )

    async def _connect(self, leader: ServerNode, path: TablePath) -> None:
        error = await self._tasks.attempt(leader, self._metadata.tablet(leader, self._timeout_s))
        if error is not None:
            await self._find_leaders(path)


Sent: TypeAlias = list[tuple[BucketQueue, WireBatch]]
Failure: TypeAlias = tuple[BucketQueue, WireBatch, FlussError]


class Sender:
    """One per client. Runs on the I/O loop, and where it says so on loops of callers; all state is under its lock."""

    def __init__(self, config: Config, metadata: Metadata, own_loops: OwnLoopConnections) -> None:
        self._metadata = metadata
        self._timeout_ms: int = config.request_timeout_ms
        self._retries: int = config.writer_retries
        self._pause_s = partial(
            pause_s, first_ms=config.writer_retry_backoff_ms, max_ms=config.writer_retry_max_backoff_ms
        )
        self._acks = ACKS[config.writer_acks]
        idempotent: bool = config.writer_enable_idempotence
        self._in_flight_max: int = config.writer_max_inflight_requests_per_bucket if idempotent else 1
        self._idempotent = idempotent
        self._request_size_bytes_max = BatchLimits.of(config).request_size_bytes_max
        self._own_loops = own_loops
        self._lock = threads.rlock()
        self._queues: dict[tuple[int, str | None, int], BucketQueue] = {}
        self._busy: dict[BucketQueue, None] = {}  # queues with waiting batches
        self._tasks = KeyedTasks(on_end=self._pump)
        self._leaders = LeaderFinder(config, metadata, self._tasks, self._give_up_table)
        memory = BufferMemory(config.writer_buffer_memory_size)
        self.encode_queue = EncodeQueue(
            memory, self._tasks, self._enqueue, self._pump, self._leaders.expect, self._lock
        )
        self._own_loop_sends = OwnLoopSends(self._lock, self._is_answered, self._send_again, self._pump)
        self._timer: asyncio.TimerHandle | None = None
        metadata.on_gone = self._forget

    def _enqueue(self, info: TableInfo, batch: WireBatch) -> None:
        """All writers of a client to a bucket share its queue and its sequence."""
        key = (info.table_id, batch.partition, batch.bucket)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = BucketQueue(info, batch.bucket, batch.partition, self._pause_s)
        queue.waiting.append(batch)
        self._busy[queue] = None

    # ---- a caller's event loop ----

    def send_here(self, writer: QueuedWriter) -> None:
        """A writer has closed a row buffer: send it on the running loop, whose owner will wait for the answer there.

        That takes no change of threads, of which there would be two. What is not small and alone goes the usual way.
        """
        if not self._idempotent or runtime.on_io_thread():
            self.encode_queue.submit(writer)
            return
        with self._lock:
            is_sent = False
            try:
                buffer = self.encode_queue.prepare_here(writer)
                is_sent = buffer is not None and self._try_here(writer.info, buffer)
            finally:  # an interrupt may come at any point
                if not is_sent:
                    self.encode_queue.submit(writer)

    def _try_here(self, info: TableInfo, buffer: RowBuffer) -> bool:
        if len(buffer.batches) != 1:
            return False
        batch = buffer.batches[0]
        queue = self._queues[info.table_id, batch.partition, batch.bucket]
        leader = self._leaders.known_leader(queue)
        if leader is None:
            return False
        connection = self._own_loops.to_leader(leader)
        if connection is None:
            return False
        now = clock.monotonic()
        if not queue.may_use(connection) or queue.next_to_send(now, self._in_flight_max) is not batch:
            return False
        self._own_loop_sends.sent(queue, connection, now)
        self._send_group(connection, batch.request, [queue])
        self._busy.pop(queue, None)
        return True

    def _is_answered(self, queue: BucketQueue, connection: Connection) -> bool:
        return not queue.in_flight or queue.connection is not connection

    def _send_again(self, queue: BucketQueue, connection: Connection) -> None:
        """What a loop has sent and heard no answer of; its number makes it be stored once."""
        for batch in list(queue.in_flight):
            batch.taken_from = connection
            queue.again(batch, clock.monotonic(), in_doubt=True)
        self._busy[queue] = None

    # ---- sending ----

    def _pump(self) -> None:
        """Send everything that can be sent now, and come back when more can."""
        now = clock.monotonic()
        with self._lock:
            if self.encode_queue.closed is not None:
                return
            for queue in list(self._busy):
                self._tidy(queue, now)
            while groups := self._ready_groups(now):
                for (connection, _, request), queues in groups.items():
                    self._send_group(connection, request, queues)
                self._busy = {queue: None for queue in self._busy if queue.waiting}
            self._set_timer(now)

    def _ready_groups(self, now: float) -> dict[tuple[Connection, int, WriteRequest], list[BucketQueue]]:
        """The queues with a batch that can be sent now, by what may share a request."""
        groups: dict[tuple[Connection, int, WriteRequest], list[BucketQueue]] = {}
        for queue in self._busy:
            batch = queue.next_to_send(now, self._in_flight_max)
            connection = None if batch is None else self._leaders.connection(queue)
            if batch is not None and connection is not None and queue.may_use(connection):
                groups.setdefault((connection, queue.info.table_id, batch.request), []).append(queue)
        return groups

    def _tidy(self, queue: BucketQueue, now: float) -> None:
        """Give up what is too late, and renew spent numbers once nothing is under way."""
        for batch in queue.expired(now):
            queue.failed(batch)
            self._give_up_batch(batch, TimeoutError("writer.delivery-timeout-ms has passed"))
        view = self._metadata.table(queue.info.table_path)
        if view is not None and view.info.table_id != queue.info.table_id:
            self._give_up(queue, NotFoundError("the table was dropped and made anew", ErrorCode.TABLE_NOT_EXIST))
            self._forget_queue(queue)
        if queue.spent and not queue.in_flight:
            self._leaders.ids.give_up(queue.writer_id)
            for batch in queue.renumber():
                lost = "the server has lost track of this writer"
                self._give_up_batch(batch, FlussError(lost, ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION))
        if not queue.waiting:
            self._busy.pop(queue, None)

    def _send_group(self, connection: Connection, request: WriteRequest, queues: list[BucketQueue]) -> None:
        """One batch of each queue, in as few requests as the size limit allows."""
        batches: Sent = []
        size_bytes = 0
        for queue in queues:
            queue.connection = connection
            batch = queue.sent(self._leaders.ids.current)
            added_bytes = batch.size_bytes + BUCKET_OVERHEAD_BYTES
            if batches and size_bytes + added_bytes > self._request_size_bytes_max:
                self._send(connection, request, batches)
                batches, size_bytes = [], 0
            batches.append((queue, batch))
            size_bytes += added_bytes
        self._send(connection, request, batches)

    def _send(self, connection: Connection, request: WriteRequest, batches: Sent) -> None:
        remaining_s = min(batch.buffer.deadline for _, batch in batches) - clock.monotonic()
        timeout_s = min(self._timeout_ms / 1000, max(remaining_s, 0.001))
        parts = request.parts(
            batches[0][0].info.table_id,
            self._acks,
            self._timeout_ms,
            ((queue.partition_id, batch.bucket, batch.header, batch.payload) for queue, batch in batches),
        )
        try:
            connection.submit(request.api, parts, timeout_s, partial(self._replied, connection, request, batches))
        except FlussError as error:
            failures = [(queue, batch, error) for queue, batch in batches]
            runtime.call_soon(partial(self._deal_with, connection, failures, sent=False))

    def _replied(
        self, connection: Connection, request: WriteRequest, batches: Sent, reply: memoryview | FlussError
    ) -> None:
        """Take an answer, on the connection's loop. What is stored is finished here, all else on the I/O loop."""
        if isinstance(reply, FlussError):
            # It may be one of many of a connection, and is dealt with after the others.
            failures = [(queue, batch, reply) for queue, batch in batches]
            runtime.call_soon(self._deal_with, connection, failures)
            if isinstance(reply, TimeoutError):
                # Its bytes may still be on the way; a new connection keeps them behind what is sent again.
                connection.cut()
                connection.close()
            return
        with self._lock:
            if self.encode_queue.closed is not None:
                return
            failures = self._settle(connection, request, batches, reply)
            if runtime.on_io_thread():
                self._deal_with(connection, failures)
            elif failures or self._busy:
                runtime.call_soon(self._deal_with, connection, failures)

    def _settle(self, connection: Connection, request: WriteRequest, batches: Sent, reply: memoryview) -> list[Failure]:
        """End the batches that an answer says are stored; returns the others."""
        if len(batches) == 1 and says_stored(reply, batches[0][0].partition_id, batches[0][1].bucket):
            self._stored(connection, *batches[0])
            return []
        try:
            answer = parse_answer(request.api.response, reply, connection.address)
        except FlussError as error:
            return [(queue, batch, error) for queue, batch in batches]
        results = {
            (item.partition_id if item.HasField("partition_id") else None, item.bucket_id): item
            for item in answer.buckets_resp
        }
        failures: list[Failure] = []
        for queue, batch in batches:
            item = results.get((queue.partition_id, batch.bucket))
            if item is None:
                failures.append((queue, batch, FlussError("the server's answer leaves the bucket out")))
            elif item.error_code and item.error_code != DUPLICATE:
                failures.append((queue, batch, server_error(item.error_code, item.error_message)))
            else:
                self._stored(connection, queue, batch)
        return failures

    def _stored(self, connection: Connection, queue: BucketQueue, batch: WireBatch) -> None:
        if queue.awaits(batch, connection):
            queue.stored(batch)
            self.encode_queue.finish(batch, None)

    # ---- failures ----

    def _deal_with(self, connection: Connection, failures: list[Failure], *, sent: bool = True) -> None:
        """Batches that a connection did not bring to be stored. On the I/O loop."""
        with self._lock:
            if self.encode_queue.closed is not None:
                return
            now = clock.monotonic()
            for queue, batch, error in failures:
                if queue.awaits(batch, connection):
                    self._failed(queue, batch, error, now, sent=sent)
            self._pump()

    def _failed(
        self, queue: BucketQueue, batch: WireBatch, error: FlussError, now: float, *, sent: bool = True
    ) -> None:
        """Try again where that may help, give up otherwise."""
        code = error.error_code
        self._busy[queue] = None
        dropped = code == ErrorCode.PARTITION_NOT_EXISTS  # there may be a new one of that name
        # Rows are not placed anew after the last of these: who writes them again finds the bucket count.
        if dropped or code in STALE_METADATA_CODES or code == ErrorCode.INVALID_BUCKET_ROUTING:
            self._leaders.look_again(queue)
        if code in LOST_SEQUENCE_CODES and batch.sequence >= 0:
            queue.out_of_order(batch, now)
        elif (error.is_retriable or dropped) and batch.attempts <= self._retries:
            queue.again(batch, now, in_doubt=sent and code not in REFUSAL_CODES)
        else:
            queue.failed(batch)
            batch.in_doubt = batch.in_doubt or (sent and leaves_doubt(error))
            self._give_up_batch(batch, error)

    def _give_up(self, queue: BucketQueue, error: FlussError) -> None:
        for batch in list(queue.waiting):
            queue.failed(batch)
            self._give_up_batch(batch, error)

    def _give_up_batch(self, batch: WireBatch, error: FlussError) -> None:
        """Report a failure. Nothing of the batch may be sent from then on, not by a loop that stood still either."""
        if batch.taken_from is not None:
            batch.taken_from.cut()
        self.encode_queue.finish(batch, error)

    def _give_up_table(self, path: TablePath, error: FlussError, partition: str | None = None) -> None:
        """Fail what waits for a table, or for one partition of it."""
        with self._lock:
            for queue in list(self._queues.values()):
                if queue.info.table_path == path and partition in (None, queue.partition):
                    self._give_up(queue, error)
                    if isinstance(error, NotFoundError):
                        self._forget_queue(queue)

    def _forget(self, path: TablePath, partitions: Collection[str]) -> None:
        """A table is gone, or all its partitions but these."""
        with self._lock:
            for queue in list(self._queues.values()):
                if queue.info.table_path == path and queue.partition not in partitions:
                    self._forget_queue(queue)

    def _forget_queue(self, queue: BucketQueue) -> None:
        """Unless there is something in it; that will fail, which comes here again.

        A server that lags may have called something gone that is not. So the id is not used for a new queue: its
        numbers would begin anew, and be taken for those of batches that are stored.
        """
        if queue.waiting or queue.in_flight:
            return
        if self._queues.pop((queue.info.table_id, queue.partition, queue.bucket), None) is not None:
            self._leaders.ids.give_up(queue.writer_id)

    def _set_timer(self, now: float) -> None:
        """Wake up for the next retry or the next batch that will be too late."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [queue.retry_at if queue.retry_at > now else queue.waiting[0].buffer.deadline for queue in self._busy]
        if times and self.encode_queue.closed is None:
            delay_s = max(0.001, min(times) - now)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._pump)

    # ---- the end ----

    def unsent(self) -> list[tuple[str, int]]:
        """Tables and how many of their rows are not acknowledged."""
        rows: dict[str, int] = {}
        for writer in self.encode_queue.writers:
            if writer.pending_rows:
                rows[str(writer.table_path)] = rows.get(str(writer.table_path), 0) + writer.pending_rows
        return list(rows.items())

    def take_failure(self) -> FlussError | None:
        """The first failure that nobody was told of, for somebody who tells; the others are its notes."""
        failures = [failure for writer in list(self.encode_queue.failed) for failure in writer.take_failures()]
        return summed_up(failures) if failures else None

    def refuse_rows(self) -> None:
        """Take no more rows."""
        self.encode_queue.refuses = True
        for writer in self.encode_queue.writers:
            writer.close_open()

    async def drain(self) -> None:
        """Send what there is and wait for it; failures are not raised here, unsent rows are counted by `unsent`."""
        with self._lock:
            self._own_loop_sends.take_back(clock.monotonic())
        for writer in self.encode_queue.writers:
            await writer.settle()

    def close(self, reason: FlussError) -> None:
        """Stop: from now on nothing is sent, and rows not acknowledged fail for this reason."""
        with self._lock:
            self.refuse_rows()
            self.encode_queue.closed = reason
            if self._timer is not None:
                self._timer.cancel()
            self._tasks.stop()
            self._own_loop_sends.stop()
            for queue in self._queues.values():
                self._close_queue(queue, reason)
            self.encode_queue.close(reason)

    def _close_queue(self, queue: BucketQueue, reason: FlussError) -> None:
        for batch in queue.in_flight:
            batch.in_doubt = True
            if queue.connection is not None:
                queue.connection.cut()
        batches = [*queue.in_flight, *queue.waiting]
        queue.in_flight.clear()
        queue.waiting.clear()
        for batch in batches:
            self._give_up_batch(batch, reason)

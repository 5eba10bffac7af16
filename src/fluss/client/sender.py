"""Sends the batches of all writers of a client: one request per leader and table carries many buckets."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TypeAlias

from fluss.client.answers import STALE_METADATA_CODES, parse, server_error
from fluss.client.bucket_queue import BucketQueue
from fluss.client.chunk import WireBatch
from fluss.client.connection import Connection
from fluss.client.destinations import Destinations
from fluss.client.encoder import BatchLimits
from fluss.client.intake import Intake, closed
from fluss.client.memory import BufferMemory
from fluss.client.metadata import Metadata
from fluss.client.tasks import KeyedTasks
from fluss.client.write_request import (
    ACKS,
    BUCKET_OVERHEAD_BYTES,
    DUPLICATE,
    LOST_SEQUENCE_CODES,
    REFUSAL_CODES,
    WriteRequest,
)
from fluss.model.config import Config
from fluss.model.errors import ErrorCode, FlussError, NotFoundError, TimeoutError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath

Sent: TypeAlias = list[tuple[BucketQueue, WireBatch]]


class Sender:
    """One per client. Runs on the I/O loop."""

    def __init__(self, config: Config, metadata: Metadata) -> None:
        self._metadata = metadata
        self._timeout_ms: int = config.request_timeout_ms
        self._retries: int = config.writer_retries
        self._acks = ACKS[config.writer_acks]
        idempotent: bool = config.writer_enable_idempotence
        self._in_flight_max: int = config.writer_max_inflight_requests_per_bucket if idempotent else 1
        self._request_size_bytes_max = BatchLimits.of(config).request_size_bytes_max
        self._queues: dict[tuple[int, str | None, int], BucketQueue] = {}
        self._busy: set[BucketQueue] = set()  # queues with waiting batches
        self._tasks = KeyedTasks(on_end=self._pump)
        self._destinations = Destinations(config, metadata, self._tasks, self._give_up_table)
        memory = BufferMemory(config.writer_buffer_memory_size)
        self.intake = Intake(memory, self._tasks, self._enqueue, self._pump, self._destinations.expect)
        self._timer: asyncio.TimerHandle | None = None

    def _enqueue(self, info: TableInfo, batch: WireBatch) -> None:
        """All writers of a client to a bucket share its queue and its sequence."""
        key = (info.table_id, batch.partition, batch.bucket)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = BucketQueue(info, batch.bucket, batch.partition)
        queue.waiting.append(batch)
        self._busy.add(queue)

    # ---- sending ----

    def _pump(self) -> None:
        """Send everything that can be sent now, and come back when more can."""
        now = time.monotonic()
        for queue in list(self._busy):
            self._tidy(queue, now)
        while True:
            groups: dict[tuple[Connection, int, WriteRequest], list[BucketQueue]] = {}
            for queue in self._busy:
                batch = queue.next_to_send(now, self._in_flight_max)
                connection = None if batch is None else self._destinations.connection(queue)
                if batch is not None and connection is not None:
                    groups.setdefault((connection, queue.info.table_id, batch.request), []).append(queue)
            if not groups:
                break
            for (connection, _, request), queues in groups.items():
                self._send_group(connection, request, queues)
            self._busy = {queue for queue in self._busy if queue.waiting}
        self._set_timer(now)

    def _tidy(self, queue: BucketQueue, now: float) -> None:
        """Give up what is too late, and renew spent numbers once nothing is under way."""
        for batch in queue.expired(now):
            queue.failed(batch)
            self.intake.finish(batch, TimeoutError("writer.delivery-timeout-ms has passed"))
        view = self._metadata.table(queue.info.table_path)
        if view is not None and view.info.table_id != queue.info.table_id:
            self._give_up(queue, NotFoundError("the table was dropped and made anew", ErrorCode.TABLE_NOT_EXIST))
        if queue.spent and not queue.in_flight:
            self._destinations.ids.give_up(queue.writer_id)
            for batch in queue.renumber():
                self.intake.finish(
                    batch,
                    FlussError(
                        "the server has lost track of this writer, so it is not known whether they are stored",
                        ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION,
                    ),
                )
        if not queue.waiting:
            self._busy.discard(queue)

    def _send_group(self, connection: Connection, request: WriteRequest, queues: list[BucketQueue]) -> None:
        """One batch of each queue, in as few requests as the size limit allows."""
        batches: Sent = []
        size_bytes = 0
        for queue in queues:
            batch = queue.sent(self._destinations.ids.current)
            added_bytes = batch.size_bytes + BUCKET_OVERHEAD_BYTES
            if batches and size_bytes + added_bytes > self._request_size_bytes_max:
                self._send(connection, request, batches)
                batches, size_bytes = [], 0
            batches.append((queue, batch))
            size_bytes += added_bytes
        self._send(connection, request, batches)

    def _send(self, connection: Connection, request: WriteRequest, batches: Sent) -> None:
        remaining_s = min(batch.chunk.deadline for _, batch in batches) - time.monotonic()
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
            self._all_failed(batches, error, sent=False)

    def _replied(
        self, connection: Connection, request: WriteRequest, batches: Sent, reply: memoryview | FlussError
    ) -> None:
        """An answer is dealt with at once; a failure, which may be one of many of a connection, after the others."""
        if isinstance(reply, FlussError):
            asyncio.get_running_loop().call_soon(self._answered, connection, request, batches, reply)
        else:
            self._answered(connection, request, batches, reply)

    def _answered(
        self, connection: Connection, request: WriteRequest, batches: Sent, reply: memoryview | FlussError
    ) -> None:
        if self.intake.closed:
            return
        try:
            if isinstance(reply, FlussError):
                raise reply
            answer = parse(request.api.response, reply, connection.address)
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
                    self.intake.finish(batch, None)
        self._pump()

    # ---- failures ----

    def _all_failed(self, batches: Sent, error: FlussError, *, sent: bool) -> None:
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
            self._destinations.look_again(queue)
        if code in LOST_SEQUENCE_CODES and batch.sequence >= 0:
            queue.out_of_order(batch, now)
        elif (error.is_retriable or dropped) and batch.attempts <= self._retries:
            queue.again(batch, now, in_doubt=sent and code not in REFUSAL_CODES)
        else:
            queue.failed(batch)
            self.intake.finish(batch, error)

    def _give_up(self, queue: BucketQueue, error: FlussError) -> None:
        for batch in list(queue.waiting):
            queue.failed(batch)
            self.intake.finish(batch, error)

    def _give_up_table(self, path: TablePath, error: FlussError, partition: str | None = None) -> None:
        """Fail what waits for a table, or for one partition of it."""
        for queue in list(self._busy):
            if queue.info.table_path == path and partition in (None, queue.partition):
                self._give_up(queue, error)
                if isinstance(error, NotFoundError) and not queue.in_flight:
                    self._queues.pop((queue.info.table_id, queue.partition, queue.bucket), None)

    def _set_timer(self, now: float) -> None:
        """Wake up for the next retry or the next batch that will be too late."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [queue.retry_at if queue.retry_at > now else queue.waiting[0].chunk.deadline for queue in self._busy]
        if times and not self.intake.closed:
            delay_s = max(0.001, min(times) - now)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._pump)

    # ---- the end ----

    def unsent(self) -> list[tuple[str, int]]:
        """Tables and how many of their rows are not acknowledged."""
        rows: dict[str, int] = {}
        for writer in list(self.intake.writers):
            if writer.pending_rows:
                rows[str(writer.table_path)] = rows.get(str(writer.table_path), 0) + writer.pending_rows
        return list(rows.items())

    async def drain_at_exit(self) -> None:
        """Send what there is and wait for it; failures are not raised here, unsent rows are counted by `unsent`."""
        for writer in list(self.intake.writers):
            await writer.settle()

    def close(self) -> None:
        """Stop; rows not acknowledged fail."""
        self.intake.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.stop()
        for writer in list(self.intake.writers):
            writer.close_open()
        for queue in self._queues.values():
            for batch in (*queue.in_flight, *queue.waiting):
                self.intake.finish(batch, closed())
            queue.in_flight.clear()
            queue.waiting.clear()
        self.intake.close()

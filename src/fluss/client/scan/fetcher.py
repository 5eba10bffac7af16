"""One fetch: all buckets of a leader in one request, its answer cut into batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from fluss.client import runtime
from fluss.client.cluster.cluster import CLIENT_FOLLOWER_ID, Cluster, list_offsets
from fluss.client.net.connection import server_error
from fluss.client.scan.batches import BatchReader, Cursor, FetchedBatch, RawBatch, ScanStep
from fluss.client.scan.filter import ScanFilter
from fluss.doors import clock
from fluss.formats.batches.log_batch import walk
from fluss.model.config import Config
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError, InvalidRequestError
from fluss.model.infos import ServerNode, TableInfo
from fluss.model.offsets import EARLIEST_OFFSET, OffsetSpec
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.fetches import BucketAnswer, parse_fetch_response

# Decoding this much takes less time than handing it to a worker and back.
INLINE_DECODE_BYTES_MAX = 32 << 10

# What a bucket's share of an answer may grow to where few are asked for: each request has its price, and what exceeds
# the processor's caches has another.
BUCKET_BYTES_MAX = 4 << 20

# How long a server may wait for rows at least before it answers.
WAIT_MS_MIN = 10


class FetchRequest(NamedTuple):
    """A request for batches, and how it was made."""

    parts: tuple[bytes]
    projected: bool
    """Whether the server is to leave columns out."""
    wait_ms: int
    at: float


class Fetch(NamedTuple):
    """A request under way."""

    request: FetchRequest
    answer: asyncio.Future[memoryview]


class FetchWait:
    """How long a server may wait for rows before it answers: what is configured, or less where rows would come late.

    Apache Fluss does not wake a fetch that waits: rows that come meanwhile are in its answer when the wait is over.
    So rows in an answer that took all of its wait make the next waits short, and every empty answer doubles them: a
    reader is about as late as rows are rare, and an idle one asks no more often than before. A server that answers as
    soon as it has something never makes them short. What a user has set stays as it is.
    """

    __slots__ = ("_is_fixed", "_max_ms", "ms")

    def __init__(self, config: Config) -> None:
        self._max_ms: int = config.scanner_log_fetch_wait_max_time_ms
        # Who wants more bytes than one row has, wants to wait for them.
        is_patient = config.scanner_log_fetch_min_bytes > 1
        self._is_fixed = is_patient or Config.scanner_log_fetch_wait_max_time_ms.key in config.to_dict()
        self.ms = self._max_ms
        """For the next fetch."""

    def learn(self, asked_ms: int, took_s: float, *, has_rows: bool) -> None:
        """An answer came so long after a request that allowed a wait of `asked_ms`."""
        if self._is_fixed:
            return
        if not has_rows:
            self.ms = min(2 * self.ms, self._max_ms)
        elif took_s * 1000 >= asked_ms:
            self.ms = min(WAIT_MS_MIN, self._max_ms)


class Fetcher:
    """Asks, and keeps cursors up to date. Runs on the I/O loop."""

    def __init__(
        self, cluster: Cluster, info: TableInfo, reader: BatchReader, scan_filter: ScanFilter | None = None
    ) -> None:
        self._cluster = cluster
        self._info = info
        self._reader = reader
        self._filter = scan_filter
        self._pushes_projection = reader.pushed_fields is not None
        self._turn = 0
        self._bucket_bytes: int = cluster.config.scanner_log_fetch_max_bytes_for_bucket
        self._bucket_bytes_given = Config.scanner_log_fetch_max_bytes_for_bucket.key in cluster.config.to_dict()
        self._max_bytes: int = cluster.config.scanner_log_fetch_max_bytes
        self._wait = FetchWait(cluster.config)
        self.timeout_s = cluster.request_timeout_s + self._wait.ms / 1000

    async def send(self, node: ServerNode, cursors: list[Cursor], min_bytes: int) -> Fetch:
        """Send a request for the cursors' offsets; the future has the answer's body."""
        connection = await self._cluster.metadata.tablet(node, self._cluster.request_timeout_s)
        request = self.request(cursors, min_bytes)
        return Fetch(request, connection.send(api_keys.FETCH_LOG, request.parts, self.timeout_s))

    def request(self, cursors: list[Cursor], min_bytes: int) -> FetchRequest:
        """A request for the cursors' offsets; on any loop."""
        wait_ms = self._wait.ms
        request = pb.FetchLogRequest(
            follower_server_id=CLIENT_FOLLOWER_ID,
            max_bytes=self._max_bytes,
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
        )
        projected = self._pushes_projection
        table = request.tables_req.add(table_id=self._info.table_id, projection_pushdown_enabled=projected)
        if projected:
            table.projected_fields.extend(self._reader.pushed_fields or ())
        if self._filter is not None and self._filter.message is not None and self._reader.is_arrow:
            table.filter_predicate.CopyFrom(self._filter.message)
            table.filter_schema_id = self._info.schema_id
        # The first bucket always gets a whole batch; the turn gives every bucket that chance.
        self._turn += 1
        first = self._turn % len(cursors)
        bucket_bytes = self._bucket_bytes_max(len(cursors))
        for cursor in cursors[first:] + cursors[:first]:
            table.buckets_req.add(
                partition_id=cursor.bucket.partition_id,
                bucket_id=cursor.bucket.bucket,
                fetch_offset=cursor.fetch_offset,
                max_fetch_bytes=bucket_bytes,
            )
        return FetchRequest((request.SerializeToString(),), projected, wait_ms, clock.monotonic())

    def _bucket_bytes_max(self, bucket_count: int) -> int:
        if self._bucket_bytes_given:
            return self._bucket_bytes
        return max(self._bucket_bytes, min(self._max_bytes // bucket_count, BUCKET_BYTES_MAX))

    def receive_small(
        self, body: memoryview, request: FetchRequest, sender: object, cursors: list[Cursor]
    ) -> list[ScanStep] | None:
        """What an answer has, decoded at once; None, and cursors are where they were, if there is more to do."""
        if len(body) > INLINE_DECODE_BYTES_MAX:
            return None
        before = [cursor.fetch_offset for cursor in cursors]
        try:
            decoded = self.decode_small(self.receive(body, request, sender, cursors))
        except Exception:  # it comes again on the I/O loop, which tells it
            decoded = None
        if decoded is None or any(not cursor.wanted or cursor.trouble is not None for cursor in cursors):
            for cursor, fetch_offset in zip(cursors, before, strict=True):
                cursor.fetch_offset, cursor.remote, cursor.error = fetch_offset, None, None
            return None
        return decoded

    def receive(
        self, body: memoryview, request: FetchRequest, sender: object, cursors: list[Cursor]
    ) -> list[RawBatch | ScanStep]:
        """Batches of an answer, cursors moved behind them."""
        by_key = {cursor.key: cursor for cursor in cursors}
        items: list[RawBatch | ScanStep] = []
        for answer in parse_fetch_response(body, sender):
            partition_id = answer.item.partition_id if answer.item.HasField("partition_id") else None
            cursor = by_key.get((partition_id, answer.item.bucket_id))
            if cursor is None or answer.table_id != self._info.table_id:
                continue
            if answer.item.error_code:
                self._failed(cursor, answer, request.projected)
            elif answer.item.HasField("remote_log_fetch_info"):
                cursor.remote = answer.item.remote_log_fetch_info
            else:
                cursor.trouble = None
                try:
                    self._walk(cursor, answer, request.projected, items)
                except FlussError as error:
                    cursor.error = self.named(cursor, error)
        self._wait.learn(request.wait_ms, clock.monotonic() - request.at, has_rows=bool(items))
        return items

    def _walk(self, cursor: Cursor, answer: BucketAnswer, projected: bool, items: list[RawBatch | ScanStep]) -> None:
        for position, header in walk(answer.records):
            if header.next_offset <= cursor.fetch_offset or cursor.fetched:
                continue
            items.append(RawBatch(cursor, answer.records, position, header, projected))
            cursor.fetch_offset = header.next_offset
        end = cursor.fetch_offset
        if answer.item.HasField("filtered_end_offset"):
            end = answer.item.filtered_end_offset
        elif not answer.records and end == EARLIEST_OFFSET and cursor.stop_offset is not None:
            end = cursor.stop_offset  # a bounded read of a log that holds nothing any more
        if end > cursor.fetch_offset:
            items.append(ScanStep(cursor, end))
            cursor.fetch_offset = end

    def _failed(self, cursor: Cursor, answer: BucketAnswer, projected: bool) -> None:
        error = server_error(answer.item.error_code, answer.item.error_message)
        if error.error_code == ErrorCode.INVALID_COLUMN_PROJECTION and projected:
            # Apache Fluss can't project a column that the schema of an older batch lacks: read on without its help.
            self._pushes_projection = False
            return
        # A batch that is corrupt on the server's disk stays so, whatever the code means for writers. An unknown error
        # may pass: Apache Fluss answers so while it moves a segment to remote storage under a reader.
        passing = error.is_retriable or error.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        if passing and not isinstance(error, CorruptDataError):
            cursor.in_trouble(self.named(cursor, error), clock.monotonic())
        else:
            cursor.error = self.named(cursor, error)

    def named(self, cursor: Cursor, error: FlussError) -> FlussError:
        """The error, with the place that could not be read."""
        place = f"bucket {cursor.bucket.bucket} of table {self._info.table_path} at offset {cursor.fetch_offset}"
        return type(error)(f"Can't read {place}: {error.message}", error.error_code)

    def decode_small(self, items: Sequence[RawBatch | ScanStep]) -> list[ScanStep] | None:
        """Decode at once if that does not take long; a cursor whose batch is bad gets the error."""
        batches = [item for item in items if isinstance(item, RawBatch)]
        size_bytes = sum([batch.header.size_bytes for batch in batches])
        if size_bytes > INLINE_DECODE_BYTES_MAX or self._reader.unknown(batches):
            return None
        return self._steps(items, self._reader.decode(batches))

    async def decode(self, items: Sequence[RawBatch | ScanStep]) -> list[ScanStep]:
        """Decode, beside the loop when there is much; a cursor whose batch is bad gets the error."""
        batches = [item for item in items if isinstance(item, RawBatch)]
        try:
            await self._reader.learn(batches)
        except FlussError as error:
            for batch in batches:
                batch.cursor.error = batch.cursor.error or self.named(batch.cursor, error)
            return []
        small = self.decode_small(items)
        return self._steps(items, await self._decode_beside(batches)) if small is None else small

    def _steps(
        self, items: Sequence[RawBatch | ScanStep], results: list[FetchedBatch | FlussError | None]
    ) -> list[ScanStep]:
        """Steps over what could be decoded, up to the first bad batch of each cursor."""
        decoded = iter(results)
        steps: list[ScanStep] = []
        for item in items:
            step = item if isinstance(item, ScanStep) else _step(item, next(decoded))
            if step is not None and step.cursor.error is None:
                steps.append(step)
        return steps

    async def _decode_beside(self, batches: list[RawBatch]) -> list[FetchedBatch | FlussError | None]:
        """Halves at a time: columns are decoded side by side as well, but never take equally long."""
        half = (len(batches) + 1) // 2
        halves = [group for group in (batches[:half], batches[half:]) if group]
        results = await asyncio.gather(*(runtime.in_worker(self._reader.decode, group) for group in halves))
        return [result for group in results for result in group]

    async def explained(self, cursor: Cursor, error: FlussError) -> FlussError:
        """The error, with the offsets there are when the cursor asked for another."""
        if error.error_code != ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION:
            return error
        try:
            first, end = [
                (await list_offsets(self._cluster, self._info, [cursor.key], spec))[cursor.key]
                for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
            ]
        except FlussError:
            return error
        return InvalidRequestError(
            f"Offset {cursor.fetch_offset} of bucket {cursor.bucket.bucket} of table {self._info.table_path} does not "
            f"exist: the bucket has offsets {first} to {end} (the next row gets {end}). Subscribe again from there.",
            ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
        )


def _step(batch: RawBatch, result: FetchedBatch | FlussError | None) -> ScanStep | None:
    """The step over a batch; None, and its cursor has the error, when it is bad."""
    cursor, header = batch.cursor, batch.header
    if isinstance(result, FlussError):
        cursor.error = cursor.error or result
        return None
    size_bytes = 0 if result is None else max(result.size_bytes, header.size_bytes)
    return ScanStep(cursor, header.next_offset, result, size_bytes)

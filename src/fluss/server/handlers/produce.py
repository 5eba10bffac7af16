"""Writing: ids for writers, batches into logs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from fluss.model.durations import wall_clock_ms
from fluss.model.errors import ErrorCode, InvalidRequestError, TimeoutError
from fluss.model.paths import TableBucket
from fluss.protocol import messages_pb2 as pb
from fluss.server.answers import code_and_text
from fluss.server.batch_check import check_batch
from fluss.server.context import ConnectionContext, Handled, Replier
from fluss.server.names import check_count, table_path
from fluss.server.opened import when_open
from fluss.server.produce_request import BucketBatch, ProduceLogRequest, parse_produce_log
from fluss.storage.commit import Durable
from fluss.storage.log import Appended

_NO_ACKS: Final = 0
_ACKS: Final = (_NO_ACKS, 1, -1)
_WAIT_MS_UNLIMITED: Final = 2**31 - 1

_BucketWait: TypeAlias = tuple[pb.PbProduceLogBucketResponse, Durable]


async def init_writer(context: ConnectionContext, request: pb.InitWriterRequest) -> pb.InitWriterResponse:
    """An id for a writer. Java names no table; a table named here may be gone, which its writes will say."""
    for path in request.table_path:
        table_path(path)
    return pb.InitWriterResponse(writer_id=await context.storage.catalog.next_writer_id())


def produce_log(context: ConnectionContext, body: memoryview) -> Handled:
    """Append in the order of arrival; the answer waits aside until all batches are durable."""
    request = parse_produce_log(body)
    if request.acks not in _ACKS:
        raise InvalidRequestError(
            f"acks must be 0, 1 or -1 (all), not {request.acks}.", ErrorCode.INVALID_REQUIRED_ACKS
        )
    check_count(len(request.buckets), context.limits.request_items_max, "buckets")
    buckets = [TableBucket(request.table_id, batch.bucket_id, batch.partition_id) for batch in request.buckets]
    return when_open(context.storage, buckets, lambda: _append_all(context, request, buckets))


def _append_all(
    context: ConnectionContext, request: ProduceLogRequest, buckets: list[TableBucket]
) -> pb.ProduceLogResponse | ProduceWait:
    response = pb.ProduceLogResponse()
    waits: list[_BucketWait] = []
    for bucket, batch in zip(buckets, request.buckets, strict=True):
        entry = response.buckets_resp.add(bucket_id=batch.bucket_id)
        if batch.partition_id is not None:
            entry.partition_id = batch.partition_id
        try:
            appended = _append(context, bucket, batch)
        except Exception as error:
            entry.error_code, entry.error_message = code_and_text(error)
            continue
        entry.base_offset = appended.base_offset
        if request.acks != _NO_ACKS and not appended.durable.done():
            waits.append((entry, appended.durable))
    return ProduceWait(response, waits, request.timeout_ms) if waits else response


def _append(context: ConnectionContext, bucket: TableBucket, batch: BucketBatch) -> Appended:
    log = context.storage.bucket(bucket)
    header = check_batch(batch.records, bucket.table_id, context.storage.catalog, context.limits.batch_bytes_max)
    return log.append(batch.records, header, wall_clock_ms())


class ProduceWait:
    """Batches that are appended and not durable yet."""

    def __init__(self, response: pb.ProduceLogResponse, waits: list[_BucketWait], timeout_ms: int) -> None:
        self.wait_ms = timeout_ms if timeout_ms > 0 else _WAIT_MS_UNLIMITED
        self._response = response
        self._waits = waits
        self._pending = len(waits)
        self._callbacks: list[tuple[Durable, Callable[[Durable], None]]] = []
        self._replier: Replier | None = None

    def start(self, replier: Replier) -> None:
        self._replier = replier
        for entry, durable in self._waits:
            callback = partial(self._durable, entry)
            self._callbacks.append((durable, callback))
            durable.add_done_callback(callback)

    def expire(self) -> None:
        """Buckets that are not durable in time are told so; what happens to their batches is open, so clients retry."""
        late = TimeoutError("The batch was not durable within the request's timeout; send it again to learn its fate.")
        for entry, durable in self._waits:
            if not durable.done():
                _set_error(entry, late)
        self._finish()

    def hurry(self) -> None:
        """The sync is under way already."""

    def abandon(self) -> None:
        self._replier = None
        for durable, callback in self._callbacks:
            durable.remove_done_callback(callback)

    def _durable(self, entry: pb.PbProduceLogBucketResponse, durable: Durable) -> None:
        error = durable.exception()
        if error is not None:
            _set_error(entry, error)
        self._pending -= 1
        if not self._pending:
            self._finish()

    def _finish(self) -> None:
        replier = self._replier
        self.abandon()
        if replier is not None:
            replier.reply(self._response)


def _set_error(entry: pb.PbProduceLogBucketResponse, error: BaseException) -> None:
    entry.ClearField("base_offset")
    entry.error_code, entry.error_message = code_and_text(error)

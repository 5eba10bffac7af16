"""Writing to log tables: ids for writers, batches into logs."""

from __future__ import annotations

from functools import partial

from fluss.model.paths import TableBucket
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.writes import BucketBatch, ReceivedWrite
from fluss.server.handlers.writes import (
    NO_ACKS,
    BucketWait,
    DeferredWrite,
    WriteResponse,
    answered,
    check_acks,
    check_batch,
)
from fluss.server.net.answers import code_and_text
from fluss.server.net.concurrent_reply import BUCKETS_AT_ONCE, each_open, with_open_logs
from fluss.server.net.context import ConnectionContext, Handled
from fluss.server.tables.rules import table_path


async def init_writer(context: ConnectionContext, request: pb.InitWriterRequest) -> pb.InitWriterResponse:
    """An id for a writer. Java names no table; a table named here may be gone, which its writes will say."""
    for path in request.table_path:
        table_path(path)
    return pb.InitWriterResponse(writer_id=await context.storage.catalog.next_writer_id())


def produce_log(context: ConnectionContext, request: ReceivedWrite) -> Handled:
    """Append in the order of arrival; the reply is deferred until all batches are durable."""
    check_acks(request.acks)
    buckets = [batch.bucket for batch in request.batches]
    if len(buckets) > BUCKETS_AT_ONCE:
        return _append_many(context, request, buckets)
    return with_open_logs(context.storage, buckets, partial(_append_all, context, request))


def _append_all(context: ConnectionContext, request: ReceivedWrite) -> WriteResponse | DeferredWrite:
    context.check_connected()
    response = pb.ProduceLogResponse()
    waits: list[BucketWait] = []
    for batch in request.batches:
        _append_one(context, batch, request.acks, response, waits)
    return answered(response, waits, request.timeout_ms)


async def _append_many(
    context: ConnectionContext, request: ReceivedWrite, buckets: list[TableBucket]
) -> WriteResponse | DeferredWrite:
    response = pb.ProduceLogResponse()
    waits: list[BucketWait] = []
    async with context.storage.keeping_open():
        async for number in each_open(context, buckets):
            # Each time: others have had their turns since the last.
            context.check_connected()
            _append_one(context, request.batches[number], request.acks, response, waits)
    return answered(response, waits, request.timeout_ms)


def _append_one(
    context: ConnectionContext, batch: BucketBatch, acks: int, response: pb.ProduceLogResponse, waits: list[BucketWait]
) -> None:
    bucket, records = batch
    storage = context.storage
    entry = response.buckets_resp.add(bucket_id=bucket.bucket_id, partition_id=bucket.partition_id)
    try:
        log = storage.bucket(bucket)
        header = check_batch(records, bucket.table_id, storage.catalog, context.limits.batch_bytes_max)
        appended = log.append(records, header, storage.clock.now_ms())
    except Exception as error:
        _failed(entry, error)
        return
    if acks == NO_ACKS or appended.durable.is_complete:
        entry.base_offset = appended.base_offset
    else:
        succeed = partial(_succeeded, entry, appended.base_offset)
        waits.append(BucketWait(appended.durable, succeed, partial(_failed, entry)))


def _succeeded(entry: pb.PbProduceLogBucketResponse, base_offset: int, _: None) -> None:
    entry.base_offset = base_offset


def _failed(entry: pb.PbProduceLogBucketResponse, error: BaseException) -> None:
    entry.error_code, entry.error_message = code_and_text(error)

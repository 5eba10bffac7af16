"""PutKv: upserts and deletes into primary-key tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.schema import COLUMN_COUNT_MAX
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.writes import BucketBatch, ReceivedWrite
from fluss.server.handlers.writes import (
    NO_ACKS,
    BucketWait,
    DeferredWrite,
    WriteResponse,
    answered,
    check_acks,
    check_size,
)
from fluss.server.net.answers import code_and_text
from fluss.server.net.context import ConnectionContext
from fluss.server.read.kv_access import kv_bucket
from fluss.server.tables.rules import check_count

if TYPE_CHECKING:
    from fluss.storage.kv.put import Put

_AGG_MODES: Final = (0, 1)
_OVERWRITE: Final = 1
_BACKPRESSURE_VERSION: Final = 2  # clients of this version know its code
_FOR_OLD_CLIENTS: Final = {ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION: ErrorCode.KV_STORAGE_EXCEPTION}


async def put_kv(context: ConnectionContext, request: ReceivedWrite, version: int) -> WriteResponse | DeferredWrite:
    """Put in the order of arrival; the reply is deferred until all batches are applied.

    The connection's next request waits only while a bucket has no room for more.
    """
    check_acks(request.acks)
    overwrite = check_merge(request.target_columns, request.agg_mode)
    opening = context.storage.opening([batch.bucket for batch in request.batches])
    if opening is not None:
        await opening
    response = pb.PutKvResponse()
    waits: list[BucketWait] = []
    recoded = {} if version >= _BACKPRESSURE_VERSION else _FOR_OLD_CLIENTS
    for batch in request.batches:
        bucket = batch.bucket
        entry = response.buckets_resp.add(bucket_id=bucket.bucket_id, partition_id=bucket.partition_id)
        fail = partial(_failed, entry, recoded)
        try:
            put = await _put(context, request, batch, version, overwrite=overwrite)
        except Exception as error:
            fail(error)
            continue
        safe = put.appended if request.acks == NO_ACKS else put.applied
        waits.append(BucketWait(safe, partial(_succeeded, entry), fail))
    return answered(response, waits, request.timeout_ms)


def check_merge(target_columns: Sequence[int], agg_mode: int) -> bool:
    """Whether rows are stored as they come, whatever the merge engine; code 2 for an unknown mode."""
    check_count(len(target_columns), COLUMN_COUNT_MAX, "target columns")
    if agg_mode not in _AGG_MODES:
        raise InvalidRequestError(
            f"agg_mode must be 0 (by the merge engine) or 1 (overwrite), not {agg_mode}.",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    return agg_mode == _OVERWRITE


async def _put(
    context: ConnectionContext, request: ReceivedWrite, batch: BucketBatch, version: int, *, overwrite: bool
) -> Put:
    kv = kv_bucket(context.storage, batch.bucket, version)
    check_size(batch.records, context.limits.batch_bytes_max)
    await kv.room()
    context.check_connected()
    put = kv.put(batch.records, request.target_columns, overwrite=overwrite)
    # The records stay in memory until they are applied.
    budget, size_bytes = context.server.request_budget, len(batch.records)
    budget.add(size_bytes)
    context.server.metrics.put_batches += 1
    context.server.metrics.put_bytes += size_bytes
    put.applied.add_done_callback(lambda _: budget.release(size_bytes))
    return put


def _succeeded(entry: pb.PbPutKvBucketResponse, log_end_offset: int) -> None:
    entry.log_end_offset = log_end_offset


def _failed(entry: pb.PbPutKvBucketResponse, recoded: dict[int, int], error: BaseException) -> None:
    code, entry.error_message = code_and_text(error)
    entry.error_code = recoded.get(code, code)

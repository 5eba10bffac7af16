"""ListOffsets and GetTableStats: where a bucket begins and ends, and how many rows it has.

Statistics of columns are not kept.
"""

from __future__ import annotations

from typing import Final

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.model.tables.options import CHANGELOG_IMAGE
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import unreadable
from fluss.server.net.answers import code_and_text
from fluss.server.net.concurrent_reply import BUCKETS_AT_ONCE, each_open, with_open_logs
from fluss.server.net.context import ConnectionContext, InTurn
from fluss.server.read.kv_access import kv_bucket
from fluss.server.tables.formats import table_format
from fluss.server.tables.rules import check_count

EARLIEST: Final = 0
LATEST: Final = 1
TIMESTAMP: Final = 2
LEADER_END: Final = 3  # the same as LATEST where there are no followers


def list_offsets(context: ConnectionContext, request: pb.ListOffsetsRequest) -> InTurn:
    check_count(len(request.bucket_id), context.limits.request_items_max, "buckets")
    if not EARLIEST <= request.offset_type <= LEADER_END:
        raise unreadable("ListOffsets", f"offset_type {request.offset_type} is not known")
    buckets = [_bucket(request, bucket_id) for bucket_id in request.bucket_id]
    if len(buckets) > BUCKETS_AT_ONCE:
        return _many_offsets(context, request, buckets)
    return with_open_logs(context.storage, buckets, lambda: _offsets(context, request))


def _bucket(request: pb.ListOffsetsRequest, bucket_id: int) -> TableBucket:
    partition_id = request.partition_id if request.HasField("partition_id") else None
    return TableBucket(request.table_id, bucket_id, partition_id)


def _offsets(context: ConnectionContext, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
    response = pb.ListOffsetsResponse()
    for bucket_id in request.bucket_id:
        _add_offset(response, context, request, _bucket(request, bucket_id))
    return response


async def _many_offsets(
    context: ConnectionContext, request: pb.ListOffsetsRequest, buckets: list[TableBucket]
) -> pb.ListOffsetsResponse:
    response = pb.ListOffsetsResponse()
    async for number in each_open(context, buckets):
        _add_offset(response, context, request, buckets[number])
    return response


def _add_offset(
    response: pb.ListOffsetsResponse, context: ConnectionContext, request: pb.ListOffsetsRequest, bucket: TableBucket
) -> None:
    entry = response.buckets_resp.add(bucket_id=bucket.bucket_id)
    try:
        entry.offset = _offset(context, request, bucket)
    except Exception as error:
        entry.error_code, entry.error_message = code_and_text(error)


def _offset(context: ConnectionContext, request: pb.ListOffsetsRequest, bucket: TableBucket) -> int:
    log = context.storage.bucket(bucket)
    if request.offset_type == EARLIEST:
        return log.log_start_offset
    if request.offset_type in (LATEST, LEADER_END):
        return log.high_watermark
    if not request.HasField("start_timestamp"):
        raise InvalidRequestError(
            "Listing offsets by time needs start_timestamp, in milliseconds.", ErrorCode.INVALID_TIMESTAMP_EXCEPTION
        )
    return log.offset_for_timestamp(request.start_timestamp, context.storage.clock.now_ms())


async def get_table_stats(context: ConnectionContext, request: pb.GetTableStatsRequest) -> pb.GetTableStatsResponse:
    check_count(len(request.buckets_req), context.limits.request_items_max, "buckets")
    buckets = [
        TableBucket(request.table_id, item.bucket_id, item.partition_id if item.HasField("partition_id") else None)
        for item in request.buckets_req
    ]
    response = pb.GetTableStatsResponse()
    async for number in each_open(context, buckets):
        bucket = buckets[number]
        entry = response.buckets_resp.add(bucket_id=bucket.bucket_id, partition_id=bucket.partition_id)
        try:
            entry.row_count = await _row_count(context, bucket)
        except Exception as error:
            entry.error_code, entry.error_message = code_and_text(error)
    return response


async def _row_count(context: ConnectionContext, bucket: TableBucket) -> int:
    table = context.storage.catalog.table_by_id(bucket.table_id)
    if table is None or not table_format(table.table_json).has_primary_key:
        log = context.storage.bucket(bucket)
        return log.high_watermark - log.log_start_offset
    row_count = await kv_bucket(context.storage, bucket).row_count()
    if row_count is None:
        raise InvalidRequestError(
            f"{table.path} does not count its rows: its {CHANGELOG_IMAGE} is WAL, which does not tell new rows.",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
    return row_count

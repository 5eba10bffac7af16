"""GetTableStats: how many rows the buckets of a table have. Column statistics are not kept."""

from __future__ import annotations

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.model.tables.options import CHANGELOG_IMAGE
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.answers import code_and_text
from fluss.server.net.context import ConnectionContext
from fluss.server.net.opened import each_open
from fluss.server.read.kv_access import kv_bucket
from fluss.server.tables.names import check_count
from fluss.server.tables.table_formats import table_format


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

"""GetTableStats: how many rows the buckets of a log table have. Column statistics are not kept."""

from __future__ import annotations

from typing import Final

from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.answers import code_and_text
from fluss.server.context import ConnectionContext, Handled, Handler
from fluss.server.names import check_count
from fluss.server.opened import when_open


def _table_stats(context: ConnectionContext, request: pb.GetTableStatsRequest) -> Handled:
    check_count(len(request.buckets_req), context.limits.request_items_max, "buckets")
    buckets = [
        TableBucket(request.table_id, item.bucket_id, item.partition_id if item.HasField("partition_id") else None)
        for item in request.buckets_req
    ]
    return when_open(context.storage, buckets, lambda: _row_counts(context, buckets))


def _row_counts(context: ConnectionContext, buckets: list[TableBucket]) -> pb.GetTableStatsResponse:
    response = pb.GetTableStatsResponse()
    for bucket in buckets:
        entry = response.buckets_resp.add(bucket_id=bucket.bucket_id, partition_id=bucket.partition_id)
        try:
            log = context.storage.bucket(bucket)
            entry.row_count = log.high_watermark - log.log_start_offset
        except Exception as error:
            entry.error_code, entry.error_message = code_and_text(error)
    return response


HANDLERS: Final[dict[int, Handler]] = {api_keys.GET_TABLE_STATS.key: _table_stats}

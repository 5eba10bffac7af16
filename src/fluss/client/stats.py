"""Row counts asked from the leaders of buckets: a real coordinator does not serve them."""

from __future__ import annotations

from collections.abc import Iterable

from fluss.client.connection import Connection
from fluss.client.leaders import BucketAnswer, BucketKey, ask_leaders
from fluss.client.metadata import Metadata
from fluss.model.infos import TableInfo
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb


async def table_stats(
    metadata: Metadata, info: TableInfo, buckets: Iterable[BucketKey], timeout_s: float
) -> dict[BucketKey, int]:
    """The row count of each bucket."""

    async def ask(
        connection: Connection, partition_id: int | None, bucket_ids: list[int], limit_s: float
    ) -> list[BucketAnswer]:
        request = pb.GetTableStatsRequest(table_id=info.table_id)
        for bucket in bucket_ids:
            request.buckets_req.add(partition_id=partition_id, bucket_id=bucket)
        answer = await connection.request(api_keys.GET_TABLE_STATS, request, limit_s)
        return [
            BucketAnswer(item.bucket_id, item.row_count, item.error_code, item.error_message)
            for item in answer.buckets_resp
        ]

    return await ask_leaders(metadata, info, buckets, ask, timeout_s)

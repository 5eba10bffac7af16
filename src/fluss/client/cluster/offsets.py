"""Numbers asked from the leaders of buckets: offsets, and how many rows there are."""

from __future__ import annotations

from collections.abc import Iterable

from fluss.client.cluster.ask import BucketKey, BucketNumber, ask_leaders, check_buckets
from fluss.client.cluster.cluster import Cluster
from fluss.client.net.connection import Connection
from fluss.model.infos import TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb

__all__ = ["BucketKey", "check_buckets", "list_offsets", "table_stats"]

CLIENT_FOLLOWER_ID = -1


async def list_offsets(
    cluster: Cluster, info: TableInfo, buckets: Iterable[BucketKey], spec: OffsetSpec
) -> dict[BucketKey, int]:
    """The offset of each bucket."""

    async def ask(
        connection: Connection, partition_id: int | None, bucket_ids: list[int], limit_s: float
    ) -> list[BucketNumber]:
        request = pb.ListOffsetsRequest(
            follower_server_id=CLIENT_FOLLOWER_ID,
            offset_type=spec.kind,
            table_id=info.table_id,
            partition_id=partition_id,
            bucket_id=bucket_ids,
            start_timestamp=spec.timestamp_ms,
        )
        answer = await connection.request(api_keys.LIST_OFFSETS, request, limit_s)
        return [
            BucketNumber(item.bucket_id, item.offset, item.error_code, item.error_message)
            for item in answer.buckets_resp
        ]

    return await ask_leaders(cluster, info, buckets, ask)


async def table_stats(cluster: Cluster, info: TableInfo, buckets: Iterable[BucketKey]) -> dict[BucketKey, int]:
    """The row count of each bucket: a real coordinator does not serve them."""

    async def ask(
        connection: Connection, partition_id: int | None, bucket_ids: list[int], limit_s: float
    ) -> list[BucketNumber]:
        request = pb.GetTableStatsRequest(table_id=info.table_id)
        for bucket in bucket_ids:
            request.buckets_req.add(partition_id=partition_id, bucket_id=bucket)
        answer = await connection.request(api_keys.GET_TABLE_STATS, request, limit_s)
        return [
            BucketNumber(item.bucket_id, item.row_count, item.error_code, item.error_message)
            for item in answer.buckets_resp
        ]

    return await ask_leaders(cluster, info, buckets, ask)

"""Where the batches of a log begin: ranges of offsets that are cut there are read without decoding a batch twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fluss.client.cluster.ask import check_buckets
from fluss.client.cluster.cluster import Cluster
from fluss.client.cluster.offsets import CLIENT_FOLLOWER_ID
from fluss.client.scan.batch_reader import log_format
from fluss.formats.batches.log_batch import walk
from fluss.model.descriptor import LogFormat
from fluss.model.errors import FlussError
from fluss.model.infos import TableInfo
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.fetches import parse_fetch_response

QUESTIONS_AT_ONCE_MAX = 8
# The server sends one whole batch however little is asked for.
_FETCH_BYTES = 1


async def batch_starts(cluster: Cluster, info: TableInfo, bucket: TableBucket, offsets: Sequence[int]) -> list[int]:
    """For each offset where the batch that holds it begins; the offset itself where the leader does not tell."""
    key = (bucket.partition_id, bucket.bucket)
    check_buckets(info, [key])
    if bucket.partition_id is not None:
        cluster.metadata.watch_partitions(info.table_path, [bucket.partition_id])
        await cluster.metadata.refresh(info.table_path)
    turns = asyncio.Semaphore(QUESTIONS_AT_ONCE_MAX)

    async def ask(offset: int) -> int:
        async with turns:
            try:
                return await _batch_start(cluster, info, bucket, offset)
            except FlussError:
                return offset  # cutting elsewhere costs a little time, not a row

    return await asyncio.gather(*map(ask, offsets))


async def _batch_start(cluster: Cluster, info: TableInfo, bucket: TableBucket, offset: int) -> int:
    leader = cluster.metadata.leader(info.table_path, bucket.partition_id, bucket.bucket)
    if leader is None:
        return offset
    request = pb.FetchLogRequest(
        follower_server_id=CLIENT_FOLLOWER_ID, max_bytes=_FETCH_BYTES, max_wait_ms=0, min_bytes=0
    )
    # One column is enough; without the first one no batch was ever written.
    projected = log_format(info) == LogFormat.ARROW
    table = request.tables_req.add(
        table_id=info.table_id, projection_pushdown_enabled=projected, projected_fields=[0] if projected else []
    )
    table.buckets_req.add(
        partition_id=bucket.partition_id, bucket_id=bucket.bucket, fetch_offset=offset, max_fetch_bytes=_FETCH_BYTES
    )
    timeout_s = cluster.request_timeout_s
    connection = await cluster.metadata.tablet(leader, timeout_s)
    body = await connection.send(api_keys.FETCH_LOG, (request.SerializeToString(),), timeout_s)
    for answer in parse_fetch_response(body, leader.address):
        for _, header in walk(answer.records):
            return header.base_offset if header.base_offset <= offset < header.next_offset else offset
    return offset

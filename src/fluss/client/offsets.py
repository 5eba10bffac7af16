"""Offsets asked from the leaders of buckets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TypeAlias

from fluss.client.answers import server_error
from fluss.client.metadata import Metadata
from fluss.client.retry import Backoff
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, TimeoutError
from fluss.model.infos import ServerNode, TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb

BucketKey: TypeAlias = tuple[int | None, int]
"""(partition id or None, bucket)"""

CLIENT_FOLLOWER_ID = -1


def check_buckets(info: TableInfo, buckets: Iterable[BucketKey]) -> None:
    """Raise unless the table has these buckets."""
    for partition_id, bucket in buckets:
        if not 0 <= bucket < info.num_buckets:
            raise InvalidRequestError(
                f"Table {info.table_path} has no bucket {bucket}; its buckets are 0 to {info.num_buckets - 1}."
            )
        if info.is_partitioned() and partition_id is None:
            raise InvalidRequestError(f"Table {info.table_path} is partitioned; say which partition.")
        if not info.is_partitioned() and partition_id is not None:
            raise InvalidRequestError(
                f"Table {info.table_path} has no partitions.", ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION
            )


async def list_offsets(
    metadata: Metadata, info: TableInfo, buckets: Iterable[BucketKey], spec: OffsetSpec, timeout_s: float
) -> dict[BucketKey, int]:
    """The offset of each bucket, asked again while leaders move, up to the limit."""
    remaining = list(dict.fromkeys(buckets))
    check_buckets(info, remaining)
    offsets: dict[BucketKey, int] = {}
    backoff = Backoff(timeout_s * 1000)
    while True:
        problem = await _ask_leaders(metadata, info, remaining, spec, offsets, max(backoff.remaining_s, 0.001))
        remaining = [key for key in remaining if key not in offsets]
        if not remaining:
            return offsets
        if problem is not None and not problem.is_retriable:
            raise problem
        if not await backoff.pause():
            raise problem or TimeoutError(f"Buckets {remaining} of table {info.table_path} have no leader.")
        try:
            await metadata.refresh(info.table_path)
        except FlussError as error:
            if not error.is_retriable:
                raise


async def _ask_leaders(
    metadata: Metadata,
    info: TableInfo,
    buckets: list[BucketKey],
    spec: OffsetSpec,
    offsets: dict[BucketKey, int],
    timeout_s: float,
) -> FlussError | None:
    """Ask once, all leaders side by side; answers go into `offsets`, the first problem is returned."""
    groups: dict[tuple[int, int | None], tuple[ServerNode, list[int]]] = {}
    for partition_id, bucket in buckets:
        leader = metadata.leader(info.table_path, partition_id, bucket)
        if leader is not None:
            groups.setdefault((leader.id, partition_id), (leader, []))[1].append(bucket)

    async def ask(leader: ServerNode, partition_id: int | None, bucket_ids: list[int]) -> FlussError | None:
        request = pb.ListOffsetsRequest(
            follower_server_id=CLIENT_FOLLOWER_ID,
            offset_type=spec.kind,
            table_id=info.table_id,
            partition_id=partition_id,
            bucket_id=bucket_ids,
            start_timestamp=spec.timestamp_ms,
        )
        try:
            connection = await metadata.tablet(leader, timeout_s)
            answer = await connection.request(api_keys.LIST_OFFSETS, request, timeout_s)
        except FlussError as error:
            return error
        problem: FlussError | None = None
        for item in answer.buckets_resp:
            if item.error_code:
                # A problem that does not pass by itself is the one to report.
                if problem is None or problem.is_retriable:
                    problem = server_error(item.error_code, item.error_message)
            else:
                offsets[partition_id, item.bucket_id] = item.offset
        return problem

    problems = await asyncio.gather(
        *(ask(leader, partition_id, ids) for (_, partition_id), (leader, ids) in groups.items())
    )
    return next((problem for problem in problems if problem is not None), None)

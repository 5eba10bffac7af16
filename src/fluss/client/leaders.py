"""Questions to the leaders of buckets, repeated while leaders move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeAlias

from fluss.client.answers import server_error
from fluss.client.connection import Connection
from fluss.client.metadata import Metadata
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, NotFoundError, TimeoutError
from fluss.model.infos import ServerNode, TableInfo

BucketKey: TypeAlias = tuple[int | None, int]
"""(partition id or None, bucket)"""


class BucketAnswer(NamedTuple):
    bucket: int
    value: int
    error_code: int
    error_message: str


Ask: TypeAlias = Callable[[Connection, int | None, list[int], float], Awaitable[Iterable[BucketAnswer]]]
"""(connection, partition id or None, buckets, time limit in seconds): one question to one leader"""


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


async def ask_leaders(
    metadata: Metadata, info: TableInfo, buckets: Iterable[BucketKey], ask: Ask, timeout_s: float
) -> dict[BucketKey, int]:
    """One number per bucket, asked again while leaders move, up to the limit."""
    remaining = list(dict.fromkeys(buckets))
    check_buckets(info, remaining)
    answers: dict[BucketKey, int] = {}
    backoff = metadata.backoff(timeout_s)
    while True:
        problem = await _ask_once(metadata, info, remaining, ask, answers, backoff.capped_s(timeout_s))
        remaining = [key for key in remaining if key not in answers]
        if not remaining:
            return answers
        if problem is not None and not problem.is_retriable:
            raise problem
        if not await backoff.pause():
            raise problem or TimeoutError(f"Buckets {remaining} of table {info.table_path} have no leader.")
        try:
            await metadata.refresh(info.table_path)
        except FlussError as error:
            if not error.is_retriable:
                raise
        for partition_id, _ in remaining:
            if partition_id is not None and metadata.is_gone(info.table_path, partition_id):
                raise NotFoundError(
                    f"The partition {partition_id} of table {info.table_path} was dropped.",
                    ErrorCode.PARTITION_NOT_EXISTS,
                )


async def _ask_once(
    metadata: Metadata,
    info: TableInfo,
    buckets: list[BucketKey],
    ask: Ask,
    answers: dict[BucketKey, int],
    timeout_s: float,
) -> FlussError | None:
    """Ask all leaders side by side; answers go into `answers`, the first problem is returned."""
    groups: dict[tuple[int, int | None], tuple[ServerNode, list[int]]] = {}
    for partition_id, bucket in buckets:
        leader = metadata.leader(info.table_path, partition_id, bucket)
        if leader is not None:
            groups.setdefault((leader.id, partition_id), (leader, []))[1].append(bucket)

    async def ask_one(leader: ServerNode, partition_id: int | None, bucket_ids: list[int]) -> FlussError | None:
        try:
            items = await ask(await metadata.tablet(leader, timeout_s), partition_id, bucket_ids, timeout_s)
        except FlussError as error:
            return error
        problem: FlussError | None = None
        for item in items:
            if item.error_code:
                # A problem that does not pass by itself is the one to report.
                if problem is None or problem.is_retriable:
                    problem = server_error(item.error_code, item.error_message)
            else:
                answers[partition_id, item.bucket] = item.value
        return problem

    problems = await asyncio.gather(
        *(ask_one(leader, partition_id, ids) for (_, partition_id), (leader, ids) in groups.items())
    )
    return next((problem for problem in problems if problem is not None), None)

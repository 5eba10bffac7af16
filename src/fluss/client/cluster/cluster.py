"""The cluster as one client reaches it, and questions to its servers, asked again while they come and go."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, TypeAlias

from fluss.client import runtime
from fluss.client.cluster.metadata import Metadata
from fluss.client.cluster.retry import Absence, NotReadyError, Tries, is_retriable, repeat
from fluss.client.net.connection import STALE_METADATA_CODES, Connection, ConnectionPool, Credentials, server_error
from fluss.client.net.embedded import EMBEDDED_HOST, embedded_server
from fluss.client.net.own_loop import OwnLoopConnections
from fluss.model.config import Config
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, NotFoundError, TimeoutError
from fluss.model.infos import ServerNode, TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TableBucket, TablePath
from fluss.model.trust import EMBEDDED_USER, parse_bootstrap
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.api_keys import Api, Req, Resp


class Cluster:
    """Shared by all readers and writers of a client, who keep its connections open. Coroutines are for the I/O loop."""

    def __init__(self, config: Config) -> None:
        self.config = config.copy()
        self.request_timeout_s: float = config.request_timeout_ms / 1000
        self._pid = runtime.process_id
        self.closed = False
        self.pool = ConnectionPool(config.connect_timeout_ms / 1000, Credentials.of(config))
        embedded = embedded_server(config.bootstrap_servers)
        bootstrap = [] if embedded is not None else parse_bootstrap(config.bootstrap_servers)
        self.metadata = Metadata(self.pool, bootstrap, self.request_timeout_s, Absence.of(config), embedded)
        self.own_loops = OwnLoopConnections(config.connect_timeout_ms / 1000, self.pool)

    async def connect(self) -> None:
        """Connect to the first server of the bootstrap list that answers."""
        try:
            await self.metadata.refresh()
        except BaseException:
            self.pool.close()
            raise
        # Sockets belong to the loop: without this a client that is forgotten, not closed, would keep them open.
        weakref.finalize(self, _close_forgotten, self.pool, runtime.process_id).atexit = False

    def reachable_config(self) -> Config:
        """The settings with which other processes reach the same server; they never start one."""
        config = self.config.copy()
        endpoint = self.metadata.endpoint
        if endpoint is not None:
            config.bootstrap_servers = f"{EMBEDDED_HOST}:{endpoint.port}"
            config.security_protocol = "sasl"
            config.security_sasl_username, config.security_sasl_password = EMBEDDED_USER, endpoint.secret
        return config

    def check_process(self) -> None:
        """Raise in another process than the one that connected."""
        runtime.check_process(self._pid, "connection")

    def check_usable(self) -> None:
        """Raise when the client is closed or belongs to another process."""
        runtime.check_process(self._pid, "connection")
        if self.closed:
            raise FlussError("The connection is closed; open a new one.")

    def tries(
        self, may_pass: Callable[[FlussError], bool], renew: Callable[[], Awaitable[None]] | None = None
    ) -> Tries:
        """Tries of a call, each within the request's time limit, all of them within what an absent server may take."""
        return Tries(self.request_timeout_s, may_pass, renew, self.metadata.absence_s)

    async def ready_table(self, path: TablePath) -> TableInfo:
        """A table whose buckets all have leaders. They appear a moment after a table's creation."""
        self.check_usable()

        async def attempt(_: Tries) -> TableInfo:
            await self.metadata.refresh(path)
            view = self.metadata.table(path)
            if view is None:
                raise NotReadyError(TimeoutError(f"Table {path} was not ready within {self.request_timeout_s:g} s."))
            # The buckets of a partitioned table are those of its partitions.
            leaderless = [] if view.info.is_partitioned() else view.without_leader()
            if leaderless:
                text = f"Buckets {leaderless[:10]} of table {path} have no leader after {self.request_timeout_s:g} s; "
                text += "are the cluster's tablet servers up?"
                raise NotReadyError(TimeoutError(text, ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION))
            return view.info

        return await repeat(self.tries(is_retriable), attempt)

    async def coordinator(self) -> Connection:
        """A connection to the coordinator, for those who have to see what it knows."""
        return await self.metadata.coordinator(self.request_timeout_s)

    @property
    def is_foreign(self) -> bool:
        """Whether there is nothing to close: a forked child has nothing of its parent's, an ended process nothing."""
        return self._pid != runtime.process_id or runtime.has_ended()

    def close(self) -> None:
        """Close all connections. On the I/O loop."""
        self.own_loops.close()
        self.metadata.close()
        self.pool.close()


def _close_forgotten(pool: ConnectionPool, made_in: int) -> None:
    if made_in == runtime.process_id:
        runtime.call_soon(pool.close)


BucketKey: TypeAlias = tuple[int | None, int]
"""(partition id or None, bucket)"""


def is_stale(error: FlussError) -> bool:
    """Whether another server may be the one to ask by now."""
    return error.error_code in STALE_METADATA_CODES


# ---- the coordinator ----


async def ask(cluster: Cluster, api: Api[Req, Resp], request: Req) -> Resp:
    """Ask the coordinator, repeated while the error says that it may help."""
    cluster.check_usable()

    async def attempt(tries: Tries) -> Resp:
        connection = await cluster.metadata.coordinator(tries.wait_s)
        return await connection.request(api, request, tries.wait_s)

    return await repeat(cluster.tries(is_stale), attempt)


async def ask_once(cluster: Cluster, api: Api[Req, Resp], request: Req) -> Resp:
    """Ask the coordinator, not repeated: after a lost connection nobody knows whether it was done."""
    cluster.check_usable()
    return await cluster.metadata.ask_coordinator(api, request, cluster.request_timeout_s)


# ---- the leader of one bucket ----


async def leader_of(metadata: Metadata, path: TablePath, bucket: TableBucket, tries: Tries) -> Connection:
    """A connection to the leader of a bucket; `NotReadyError` while there is none."""
    leader = metadata.leader(path, bucket.partition_id, bucket.bucket)
    if leader is None:
        if bucket.partition_id is not None and metadata.is_gone(path, bucket.partition_id):
            raise _partition_dropped(path, bucket.partition_id)
        raise NotReadyError(TimeoutError(f"Bucket {bucket.bucket} of table {path} has no leader."))
    return await metadata.tablet(leader, tries.wait_s)


def _partition_dropped(path: TablePath, partition_id: int) -> NotFoundError:
    return NotFoundError(f"The partition {partition_id} of table {path} was dropped.", ErrorCode.PARTITION_NOT_EXISTS)


# ---- the leaders of many buckets ----


class BucketNumber(NamedTuple):
    """What a leader says of a bucket."""

    bucket: int
    value: int
    error_code: int
    error_message: str


Question: TypeAlias = Callable[[Connection, int | None, list[int], float], Awaitable[Iterable[BucketNumber]]]
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
    cluster: Cluster, info: TableInfo, buckets: Iterable[BucketKey], question: Question
) -> dict[BucketKey, int]:
    """One number per bucket, asked again while leaders move, as long as a request may take."""
    metadata = cluster.metadata
    wanted = list(dict.fromkeys(buckets))
    check_buckets(info, wanted)
    answers: dict[BucketKey, int] = {}

    def remaining() -> list[BucketKey]:
        return [key for key in wanted if key not in answers]

    async def attempt(tries: Tries) -> dict[BucketKey, int]:
        problem = await _ask_side_by_side(metadata, info, remaining(), question, answers, tries.wait_s)
        if not remaining():
            return answers
        raise problem or NotReadyError(
            TimeoutError(f"Buckets {remaining()} of table {info.table_path} have no leader.")
        )

    async def renew() -> None:
        await metadata.try_refresh(info.table_path)
        for partition_id, _ in remaining():
            if partition_id is not None and metadata.is_gone(info.table_path, partition_id):
                raise _partition_dropped(info.table_path, partition_id)

    return await repeat(cluster.tries(is_retriable, renew), attempt)


async def _ask_side_by_side(
    metadata: Metadata,
    info: TableInfo,
    buckets: list[BucketKey],
    question: Question,
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
            items = await question(await metadata.tablet(leader, timeout_s), partition_id, bucket_ids, timeout_s)
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

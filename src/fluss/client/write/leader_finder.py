"""The leaders of buckets with rows to send, found out in the background."""

from __future__ import annotations

from typing import Protocol

from fluss.client.cluster.metadata import Metadata
from fluss.client.cluster.retry import KeyedTasks
from fluss.client.net.connection import Connection
from fluss.client.write.bucket_queue import BucketQueue, WriterIds
from fluss.client.write.routing import PartitionFinder
from fluss.model.config import Config
from fluss.model.errors import ConnectError, ErrorCode, FlussError
from fluss.model.infos import ServerNode, TableInfo
from fluss.model.paths import TablePath


class GiveUp(Protocol):
    """Fails what waits for a table, or for one partition of it."""

    def __call__(self, path: TablePath, error: FlussError, partition: str | None = None) -> None: ...


class LeaderFinder:
    """Connections to the leaders of buckets, and writer ids. Runs on the I/O loop."""

    def __init__(self, config: Config, metadata: Metadata, tasks: KeyedTasks, give_up: GiveUp) -> None:
        self._timeout_s: float = config.request_timeout_ms / 1000
        self._idempotent: bool = config.writer_enable_idempotence
        self.ids = WriterIds(metadata, self._timeout_s)
        self._metadata = metadata
        self._tasks = tasks
        self._give_up = give_up
        self._partitions = PartitionFinder(metadata, config)

    def expect(self, info: TableInfo) -> None:
        """Rows are gathered: a writer id can be asked for meanwhile."""
        if self._idempotent and self.ids.current is None:
            self._tasks.start("writer id", self._renew_id, info.table_path)

    def connection(self, queue: BucketQueue) -> Connection | None:
        """The connection to send the queue's next batch on; None when that has to be found out first."""
        path = queue.info.table_path
        if self._lacks_id(queue):
            self._tasks.start("writer id", self._renew_id, path)
            return None
        partition_id = None if queue.partition is None else self._metadata.partition_id(path, queue.partition)
        if partition_id is not None and not queue.belongs_to(partition_id):
            return None
        known = queue.partition is None or partition_id is not None
        leader = self._metadata.leader(path, partition_id, queue.bucket) if known else None
        if leader is None:
            self.look_again(queue)
            return None
        connection = self._metadata.ready(leader)
        if connection is None:
            self._tasks.start(leader, self._connect, leader, path)
        return connection

    def known_leader(self, queue: BucketQueue) -> ServerNode | None:
        """The server to send the queue's next batch to, if nothing is to be found out first; from any thread."""
        path = queue.info.table_path
        view = self._metadata.table(path)
        if self._lacks_id(queue) or view is None or view.info.table_id != queue.info.table_id:
            return None
        partition_id = None if queue.partition is None else self._metadata.partition_id(path, queue.partition)
        return self._metadata.leader(path, partition_id, queue.bucket) if partition_id == queue.partition_id else None

    def _lacks_id(self, queue: BucketQueue) -> bool:
        return self._idempotent and queue.writer_id is None and self.ids.current is None

    def look_again(self, queue: BucketQueue) -> None:
        """The leader may be another one now."""
        path = queue.info.table_path
        if queue.partition is None:
            self._tasks.start(path, self._find_leaders, path)
        else:
            self._tasks.start((path, queue.partition), self._find_partition, queue.info, queue.partition)

    async def _renew_id(self, path: TablePath) -> None:
        error = await self._tasks.attempt("writer id", self.ids.fetch(path))
        if error is None:
            return
        if isinstance(error, ConnectError):
            await self._find_leaders(path)
        elif not error.is_retriable:
            self._give_up(path, error)

    async def _find_leaders(self, path: TablePath) -> None:
        error = await self._tasks.attempt(path, self._look(path))
        if error is not None and not error.is_retriable:
            self._give_up(path, error)

    async def _find_partition(self, info: TableInfo, partition: str) -> None:
        path = info.table_path
        error = await self._tasks.attempt((path, partition), self._look_for_partition(info, partition))
        if error is not None and not error.is_retriable:
            self._give_up(path, error, partition)

    async def _look(self, path: TablePath) -> None:
        await self._metadata.refresh(path)
        view = self._metadata.table(path)
        if view is not None and not view.info.is_partitioned() and view.without_leader():
            raise FlussError(f"Table {path} has no leader yet.", ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION)

    async def _look_for_partition(self, info: TableInfo, partition: str) -> None:
        partition_id = await self._partitions.find(info, partition)
        view = self._metadata.table(info.table_path)
        if view is not None and view.without_leader(partition_id):
            raise FlussError(
                f"Partition {partition!r} of table {info.table_path} has no leader yet.",
                ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
            )

    async def _connect(self, leader: ServerNode, path: TablePath) -> None:
        error = await self._tasks.attempt(leader, self._metadata.tablet(leader, self._timeout_s))
        if error is not None:
            await self._find_leaders(path)

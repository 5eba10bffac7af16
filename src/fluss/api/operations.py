"""Calls that operators, and jobs and readers of the lake, need besides the public API; blocking, from any thread.

Programs have no use for these calls, so they are no part of the facades.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from fluss.api._sync.connection import FlussConnection
from fluss.api._sync.table import FlussTable
from fluss.client.admin import KEEP_ALL, BackupStatus, LakeCore, make_backup
from fluss.client.cluster.cluster import Cluster
from fluss.client.runtime import run
from fluss.client.table import TableCore
from fluss.client.write.staged import accept_staged, list_staged, reset_staged
from fluss.model.errors import ErrorCode, FlussError
from fluss.model.infos import LakeSnapshot, TableInfo
from fluss.model.paths import TableBucket, TablePath
from fluss.model.staging import Assigned, Heartbeat, LakeError, StagedQueryInfo
from fluss.protocol import api_keys

if TYPE_CHECKING:
    from fluss.client.client import ClientCore


__all__ = ["BackupStatus", "ClusterOperations", "ServerKind"]


class ServerKind(NamedTuple):
    """The kind of a server, and what it can do. The protocol tells no version, but some requests are our own."""

    is_flussbett: bool
    request_kinds: int
    missing: list[str]
    """Kinds of requests that this client knows and the server does not, but for our own where it is another's"""


class ClusterOperations:
    """Backups, queries with staged writes, and what a server is."""

    def __init__(self, connection: FlussConnection) -> None:
        self._cluster = connection._core.cluster

    def back_up(self, directory: str, on_status: Callable[[BackupStatus], None]) -> BackupStatus:
        """Have a Flussbett server write a backup to a directory of its machine, and wait until it is there."""
        return run(make_backup(self._cluster, directory, on_status))

    def staged_queries(self) -> list[StagedQueryInfo]:
        """Queries with staged writes, of all tables."""
        return run(list_staged(self._cluster))

    def accept_staged(self, table_id: int, query_id: str, batch_id: int) -> None:
        """Let repeated batches up to this one be done, whatever rows they have."""
        run(accept_staged(self._cluster, table_id, query_id, batch_id))

    def reset_staged(self, table_id: int, query_id: str, batch_id: int | None, *, gives_up: bool) -> None:
        """Let the server forget a query, or take this batch for the last one committed."""
        run(reset_staged(self._cluster, table_id, query_id, batch_id, gives_up=gives_up))

    def server_kind(self) -> ServerKind:
        """The kind of the server, and what it can do."""
        return run(_server_kind(self._cluster))

    def lacks_leaders(self, path: TablePath) -> bool:
        """Whether buckets of a table that has no partitions have no leader; False if the table is gone."""
        return run(_lacks_leaders(self._cluster, path))


async def _server_kind(cluster: Cluster) -> ServerKind:
    connection = await cluster.metadata.coordinator(cluster.request_timeout_s)
    is_flussbett = api_keys.STAGE_WRITE.key in connection.versions
    missing = [
        api.name
        for api in api_keys.ALL
        if api.key not in connection.versions and not (api.is_own and not is_flussbett) and api.needs_login
    ]
    return ServerKind(is_flussbett, len(connection.versions), missing)


async def _lacks_leaders(cluster: Cluster, path: TablePath) -> bool:
    try:
        await cluster.metadata.refresh(path)
    except FlussError as error:
        # Dropped since it was listed.
        return error.error_code != ErrorCode.TABLE_NOT_EXIST
    view = cluster.metadata.table(path)
    return view is not None and not view.info.is_partitioned() and bool(view.without_leader())


class LakeRegistry:
    """Which lake snapshots a server knows, and which tables it wants to be tiered."""

    def __init__(self, connection: FlussConnection) -> None:
        self._core = LakeCore(connection._core.cluster)

    def latest(self, path: TablePath) -> LakeSnapshot | None:
        """The latest registered snapshot, or None."""
        return run(self._core.find_snapshot(path))

    def snapshot(self, path: TablePath, snapshot_id: int) -> LakeSnapshot | None:
        """One registered snapshot, or None."""
        return run(self._core.find_snapshot(path, snapshot_id))

    def prepare(self, info: TableInfo, offsets: Mapping[TableBucket, int]) -> str:
        """Have the server write down how far the next snapshot reaches; the path belongs into its summary."""
        return run(self._core.prepare(info, offsets))

    def commit(
        self,
        info: TableInfo,
        snapshot_id: int,
        offsets_path: str,
        offsets: Mapping[TableBucket, int],
        *,
        keep_all: bool = False,
        earliest_to_keep: int | None = None,
    ) -> None:
        """Register a snapshot. Earlier ones are forgotten, but for those from `earliest_to_keep` on, or all."""
        keep = KEEP_ALL if keep_all else earliest_to_keep
        run(self._core.commit(info, snapshot_id, offsets_path, offsets, keep))

    def report(self, info: TableInfo, error: str | None) -> None:
        """Tell how a round ended, for people to see: why it failed, None if it did not."""
        run(self._core.report(info.table_id, error))

    def last_error(self, info: TableInfo) -> LakeError | None:
        """Why the last round failed; None if it did not, or if the server does not keep that."""
        return run(self._core.last_error(info.table_id))

    def can_forget(self) -> bool:
        """Whether `forget` can be asked for; not of Apache Fluss."""
        return run(self._core.can_forget())

    def forget(self, info: TableInfo) -> None:
        """Have the server forget all snapshots of a table, whose lake was dropped."""
        run(self._core.forget(info.table_id))

    def heartbeat(
        self,
        *,
        tiering: Iterable[Assigned] = (),
        finished: Iterable[Assigned] = (),
        failed: Iterable[Assigned] = (),
        request_table: bool = False,
    ) -> Heartbeat:
        """Say which tables are worked on, done or given up; with `request_table` one that is due may be handed out."""
        return run(self._core.heartbeat(tiering, finished, failed, request_table))


def blocking_shells(core: TableCore) -> tuple[FlussConnection, FlussTable]:
    """The connection and the table of a scan, whose facade may be any, as those of `fluss.sync`."""
    return FlussConnection(cast("ClientCore", core.client)), FlussTable(core)

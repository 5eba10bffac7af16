"""Calls that operators make through the command line; blocking, from any thread.

Programs have no use for these calls, so they are no part of the facades.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fluss.api._sync.connection import FlussConnection
from fluss.client.admin import BackupStatus, make_backup
from fluss.client.cluster.cluster import Cluster
from fluss.client.runtime import run
from fluss.client.write.staged import accept_staged, list_staged, reset_staged
from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TablePath
from fluss.model.staging import StagedQueryInfo
from fluss.protocol import api_keys

__all__ = ["BackupStatus", "ClusterOperations", "ServerKind"]


class ServerKind(NamedTuple):
    """Whose server answers, and what it can do. The protocol tells no version, but some requests are our own."""

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
        """Whose server answers, and what it can do."""
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

"""The server's side of tiering, for the jobs and readers of `fluss.lake`; blocking, from any thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fluss.api.connection_sync import FlussConnection
from fluss.client.lake import KEEP_ALL, LakeCore
from fluss.client.runtime import run
from fluss.model.infos import LakeSnapshot, TableInfo
from fluss.model.lake import Assigned, Heartbeat
from fluss.model.paths import TableBucket, TablePath


class LakeRegistry:
    """Which lake snapshots a server knows, and which tables it wants to be tiered."""

    def __init__(self, connection: FlussConnection) -> None:
        self._core = LakeCore(connection._core)

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

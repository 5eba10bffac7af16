"""Calls that jobs and readers of `fluss.lake` need besides the public API; blocking, from any thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, cast

from fluss.api._sync.connection import FlussConnection
from fluss.api._sync.table import FlussTable
from fluss.client.lake import KEEP_ALL, LakeCore
from fluss.client.runtime import run
from fluss.client.table import TableCore
from fluss.model.infos import LakeSnapshot, TableInfo
from fluss.model.paths import TableBucket, TablePath
from fluss.model.staging import Assigned, Heartbeat, LakeError

if TYPE_CHECKING:
    from fluss.client.client import ClientCore


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

"""Upkeep of the lake: what either side has of a table, and removal of snapshots and files that nobody needs."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from fluss.api.operations import LakeRegistry
from fluss.lake.filesystem import open_filesystem, path_of, storage_errors
from fluss.lake.format import LakeTable, table_id_of
from fluss.lake.options import LakeOptions, find_lake, is_tiered, named_lake
from fluss.model.clock import wall_clock_ms
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError, NotFoundError
from fluss.model.infos import LakeSnapshot, TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TablePath
from fluss.model.trust import Trust, is_inside, is_local

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo

    from fluss.sync import FlussConnection


class OnServer(StrEnum):
    """What the server has under the name of a table in the lake."""

    TIERED = "tiered"  # the table, which is tiered on
    OFF = "not tiered"  # the table, which is not tiered, or not any more
    RECREATED = "recreated"  # another table, as when the one in the lake was dropped and made again
    MISSING = "missing"  # nothing


@dataclass(frozen=True)
class Inventory:
    """One table, as of now."""

    table_path: TablePath
    options: LakeOptions | None  # None: where the lake is can't be told
    info: TableInfo | None  # None: not on the server
    known: LakeSnapshot | None  # the last snapshot that the server was told of
    lake: LakeTable | None  # None: not in the lake, or it can't be read
    error: Exception | None  # why it can't be read, or why the lake is not known

    @property
    def is_damaged(self) -> bool:
        """Whether the lake's metadata is missing or broken; a storage that does not answer is neither."""
        return isinstance(self.error, FileNotFoundError | CorruptDataError)

    @property
    def on_server(self) -> OnServer:
        if self.info is None:
            return OnServer.MISSING
        if self.lake is not None and not self._is_same(self.info, self.lake):
            return OnServer.RECREATED
        return OnServer.TIERED if is_tiered(self.info) else OnServer.OFF

    def _is_same(self, info: TableInfo, lake: LakeTable) -> bool:
        """Whether the lake's table is the server's; without a snapshot that tells, it is."""
        if self.is_registered:
            return True
        tiered = lake.tiered()
        return tiered is None or table_id_of(tiered.offsets_path) in (None, info.table_id)

    @property
    def is_registered(self) -> bool:
        """Whether the lake has the snapshot that the server knows."""
        return (
            self.known is not None
            and self.lake is not None
            and self.lake.sequence_number(self.known.snapshot_id) is not None
        )


def take_inventory(
    connection: FlussConnection,
    path: TablePath,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | None = None,
    options: LakeOptions | None = None,
) -> Inventory:
    """What there is of a table. With `options` the lake need not be looked for."""
    try:
        info = connection.get_admin().get_table_info(path)
    except NotFoundError:
        info = None
    lake, failure = None, None
    try:
        options = options or find_lake(connection, info, warehouse, catalog)
        lake = options.open().load_table(path)
    except Exception as error:
        failure = error
    return Inventory(path, options, info, None if info is None else _known(connection, path), lake, failure)


def _known(connection: FlussConnection, path: TablePath) -> LakeSnapshot | None:
    try:
        return LakeRegistry(connection).latest(path)
    except FlussError as error:
        if error.error_code not in (ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION, ErrorCode.TABLE_NOT_EXIST):
            raise
        return None


EXPIRE_AFTER_S: Final = 5 * 24 * 3600.0
SNAPSHOTS_KEPT_MIN: Final = 10
# A job that writes files for longer than this before it commits them would lose them.
ORPHAN_AFTER_S: Final = 24 * 3600.0

# This machine's clock may be so far ahead of the server's.
CLOCK_AHEAD_S_MAX: Final = 600.0


@dataclass(frozen=True)
class Orphans:
    """Files that no snapshot has; they are removed unless only looked for."""

    locations: list[str]
    size_bytes: int


def expire(
    connection: FlussConnection,
    path: TablePath,
    *,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | None = None,
    older_than_s: float = EXPIRE_AFTER_S,
    keep_min: int = SNAPSHOTS_KEPT_MIN,
) -> list[int]:
    """Forget old snapshots of a table in the lake; returns their ids. Files stay until they are cleaned up.

    What the server knows always stays, as do the current snapshot and others that have a name, the newest of tiering,
    and the last `keep_min`.
    """
    registry = LakeRegistry(connection)
    lake = _options(connection, path, warehouse, catalog).open().load_table(path)
    if lake is None:
        return []
    tiered = lake.tiered()
    kept = {*lake.named_snapshots(), None if tiered is None else tiered.snapshot_id}
    before_ms = (_now_s(connection, path) - older_than_s) * 1000
    snapshots = lake.snapshots()
    old = [
        snapshot_id
        for snapshot_id, made_ms in snapshots[: max(0, len(snapshots) - keep_min)]
        if made_ms < before_ms and snapshot_id not in kept and registry.snapshot(path, snapshot_id) is None
    ]
    lake.expire(old)
    return old


def clean_orphans(
    connection: FlussConnection,
    path: TablePath,
    *,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | None = None,
    older_than_s: float = ORPHAN_AFTER_S,
    dry_run: bool = False,
) -> Orphans:
    """Remove files of a table in the lake that no snapshot has: of jobs that were killed, of expired snapshots.

    Younger ones than `older_than_s` stay: a job that is under way may be about to commit them.
    """
    options = _options(connection, path, warehouse, catalog)
    lake = options.open().load_table(path)
    if lake is None:
        return Orphans([], 0)
    listed = listed_files(lake)
    if _path(lake, lake.metadata_location) not in listed:
        raise FlussError(f"The files of {lake.name} are not below {lake.location}; nothing was cleaned up.")
    # Loaded again, after the list was made: what was committed since is used, too.
    now = options.open().load_table(path)
    if now is None:
        raise FlussError(f"The table {lake.name} was dropped from the lake meanwhile; nothing was cleaned up.")
    used = used_paths(now) | foreign_paths(options, now)
    before_ns = (_now_s(connection, path) - older_than_s) * 1e9
    found = {name: item for name, item in listed.items() if name not in used and item.mtime_ns < before_ns}
    if not dry_run:
        filesystem, _ = open_filesystem(lake.location, lake.io_properties)
        with storage_errors():
            for item in found.values():
                filesystem.delete_file(item.path)
    return Orphans(sorted(found), sum(item.size for item in found.values()))


def _now_s(connection: FlussConnection, path: TablePath) -> float:
    """This machine's time, if the server agrees: by a clock that is ahead, files in use would look old.

    No request asks for the time, but a server refuses times that lie in its future. A partitioned table without
    partitions can't be asked for offsets, and is not.
    """
    admin, now_s = connection.get_admin(), wall_clock_ms() / 1_000
    at = OffsetSpec.timestamp(max(0, round((now_s - CLOCK_AHEAD_S_MAX) * 1_000)))
    try:
        if not admin.get_table_info(path).is_partitioned():
            admin.list_offsets(path, [0], at)
        elif partitions := admin.list_partition_infos(path):
            admin.list_partition_offsets(path, partitions[0].partition_name, [0], at)
    except FlussError as error:
        if error.error_code != ErrorCode.INVALID_TIMESTAMP_EXCEPTION:
            raise
        raise FlussError(
            f"This machine's clock is more than {CLOCK_AHEAD_S_MAX / 60:.0f} minutes ahead of the server's, so nothing "
            "was removed by its age: set the one that is wrong, and try again.",
            ErrorCode.INVALID_TIMESTAMP_EXCEPTION,
        ) from error
    return now_s


def _options(
    connection: FlussConnection, path: TablePath, warehouse: str | None, catalog: Mapping[str, str] | None
) -> LakeOptions:
    info = connection.get_admin().get_table_info(path)
    return named_lake(info, warehouse, catalog, Trust.of(connection.config))


@storage_errors()
def listed_files(lake: LakeTable) -> dict[str, FileInfo]:
    """All files in the folders of a table, by their paths in its file system; links lead nowhere."""
    from pyarrow.fs import FileSelector, FileType

    filesystem, root = open_filesystem(lake.location, lake.io_properties)
    found: list[FileInfo] = []
    for folder in lake.folders:
        found += filesystem.get_file_info(
            FileSelector(posixpath.join(root, folder), allow_not_found=True, recursive=True)
        )
    is_here = partial(is_inside, places=[root]) if is_local(lake.location) else bool
    return {_plain(item.path): item for item in found if item.type == FileType.File and is_here(item.path)}


def used_paths(lake: LakeTable) -> set[str]:
    """Paths of everything that a table needs."""
    return {_path(lake, location) for location in lake.used_files()}


def foreign_paths(options: LakeOptions, lake: LakeTable) -> set[str]:
    """Paths of what other tables of the catalog need whose metadata is in the folder of this one.

    A table that was renamed keeps its folder, and a new one of the old name gets the same.
    """
    others = options.open().tables_below(lake)
    return {_path(lake, location) for other in others for location in other.used_files()}


def _path(lake: LakeTable, location: str) -> str:
    return _plain(path_of(location, lake.io_properties))


def _plain(path: str) -> str:
    return posixpath.normpath(path)

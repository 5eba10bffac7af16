"""Small files of a bucket joined into larger ones: the same rows, in one snapshot that reaches as far as the last.

It is a tiering round without new rows: of a compaction and a round at the same time, the one that commits first wins,
and the other changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fluss.api.lake import LakeRegistry
from fluss.lake.format import LakeFile, LakeTable, by_bucket
from fluss.lake.parquet import FileTarget
from fluss.lake.place import check_tiered, named_lake
from fluss.lake.tiering.pending_commit import write_pending
from fluss.lake.tiering.registration import has_snapshot, prepare, register, repair, unknown_snapshot
from fluss.lake.tiering.task import RewritePart, TieredTable
from fluss.model.errors import FlussError
from fluss.model.infos import TableInfo
from fluss.model.paths import TableBucket, TablePath
from fluss.model.trust import Trust

if TYPE_CHECKING:
    from fluss.lake.tiering.executors import Executor
    from fluss.sync import FlussConnection

SMALL_BYTES: Final = 16 * 1024 * 1024
FILES_MIN: Final = 4
# A task has the rows of its files in memory, where they take several times as much.
TASK_BYTES_MAX: Final = 128 * 1024 * 1024


@dataclass(frozen=True)
class Compaction:
    """What has become of a table's files; no snapshot where there was nothing to do."""

    table_path: TablePath
    files_removed: int = 0
    files_added: int = 0
    row_count: int = 0
    snapshot_id: int | None = None


def compact(
    connection: FlussConnection,
    path: TablePath,
    executor: Executor | None = None,
    *,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | None = None,
    small_bytes: int = SMALL_BYTES,
    files_min: int = FILES_MIN,
) -> Compaction:
    """Join files below `small_bytes`, and those of which rows were deleted, where a bucket has at least `files_min`.

    Raises LakeConflictError, and changes nothing, if a tiering round or another job commits to the lake first.
    """
    from fluss.lake.tiering.executors import LocalExecutor

    info = connection.get_admin().get_table_info(path)
    check_tiered(info)
    options = named_lake(info, warehouse, catalog, Trust.of(connection.config))
    registry = LakeRegistry(connection)
    lake, known = options.open().load_table(path), registry.latest(path)
    if not has_snapshot(lake, known):
        assert known is not None
        raise unknown_snapshot(info, known, options.warehouse or options.uri or "")
    known = None if lake is None else repair(registry, info, lake, known)
    if lake is None or known is None:
        return Compaction(path)
    tasks = [*_tasks(info, lake, small_bytes, files_min)]
    if not tasks:
        return Compaction(path)
    pending = write_pending(executor or LocalExecutor(connection), lake, tasks)
    try:
        # A file with the offsets of the last snapshot for the new one: servers remove it with its own.
        offsets_path = prepare(registry, info, {})
        snapshot_id = lake.commit(pending.added, pending.removed, offsets_path)
    except FlussError:
        pending.discard()
        raise
    snapshot = next(item for item in lake.all_tiered() if item.snapshot_id == snapshot_id)
    register(registry, info, lake, snapshot, known.table_buckets_offset)
    return Compaction(path, pending.files_removed, pending.files_added, pending.row_count, snapshot_id)


def _tasks(info: TableInfo, lake: LakeTable, small_bytes: int, files_min: int) -> Iterator[RewritePart]:
    target = FileTarget(lake.location, lake.file_schema, tuple(info.partition_keys), lake.io_properties)
    common = TieredTable(info.table_path, info.table_id, tuple(info.get_column_names()), target)
    all_files = lake.files(lake.snapshot_id)
    small = by_bucket(file for file in all_files if file.size_bytes < small_bytes or file.has_deletes)
    for (partition, bucket), files in small.items():
        for some in _groups(files):
            if len(some) >= files_min:
                yield RewritePart(common, TableBucket(info.table_id, bucket), partition, 0, 0, tuple(some))


def _groups(files: Iterable[LakeFile]) -> Iterator[list[LakeFile]]:
    """Files that one task can take."""
    found: list[LakeFile] = []
    size_bytes = 0
    for file in files:
        if found and size_bytes + file.size_bytes > TASK_BYTES_MAX:
            yield found
            found, size_bytes = [], 0
        found.append(file)
        size_bytes += file.size_bytes
    if found:
        yield found

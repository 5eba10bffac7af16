"""One tiering round of one table: repair, plan, tasks, commit, registration; small files made larger ones.

Start offsets come from the registered snapshot, and the lake's commit is a compare-and-swap against the table as it was
loaded before: of two rounds that began alike one wins, and the other changes nothing. A compaction, which joins small
files of a bucket into larger ones, is a round without new rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from fluss.api.operations import LakeRegistry
from fluss.doors import clock
from fluss.lake.format import LakeConflictError, LakeFile, LakeTable, TieredSnapshot, by_bucket
from fluss.lake.options import LakeOptions, check_tiered, named_lake, warn_of_other_lake
from fluss.lake.parquet import FileTarget
from fluss.lake.report import Progress, Status, TieringEvent, TieringReport
from fluss.lake.tiering.pending_commit import (
    Merger,
    PendingCommit,
    has_snapshot,
    prepare,
    register,
    repair,
    unknown_snapshot,
    write_pending,
)
from fluss.lake.tiering.task import Executor, RewritePart, RoundPlan, TieredTable, plan_round
from fluss.model.errors import ConnectError, FlussError, TimeoutError
from fluss.model.infos import LakeSnapshot, TableInfo
from fluss.model.paths import TableBucket, TablePath
from fluss.model.tables.options import DATALAKE_AUTO_COMPACTION, is_true
from fluss.model.trust import Trust

if TYPE_CHECKING:
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
    from fluss.lake.tiering.task import LocalExecutor

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


# Steps of a round at which a test can end the process, as a crash would: FLUSS_TIERING_CRASH=<step>.
TASKS_DONE: Final = "tasks-done"
PREPARED: Final = "prepared"
COMMITTING: Final = "committing"
COMMITTED: Final = "committed"
REGISTERED: Final = "registered"
STEPS: Final = (TASKS_DONE, PREPARED, COMMITTING, COMMITTED, REGISTERED)

CRASH_VARIABLE: Final = "FLUSS_TIERING_CRASH"
CRASH_CODE: Final = 86

# Loads of a lake table that other jobs commit to all the time.
LOADS_MAX: Final = 5
_LOGIN: Final = re.compile(r"(?<=://)\S*@")  # in an address


@dataclass(frozen=True)
class TieringSettings:
    """What rounds of all tables share."""

    connection: FlussConnection
    executor: Executor
    warehouse: str | None = None
    catalog: Mapping[str, str] | None = None
    progress: Progress | None = None
    compact: bool | None = None
    """Whether small files are joined after a round; None: where the table's auto-compaction is on"""
    merger: Merger | None = None
    """Merges changes of primary-key tables where it can; without, files are written anew"""


def tier_table(
    settings: TieringSettings, path: TablePath, check_held: Callable[[], None] = lambda: None
) -> TieringReport:
    """One round; what goes wrong is in the report. `check_held` raises when the table was given to another job."""
    _tell(settings, TieringEvent(path))
    this = _Round(settings, path, check_held)
    is_away = False
    try:
        report = this.run()
    except LakeConflictError as error:
        report = TieringReport(path, Status.LOST, reason=str(error))
    except Exception as error:
        is_away = isinstance(error, ConnectError | TimeoutError)
        report = TieringReport(path, Status.FAILED, reason=str(error) or type(error).__name__)
    if not is_away:
        this.keep_reason(report)
    _tell(settings, TieringEvent(path, report=report))
    return report


class _Round:
    def __init__(self, settings: TieringSettings, path: TablePath, check_held: Callable[[], None]) -> None:
        self._settings = settings
        self._path = path
        self._check_held = check_held
        self._registry = LakeRegistry(settings.connection)
        self._info: TableInfo | None = None

    def keep_reason(self, report: TieringReport) -> None:
        """Have the server keep why the round failed, or that it did not; a race that was lost is neither."""
        if self._info is None or report.status is Status.LOST:
            return
        reason = report.reason if report.status is Status.FAILED else None
        with suppress(FlussError):
            # All users of the server see it.
            self._registry.report(self._info, reason and _LOGIN.sub("", reason))

    def run(self) -> TieringReport:
        connection = self._settings.connection
        table = connection.get_table(self._path)
        self._info = info = table.get_table_info()
        check_tiered(info)
        # Of what Apache Fluss answers about a table, this alone says where its lake is.
        described = connection.get_admin().get_table_info(self._path)
        options = named_lake(described, self._settings.warehouse, self._settings.catalog, Trust.of(connection.config))
        if not options.is_named_by_server:
            warn_of_other_lake(described, options)
        lake, known = self._open(info, options)
        known = repair(self._registry, info, lake, known)
        plan = plan_round(connection, table, lake, known, self._settings.executor.slots)
        if plan.is_empty:
            snapshot_id = None if known is None else known.snapshot_id
            return TieringReport(self._path, Status.NOTHING_NEW, snapshot_id=snapshot_id)
        report = self._tier(info, options, lake, plan)
        wanted = self._settings.compact
        if wanted is None:
            wanted = is_true(info.properties, DATALAKE_AUTO_COMPACTION)
        return self._compacted(report) if wanted and report.status is Status.TIERED else report

    def _open(self, info: TableInfo, options: LakeOptions) -> tuple[LakeTable, LakeSnapshot | None]:
        """The lake table first, what is registered then: so nothing that is registered is tiered again."""
        known = self._registry.latest(self._path)
        if known is not None and not has_snapshot(options.open().load_table(self._path), known):
            raise unknown_snapshot(info, known, options.warehouse or options.uri or "")
        for _ in range(LOADS_MAX):
            lake = options.open().ensure_table(info)
            known = self._registry.latest(self._path)
            if has_snapshot(lake, known):
                return lake, known
            # Another job may have committed and registered one in between.
        assert known is not None
        raise unknown_snapshot(info, known, lake.location)

    def _tier(self, info: TableInfo, options: LakeOptions, lake: LakeTable, plan: RoundPlan) -> TieringReport:
        times = [clock.monotonic()]
        pending = self._merged(info, options, lake, plan) or self._run_tasks(lake, plan)
        times.append(clock.monotonic())
        try:
            _reached(TASKS_DONE)
            offsets_path = prepare(self._registry, info, plan.ends)
            _reached(PREPARED)
            self._check_held()
            _reached(COMMITTING)
        except BaseException:
            pending.discard()
            raise
        lake, snapshot = self._commit(options, lake, pending, offsets_path)
        times.append(clock.monotonic())
        _reached(COMMITTED)
        report = TieringReport(
            self._path,
            Status.TIERED,
            pending.row_count,
            files_added=pending.files_added,
            files_removed=pending.files_removed,
            snapshot_id=snapshot.snapshot_id,
            tasks_s=times[1] - times[0],
            read_s=pending.read_s,
            write_s=pending.write_s,
            commit_s=times[2] - times[1],
        )
        try:
            register(self._registry, info, lake, snapshot, plan.ends)
        except FlussError as error:
            reason = f"the lake has snapshot {snapshot.snapshot_id}, but the server was not told ({error}); the next "
            return replace(report, status=Status.FAILED, reason=f"{reason}round does that")
        _reached(REGISTERED)
        return replace(report, register_s=clock.monotonic() - times[2])

    def _compacted(self, report: TieringReport) -> TieringReport:
        """Join small files. A failure does not harm the round: its rows are in the lake."""
        try:
            given = self._settings
            done = compact(
                given.connection, self._path, given.executor, warehouse=given.warehouse, catalog=given.catalog
            )
        except Exception as error:
            return replace(report, reason=f"small files were not joined: {error}")
        return report if done.snapshot_id is None else replace(report, snapshot_id=done.snapshot_id)

    def _merged(self, info: TableInfo, options: LakeOptions, lake: LakeTable, plan: RoundPlan) -> PendingCommit | None:
        merger = self._settings.merger
        if merger is None or not info.has_primary_key():
            return None
        _tell(self._settings, TieringEvent(self._path, 0, 1, plan.row_count))
        return merger.merge(info, options, lake, plan)

    def _run_tasks(self, lake: LakeTable, plan: RoundPlan) -> PendingCommit:
        count, rows = len(plan.tasks), plan.row_count
        _tell(self._settings, TieringEvent(self._path, 0, count, rows))
        return write_pending(
            self._settings.executor,
            lake,
            plan.tasks,
            plan.removed,
            lambda done: _tell(self._settings, TieringEvent(self._path, done, count, rows)),
        )

    def _commit(
        self, options: LakeOptions, lake: LakeTable, pending: PendingCommit, offsets_path: str
    ) -> tuple[LakeTable, TieredSnapshot]:
        try:
            pending.commit(offsets_path)
        except LakeConflictError:
            pending.discard()
            raise
        except Exception as error:
            # It may have taken effect all the same. If it is not seen it still may: the files stay for the clean-up.
            again = options.open().load_table(self._path)
            if again is None or _committed(again, offsets_path) is None:
                raise FlussError(f"The commit to the lake failed: {error}") from error
            lake = again
            lake.sync()
        snapshot = _committed(lake, offsets_path)
        assert snapshot is not None
        return lake, snapshot


def _committed(lake: LakeTable, offsets_path: str) -> TieredSnapshot | None:
    """The snapshot of a commit; each has an offsets file of its own."""
    return next((item for item in lake.all_tiered() if item.offsets_path == offsets_path), None)


def _reached(step: str) -> None:
    """Go on, unless this is the step at which the process is to end."""
    if os.environ.get(CRASH_VARIABLE) == step:
        os._exit(CRASH_CODE)


def _tell(settings: TieringSettings, event: TieringEvent) -> None:
    if settings.progress is not None:
        settings.progress(event)

"""The tasks of a tiering round, planned from offsets, run by executors: each writes rows of a bucket to files.

Tasks are plain values that can be sent anywhere. They change nothing but files of their own, which are in no snapshot.

A task of a primary-key table folds changes in by copy: a file that has rows of changed keys gives way to a new one.
Engines that merge by themselves are given the changes as rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from fluss.doors import clock, threads
from fluss.lake.filesystem import open_filesystem
from fluss.lake.fold import ChangeFold, FoldedChanges, Keys, fold_changes, lake_rows, with_system_columns
from fluss.lake.format import NO_OFFSET, OFFSET, LakeFile, LakeTable, PartitionValues, WrittenFile, by_bucket
from fluss.lake.log_ranges import Stretch, log_stretches, part_rows, split_ranges
from fluss.lake.parquet import READ_ROWS, FileTarget, read_file, write_files
from fluss.model.errors import InvalidRequestError
from fluss.model.infos import LakeSnapshot, TableInfo
from fluss.model.paths import TableBucket, TablePath
from fluss.sync import FlussConnection, FlussTable

if TYPE_CHECKING:
    from fluss.sync import TableScan


@dataclass(frozen=True)
class TieredTable:
    """What all tasks of a round know: the table, its columns as of the plan, and where files go."""

    table_path: TablePath
    table_id: int
    columns: tuple[str, ...]
    target: FileTarget


@dataclass(frozen=True)
class BucketPart:
    """Offsets of one bucket, from `start_offset` up to, not including, `end_offset`."""

    table: TieredTable
    bucket: TableBucket
    partition: PartitionValues
    start_offset: int
    end_offset: int


@dataclass(frozen=True)
class LogPart(BucketPart):
    """Rows of a log table, which are added."""


@dataclass(frozen=True)
class ChangesPart(BucketPart):
    """Changes of a primary-key table, which are folded into the files that the lake has of the bucket."""

    files: tuple[LakeFile, ...] = ()


@dataclass(frozen=True)
class CurrentPart(BucketPart):
    """All rows of a primary-key table's bucket as of `end_offset`, for where the changelog does not reach back."""


@dataclass(frozen=True)
class RewritePart(BucketPart):
    """Files of a bucket that are to become fewer, with the same rows; nothing is read from the log."""

    files: tuple[LakeFile, ...] = ()


Task: TypeAlias = LogPart | ChangesPart | CurrentPart | RewritePart


@dataclass(frozen=True)
class TaskResult:
    """Files to add and to remove, and how many rows or changed keys were tiered; or why the task failed."""

    added: list[WrittenFile] = field(default_factory=list)
    removed: list[LakeFile] = field(default_factory=list)
    row_count: int = 0
    error: str | None = None
    read_s: float = 0.0  # waiting for rows of the log
    write_s: float = 0.0  # all the rest


class Stopwatch:
    """How long batches were waited for."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def waiting_for(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches."""
        while True:
            began = clock.monotonic()
            batch = next(batches, None)
            self.seconds += clock.monotonic() - began
            if batch is None:
                return
            yield batch


def open_table(task: Task, connection: FlussConnection) -> FlussTable:
    """The table of a task, as long as it is the one that was planned for."""
    table = connection.get_table(task.table.table_path)
    if table.get_table_info().table_id != task.table.table_id:
        raise InvalidRequestError(f"{task.table.table_path} was dropped and created again meanwhile.")
    return table


def scan_columns(task: Task, table: FlussTable) -> TableScan:
    """A scan of the columns as of the plan; more may have been added since."""
    scan = table.new_scan()
    columns = list(task.table.columns)
    # Logs of rows take no projection.
    return scan if columns == table.get_table_info().get_column_names() else scan.project_by_name(columns)


def remove_file(location: str, properties: Mapping[str, str]) -> None:
    """Remove a file that is in no snapshot."""
    filesystem, path = open_filesystem(location, properties)
    filesystem.delete_file(path)


# They are in memory at once; rounds with more of a bucket are done by copy, which folds piece by piece.
CHANGES_MAX: Final = 500_000
REMOVED: Final = "__fluss_removed"


def merge_changes(task: ChangesPart, table: FlussTable, reading: Stopwatch) -> TaskResult:
    """Fold a stretch of the changelog into the bucket's files, in bounded memory."""
    merge = _Merge(task, Keys(table.get_table_info()))
    fold = ChangeFold(merge.keys, task.table.columns, task.bucket.bucket)
    try:
        scan = scan_columns(task, table)
        found = scan.read_bucket(task.bucket, task.start_offset, task.end_offset, changelog=True)
        for changes in reading.waiting_for(found):
            fold.add(changes)
            if fold.is_full:
                merge.apply(fold.take())
        merge.apply(fold.take())
    except BaseException:
        merge.abort()
        raise
    return merge.result()


class _Merge:
    def __init__(self, task: ChangesPart, keys: Keys) -> None:
        self._task = task
        self._target = task.table.target
        self.keys = keys
        self._key_schema = pa.schema([self._target.schema.field(name) for name in keys.names])
        self._kept: list[LakeFile] = list(task.files)
        self._removed: list[LakeFile] = []
        self._written: dict[str, WrittenFile] = {}  # by this task, and not replaced since
        self._row_count = 0

    def apply(self, folded: FoldedChanges | None) -> None:
        """Replace the files that have changed keys, and add the rows that the changes leave behind theirs."""
        if folded is None:
            return
        touched: dict[LakeFile, pa.BooleanArray] = {}
        for file in self._kept:
            mask = self.keys.found_in(read_file(file, self._key_schema, self._target.properties), folded.keys)
            if pc.any(mask).as_py():
                touched[file] = mask
        rest = chain.from_iterable(self._untouched_rows(file, mask) for file, mask in touched.items())
        rows = chain(rest, folded.rows.to_batches())
        written = write_files(self._target, self._task.partition, self._task.bucket.bucket, rows)
        self._kept = [file for file in self._kept if file not in touched]
        for file in touched:
            if self._written.pop(file.path, None) is None:
                self._removed.append(file)
            else:
                remove_file(file.path, self._target.properties)
        for item in written:
            self._written[item.path] = item
            self._kept.append(LakeFile(item.path, item.partition, item.bucket, item.row_count, item.size_bytes))
        self._row_count += len(folded.keys)

    def _untouched_rows(self, file: LakeFile, mask: pa.BooleanArray) -> Iterator[pa.RecordBatch]:
        first = 0
        for batch in read_file(file, self._target.schema, self._target.properties):
            kept = batch.filter(pc.invert(mask.slice(first, batch.num_rows)))
            first += batch.num_rows
            if kept.num_rows:
                yield kept

    def result(self) -> TaskResult:
        """What has become of the bucket's files."""
        return TaskResult(list(self._written.values()), self._removed, self._row_count)

    def abort(self) -> None:
        """Leave no files."""
        for path in self._written:
            remove_file(path, self._target.properties)


def read_changes(task: ChangesPart, connection: FlussConnection) -> Iterator[pa.RecordBatch]:
    """The columns of the lake table, and the flag; keys that are gone have the rows they had."""
    table = open_table(task, connection)
    scan, keys = scan_columns(task, table), Keys(table.get_table_info())
    folded = fold_changes(scan, task.bucket, task.start_offset, task.end_offset, keys, task.table.columns)
    if folded is None:
        return
    for rows, is_removed in ((folded.rows, False), (folded.removed, True)):
        for batch in rows.to_batches(READ_ROWS):
            yield batch.append_column(REMOVED, pa.repeat(pa.scalar(is_removed), batch.num_rows))


def rewrite_files(task: RewritePart) -> TaskResult:
    """Write the rows of some files anew, in the order of their offsets."""
    target = task.table.target
    batches = (batch for file in task.files for batch in read_file(file, target.schema, target.properties))
    rows = pa.Table.from_batches(batches, target.schema).sort_by(OFFSET)
    added = write_files(target, task.partition, task.bucket.bucket, rows.to_batches(READ_ROWS))
    return TaskResult(added, list(task.files), rows.num_rows)


class Executor(Protocol):
    """Runs tasks somewhere, and gives their results in any order."""

    @property
    def slots(self) -> int:
        """How many tasks run at once, about."""
        ...

    def run_tasks(self, tasks: Sequence[Task]) -> Iterator[TaskResult]: ...


class LocalExecutor:
    """Runs tasks in threads of this process, over a connection that is there."""

    def __init__(self, connection: FlussConnection, slots: int | None = None) -> None:
        self._connection = connection
        self.slots = slots or os.cpu_count() or 1

    def run_tasks(self, tasks: Sequence[Task]) -> Iterator[TaskResult]:
        """Results as they come."""
        with threads.pool(self.slots, "fluss-tiering") as pool:
            for done in as_completed([pool.submit(run_task, task, self._connection) for task in tasks]):
                yield done.result()


def run_task(task: Task, connection: FlussConnection) -> TaskResult:
    """Do a task. A failed one leaves no files, and says so in its result: engines would wrap the reason in theirs."""
    began, reading = clock.monotonic(), Stopwatch()
    result = _result(task, connection, reading)
    return replace(result, read_s=reading.seconds, write_s=clock.monotonic() - began - reading.seconds)


def _result(task: Task, connection: FlussConnection, reading: Stopwatch) -> TaskResult:
    try:
        table = open_table(task, connection)
        if isinstance(task, ChangesPart):
            return merge_changes(task, table, reading)
        if isinstance(task, RewritePart):
            return rewrite_files(task)
        rows = _current_rows(task, table) if isinstance(task, CurrentPart) else _log_rows(task, table)
        rows = reading.waiting_for(rows)
        added = write_files(task.table.target, task.partition, task.bucket.bucket, rows)
        return TaskResult(added, row_count=sum(file.row_count for file in added))
    except Exception as error:
        return TaskResult(error=str(error) or type(error).__name__)


def _log_rows(task: Task, table: FlussTable) -> Iterator[pa.RecordBatch]:
    scan = scan_columns(task, table)
    for batch in scan.read_bucket(task.bucket, task.start_offset, task.end_offset, changelog=True):
        yield lake_rows(batch, task.table.columns, task.bucket.bucket)


def _current_rows(task: Task, table: FlussTable) -> Iterator[pa.RecordBatch]:
    for batch in scan_columns(task, table).read_bucket_at(task.bucket, task.end_offset):
        offsets = pa.repeat(pa.scalar(NO_OFFSET, pa.int64()), batch.num_rows)
        times = pa.repeat(pa.scalar(0, pa.timestamp("us", "UTC")), batch.num_rows)
        yield with_system_columns(batch.columns, task.table.columns, task.bucket.bucket, offsets, times)


@dataclass(frozen=True)
class RoundPlan:
    """Tasks, how far each bucket is tiered when they are done, and files that go in any case."""

    tasks: list[Task] = field(default_factory=list)
    ends: dict[TableBucket, int] = field(default_factory=dict)
    removed: list[LakeFile] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.tasks and not self.removed

    @property
    def row_count(self) -> int:
        """How many rows, or changes, there are to read."""
        return sum(task.end_offset - task.start_offset for task in self.tasks)


def plan_round(
    connection: FlussConnection, table: FlussTable, lake: LakeTable, tiered: LakeSnapshot | None, slots: int
) -> RoundPlan:
    """Everything from the registered offsets to the latest ones; partitions that were dropped are left alone."""
    info = table.get_table_info()
    stretches = list(log_stretches(connection, table, tiered))
    target = FileTarget(lake.location, lake.file_schema, tuple(info.partition_keys), lake.io_properties)
    common = TieredTable(info.table_path, info.table_id, tuple(info.get_column_names()), target)
    plan = RoundPlan(ends={item.bucket: item.end for item in stretches})
    if info.has_primary_key():
        _plan_changes(plan, common, info, stretches, lake)
    else:
        plan.tasks.extend(_log_parts(common, table, stretches, slots))
    return plan


def _plan_changes(
    plan: RoundPlan, common: TieredTable, info: TableInfo, stretches: Sequence[Stretch], lake: LakeTable
) -> None:
    from fluss.lake.fold import Keys

    Keys(info)  # raises if they can't be told apart in the lake
    files = by_bucket(lake.files(lake.snapshot_id))
    for item in stretches:
        own = files[item.partition, item.bucket.bucket]
        if item.tiered is not None and item.tiered >= item.earliest:
            if item.start < item.end:
                kept = tuple(own)
                plan.tasks.append(ChangesPart(common, item.bucket, item.partition, item.start, item.end, kept))
            continue
        # Files of a bucket that was never tiered are of an earlier partition of this name, or of nobody.
        plan.removed.extend(own)
        if item.earliest:
            plan.tasks.append(CurrentPart(common, item.bucket, item.partition, item.start, item.end))
        elif item.end:
            plan.tasks.append(ChangesPart(common, item.bucket, item.partition, 0, item.end))


def _log_parts(common: TieredTable, table: FlussTable, stretches: Sequence[Stretch], slots: int) -> Iterator[LogPart]:
    """Rows to be added, long stretches in several parts."""
    new = [item for item in stretches if item.start < item.end]
    size = part_rows(sum(item.end - item.start for item in new), slots)
    split = split_ranges(table, [(item.bucket, item.start, item.end) for item in new], size)
    for item, parts in zip(new, split, strict=True):
        for start, end in parts:
            yield LogPart(common, item.bucket, item.partition, start, end)

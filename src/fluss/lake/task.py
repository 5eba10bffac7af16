"""What one task of a tiering round does: read a stretch of one bucket, write its rows to files of the lake.

Tasks are plain values that can be sent anywhere. They change nothing but files of their own, which are in no snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from fluss.doors import clock
from fluss.lake.files import LakeFile, PartitionValues, WrittenFile
from fluss.lake.filesystem import open_filesystem
from fluss.lake.layout import NO_OFFSET
from fluss.lake.parquet import FileTarget, write_files
from fluss.model.errors import InvalidRequestError
from fluss.model.paths import TableBucket, TablePath

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.sync import FlussConnection, FlussTable, TableScan


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


def run_task(task: Task, connection: FlussConnection) -> TaskResult:
    """Do a task. A failed one leaves no files, and says so in its result: engines would wrap the reason in theirs."""
    began, reading = clock.monotonic(), Stopwatch()
    result = _result(task, connection, reading)
    return replace(result, read_s=reading.seconds, write_s=clock.monotonic() - began - reading.seconds)


def _result(task: Task, connection: FlussConnection, reading: Stopwatch) -> TaskResult:
    try:
        table = open_table(task, connection)
        if isinstance(task, ChangesPart):
            from fluss.lake.merge import merge_changes

            return merge_changes(task, table, reading)
        if isinstance(task, RewritePart):
            from fluss.lake.compaction import rewrite_files

            return rewrite_files(task)
        rows = _current_rows(task, table) if isinstance(task, CurrentPart) else _log_rows(task, table)
        rows = reading.waiting_for(rows)
        added = write_files(task.table.target, task.partition, task.bucket.bucket, rows)
        return TaskResult(added, row_count=sum(file.row_count for file in added))
    except Exception as error:
        return TaskResult(error=str(error) or type(error).__name__)


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


def _log_rows(task: Task, table: FlussTable) -> Iterator[pa.RecordBatch]:
    from fluss.lake.fold import lake_rows

    scan = scan_columns(task, table)
    for batch in scan.read_bucket(task.bucket, task.start_offset, task.end_offset, changelog=True):
        yield lake_rows(batch, task.table.columns, task.bucket.bucket)


def _current_rows(task: Task, table: FlussTable) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from fluss.lake.fold import with_system_columns

    for batch in scan_columns(task, table).read_bucket_at(task.bucket, task.end_offset):
        offsets = pa.repeat(pa.scalar(NO_OFFSET, pa.int64()), batch.num_rows)
        times = pa.repeat(pa.scalar(0, pa.timestamp("us", "UTC")), batch.num_rows)
        yield with_system_columns(batch.columns, task.table.columns, task.bucket.bucket, offsets, times)

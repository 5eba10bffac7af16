"""One task of a tiering round: it reads a stretch of one bucket and writes its rows to files of the lake.

Tasks are plain values that can be sent anywhere. They change nothing but files of their own, which are in no snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from fluss.doors import clock
from fluss.lake.filesystem import open_filesystem
from fluss.lake.format import LakeFile, PartitionValues, WrittenFile
from fluss.lake.parquet import FileTarget
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

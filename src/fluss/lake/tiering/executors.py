"""Executors, which run the tasks of a tiering round; Spark's executor is in `fluss.spark.tiering`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from fluss.doors import clock, threads
from fluss.lake.fold import lake_rows, with_system_columns
from fluss.lake.format import NO_OFFSET
from fluss.lake.parquet import write_files
from fluss.lake.tiering.merge import merge_changes, rewrite_files
from fluss.lake.tiering.task import (
    ChangesPart,
    CurrentPart,
    RewritePart,
    Stopwatch,
    Task,
    TaskResult,
    open_table,
    scan_columns,
)

if TYPE_CHECKING:
    from fluss.sync import FlussConnection, FlussTable


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

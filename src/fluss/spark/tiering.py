"""Tiering to the lake as Spark jobs: tasks read buckets and write files, the driver commits."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from typing import TYPE_CHECKING, Any, Final

from fluss.doors import threads
from fluss.spark.addresses import check_directory, options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from fluss.lake.report import Progress, TieringReport
    from fluss.lake.tiering.pending_commit import Merger
    from fluss.lake.tiering.task import Task, TaskResult
    from fluss.sync import TablePath

# Results come when their job is done, so several jobs are what progress is seen by; each costs the driver some time.
JOBS_MAX: Final = 16
_RESULT: Final = "result"


def tier(
    spark: SparkSession,
    *,
    bootstrap_servers: str,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | None = None,
    tables: Iterable[str | TablePath] | None = None,
    interval_s: float | None = None,
    stop: threading.Event | None = None,
    compact: bool | None = None,
    merge_on_read: bool = False,
    progress: Progress | None = None,
    **client_config: Any,
) -> list[TieringReport]:
    """Tier tables to the lake, once or with `interval_s` until `stop` is set; returns the last report of each table.

    Without `tables` these are all with `table.datalake.enabled`. A `warehouse`, or `catalog` with the keys of the
    server's `datalake.iceberg.` settings, says where to; readers have to name it, too. Without, it is the server's.
    `compact` joins small files after each round, without it `table.datalake.auto-compaction` decides.
    `merge_on_read` adds changed rows of primary-key tables and marks the old ones as deleted, where otherwise files are
    written anew; the session needs Iceberg's runtime for that. `progress` is called with each TieringEvent. Further
    arguments are settings of the client, named as in `connect`.
    """
    from fluss.lake.tiering.service import tier as run
    from fluss.sync import connect

    with connect(bootstrap_servers, **client_config) as connection:
        return run(
            connection,
            SparkExecutor(spark, options(connection)),
            merger=_merger(spark, options(connection)) if merge_on_read else None,
            tables=tables,
            warehouse=warehouse,
            catalog=catalog,
            interval_s=interval_s,
            stop=stop,
            compact=compact,
            progress=progress,
        )


def _merger(spark: SparkSession, client: Mapping[str, str]) -> Merger:
    from fluss.spark.merge_on_read import SparkMerger

    return SparkMerger(spark, client)


class SparkExecutor:
    """Runs the tasks of a tiering round in Spark."""

    def __init__(self, spark: SparkSession, client: Mapping[str, str]) -> None:
        self._spark = spark
        self._client = dict(client)
        self.slots = _slots(spark)

    def run_tasks(self, tasks: Sequence[Task]) -> Iterator[TaskResult]:
        """Results as jobs are done."""
        if not tasks:
            return
        count = min(len(tasks), JOBS_MAX)
        with threads.pool(count, "fluss-tiering") as pool:
            for done in as_completed([pool.submit(self._run_job, tasks[job::count]) for job in range(count)]):
                yield from done.result()

    def _run_job(self, tasks: Sequence[Task]) -> list[TaskResult]:
        count = len(tasks)
        numbers = self._spark.range(0, count, 1, count)
        frame = numbers.mapInArrow(_runner(self._client, [*map(pickle.dumps, tasks)]), f"{_RESULT} binary")
        return [pickle.loads(row[_RESULT]) for row in frame.collect()]


def _runner(
    client: Mapping[str, str], tasks: Sequence[bytes]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a Spark task does with the numbers that it is given. It connects by itself: connections are not shipped."""

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        from fluss.lake.tiering.executors import run_task
        from fluss.spark.waiting import waiting_config
        from fluss.sync import Config, FlussConnection

        wanted = [number for batch in numbers for number in batch.column(0).to_pylist()]
        if not wanted:
            return
        check_directory(client["bootstrap.servers"])
        with FlussConnection.create(waiting_config(Config(dict(client)))) as connection:
            for number in wanted:
                result = pickle.dumps(run_task(pickle.loads(tasks[number]), connection))
                yield pyarrow.RecordBatch.from_pydict({_RESULT: pyarrow.array([result], pyarrow.binary())})

    return run


def _slots(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # a session of Spark Connect does not tell
        return os.cpu_count() or 1

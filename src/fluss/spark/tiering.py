"""Tiering to the lake as Spark jobs: copy-on-write by tasks, or merge-on-read by Spark's MERGE INTO.

Merge-on-read is for primary-key tables and needs the Iceberg runtime for the JVM. Changed rows are added and the old
ones marked as deleted, so a round writes as much as has changed, and readers have more to do. The merge runs on a
branch, which then becomes the table if that is still as it was when the round began.
"""

from __future__ import annotations

import os
import pickle
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from typing import TYPE_CHECKING, Any, Final

from fluss.doors import threads
from fluss.lake.format import BUCKET, LakeBranch, LakeTable
from fluss.lake.options import JDBC, REST, LakeOptions
from fluss.lake.tiering.pending_commit import PendingBranch
from fluss.lake.tiering.task import CHANGES_MAX, REMOVED, ChangesPart, read_changes
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.model.tables.options import ICEBERG
from fluss.model.trust import split_address, warn_once
from fluss.model.types import DataType, TypeRoot
from fluss.spark.source_options import check_directory, options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from fluss.lake.report import Progress, TieringReport
    from fluss.lake.tiering.pending_commit import Merger
    from fluss.lake.tiering.task import RoundPlan, Task, TaskResult
    from fluss.model.infos import TableInfo
    from fluss.sync import TablePath

RUNTIME: Final = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13"
SQLITE_DRIVER: Final = "org.xerial:sqlite-jdbc"

_SETTINGS: Final = {
    "spark.sql.caseSensitive": "true",  # as columns of Fluss are
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
}
_CATALOG_CLASS: Final = "org.apache.iceberg.spark.SparkCatalog"
_BUSY_TIMEOUT_MS: Final = 30_000
_CHANGES: Final = "fluss_changes"
# What a task says is at the end of its stack, what the JVM says on a second line.
_CAUSE: Final = re.compile(r"^(?:fluss\.[\w.]+)?: (.+)$", re.MULTILINE)
_FIRST_LINE: Final = re.compile(r"^\s*(\S.*)$", re.MULTILINE)


class SparkMerger:
    """Merges changes in sessions of its own, one for each catalog: the given one is left as it is."""

    def __init__(self, spark: SparkSession, client: Mapping[str, str]) -> None:
        _check_runtime(spark)
        self._spark = spark
        self._client = dict(client)
        self._sessions: dict[frozenset[tuple[str, str]], SparkSession] = {}

    def merge(self, info: TableInfo, options: LakeOptions, lake: LakeTable, plan: RoundPlan) -> PendingBranch | None:
        """The changes of a round on a branch; None for rounds that replace files, and what Spark can't merge."""
        tasks = [task for task in plan.tasks if isinstance(task, ChangesPart)]
        if options.format != ICEBERG or not _can_merge(info, lake, plan, tasks) or not may_use(options):
            return None
        lake.files(lake.snapshot_id)  # raises for files elsewhere than in the lake's places: the JVM opens any
        branch = options.open().new_branch(lake)
        try:
            self._merge(info, options, branch, tasks)
            summary = branch.sync()
            return PendingBranch(branch, _row_count(summary), summary)
        except BaseException:
            branch.drop()
            raise

    def _merge(self, info: TableInfo, options: LakeOptions, branch: LakeBranch, tasks: Sequence[ChangesPart]) -> None:
        path = info.table_path
        names = (options.name, path.database_name, path.table_name, f"branch_{branch.name}")
        target = ".".join(map(_quoted, names))
        try:
            session = self._session(options)
            self._changes(session, target, tasks).createOrReplaceTempView(_CHANGES)
            session.sql(merge_statement(info, target, tasks))
        except Exception as error:
            raise FlussError(_reason(error)) from error

    def _changes(self, session: SparkSession, target: str, tasks: Sequence[ChangesPart]) -> DataFrame:
        from pyspark.sql.types import BooleanType, StructField, StructType

        fields = session.table(target).schema.fields
        schema = StructType([*fields, StructField(REMOVED, BooleanType(), False)])
        numbers = session.range(0, len(tasks), 1, len(tasks))
        return numbers.mapInArrow(_reader(self._client, [*map(pickle.dumps, tasks)], schema), schema)

    def _session(self, options: LakeOptions) -> SparkSession:
        settings = {**_SETTINGS, **catalog_settings(options)}
        key = frozenset(settings.items())
        if key not in self._sessions:
            session = self._sessions[key] = self._spark.newSession()
            for name, value in settings.items():
                session.conf.set(name, value)
        return self._sessions[key]


def catalog_settings(options: LakeOptions) -> dict[str, str]:
    """How the JVM's Iceberg is told of a catalog; one in a database finds its tables by its own name."""
    found = {**options.properties, "cache-enabled": "false"}
    if options.warehouse is not None:
        found["warehouse"] = options.warehouse
    if options.type == REST:
        assert options.uri is not None
        found |= {"type": REST, "uri": options.uri}
    elif options.sqlite_path is not None:
        uri = f"jdbc:sqlite:{options.sqlite_path.absolute()}"
        found |= {"type": JDBC, "uri": uri, "jdbc.busy_timeout": str(_BUSY_TIMEOUT_MS)}
    else:
        found |= {"type": JDBC, "uri": f"jdbc:{options.sqlalchemy_uri}"}
    prefix = f"spark.sql.catalog.{options.name}"
    return {prefix: _CATALOG_CLASS, **{f"{prefix}.{key}": value for key, value in found.items()}}


def merge_statement(info: TableInfo, target: str, tasks: Sequence[ChangesPart]) -> str:
    """MERGE INTO by the whole key; files of buckets and partitions without changes need not be read."""
    conditions = [f"t.{_quoted(name)} = s.{_quoted(name)}" for name in info.primary_keys]
    conditions.append(_is_one_of(BUCKET, (str(task.bucket.bucket) for task in tasks)))
    for place, name in enumerate(info.partition_keys):
        conditions.append(_is_one_of(name, (_literal(task.partition[place]) for task in tasks)))
    return (
        f"MERGE INTO {target} t USING {_CHANGES} s ON {' AND '.join(conditions)} "
        f"WHEN MATCHED AND s.{REMOVED} THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET * "
        f"WHEN NOT MATCHED AND NOT s.{REMOVED} THEN INSERT *"
    )


def _can_merge(info: TableInfo, lake: LakeTable, plan: RoundPlan, tasks: Sequence[ChangesPart]) -> bool:
    """Whether all there is to do is to merge changes into a table that has rows, in an amount that fits in memory."""
    return (
        lake.snapshot_id is not None
        and not plan.removed
        and len(tasks) == len(plan.tasks)
        and all(task.end_offset - task.start_offset <= CHANGES_MAX for task in tasks)
        and not any(
            _has_time(column.data_type) for column in info.schema.columns
        )  # which Iceberg's Spark does not take
    )


def may_use(options: LakeOptions) -> bool:
    """Whether the JVM may be given a catalog: of a service it takes all answers, classes to load among them."""
    parts = None if options.uri is None else split_address(options.uri)
    if options.type != REST or not options.is_named_by_server or (parts and options.trust.lists_host(parts)):
        return True
    warn_once(
        f"The server names the catalog {options.uri}, to which Spark would leave the choice of classes: changes are "
        "merged without merge-on-read. Name the catalog yourself, or list it in lake.trusted."
    )
    return False


def _has_time(data_type: DataType) -> bool:
    inner = (data_type.element, data_type.key, data_type.value, *(field.data_type for field in data_type.fields))
    return data_type.root is TypeRoot.TIME or any(_has_time(part) for part in inner if part is not None)


def _row_count(summary: Mapping[str, str]) -> int:
    """How many keys a merge has changed; Spark 4.0 does not tell of those that are gone."""
    kinds = [f"spark.merge-into.num-target-rows-{kind}" for kind in ("inserted", "updated", "deleted")]
    return sum(int(summary[kind]) for kind in kinds) if kinds[0] in summary else int(summary.get("added-records", 0))


def _reader(
    client: Mapping[str, str], tasks: Sequence[bytes], schema: Any
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a Spark task does with the numbers that it is given. It connects by itself: connections are not shipped."""

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from fluss.lake.parquet import to_schema
        from fluss.spark.columns import spark_arrow_schema
        from fluss.spark.waiting import waiting_config
        from fluss.sync import Config, FlussConnection

        wanted = [number for batch in numbers for number in batch.column(0).to_pylist()]
        if not wanted:
            return
        arrow_schema = spark_arrow_schema(schema)
        with FlussConnection.create(waiting_config(Config(dict(client)))) as connection:
            for number in wanted:
                for batch in read_changes(pickle.loads(tasks[number]), connection):
                    yield to_schema(batch, arrow_schema)

    return run


def _check_runtime(spark: SparkSession) -> None:
    """Raise unless the session has Iceberg's classes."""
    from pyspark.errors import PySparkException

    try:
        spark.sql("SELECT java_method('org.apache.iceberg.IcebergBuild', 'version')").collect()
    except PySparkException as error:
        raise InvalidRequestError(
            "Merge-on-read needs Iceberg's runtime in Spark 4.0 or 4.1, and this session has none: start it with "
            f"spark.jars.packages={RUNTIME}:1.12.0 (and {SQLITE_DRIVER} for a catalog in SQLite), or leave "
            "merge-on-read out."
        ) from error


def _reason(error: Exception) -> str:
    text = str(error)
    if "No suitable driver" in text:
        return f"Spark has no driver for the lake's catalog; for SQLite, add {SQLITE_DRIVER} to spark.jars.packages."
    found = _CAUSE.search(text) or _FIRST_LINE.search(text)
    return f"Spark could not merge the changes: {text if found is None else found[1]}"


def _is_one_of(column: str, values: Iterable[str]) -> str:
    return f"t.{_quoted(column)} IN ({', '.join(sorted(set(values)))})"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


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

        from fluss.lake.tiering.task import run_task
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

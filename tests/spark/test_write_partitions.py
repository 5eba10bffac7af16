"""Partitions that rows find or create: in all modes, up to a bound that holds for all tasks of a write together."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from fluss.model.errors import InvalidRequestError
from fluss.model.partitions import PartitionBound
from fluss.spark import Catalog
from fluss.spark.source_options import OpenTable, SourceOptions
from fluss.spark.write.writer import WritePartitions
from fluss.sync import DataTypes, FlussConnection, Schema, TableDescriptor, TablePath
from tests.spark.conftest import Backend

pytestmark = pytest.mark.spark

T = DataTypes
SWITCH = "writer.dynamic-create-partition.enabled"
BOUND = "write.new.partitions.max"


def _create(backend: Backend, keyed: bool = False, *, schema: Schema | None = None, **options: Any) -> TablePath:
    path = TablePath(backend.database, "sales")
    found = schema or (
        Schema.builder()
        .column("id", T.bigint())
        .column("day", T.string())
        .column("v", T.int())
        .primary_key(["id", "day"] if keyed else [])
        .build()
    )
    options = {"partition_keys": ["day"], "bucket_count": 2, **options}
    backend.connection.get_admin().create_table(path, TableDescriptor(found, **options))
    return path


def _sales(backend: Backend, count: int, days: int, tasks: int = 2, prefix: str = "d") -> DataFrame:
    columns = "id", f"concat('{prefix}', id % {days}) AS day", "int(id) AS v"
    return backend.spark.range(0, count, 1, tasks).selectExpr(*columns)


def _names(backend: Backend, path: TablePath) -> set[str]:
    return {info.get_partition_name() for info in backend.connection.get_admin().list_partition_infos(path)}


def _rows(backend: Backend, path: TablePath) -> list[tuple[Any, ...]]:
    table = backend.connection.get_table(path).new_scan().to_arrow()
    return sorted(tuple(row.values()) for row in table.to_pylist())


def _stream(backend: Backend, frame: DataFrame, path: TablePath, folder: Path, **options: str) -> None:
    """Write rows as one micro-batch; called again, the same one unless it was done."""
    source = folder / "rows"
    if not source.exists():
        frame.write.parquet(str(source))
    stream = backend.spark.readStream.schema(frame.schema).parquet(str(source))
    writer = stream.writeStream.format("fluss").option("bootstrap.servers", backend.address).options(**options)
    writer = writer.options(table=str(path), checkpointLocation=str(folder / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)


@pytest.mark.parametrize("keyed", [False, True])
def test_missing_partitions_are_created(ours: Backend, keyed: bool) -> None:
    path = _create(ours, keyed)
    # Both tasks have rows of all three.
    ours.save(_sales(ours, 3_000, 3), path)
    assert _rows(ours, path) == [(number, f"d{number % 3}", number) for number in range(3_000)]
    ours.save(_sales(ours, 10, 5), path)
    assert _names(ours, path) == {f"d{number}" for number in range(5)}


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("exactly_once", ["false", "true"])
def test_streams_create_missing_partitions(ours: Backend, tmp_path: Path, keyed: bool, exactly_once: str) -> None:
    path = _create(ours, keyed)
    _stream(ours, _sales(ours, 300, 7), path, tmp_path, **{"exactly.once": exactly_once})
    assert _rows(ours, path) == [(number, f"d{number % 7}", number) for number in range(300)]


def test_partial_updates_and_changes_create_missing_partitions(ours: Backend) -> None:
    path = _create(ours, keyed=True)
    ours.save(_sales(ours, 2, 2).select("id", "day"), path, **{"target.columns": "id,day"})
    changes = ours.spark.sql("SELECT * FROM VALUES ('+I', 5L, 'new', 1), ('-D', 5L, 'new', 1), ('+I', 6L, 'new', 2)")
    ours.save(changes.toDF("_change_type", "id", "day", "v").coalesce(1), path, **{"write.mode": "changelog"})
    assert _rows(ours, path) == [(0, "d0", None), (1, "d1", None), (6, "new", 2)]


def test_partitions_of_several_columns(ours: Backend) -> None:
    schema = Schema.builder().column("id", T.bigint()).column("day", T.date()).column("hour", T.int()).build()
    path = _create(ours, schema=schema, partition_keys=["day", "hour"])
    ours.save(ours.spark.range(48).selectExpr("id", "DATE '2026-01-01' AS day", "int(id % 24) AS hour"), path)
    assert _names(ours, path) == {f"2026-01-01${hour}" for hour in range(24)}


def test_tables_by_name_create_missing_partitions(ours: Backend) -> None:
    path = _create(ours)
    with Catalog(ours.spark, ours.connection) as catalog:
        name = catalog.attach(path)
        ours.spark.sql(f"INSERT INTO {name} VALUES (1, 'd1', 1)")
        catalog.detach(name)
    assert _rows(ours, path) == [(1, "d1", 1)]


def test_deletes_of_missing_partitions_have_nothing_to_do(ours: Backend) -> None:
    path = _create(ours, keyed=True)
    ours.save(_sales(ours, 4, 2), path)
    keys = ours.spark.sql("SELECT * FROM VALUES (1L, 'd1'), (1L, 'gone'), (2L, 'gone')").toDF("id", "day")
    ours.save(keys, path, **{"write.mode": "delete"})
    ours.save(keys.where("day = 'gone'"), path, **{"write.mode": "delete", SWITCH: "true"})
    changes = keys.selectExpr("'-D' AS _change_type", "id", "day", "0 AS v")
    ours.save(
        changes.unionByName(changes.selectExpr("'+I' AS _change_type", "9L AS id", "'d0' AS day", "0 AS v")),
        path,
        **{"write.mode": "changelog"},
    )
    assert _rows(ours, path) == [(0, "d0", 0), (2, "d0", 2), (3, "d1", 3), (9, "d0", 0)]
    assert _names(ours, path) == {"d0", "d1"}


@pytest.mark.parametrize("keyed", [False, True])
def test_a_bound_holds_for_all_tasks_together(ours: Backend, keyed: bool) -> None:
    path = _create(ours, keyed)
    ours.save(_sales(ours, 10, 10, prefix="old"), path)
    # Each of the six tasks has rows of 20 partitions that no other one has.
    frame = ours.spark.range(0, 120, 1, 6).selectExpr("id", "concat('d', id) AS day", "int(id) AS v")
    with pytest.raises(PySparkException) as caught:
        ours.save(frame, path)
    message = next(line for line in reversed(str(caught.value).splitlines()) if "Error: " in line)
    assert re.search(
        rf"for at least 1[012]\d partitions that {path} did not have .* it may create 100\. .* \.option\('{BOUND}', 1",
        message,
    )
    names = _names(ours, path)
    assert len(names) <= 110
    assert {row[1] for row in _rows(ours, path)} <= names
    ours.save(frame, path, **{BOUND: "120"})
    assert len(_names(ours, path)) == 130


def test_a_batch_of_too_many_partitions_creates_none(ours: Backend) -> None:
    path = _create(ours)
    with pytest.raises(PySparkException, match=r"for at least 5 partitions .* it may create 4"):
        ours.save(_sales(ours, 1_000, 5), path, **{BOUND: "4"})
    assert _names(ours, path) == set()
    assert _rows(ours, path) == []
    for wrong in ("0", "-1", "many"):
        with pytest.raises(PySparkException, match=f"'{BOUND}' is a positive number, not '{wrong}'"):
            ours.save(_sales(ours, 1, 1), path, **{BOUND: wrong})
    ours.save(_sales(ours, 1_000, 5), path, **{BOUND: str(10**12)})
    assert len(_names(ours, path)) == 5


def test_exactly_once_stores_nothing_beyond_the_bound(ours: Backend, tmp_path: Path) -> None:
    path = _create(ours, bucket_count=1)
    frame, options = _sales(ours, 600, 120, tasks=4), {"exactly.once": "true"}
    with pytest.raises(PySparkException, match="it may create 100"):
        _stream(ours, frame, path, tmp_path, **options)
    assert _rows(ours, path) == []
    _stream(ours, frame, path, tmp_path, **options, **{BOUND: "120"})
    assert _rows(ours, path) == [(number, f"d{number % 120}", number) for number in range(600)]


def test_tasks_that_ask_at_the_same_moment_keep_the_bound(ours: Backend) -> None:
    path, tasks, each, bound = _create(ours, bucket_count=1), 8, 5, PartitionBound(-1, 17)

    def provide(task: int) -> str:
        options = SourceOptions.parse({"bootstrap.servers": ours.address, "table": str(path)})
        with FlussConnection.create(options.config()) as connection:
            partitions = WritePartitions(OpenTable(connection, connection.get_table(path)), bound)
            try:
                for number in range(each):
                    partitions.provide(pa.record_batch({"day": [f"{task}-{number}"]}))
            except InvalidRequestError as error:
                return error.message
        return ""

    with ThreadPoolExecutor(tasks) as threads:
        refusals = [message for message in threads.map(provide, range(tasks)) if message]
    assert refusals
    assert all(f"it may create {bound.newer_max}" in message for message in refusals)
    assert len(_names(ours, path)) == bound.newer_max


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("value", ["''", "'/'", "'..'", "'a$b'", "'__x'", "'2026/01/01'", "repeat('x', 201)", "'día'"])
def test_values_that_no_partition_can_have_are_refused(ours: Backend, keyed: bool, value: str) -> None:
    path = _create(ours, keyed)
    with pytest.raises(PySparkException, match=r"partition column 'day'|does not have a value for each of 'day'"):
        ours.save(ours.spark.sql(f"SELECT 1L AS id, {value} AS day, 1 AS v"), path)
    assert _names(ours, path) == set()
    assert _rows(ours, path) == []


def test_partition_columns_are_never_null(ours: Backend) -> None:
    path = _create(ours)
    with pytest.raises(PySparkException, match="Partition column 'day' expects string, not null"):
        ours.save(ours.spark.sql("SELECT 1L AS id, CAST(NULL AS STRING) AS day, 1 AS v"), path)
    assert _names(ours, path) == set()


@pytest.mark.parametrize("exactly_once", ["false", "true"])
def test_partitions_are_not_created_where_that_is_switched_off(
    ours: Backend, tmp_path: Path, exactly_once: str
) -> None:
    path = _create(ours)
    with pytest.raises(
        PySparkException, match=rf"partition 'd0' of table \S+ does not exist: create it .*{SWITCH}=true"
    ):
        _stream(ours, _sales(ours, 1, 1), path, tmp_path, **{SWITCH: "false", "exactly.once": exactly_once})
    ours.connection.get_admin().create_partition(path, {"day": "d0"})
    _stream(ours, _sales(ours, 1, 1), path, tmp_path, **{SWITCH: "false", "exactly.once": exactly_once})
    assert _rows(ours, path) == [(0, "d0", 0)]

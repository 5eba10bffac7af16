"""Reading log tables."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from fluss.spark.columns import spark_schema
from fluss.spark.read.parts import BucketRange
from fluss.spark.read.reader import FlussReader
from fluss.spark.source_options import SourceOptions
from fluss.sync import TablePath
from tests.spark.conftest import Backend

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())])


def _numbers(start: int, stop: int) -> pa.Table:
    ids = range(start, stop)
    return pa.table([list(ids), [f"n{i}" for i in ids], [i / 2 for i in ids]], schema=SCHEMA)


def _filled(backend: Backend, rows: int, bucket_count: int = 1) -> TablePath:
    path = backend.create("numbers", SCHEMA, bucket_count)
    backend.append(path, _numbers(0, rows))
    return path


def test_one_partition_per_bucket(ours: Backend) -> None:
    path = ours.create("buckets", SCHEMA, bucket_count=3)
    for start in range(0, 900, 100):
        ours.append(path, _numbers(start, start + 100))
    frame = ours.load(path)
    by_bucket = ours.connection.get_admin().list_offsets(path, [0, 1, 2], offset_type="latest")
    filled = [rows for rows in by_bucket.values() if rows]
    assert frame.rdd.getNumPartitions() == len(filled)
    counts = frame.groupBy(f.spark_partition_id().alias("part")).count().orderBy("part").collect()
    assert [row["count"] for row in counts] == filled
    assert {row["id"] for row in frame.collect()} == set(range(900))


def test_empty_table(ours: Backend) -> None:
    frame = ours.load(ours.create("empty", SCHEMA, bucket_count=2))
    assert frame.columns == SCHEMA.names
    assert frame.collect() == []
    assert frame.count() == 0


def test_projection_by_schema_and_by_option(ours: Backend) -> None:
    path = _filled(ours, 100)
    for frame in (ours.load(path, schema="score double, id bigint"), ours.load(path, columns="score, id")):
        assert frame.dtypes == [("score", "double"), ("id", "bigint")]
        assert [tuple(row) for row in frame.orderBy("id").limit(3).collect()] == [(0.0, 0), (0.5, 1), (1.0, 2)]
    assert ours.load(path, columns="name").distinct().count() == 100


def test_table_option_names_the_table_too(ours: Backend) -> None:
    path = _filled(ours, 10)
    options = {"bootstrap.servers": ours.address, "table": str(path)}
    assert ours.spark.read.format("fluss").options(**options).load().count() == 10


def test_a_dataframe_reads_the_rows_that_were_there_when_it_was_planned(ours: Backend) -> None:
    path = _filled(ours, 1_000)
    frame = ours.load(path)
    assert frame.count() == 1_000
    ours.append(path, _numbers(1_000, 1_500))
    assert frame.count() == 1_000
    assert ours.load(path).count() == 1_500


def test_filters_do_not_leak_between_queries(ours: Backend) -> None:
    frame = ours.load(_filled(ours, 2_000))
    assert frame.count() == 2_000
    assert frame.where("id > 1990").count() == 9
    assert frame.count() == 2_000
    assert frame.where("id < 5").union(frame.where("id >= 1995")).count() == 10


def test_reading_stops_early_without_harm(ours: Backend) -> None:
    frame = ours.load(_filled(ours, 50_000))
    assert len(frame.limit(3).collect()) == 3
    assert frame.count() == 50_000


@pytest.mark.parametrize(("start", "end"), [(0, 1_000), (1, 999), (250, 251), (499, 501), (700, 700)])
def test_ranges_are_cut_within_batches(ours: Backend, start: int, end: int) -> None:
    path = ours.create("cut", SCHEMA)
    for first, last in ((0, 300), (300, 500), (500, 1_000)):
        ours.append(path, _numbers(first, last))
    info = ours.connection.get_table(path).get_table_info()
    options = SourceOptions.parse({"bootstrap.servers": ours.address, "table": str(path)})
    reader = FlussReader(options, spark_schema(info.schema))
    batches = list(reader.read(BucketRange(info.table_id, None, 0, start, end)))
    assert [value for batch in batches for value in batch.column("id").to_pylist()] == list(range(start, end))


def test_table_recreated_after_planning_is_noticed(ours: Backend) -> None:
    path = _filled(ours, 10)
    frame = ours.load(path)
    assert frame.count() == 10
    ours.connection.get_admin().drop_table(path)
    ours.create("numbers", SCHEMA)
    with pytest.raises(Exception, match="was dropped and created again; load it again"):
        frame.count()

"""Partitioned tables, primary-key tables and changes, read by Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from fluss.sync import Schema, TableDescriptor, TablePath
from fluss.testing import ApacheFluss
from tests.spark.conftest import Backend

pytestmark = pytest.mark.spark

CUSTOMERS = Schema(pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.string())]), ["id", "day"])
EVENTS = Schema(pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.string())]))
DAYS = ("d1", "d2")


def _create(backend: Backend, schema: Schema, **options: Any) -> TablePath:
    path, admin = TablePath(backend.database, "days"), backend.connection.get_admin()
    admin.create_table(path, TableDescriptor(schema, bucket_count=2, partition_keys=["day"], **options))
    for day in DAYS:
        admin.create_partition(path, {"day": day})
        if isinstance(backend.server, ApacheFluss):
            backend.server.await_table(path.database_name, path.table_name, day)
    return path


def _customers(backend: Backend) -> TablePath:
    """A hundred customers on each of two days, of whom some were renamed and some are gone."""
    path = _create(backend, CUSTOMERS)
    with backend.connection.get_table(path).new_upsert().create_writer() as writer:
        for day in DAYS:
            for number in range(100):
                writer.upsert({"id": number, "name": f"n{number}", "day": day})
        writer.flush()
        for number in range(0, 100, 10):
            writer.upsert({"id": number, "name": "renamed", "day": "d1"})
            writer.delete({"id": number, "day": "d2"})
    return path


def _check_current_rows(backend: Backend) -> None:
    path = _customers(backend)
    frame = backend.load(path)
    assert frame.columns == ["id", "name", "day"]
    assert frame.count() == 190  # Spark plans the query when it is first run
    with backend.connection.get_table(path).new_upsert().create_writer() as writer:
        for number in range(200):
            writer.upsert({"id": number, "name": "later", "day": "d1"})
    counts = {(row["day"], row["renamed"]): row["count"] for row in _by_name(frame).collect()}
    assert counts == {("d1", True): 10, ("d1", False): 90, ("d2", False): 90}
    assert frame.where("name = 'later'").count() == 0
    one_day = backend.load(path, partitions="day=d2", filter="id BETWEEN 8 AND 12", columns="name, id")
    assert sorted(tuple(row) for row in one_day.collect()) == [(f"n{i}", i) for i in (11, 12, 8, 9)]
    assert backend.load(path, filter="name = 'later'").count() == 200


def _by_name(frame: Any) -> Any:
    return frame.groupBy("day", (f.col("name") == "renamed").alias("renamed")).count()


def _check_changes(backend: Backend) -> None:
    path = _customers(backend)
    frame = backend.load(path, changelog="true")
    assert frame.dtypes[:3] == [
        ("_change_type", "string"),
        ("_log_offset", "bigint"),
        ("_commit_timestamp", "timestamp"),
    ]
    kinds = {row["_change_type"]: row["count"] for row in frame.groupBy("_change_type").count().collect()}
    assert kinds == {"+I": 200, "-U": 10, "+U": 10, "-D": 10}
    assert frame.where("_commit_timestamp IS NULL").count() == 0
    chosen = backend.load(path, schema="name string, _change_type string", changelog="true", filter="id = 10")
    assert sorted(tuple(row) for row in chosen.collect()) == [
        ("n10", "+I"),
        ("n10", "+I"),
        ("n10", "-D"),
        ("n10", "-U"),
        ("renamed", "+U"),
    ]


def _check_log(backend: Backend) -> None:
    path = _create(backend, EVENTS)
    for day in DAYS:
        ids = list(range(500))
        rows = [ids, [f"n{i}" for i in ids], [day] * 500]
        backend.append(path, pa.table(rows, names=["id", "name", "day"]))
        backend.append(path, pa.table(rows, names=["id", "name", "day"]))
    frame = backend.load(path, **{"scan.maxRecordsPerPartition": "300"})
    assert frame.rdd.getNumPartitions() >= 4
    found = frame.groupBy("day").agg(f.count("*"), f.sum("id")).collect()
    assert sorted(tuple(row) for row in found) == [(day, 1_000, 2 * sum(range(500))) for day in DAYS]
    assert backend.load(path, partitions="day=d1", filter="name LIKE 'n1%' OR id >= 490").count() == 2 * 121
    changes = backend.load(path, changelog="true", columns="id", partitions="day=d2")
    assert {row["_change_type"] for row in changes.select("_change_type").distinct().collect()} == {"+A"}
    assert changes.select("_log_offset").distinct().count() <= 1_000 == changes.count()


def test_current_rows_on_our_server(ours: Backend) -> None:
    _check_current_rows(ours)


def test_changes_on_our_server(ours: Backend) -> None:
    _check_changes(ours)


def test_partitioned_logs_on_our_server(ours: Backend) -> None:
    _check_log(ours)


@pytest.mark.compat
def test_current_rows_on_apache_fluss(apache: Backend) -> None:
    _check_current_rows(apache)


@pytest.mark.compat
def test_changes_on_apache_fluss(apache: Backend) -> None:
    _check_changes(apache)


@pytest.mark.compat
def test_partitioned_logs_on_apache_fluss(apache: Backend) -> None:
    _check_log(apache)


def test_wrong_options_fail_before_any_task(ours: Backend) -> None:
    path = _create(ours, EVENTS)
    with pytest.raises(Exception, match="is wrong at position 6: expected a value, but it ends"):
        ours.load(path, filter="id = ").count()
    with pytest.raises(Exception, match="names 'id'; the partition columns are day"):
        ours.load(path, partitions="id=1").count()

"""A million rows through Spark, counted to the last one."""

from __future__ import annotations

import time

import pytest
from pyspark.sql import functions as f

from fluss.sync import DataTypes, Schema
from tests.spark.conftest import Backend

pytestmark = pytest.mark.spark

ROWS = 1_000_000
BUCKETS = 4
SCHEMA = (
    Schema.builder()
    .column("id", DataTypes.bigint())
    .column("name", DataTypes.string())
    .column("amount", DataTypes.decimal(12, 2))
    .column("at", DataTypes.timestamp())
    .build()
)


# The columns of row `id`, so that every row that is read can be checked by itself.
COLUMNS = {
    "name": "concat('name-', id % 1000)",
    "amount": "CAST(id / 100 AS DECIMAL(12,2))",
    "at": "TIMESTAMP_NTZ'2026-01-01' + make_dt_interval(0, 0, 0, id % 86400)",
}


def _check_a_million(backend: Backend) -> None:
    path = backend.create("million", SCHEMA, BUCKETS)
    ids = backend.spark.range(0, ROWS, numPartitions=4)
    started_at = time.perf_counter()
    backend.save(ids.withColumns({name: f.expr(rule) for name, rule in COLUMNS.items()}), path)
    written_at = time.perf_counter()

    loaded = backend.load(path)
    assert loaded.rdd.getNumPartitions() >= BUCKETS  # long logs are cut into parts
    found = loaded.agg(
        f.count("*"),
        f.countDistinct("id"),
        f.sum("id"),
        f.min("id"),
        f.max("id"),
        *(f.count_if(f.expr(f"{name} = {rule}")) for name, rule in COLUMNS.items()),
    ).first()
    read_at = time.perf_counter()
    print(f"wrote {ROWS / (written_at - started_at):,.0f} rows/s, read {ROWS / (read_at - written_at):,.0f} rows/s")
    assert found is not None
    assert tuple(found) == (ROWS, ROWS, ROWS * (ROWS - 1) // 2, 0, ROWS - 1, ROWS, ROWS, ROWS)


def test_a_million_rows_on_our_server(ours: Backend) -> None:
    _check_a_million(ours)


@pytest.mark.compat
def test_a_million_rows_on_apache_fluss(apache: Backend) -> None:
    _check_a_million(apache)

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


def _check_a_million(backend: Backend) -> None:
    path = backend.create("million", SCHEMA, BUCKETS)
    frame = backend.spark.range(0, ROWS, numPartitions=4).select(
        "id",
        f.concat(f.lit("name-"), f.col("id") % 1_000).alias("name"),
        (f.col("id") / 100).cast("decimal(12,2)").alias("amount"),
        f.expr("TIMESTAMP_NTZ'2026-01-01' + make_dt_interval(0, 0, 0, id % 86400)").alias("at"),
    )
    started_at = time.perf_counter()
    backend.save(frame, path)
    written_at = time.perf_counter()

    loaded = backend.load(path)
    assert loaded.rdd.getNumPartitions() == BUCKETS
    totals = loaded.agg(
        f.count("*").alias("rows"),
        f.countDistinct("id").alias("distinct"),
        f.sum("id").alias("ids"),
        f.sum("amount").alias("amount"),
        f.countDistinct("name").alias("names"),
        f.countDistinct("at").alias("times"),
        f.min("id").alias("first"),
        f.max("id").alias("last"),
    )
    found = totals.first()
    assert found is not None
    read_at = time.perf_counter()
    print(f"\nwrote {ROWS / (written_at - started_at):,.0f} rows/s, read {ROWS / (read_at - written_at):,.0f} rows/s")

    ids = ROWS * (ROWS - 1) // 2
    assert (found["rows"], found["distinct"], found["ids"]) == (ROWS, ROWS, ids)
    assert found["amount"] * 100 == ids
    assert (found["names"], found["times"], found["first"], found["last"]) == (1_000, 86_400, 0, ROWS - 1)


def test_a_million_rows_on_our_server(ours: Backend) -> None:
    _check_a_million(ours)


@pytest.mark.compat
def test_a_million_rows_on_apache_fluss(apache: Backend) -> None:
    _check_a_million(apache)

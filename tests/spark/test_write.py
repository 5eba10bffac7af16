"""Appending DataFrames."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from fluss.spark import table_schema
from fluss.sync import DataTypes, Schema
from tests.spark.conftest import Backend

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def test_append_adds_rows(ours: Backend) -> None:
    path = ours.create("appended", SCHEMA, bucket_count=2)
    ours.append(path, pa.table([[-1], ["by the client"]], schema=SCHEMA))
    frame = ours.spark.range(0, 1_000, numPartitions=4).withColumn("name", f.concat(f.lit("n"), "id"))
    ours.save(frame, path)
    ours.save(frame.where("id < 10"), path)
    rows = ours.rows(path)
    assert rows.num_rows == 1_011
    assert sorted(rows.column("id").to_pylist()) == sorted([-1, *range(1_000), *range(10)])
    assert set(rows.column("name").to_pylist()) == {"by the client", *(f"n{i}" for i in range(1_000))}


def test_columns_match_by_name_and_narrower_types_fit(ours: Backend) -> None:
    schema = Schema.builder().column("id", DataTypes.bigint()).column("sum", DataTypes.decimal(18, 2)).build()
    path = ours.create("matched", schema)
    ours.save(ours.spark.sql("SELECT CAST(1.5 AS DECIMAL(4,1)) AS sum, 7 AS id"), path)
    assert [{**row, "sum": str(row["sum"])} for row in ours.rows(path).to_pylist()] == [{"id": 7, "sum": "1.50"}]


def test_threads_write_when_they_have_an_active_session(ours: Backend) -> None:
    """As docs/spark.md has it: Spark looks a source in Python up in the active session, which a new thread lacks."""
    path = ours.create("threads", SCHEMA, bucket_count=2)

    def write(number: int) -> None:
        ours.spark.createDataFrame([(1,)], "id INT")
        ours.save(ours.spark.range(number, number + 1).withColumn("name", f.lit("x")), path)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, range(2)))
    assert sorted(ours.rows(path)["id"].to_pylist()) == [0, 1]


def test_table_made_for_a_dataframe(ours: Backend) -> None:
    frame = ours.spark.range(10).groupBy((f.col("id") % 2).alias("parity")).agg(f.sum("id").alias("total"))
    path = ours.create("made", table_schema(frame.schema))
    ours.save(frame, path)
    assert {row["parity"]: row["total"] for row in ours.rows(path).to_pylist()} == {0: 20, 1: 25}


def test_dataframe_without_rows(ours: Backend) -> None:
    path = ours.create("empty", SCHEMA)
    ours.save(ours.spark.range(0).withColumn("name", f.lit("x")), path)
    assert ours.rows(path).num_rows == 0


def test_null_for_a_column_without_nulls_fails_the_write(ours: Backend) -> None:
    schema = Schema.builder().column("id", DataTypes.bigint().not_null()).build()
    path = ours.create("strict", schema)
    ours.save(ours.spark.sql("SELECT CAST(5 AS BIGINT) AS id"), path)
    with pytest.raises(Exception, match=r"column 'id' of \S+\.strict can't be null"):
        ours.save(ours.spark.sql("SELECT CAST(NULL AS BIGINT) AS id"), path)
    assert ours.rows(path).to_pylist() == [{"id": 5}]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT 1 AS id", r"The DataFrame lacks the column 'name' of \S+\.target; columns match by name"),
        ("SELECT 1 AS id, '' AS name, 0 AS x", r"has the column 'x', which \S+\.target does not have"),
        ("SELECT 'a' AS id, 'b' AS name", r"'id' of \S+\.target is of type bigint; the DataFrame has string. Cast it"),
    ],
)
def test_schemas_that_do_not_fit_are_refused(ours: Backend, query: str, message: str) -> None:
    path = ours.create("target", SCHEMA)
    with pytest.raises(Exception, match=message):
        ours.save(ours.spark.sql(query), path)
    assert ours.rows(path).num_rows == 0


def test_overwrite_is_refused(ours: Backend) -> None:
    path = ours.create("kept", SCHEMA)
    ours.append(path, pa.table([[1], ["a"]], schema=SCHEMA))
    with pytest.raises(Exception, match=r"\.kept can't be overwritten: use \.mode\('append'\)"):
        ours.save(ours.spark.sql("SELECT 2L AS id, 'b' AS name"), path, mode="overwrite")
    assert ours.rows(path).to_pylist() == [{"id": 1, "name": "a"}]

"""Streams into tables: what is stored when nothing fails, and what when tasks and commits do."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fluss.spark.source import FlussDataSource
from fluss.spark.write.writer import BATCH_ID, FlussStreamWriter
from fluss.sync import DataTypes, Schema, TableDescriptor, TablePath
from tests.spark.conftest import Backend
from tests.spark.feed import EVENTS, FAILURES, Feed, T

pytestmark = pytest.mark.spark

KEYED = Schema.builder().column("id", T.bigint()).column("value", T.bigint()).primary_key(["id"]).build()
BATCHES, ROWS = 4, 300


@pytest.fixture
def feed(tmp_path: Path, spark: SparkSession) -> Feed:
    """Four files; what is in them is known by `_events`."""
    made = Feed(tmp_path, spark)
    for number in range(BATCHES):
        made.add(number, _events(number))
    return made


def _events(number: int) -> pa.Table:
    """Ids come again in every file; the value says in which."""
    return pa.table({"id": list(range(ROWS)), "value": [number] * ROWS})


@pytest.fixture
def failing(tmp_path: Path, spark: SparkSession) -> None:
    """Register a data source `failing` that fails once at each place of FAILURES."""
    marks = str(tmp_path)

    def fail_once(batch_id: int, place: str) -> None:
        mark = Path(marks) / f"failed-{batch_id}-{place}"
        if (batch_id, place) in FAILURES and not mark.exists():
            mark.touch()
            raise RuntimeError(f"made to fail: {place} of micro-batch {batch_id}")

    class Writer(FlussStreamWriter):
        def write(self, iterator: Any) -> Any:
            context = TaskContext.get()
            assert context is not None
            message = FlussStreamWriter.write(self, iterator)
            if context.partitionId() == 0:
                fail_once(int(str(context.getLocalProperty(BATCH_ID))), "task")
            return message

        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
            fail_once(batchId, "before commit")
            FlussStreamWriter.commit(self, messages, batchId)
            fail_once(batchId, "after commit")

    class Failing(FlussDataSource):
        @classmethod
        def name(cls) -> str:
            return "failing"

        def streamWriter(self, schema: Any, overwrite: bool) -> Writer:  # noqa: N802
            return Writer(self._parsed, schema)

    spark.dataSource.register(Failing)


def _rows(backend: Backend, path: TablePath) -> list[tuple[int, int]]:
    table = backend.connection.get_table(path).new_scan().to_arrow()
    return list(zip(table.column("id").to_pylist(), table.column("value").to_pylist(), strict=True))


def _all_events() -> list[tuple[int, int]]:
    return [(number, batch) for batch in range(BATCHES) for number in range(ROWS)]


@pytest.mark.parametrize("exactly_once", ["false", "true"])
def test_a_stream_is_appended_batch_by_batch(ours: Backend, feed: Feed, exactly_once: str) -> None:
    path = ours.create("events", EVENTS, 2)
    options = {"exactly.once": exactly_once}
    # Micro-batch 1 has no rows, and of two tasks of the others one has none.
    frame = feed.stream().repartition(2, "value").where("value != 1")
    feed.run(frame, ours, path, **options)
    assert sorted(_rows(ours, path)) == sorted(event for event in _all_events() if event[1] != 1)
    feed.add(BATCHES, _events(BATCHES))
    feed.run(frame, ours, path, **options)
    assert Counter(value for _, value in _rows(ours, path)) == {0: ROWS, 2: ROWS, 3: ROWS, BATCHES: ROWS}


def test_exactly_once_appends_are_stored_once_whatever_fails(ours: Backend, feed: Feed, failing: None) -> None:
    path = ours.create("events", EVENTS, 3)
    frame = feed.stream().repartition(2)
    assert feed.restart_until_done(frame, ours, path, **{"exactly.once": "true"}) == len(FAILURES)
    assert sorted(_rows(ours, path)) == sorted(_all_events())


def test_appends_are_stored_at_least_once(ours: Backend, feed: Feed, failing: None) -> None:
    path = ours.create("events", EVENTS, 2)
    assert feed.restart_until_done(feed.stream().repartition(2), ours, path) == len(FAILURES)
    found = Counter(_rows(ours, path))
    assert set(found) == set(_all_events())
    # The two micro-batches whose commit failed were stored by then, and are stored again.
    assert {value for (_, value), count in found.items() if count > 1} >= {1, 2}
    assert {count for (_, value), count in found.items() if value == 3} == {1}


def test_upserts_end_in_the_same_rows(ours: Backend, feed: Feed, failing: None) -> None:
    path = ours.create("latest", KEYED, 2)
    assert feed.restart_until_done(feed.stream().repartition(2, "id"), ours, path) == len(FAILURES)
    assert sorted(_rows(ours, path)) == [(number, BATCHES - 1) for number in range(ROWS)]


def test_exactly_once_sums_are_exact(ours: Backend, feed: Feed, failing: None) -> None:
    builder = Schema.builder().column("id", T.bigint()).column("value", T.bigint(), agg_function="sum")
    path, properties = TablePath(ours.database, "sums"), {"table.merge-engine": "aggregation"}
    descriptor = TableDescriptor(builder.primary_key(["id"]).build(), bucket_count=2, properties=properties)
    ours.connection.get_admin().create_table(path, descriptor)
    frame = feed.stream().selectExpr("id % 10 AS id", "value")
    assert feed.restart_until_done(frame, ours, path, **{"exactly.once": "true"}) == len(FAILURES)
    total = sum(range(BATCHES)) * ROWS // 10
    assert sorted(_rows(ours, path)) == [(number, total) for number in range(10)]


def test_exactly_once_changes(ours: Backend, feed: Feed) -> None:
    path = ours.create("latest", KEYED, 2)
    kinds = "CASE WHEN id < 100 THEN array('+U', '-D') WHEN id < 200 THEN array('-D', '+U') ELSE array('+I') END"
    frame = feed.stream().selectExpr("id", "value", f"explode({kinds}) AS _change_type")
    feed.run(frame, ours, path, **{"exactly.once": "true", "write.mode": "changelog"})
    assert sorted(_rows(ours, path)) == [(number, BATCHES - 1) for number in range(100, ROWS)]


def test_a_table_that_gets_a_column_meanwhile(ours: Backend, feed: Feed) -> None:
    path = ours.create("events", EVENTS)
    feed.run(feed.stream(), ours, path)
    ours.connection.get_admin().alter_table(path, add_columns=[("more note", DataTypes.array(DataTypes.string()))])
    feed.add(BATCHES, _events(BATCHES))
    advice = "'*', 'CAST(NULL AS array<string>) AS `more note`'"
    with pytest.raises(StreamingQueryException, match=re.escape(f"lacks the column 'more note' of {path}")) as error:
        feed.run(feed.stream(), ours, path)
    assert f"To append nulls, use .selectExpr({advice})." in str(error.value)
    feed.run(feed.stream().selectExpr(*ast.literal_eval(f"[{advice}]")), ours, path)
    found = ours.rows(path)
    assert found.num_rows == (BATCHES + 1) * ROWS
    assert found["more note"].null_count == found.num_rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target.columns": "id"}, "has no primary key: 'target.columns' is for updates"),
        ({"exactly.once": "yes"}, "The option 'exactly.once' is true or false, not 'yes'"),
        ({"columns": "id"}, "The option 'columns' is for reading"),
    ],
)
def test_wrong_options_fail_the_stream(ours: Backend, feed: Feed, options: dict[str, str], message: str) -> None:
    path = ours.create("events", EVENTS)
    with pytest.raises(Exception, match=message):
        feed.run(feed.stream(), ours, path, **options)
    assert _rows(ours, path) == []


def test_complete_results_are_refused(ours: Backend, feed: Feed) -> None:
    path = ours.create("latest", KEYED)
    counts = feed.stream().groupBy("id").count().withColumnRenamed("count", "value")
    writer = counts.writeStream.format("fluss").option("bootstrap.servers", ours.address).outputMode("complete")
    query = writer.options(table=str(path), checkpointLocation=str(feed.checkpoint)).trigger(availableNow=True).start()
    with pytest.raises(Exception, match=r"can't be overwritten by each micro-batch: .* with \.foreachBatch"):
        query.awaitTermination(120)


def test_update_mode_by_batch_writes(ours: Backend, feed: Feed) -> None:
    """What the refusal of complete results recommends."""
    path = ours.create("latest", KEYED)
    counts = feed.stream().selectExpr("id % 7 AS id").groupBy("id").count().withColumnRenamed("count", "value")
    writer = counts.writeStream.outputMode("update").option("checkpointLocation", str(feed.checkpoint))
    writer = writer.foreachBatch(lambda frame, _: ours.save(frame, path))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert sum(value for _, value in _rows(ours, path)) == BATCHES * ROWS


@pytest.mark.compat
def test_apache_fluss_takes_streams_but_not_exactly_once(apache: Backend, feed: Feed) -> None:
    path = apache.create("events", EVENTS, 2)
    with pytest.raises(Exception, match="Exactly-once writes need a Flussbett server"):
        feed.run(feed.stream(), apache, path, **{"exactly.once": "true"})
    feed.run(feed.stream(), apache, path)
    assert sorted(_rows(apache, path)) == sorted(_all_events())

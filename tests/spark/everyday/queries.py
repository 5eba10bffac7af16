"""Queries under way: triggers, checkpoints, what they tell, and how they end."""

from __future__ import annotations

import threading

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQueryListener

from tests.spark.everyday.tables import Tables

IDS = "id BIGINT"


def trigger_by_default(spark: SparkSession, tables: Tables) -> None:
    numbers, copy = tables.create("numbers", IDS, [(1,), (2,)]), tables.create("copy", IDS)

    stream = spark.readStream.format("fluss").options(**tables.source).load(numbers)
    query = (
        stream.writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .start(copy)
    )
    query.processAllAvailable()
    tables.add(numbers, (3,))
    query.processAllAvailable()
    query.stop()

    assert tables.rows(copy) == [(1,), (2,), (3,)]


def trigger_at_intervals(spark: SparkSession, tables: Tables) -> None:
    numbers, copy = tables.create("numbers", IDS, [(1,), (2,)]), tables.create("copy", IDS)

    stream = spark.readStream.format("fluss").options(**tables.source).load(numbers)
    query = (
        stream.writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(processingTime="500 milliseconds")
        .start(copy)
    )
    query.processAllAvailable()
    query.stop()

    assert tables.rows(copy) == [(1,), (2,)]


def trigger_once(spark: SparkSession, tables: Tables) -> None:
    numbers, copy = tables.create("numbers", IDS, [(1,), (2,)]), tables.create("copy", IDS)

    stream = spark.readStream.format("fluss").options(**tables.source).load(numbers)
    query = (
        stream.writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(once=True)
        .start(copy)
    )
    query.awaitTermination()

    assert tables.rows(copy) == [(1,), (2,)]


def go_on_from_a_checkpoint(spark: SparkSession, tables: Tables) -> None:
    """A program that runs every hour, and takes what has come since."""
    numbers, copy = tables.create("numbers", IDS, [(1,), (2,)], buckets=2), tables.create("copy", IDS)

    def run() -> None:
        stream = spark.readStream.format("fluss").options(**tables.source).load(numbers)
        query = (
            stream.writeStream.format("fluss")
            .options(**tables.source)
            .queryName("hourly")
            .option("checkpointLocation", tables.path("checkpoint"))
            .trigger(availableNow=True)
            .start(copy)
        )
        query.awaitTermination()

    run()
    tables.add(numbers, (3,))
    run()
    run()

    assert tables.rows(copy) == [(1,), (2,), (3,)]


def go_on_with_state(spark: SparkSession, tables: Tables) -> None:
    numbers = tables.create("numbers", IDS, [(1,), (2,), (3,)])
    sums = tables.create("sums", "odd BOOLEAN NOT NULL, total BIGINT", primary_key="odd")
    source = tables.source

    def upsert(changed, batch_id):
        changed.write.format("fluss").options(**source).mode("append").save(sums)

    def run() -> None:
        stream = spark.readStream.format("fluss").options(**source).load(numbers)
        totals = stream.groupBy((f.col("id") % 2 == 1).alias("odd")).agg(f.sum("id").alias("total"))
        writer = totals.writeStream.outputMode("update").foreachBatch(upsert)
        writer = writer.option("checkpointLocation", tables.path("checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()

    run()
    assert tables.rows(sums) == [(False, 2), (True, 4)]
    tables.add(numbers, (5,))
    run()
    assert tables.rows(sums) == [(False, 2), (True, 9)]


def listen_to_queries(spark: SparkSession, tables: Tables) -> None:
    numbers, copy = tables.create("numbers", IDS, [(1,), (2,)]), tables.create("copy", IDS)

    class Listener(StreamingQueryListener):
        def __init__(self) -> None:
            self.events = []
            self.ended = threading.Event()

        def onQueryStarted(self, event):  # noqa: N802
            self.events.append(("started", event.name))

        def onQueryProgress(self, event):  # noqa: N802
            self.events.append(("rows", event.progress.numInputRows))

        def onQueryIdle(self, event):  # noqa: N802
            pass

        def onQueryTerminated(self, event):  # noqa: N802
            self.events.append(("ended", event.exception))
            self.ended.set()

    listener = Listener()
    spark.streams.addListener(listener)
    stream = spark.readStream.format("fluss").options(**tables.source).load(numbers)
    query = (
        stream.writeStream.format("fluss")
        .options(**tables.source)
        .queryName("listened to")
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(availableNow=True)
        .start(copy)
    )
    query.awaitTermination()
    assert listener.ended.wait(60)
    spark.streams.removeListener(listener)

    assert listener.events[0] == ("started", "listened to")
    assert [event for event in listener.events if event[0] == "rows" and event[1]] == [("rows", 2)]
    assert listener.events[-1] == ("ended", None)


def find_and_stop_queries(spark: SparkSession, tables: Tables) -> None:
    numbers, copy = tables.create("numbers", IDS, [(1,)]), tables.create("copy", IDS)

    stream = spark.readStream.format("fluss").options(**tables.source).load(numbers)
    started = (
        stream.writeStream.format("fluss")
        .options(**tables.source)
        .queryName("found")
        .option("checkpointLocation", tables.path("checkpoint"))
        .start(copy)
    )
    (query,) = spark.streams.active
    assert (query.id, query.runId, query.name) == (started.id, started.runId, "found")
    assert spark.streams.get(query.id).name == "found"
    query.processAllAvailable()
    assert query.isActive
    assert not query.awaitTermination(0.1)
    assert query.status["message"]
    query.stop()

    assert not started.isActive
    assert started.exception() is None
    assert spark.streams.active == []
    assert tables.rows(copy) == [(1,)]


def wait_for_any_query(spark: SparkSession, tables: Tables) -> None:
    numbers, copy = tables.create("numbers", IDS, [(1,)]), tables.create("copy", IDS)

    stream = spark.readStream.format("fluss").options(**tables.source).load(numbers)
    spark.streams.resetTerminated()
    stream.writeStream.format("fluss").options(**tables.source).queryName("ends").option(
        "checkpointLocation", tables.path("checkpoint")
    ).trigger(availableNow=True).start(copy)
    spark.streams.awaitAnyTermination()
    spark.streams.resetTerminated()

    assert tables.rows(copy) == [(1,)]


def look_at_the_progress(spark: SparkSession, tables: Tables) -> None:
    numbers, copy = tables.create("numbers", IDS, [(1,), (2,)]), tables.create("copy", IDS)

    stream = spark.readStream.format("fluss").options(**tables.source).load(numbers)
    query = (
        stream.writeStream.format("fluss")
        .options(**tables.source)
        .queryName("watched")
        .option("checkpointLocation", tables.path("checkpoint"))
        .start(copy)
    )
    query.processAllAvailable()
    tables.add(numbers, (3,))
    query.processAllAvailable()
    query.stop()

    progress = [(found.batchId, found.name, found.sources[0].numInputRows) for found in query.recentProgress]
    assert [found for found in progress if found[2]] == [(0, "watched", 2), (1, "watched", 1)]
    assert str(query.lastProgress.runId) == str(query.runId)
    assert tables.rows(copy) == [(1,), (2,), (3,)]


def observe_a_stream(spark: SparkSession, tables: Tables) -> None:
    numbers, copy = tables.create("numbers", IDS, [(1,), (2,), (7,)]), tables.create("copy", IDS)

    stream = spark.readStream.format("fluss").options(**tables.source).load(numbers)
    observed = stream.observe("quality", f.count("*").alias("rows"), f.max("id").alias("largest"))
    query = (
        observed.writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(availableNow=True)
        .start(copy)
    )
    query.awaitTermination()

    quality = query.recentProgress[0].observedMetrics["quality"]
    # Spark Connect has the row as its JSON is: values beside a schema.
    assert list(getattr(quality, "values", quality)) == [3, 7]
    assert tables.rows(copy) == [(1,), (2,), (7,)]


def see_why_a_query_failed(spark: SparkSession, tables: Tables) -> None:
    numbers, copy = tables.create("numbers", IDS, [(1,), (0,)]), tables.create("copy", IDS)

    @f.udf("BIGINT")
    def invert(number):
        return 100 // number

    stream = spark.readStream.format("fluss").options(**tables.source).load(numbers)
    query = (
        stream.select(invert("id").alias("id"))
        .writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .start(copy)
    )
    with pytest.raises(StreamingQueryException, match="ZeroDivisionError"):
        query.awaitTermination()

    assert "ZeroDivisionError" in str(query.exception())
    assert not query.isActive
    # What the failed task had written before may be there, and comes again when the query is repaired.
    assert tables.rows(copy) in ([], [(100,)])

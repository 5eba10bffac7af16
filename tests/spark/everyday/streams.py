"""Streams of rows: selections, counts, windows of event time, watermarks."""

from __future__ import annotations

import datetime as dt
import io
from contextlib import redirect_stdout

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.spark.everyday.tables import Tables

EVENTS = "at TIMESTAMP, word STRING"


def _at(minute: int) -> dt.datetime:
    """So many minutes after noon."""
    return dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC) + dt.timedelta(minutes=minute)


def count_words(spark: SparkSession, tables: Tables) -> None:
    lines = tables.create("lines", "value STRING", [("a boat and",), ("a rope",)])

    stream = spark.readStream.format("fluss").options(**tables.source).load(lines)
    words = stream.select(f.explode(f.split("value", " ")).alias("word"))
    query = words.groupBy("word").count().writeStream.outputMode("complete").format("memory").queryName("words").start()
    query.processAllAvailable()
    tables.add(lines, ("a rope",))
    query.processAllAvailable()
    query.stop()

    found = spark.sql("SELECT * FROM words ORDER BY word").collect()
    assert found == [("a", 3), ("and", 1), ("boat", 1), ("rope", 2)]


def keep_counts_in_a_table(spark: SparkSession, tables: Tables) -> None:
    lines = tables.create("lines", "value STRING", [("a boat and",), ("a rope",)])
    counts = tables.create("counts", "word STRING NOT NULL, count BIGINT", primary_key="word")
    source = tables.source

    def upsert(changed, batch_id):
        changed.write.format("fluss").options(**source).mode("append").save(counts)

    stream = spark.readStream.format("fluss").options(**source).load(lines)
    words = stream.select(f.explode(f.split(stream.value, " ")).alias("word"))
    query = (
        words.groupBy("word")
        .count()
        .writeStream.queryName("counts")
        .outputMode("update")
        .option("checkpointLocation", tables.path("checkpoint"))
        .foreachBatch(upsert)
        .start()
    )
    query.processAllAvailable()
    tables.add(lines, ("a rope",))
    query.processAllAvailable()
    query.stop()

    assert tables.rows(counts) == [("a", 3), ("and", 1), ("boat", 1), ("rope", 2)]


def select_and_filter(spark: SparkSession, tables: Tables) -> None:
    readings = tables.create(
        "readings", "device STRING, kind STRING, signal DOUBLE", [("a", "heat", 9.5), ("b", "heat", 11.5)]
    )
    high = tables.create("high", "device STRING")

    stream = spark.readStream.format("fluss").options(**tables.source).load(readings)
    assert stream.isStreaming
    query = (
        stream.select("device")
        .where("signal > 10")
        .writeStream.format("fluss")
        .options(**tables.source)
        .queryName("high signals")
        .outputMode("append")
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(processingTime="1 second")
        .start(high)
    )
    query.processAllAvailable()
    query.stop()

    assert tables.rows(high) == [("b",)]


def tumbling_windows(spark: SparkSession, tables: Tables) -> None:
    events = tables.create("events", EVENTS, [(_at(1), "a"), (_at(4), "a"), (_at(6), "b"), (_at(30), "end")])
    counts = tables.create("counts", "begin TIMESTAMP, word STRING, count BIGINT NOT NULL")

    stream = spark.readStream.format("fluss").options(**tables.source).load(events)
    windowed = stream.withWatermark("at", "10 minutes").groupBy(f.window("at", "5 minutes"), "word").count()
    query = (
        windowed.select(f.col("window.start").alias("begin"), "word", "count")
        .writeStream.format("fluss")
        .options(**tables.source)
        .outputMode("append")
        .option("checkpointLocation", tables.path("checkpoint"))
        .start(counts)
    )
    query.processAllAvailable()
    query.stop()

    assert tables.rows(counts) == [(_at(0), "a", 2), (_at(5), "b", 1)]


def close_windows_in_one_run(spark: SparkSession, tables: Tables) -> None:
    events = tables.create("events", EVENTS, [(_at(1), "a"), (_at(4), "a"), (_at(30), "end")])
    counts = tables.create("counts", "begin TIMESTAMP, count BIGINT NOT NULL")

    # Spark 4.1 needs it, so that what the last rows complete is not left to the next run.
    spark.conf.set("spark.sql.streaming.triggerAvailableNowWrapper.enabled", True)
    stream = spark.readStream.format("fluss").options(**tables.source).load(events)
    windowed = stream.withWatermark("at", "10 minutes").groupBy(f.window("at", "5 minutes")).count()
    writer = (
        windowed.selectExpr("window.start AS begin", "count")
        .writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(availableNow=True)
    )
    writer.start(counts).awaitTermination()
    assert tables.rows(counts) == [(_at(0), 2)]

    tables.add(events, (_at(31), "a"), (_at(60), "end"))
    writer.start(counts).awaitTermination()
    spark.conf.unset("spark.sql.streaming.triggerAvailableNowWrapper.enabled")
    assert tables.rows(counts) == [(_at(0), 2), (_at(30), 2)]


def sliding_windows(spark: SparkSession, tables: Tables) -> None:
    events = tables.create("events", EVENTS, [(_at(1), "a"), (_at(7), "a"), (_at(40), "end")])
    counts = tables.create("counts", "begin TIMESTAMP, finish TIMESTAMP, count BIGINT NOT NULL")

    stream = spark.readStream.format("fluss").options(**tables.source).load(events)
    windowed = stream.withWatermark("at", "10 minutes").groupBy(f.window("at", "10 minutes", "5 minutes")).count()
    query = (
        windowed.select("window.start", "window.end", "count")
        .toDF("begin", "finish", "count")
        .writeStream.format("fluss")
        .options(**tables.source)
        .outputMode("append")
        .option("checkpointLocation", tables.path("checkpoint"))
        .start(counts)
    )
    query.processAllAvailable()
    query.stop()

    assert tables.rows(counts) == [(_at(-5), _at(5), 1), (_at(0), _at(10), 2), (_at(5), _at(15), 1)]


def session_windows(spark: SparkSession, tables: Tables) -> None:
    clicks = [(_at(1), "ada"), (_at(4), "ada"), (_at(20), "ada"), (_at(3), "emmy"), (_at(50), "end")]
    events = tables.create("events", "at TIMESTAMP, person STRING", clicks)
    sessions = tables.create("sessions", "person STRING, begin TIMESTAMP, finish TIMESTAMP, clicks BIGINT NOT NULL")

    stream = spark.readStream.format("fluss").options(**tables.source).load(events)
    found = stream.withWatermark("at", "10 minutes").groupBy(f.session_window("at", "5 minutes"), "person").count()
    query = (
        found.selectExpr("person", "session_window.start AS begin", "session_window.end AS finish", "count AS clicks")
        .writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .start(sessions)
    )
    query.processAllAvailable()
    query.stop()

    assert tables.rows(sessions) == [
        ("ada", _at(1), _at(9), 2),
        ("ada", _at(20), _at(25), 1),
        ("emmy", _at(3), _at(8), 1),
    ]


def windows_of_windows(spark: SparkSession, tables: Tables) -> None:
    """Counts of five minutes, and of these the largest in half an hour."""
    minutes = (1, 2, 6, 31, 32, 33, 59)
    events = tables.create("events", EVENTS, [(_at(minute), "a") for minute in (*minutes, 150)])
    peaks = tables.create("peaks", "begin TIMESTAMP, peak BIGINT")

    stream = spark.readStream.format("fluss").options(**tables.source).load(events)
    counts = stream.withWatermark("at", "1 minute").groupBy(f.window("at", "5 minutes")).count()
    largest = counts.groupBy(f.window(f.window_time("window"), "30 minutes").alias("half")).agg(
        f.max("count").alias("peak")
    )
    query = (
        largest.select(f.col("half.start").alias("begin"), "peak")
        .writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .start(peaks)
    )
    query.processAllAvailable()
    query.stop()

    assert tables.rows(peaks) == [(_at(0), 2), (_at(30), 3)]


def drop_late_rows(spark: SparkSession, tables: Tables) -> None:
    events = tables.create("events", EVENTS, [(_at(3), "a"), (_at(30), "b")])
    counts = tables.create("counts", "begin TIMESTAMP, count BIGINT NOT NULL")

    stream = spark.readStream.format("fluss").options(**tables.source).load(events)
    windowed = stream.withWatermark("at", "10 minutes").groupBy(f.window("at", "5 minutes")).count()
    query = (
        windowed.selectExpr("window.start AS begin", "count")
        .writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .start(counts)
    )
    query.processAllAvailable()
    tables.add(events, (_at(4), "late"), (_at(24), "in time"), (_at(50), "end"))
    query.processAllAvailable()
    query.stop()

    assert tables.rows(counts) == [(_at(0), 1), (_at(20), 1), (_at(30), 1)]


def sql_on_a_stream(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", "product STRING, amount INT", [("rope", 2), ("oar", 5), ("rope", 7)])
    large = tables.create("large", "product STRING, cents INT")

    spark.readStream.format("fluss").options(**tables.source).load(orders).createOrReplaceTempView("incoming")
    found = spark.sql("SELECT upper(product) AS product, amount * 100 AS cents FROM incoming WHERE amount > 4")
    assert found.isStreaming
    query = (
        found.writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(availableNow=True)
        .start(large)
    )
    query.awaitTermination()

    assert tables.rows(large) == [("OAR", 500), ("ROPE", 700)]


def explain_a_stream(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", "product STRING, amount INT", [("rope", 2)])

    stream = spark.readStream.format("fluss").options(**tables.source).load(orders).where("amount > 1")
    query = stream.writeStream.format("memory").queryName("explained").start()
    query.processAllAvailable()
    with redirect_stdout(io.StringIO()) as printed:
        stream.printSchema()
        stream.explain()
        query.explain(extended=True)
    query.stop()

    shown = printed.getvalue()
    assert "|-- amount: integer (nullable = true)" in shown
    assert "Physical Plan" in shown
    assert spark.table("explained").collect() == [("rope", 2)]


def limit_micro_batches(spark: SparkSession, tables: Tables) -> None:
    numbers = tables.create("numbers", "id BIGINT", [(number,) for number in range(10)])
    copies = tables.create("copies", "id BIGINT, batch BIGINT NOT NULL")
    source = tables.source

    def copy(rows, batch_id):
        batch = rows.withColumn("batch", f.lit(batch_id).cast("bigint"))
        batch.write.format("fluss").options(**source).mode("append").save(copies)

    stream = spark.readStream.format("fluss").options(**source).option("maxRowsPerTrigger", 4).load(numbers)
    query = (
        stream.writeStream.foreachBatch(copy)
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    query.processAllAvailable()
    query.stop()

    assert tables.rows(copies) == [(number, number // 4) for number in range(10)]

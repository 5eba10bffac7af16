"""Streams that remember: duplicates, and state of the program's own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd
from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupStateTimeout

from tests.spark.everyday.tables import Tables

STATE_STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
EVENTS = "id INT, at TIMESTAMP, value INT"


def _at(minute: int) -> dt.datetime:
    """So many minutes after noon."""
    return dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC) + dt.timedelta(minutes=minute)


@contextmanager
def _state_in_rocksdb(spark: SparkSession) -> Iterator[None]:
    """The store that `transformWithState` needs; other programs of the session keep Spark's default."""
    before = spark.conf.get(STATE_STORE)
    spark.conf.set(STATE_STORE, ROCKSDB)
    try:
        yield
    finally:
        spark.conf.set(STATE_STORE, before)


def drop_duplicates(spark: SparkSession, tables: Tables) -> None:
    events = tables.create("events", EVENTS, [(1, _at(1), 5), (1, _at(2), 5), (2, _at(2), 6)])
    unique = tables.create("unique", EVENTS)

    stream = spark.readStream.format("fluss").options(**tables.source).load(events)
    query = (
        stream.dropDuplicates(["id", "value"])
        .writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .start(unique)
    )
    query.processAllAvailable()
    tables.add(events, (1, _at(90), 5), (2, _at(90), 7))
    query.processAllAvailable()
    query.stop()

    assert [(number, value) for number, _, value in tables.rows(unique)] == [(1, 5), (2, 6), (2, 7)]


def drop_duplicates_with_a_watermark(spark: SparkSession, tables: Tables) -> None:
    events = tables.create("events", EVENTS, [(1, _at(1), 5), (1, _at(1), 6), (2, _at(60), 7)])
    unique = tables.create("unique", "id INT, at TIMESTAMP")

    stream = spark.readStream.format("fluss").options(**tables.source).load(events)
    query = (
        stream.withWatermark("at", "10 minutes")
        .dropDuplicates(["id", "at"])
        .select("id", "at")
        .writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .start(unique)
    )
    query.processAllAvailable()
    tables.add(events, (2, _at(60), 7), (1, _at(1), 9), (3, _at(61), 8))
    query.processAllAvailable()
    query.stop()

    assert tables.rows(unique) == [(1, _at(1)), (2, _at(60)), (3, _at(61))]


def drop_duplicates_within_the_watermark(spark: SparkSession, tables: Tables) -> None:
    events = tables.create("events", EVENTS, [(1, _at(1), 5), (1, _at(4), 5), (9, _at(60), 0)])
    unique = tables.create("unique", "id INT, at TIMESTAMP")

    stream = spark.readStream.format("fluss").options(**tables.source).load(events)
    query = (
        stream.withWatermark("at", "10 minutes")
        .dropDuplicatesWithinWatermark(["id"])
        .select("id", "at")
        .writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .start(unique)
    )
    query.processAllAvailable()
    tables.add(events, (1, _at(61), 5), (9, _at(62), 0))
    query.processAllAvailable()
    query.stop()

    assert [number for number, _ in tables.rows(unique)] == [1, 1, 9]


def totals_by_pandas(spark: SparkSession, tables: Tables) -> None:
    events = tables.create("events", EVENTS, [(1, _at(1), 5), (2, _at(1), 7), (1, _at(2), 6)])
    totals = tables.create("totals", "id INT NOT NULL, total BIGINT", primary_key="id")
    source = tables.source

    def add_up(key, frames, state):
        (total,) = state.get if state.exists else (0,)
        total += sum(int(frame["value"].sum()) for frame in frames)
        state.update((total,))
        yield pd.DataFrame({"id": [key[0]], "total": [total]})

    def upsert(changed, batch_id):
        changed.write.format("fluss").options(**source).mode("append").save(totals)

    stream = spark.readStream.format("fluss").options(**source).load(events)
    summed = stream.groupBy("id").applyInPandasWithState(
        add_up, "id INT, total BIGINT", "total BIGINT", "update", GroupStateTimeout.NoTimeout
    )
    query = (
        summed.writeStream.outputMode("update")
        .foreachBatch(upsert)
        .option("checkpointLocation", tables.path("checkpoint"))
        .start()
    )
    query.processAllAvailable()
    tables.add(events, (2, _at(3), 1))
    query.processAllAvailable()
    query.stop()

    assert tables.rows(totals) == [(1, 11), (2, 8)]


def sessions_by_pandas(spark: SparkSession, tables: Tables) -> None:
    """A session ends when nothing came for ten minutes; only then is it written."""
    events = tables.create("events", EVENTS, [(1, _at(1), 0), (1, _at(5), 0), (2, _at(3), 0), (9, _at(60), 0)])
    sessions = tables.create("sessions", "id INT, events INT")

    def count(key, frames, state):
        if state.hasTimedOut:
            (events,) = state.get
            state.remove()
            yield pd.DataFrame({"id": [key[0]], "events": [events]})
            return
        rows = pd.concat(frames)
        (events,) = state.get if state.exists else (0,)
        state.update((events + len(rows),))
        state.setTimeoutTimestamp(int(rows["at"].max().timestamp() * 1000) + 600_000)

    stream = spark.readStream.format("fluss").options(**tables.source).load(events)
    counted = (
        stream.withWatermark("at", "1 minute")
        .groupBy("id")
        .applyInPandasWithState(count, "id INT, events INT", "events INT", "append", GroupStateTimeout.EventTimeTimeout)
    )
    query = (
        counted.writeStream.format("fluss")
        .options(**tables.source)
        .outputMode("append")
        .option("checkpointLocation", tables.path("checkpoint"))
        .start(sessions)
    )
    query.processAllAvailable()
    query.stop()

    assert tables.rows(sessions) == [(1, 2), (2, 1)]


def transform_with_state(spark: SparkSession, tables: Tables) -> None:
    """Each value beside the one before it."""
    events = tables.create("events", "id INT, value INT", [(1, 5), (2, 7)])
    steps = tables.create("steps", "id INT, before INT, value INT")

    class Steps(StatefulProcessor):
        def init(self, handle):
            self.last = handle.getValueState("last", "value INT")

        def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803
            for row in rows:
                before = self.last.get()[0] if self.last.exists() else None
                self.last.update((row.value,))
                yield SparkRow(id=key[0], before=before, value=row.value)

        def close(self):
            pass

    stream = spark.readStream.format("fluss").options(**tables.source).load(events)
    with _state_in_rocksdb(spark):
        query = (
            stream.groupBy("id")
            .transformWithState(Steps(), "id INT, before INT, value INT", "Append", "None")
            .writeStream.format("fluss")
            .options(**tables.source)
            .outputMode("append")
            .option("checkpointLocation", tables.path("checkpoint"))
            .start(steps)
        )
        query.processAllAvailable()
        tables.add(events, (1, 6))
        query.processAllAvailable()
        query.stop()

    assert tables.rows(steps) == [(1, 5, 6), (1, None, 5), (2, None, 7)]


def transform_with_state_in_pandas(spark: SparkSession, tables: Tables) -> None:
    """Alarms after the third high value, from a list that is kept for each device."""
    events = tables.create("events", "id INT, value INT", [(1, 50), (1, 60), (2, 70)])
    alarms = tables.create("alarms", "id INT, total INT")

    class Alarms(StatefulProcessor):
        def init(self, handle):
            self.seen = handle.getListState("seen", "value INT")

        def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803
            for frame in rows:
                self.seen.appendList([(int(value),) for value in frame["value"]])
            values = [value for (value,) in self.seen.get()]
            if len(values) >= 3:
                self.seen.clear()
                yield pd.DataFrame({"id": [key[0]], "total": [sum(values)]})

        def close(self):
            pass

    stream = spark.readStream.format("fluss").options(**tables.source).load(events)
    with _state_in_rocksdb(spark):
        query = (
            stream.groupBy("id")
            .transformWithStateInPandas(Alarms(), "id INT, total INT", "Append", "None")
            .writeStream.format("fluss")
            .options(**tables.source)
            .option("checkpointLocation", tables.path("checkpoint"))
            .start(alarms)
        )
        query.processAllAvailable()
        tables.add(events, (1, 70), (2, 80))
        query.processAllAvailable()
        query.stop()

    assert tables.rows(alarms) == [(1, 180)]

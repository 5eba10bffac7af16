"""Streams joined with tables and with streams."""

from __future__ import annotations

import datetime as dt

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tests.spark.everyday.tables import Row, Tables

WITHIN_TEN_MINUTES = "clicked_ad = ad AND clicked_at BETWEEN shown_at AND shown_at + INTERVAL 10 MINUTES"


def _at(minute: int) -> dt.datetime:
    """So many minutes after noon."""
    return dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC) + dt.timedelta(minutes=minute)


def enrich_with_a_table(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", "customer INT, amount INT", [(10, 5), (11, 7), (12, 9)])
    customers = tables.create(
        "customers", "customer INT NOT NULL, country STRING", [(10, "GB"), (11, "DE")], primary_key="customer"
    )
    enriched = tables.create("enriched", "customer INT, amount INT, country STRING")

    countries = spark.read.format("fluss").options(**tables.source).load(customers)
    stream = spark.readStream.format("fluss").options(**tables.source).load(orders)
    query = (
        stream.join(countries, "customer")
        .writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(availableNow=True)
        .start(enriched)
    )
    query.awaitTermination()

    assert tables.rows(enriched) == [(10, 5, "GB"), (11, 7, "DE")]


def enrich_with_rows_of_the_moment(spark: SparkSession, tables: Tables) -> None:
    """Customers that come, or move, while the query runs are those of the next orders."""
    orders = tables.create("orders", "customer INT, amount INT", [(10, 5)])
    customers = tables.create(
        "customers", "customer INT NOT NULL, country STRING", [(10, "GB")], primary_key="customer"
    )
    enriched = tables.create("enriched", "customer INT, amount INT, country STRING")
    source = tables.source

    def enrich(batch, batch_id):
        countries = batch.sparkSession.read.format("fluss").options(**source).load(customers)
        batch.join(countries, "customer").write.format("fluss").options(**source).mode("append").save(enriched)

    stream = spark.readStream.format("fluss").options(**source).load(orders)
    query = stream.writeStream.foreachBatch(enrich).option("checkpointLocation", tables.path("checkpoint")).start()
    query.processAllAvailable()
    tables.add(customers, (10, "FR"), (11, "DE"))
    tables.add(orders, (10, 6), (11, 7))
    query.processAllAvailable()
    query.stop()

    assert tables.rows(enriched) == [(10, 5, "GB"), (10, 6, "FR"), (11, 7, "DE")]


def keep_rows_without_a_match(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", "customer INT, amount INT", [(10, 5), (12, 9)])
    customers = tables.create(
        "customers", "customer INT NOT NULL, country STRING", [(10, "GB")], primary_key="customer"
    )
    enriched = tables.create("enriched", "customer INT, amount INT, country STRING")

    countries = spark.read.format("fluss").options(**tables.source).load(customers)
    stream = spark.readStream.format("fluss").options(**tables.source).load(orders)
    query = (
        stream.join(f.broadcast(countries), ["customer"], "left_outer")
        .na.fill("unknown", ["country"])
        .writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(availableNow=True)
        .start(enriched)
    )
    query.awaitTermination()

    assert tables.rows(enriched) == [(10, 5, "GB"), (12, 9, "unknown")]


def inner_join_of_streams(spark: SparkSession, tables: Tables) -> None:
    found = _shown_and_clicked(spark, tables, "inner")
    assert found == [(1, _at(0), 1, _at(4)), (2, _at(1), 2, _at(2)), (2, _at(1), 2, _at(9))]


def left_outer_join_of_streams(spark: SparkSession, tables: Tables) -> None:
    found = _shown_and_clicked(spark, tables, "leftOuter")
    assert found == [
        (1, _at(0), 1, _at(4)),
        (2, _at(1), 2, _at(2)),
        (2, _at(1), 2, _at(9)),
        (3, _at(2), None, None),
    ]


def full_outer_join_of_streams(spark: SparkSession, tables: Tables) -> None:
    found = _shown_and_clicked(spark, tables, "fullOuter")
    assert found == [
        (1, _at(0), 1, _at(4)),
        (2, _at(1), 2, _at(2)),
        (2, _at(1), 2, _at(9)),
        (3, _at(2), None, None),
        (None, None, 3, _at(20)),
        (None, None, 4, _at(5)),
    ]


def semi_join_of_streams(spark: SparkSession, tables: Tables) -> None:
    assert _shown_and_clicked(spark, tables, "leftSemi") == [(1, _at(0), None, None), (2, _at(1), None, None)]


def _shown_and_clicked(spark: SparkSession, tables: Tables, how: str) -> list[Row]:
    """Advertisements that were shown, and clicked within ten minutes."""
    shown = tables.create("shown", "ad INT, shown_at TIMESTAMP", [(1, _at(0)), (2, _at(1)), (3, _at(2)), (9, _at(90))])
    clicks = [(1, _at(4)), (2, _at(2)), (2, _at(9)), (3, _at(20)), (4, _at(5)), (9, _at(120))]
    clicked = tables.create("clicked", "clicked_ad INT, clicked_at TIMESTAMP", clicks)
    joined = tables.create("joined", "ad INT, shown_at TIMESTAMP, clicked_ad INT, clicked_at TIMESTAMP")

    def stream(table: str) -> DataFrame:
        return spark.readStream.format("fluss").options(**tables.source).load(table)

    left = stream(shown).withWatermark("shown_at", "5 minutes")
    right = stream(clicked).withWatermark("clicked_at", "5 minutes")
    found = left.join(right, f.expr(WITHIN_TEN_MINUTES), how)
    if how == "leftSemi":
        found = found.selectExpr("*", "int(NULL) AS clicked_ad", "timestamp(NULL) AS clicked_at")
    query = (
        found.writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .start(joined)
    )
    query.processAllAvailable()
    query.stop()
    return tables.rows(joined)

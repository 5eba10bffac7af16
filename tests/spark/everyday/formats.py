"""Tables beside files, and rows that are messages: keys and values."""

from __future__ import annotations

import json
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.spark.everyday.tables import Tables

ORDERS = "id INT, product STRING, amount INT"
ROWS = [(1, "rope", 2), (2, "oar", 5), (3, "rope", 7)]
TOPIC = "key BINARY, value BINARY, timestamp TIMESTAMP"


def from_parquet(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS)
    spark.createDataFrame(ROWS, ORDERS).write.parquet(tables.path("files"))

    df = spark.read.parquet(tables.path("files"))
    df.write.format("fluss").options(**tables.source).mode("append").save(orders)

    assert tables.rows(orders) == ROWS


def to_parquet(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, ROWS)

    df = spark.read.format("fluss").options(**tables.source).load(orders)
    df.write.partitionBy("product").mode("overwrite").parquet(tables.path("files"))

    assert {folder.name for folder in Path(tables.path("files")).glob("product=*")} == {"product=oar", "product=rope"}
    assert spark.read.parquet(tables.path("files")).select(df.columns).orderBy("id").collect() == ROWS


def from_csv(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS)
    Path(tables.path("orders.csv")).write_text('id,product,amount\n1,rope,2\n2,"oar",5\n3,rope,7\n')

    df = spark.read.option("header", True).schema(ORDERS).csv(tables.path("orders.csv"))
    df.write.format("fluss").options(**tables.source).mode("append").save(orders)

    assert tables.rows(orders) == ROWS


def from_csv_with_types_found(spark: SparkSession, tables: Tables) -> None:
    Path(tables.path("orders.csv")).write_text("id,product,amount\n1,rope,2\n2,oar,5\n3,rope,7\n")

    df = spark.read.csv(tables.path("orders.csv"), header=True, inferSchema=True)
    tables.catalog.create_table(f"{tables.database}.orders", df)
    df.write.format("fluss").options(**tables.source).mode("append").save(f"{tables.database}.orders")

    assert tables.rows(f"{tables.database}.orders") == ROWS


def from_json(spark: SparkSession, tables: Tables) -> None:
    events = tables.create("events", "id BIGINT, user STRUCT<name: STRING>, tags ARRAY<STRING>")
    lines = [{"id": 1, "user": {"name": "Ada"}, "tags": ["a"]}, {"id": 2, "user": None, "tags": []}]
    Path(tables.path("events.json")).write_text("\n".join(map(json.dumps, lines)))

    df = spark.read.json(tables.path("events.json"))
    df.select("id", "user", "tags").write.format("fluss").options(**tables.source).mode("append").save(events)

    found = spark.read.format("fluss").options(**tables.source).load(events)
    assert found.orderBy("id").collect() == [(1, ("Ada",), ["a"]), (2, None, [])]


def stream_json_files(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS)
    folder = Path(tables.path("files"))
    folder.mkdir()
    for row in ROWS:
        names = dict(zip(("id", "product", "amount"), row, strict=True))
        (folder / f"{row[0]}.json").write_text(json.dumps(names))

    query = (
        spark.readStream.schema(ORDERS)
        .json(str(folder))
        .writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(availableNow=True)
        .start(orders)
    )
    query.awaitTermination()

    assert tables.rows(orders) == ROWS


def read_messages(spark: SparkSession, tables: Tables) -> None:
    """From a table with keys and values, as a topic has them, into one with columns."""
    topic, orders = tables.create("topic", TOPIC), tables.create("orders", f"sender STRING, {ORDERS}")
    tables.add(
        topic,
        (b"ada", b'{"id": 1, "product": "rope", "amount": 2}', None),
        (b"emmy", b'{"id": 2, "product": "oar"}', None),
        (None, b"not JSON", None),
    )

    stream = spark.readStream.format("fluss").options(**tables.source).load(topic)
    parsed = stream.selectExpr("CAST(key AS STRING) AS sender", "CAST(value AS STRING) AS value").select(
        "sender", f.from_json("value", ORDERS).alias("message")
    )
    query = (
        parsed.select("sender", "message.*")
        .where("id IS NOT NULL")
        .writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(availableNow=True)
        .start(orders)
    )
    query.awaitTermination()

    assert tables.rows(orders) == [("ada", 1, "rope", 2), ("emmy", 2, "oar", None)]


def write_messages(spark: SparkSession, tables: Tables) -> None:
    orders, topic = tables.create("orders", ORDERS, ROWS[:2]), tables.create("topic", "key BINARY, value STRING")

    stream = spark.readStream.format("fluss").options(**tables.source).load(orders)
    query = (
        stream.select(f.col("id").cast("string").cast("binary").alias("key"), f.to_json(f.struct("*")).alias("value"))
        .writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(availableNow=True)
        .start(topic)
    )
    query.awaitTermination()

    assert tables.rows(topic) == [
        (b"1", '{"id":1,"product":"rope","amount":2}'),
        (b"2", '{"id":2,"product":"oar","amount":5}'),
    ]

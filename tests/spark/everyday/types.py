"""Values of all kinds: nested ones, decimals, times, nulls."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as st

from tests.spark.everyday.tables import Tables


def arrays(spark: SparkSession, tables: Tables) -> None:
    posts = tables.create("posts", "id INT, tags ARRAY<STRING>, marks ARRAY<ARRAY<INT>>")

    rows = [(1, ["a", "b"], [[1, 2], [3]]), (2, [], [[]]), (3, None, None)]
    spark.createDataFrame(rows, "id INT, tags ARRAY<STRING>, marks ARRAY<ARRAY<INT>>").write.format("fluss").options(
        **tables.source
    ).mode("append").save(posts)
    df = spark.read.format("fluss").options(**tables.source).load(posts)

    assert df.orderBy("id").collect() == rows
    assert df.select("id", f.explode("tags").alias("tag")).orderBy("tag").collect() == [(1, "a"), (1, "b")]
    assert df.where(f.array_contains("tags", "b")).select("id").collect() == [(1,)]
    sums = df.select(f.aggregate(f.flatten("marks"), f.lit(0), lambda total, mark: total + mark).alias("sum"))
    assert sorted(sums.where("sum IS NOT NULL").collect()) == [(0,), (6,)]


def maps(spark: SparkSession, tables: Tables) -> None:
    pages = tables.create("pages", "id INT, visits MAP<STRING, INT>")

    rows = [(1, {"mon": 3, "tue": None}), (2, {}), (3, None)]
    spark.createDataFrame(rows, "id INT, visits MAP<STRING, INT>").write.format("fluss").options(**tables.source).mode(
        "append"
    ).save(pages)
    df = spark.read.format("fluss").options(**tables.source).load(pages)

    assert df.orderBy("id").collect() == rows
    assert df.selectExpr("id", "visits['mon'] AS mon").where("mon IS NOT NULL").collect() == [(1, 3)]
    assert df.select(f.explode("visits")).orderBy("key").collect() == [("mon", 3), ("tue", None)]
    assert df.where(f.size("visits") == 0).select("id").collect() == [(2,)]


def structs(spark: SparkSession, tables: Tables) -> None:
    columns = (
        "id INT, address STRUCT<city: STRING, geo: STRUCT<lat: DOUBLE, lon: DOUBLE>>, past ARRAY<STRUCT<city: STRING>>"
    )
    people, cities = tables.create("people", columns), tables.create("cities", "city STRING, lat DOUBLE")

    rows = [(1, ("Kiel", (54.3, 10.1)), [("Bonn",)]), (2, ("Bern", None), []), (3, None, None)]
    spark.createDataFrame(rows, columns).write.format("fluss").options(**tables.source).mode("append").save(people)
    df = spark.read.format("fluss").options(**tables.source).load(people)
    df.select("address.city", f.col("address.geo.lat")).where("city IS NOT NULL").write.format("fluss").options(
        **tables.source
    ).mode("append").save(cities)

    assert df.orderBy("id").collect() == rows
    assert tables.rows(cities) == [("Bern", None), ("Kiel", 54.3)]
    moved = df.withColumn("address", f.col("address").withField("city", f.upper("address.city")))
    assert moved.orderBy("id").select("address.city").collect() == [("KIEL",), ("BERN",), (None,)]
    assert df.selectExpr("inline(past)").collect() == [("Bonn",)]


def nested_in_a_stream(spark: SparkSession, tables: Tables) -> None:
    carts = tables.create("carts", "id INT, items ARRAY<STRUCT<product: STRING, amount: INT>>")
    items = tables.create("items", "id INT, product STRING, labels MAP<STRING, STRING>")
    given = spark.createDataFrame(
        [(1, [("rope", 2), ("oar", 1)]), (2, [])], "id INT, items ARRAY<STRUCT<product: STRING, amount: INT>>"
    )
    given.write.format("fluss").options(**tables.source).mode("append").save(carts)

    stream = spark.readStream.format("fluss").options(**tables.source).load(carts)
    query = (
        stream.select("id", f.explode("items").alias("item"))
        .selectExpr("id", "item.product", "map('amount', string(item.amount)) AS labels")
        .writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(availableNow=True)
        .start(items)
    )
    query.awaitTermination()

    df = spark.read.format("fluss").options(**tables.source).load(items)
    assert df.orderBy("product").collect() == [(1, "oar", {"amount": "1"}), (1, "rope", {"amount": "2"})]


def decimals(spark: SparkSession, tables: Tables) -> None:
    prices = tables.create("prices", "id INT, price DECIMAL(10, 2), exact DECIMAL(38, 18)")

    rows = [(1, Decimal("19.99"), Decimal("0.000000000000000001")), (2, Decimal("-0.01"), None)]
    spark.createDataFrame(rows, "id INT, price DECIMAL(10, 2), exact DECIMAL(38, 18)").write.format("fluss").options(
        **tables.source
    ).mode("append").save(prices)
    df = spark.read.format("fluss").options(**tables.source).load(prices)

    assert df.orderBy("id").collect() == rows
    assert df.agg(f.sum("price")).collect() == [(Decimal("19.98"),)]
    assert df.select((f.col("price") * 3).cast("decimal(10, 2)").alias("x")).orderBy("x").collect() == [
        (Decimal("-0.03"),),
        (Decimal("59.97"),),
    ]


def dates_and_timestamps(spark: SparkSession, tables: Tables) -> None:
    columns = "id INT, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ"
    events, months = tables.create("events", columns), tables.create("months", "month TIMESTAMP, events BIGINT")

    spark.sql(
        """SELECT 1 AS id, DATE'2026-03-01' AS day, TIMESTAMP'2026-03-01 12:30:15.123456Z' AS at,
                  TIMESTAMP_NTZ'2026-03-01 23:59:59' AS local
           UNION ALL SELECT 2, DATE'1969-12-31', TIMESTAMP'1969-12-31T23:59:59.999Z', NULL"""
    ).write.format("fluss").options(**tables.source).mode("append").save(events)
    df = spark.read.format("fluss").options(**tables.source).load(events)
    df.groupBy(f.date_trunc("month", "at").alias("month")).agg(f.count("*").alias("events")).write.format(
        "fluss"
    ).options(**tables.source).mode("append").save(months)

    first = dt.datetime(2026, 3, 1, 12, 30, 15, 123_456, tzinfo=dt.UTC)
    second = dt.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=dt.UTC)
    assert tables.rows(events) == [
        (1, dt.date(2026, 3, 1), first, dt.datetime(2026, 3, 1, 23, 59, 59)),
        (2, dt.date(1969, 12, 31), second, None),
    ]
    assert df.where("at >= '2026-03-01' AND day < DATE'2027-01-01'").select("id").collect() == [(1,)]
    assert df.selectExpr("date_add(day, 31)").where("id = 1").collect() == [(dt.date(2026, 4, 1),)]
    march, december = dt.datetime(2026, 3, 1, tzinfo=dt.UTC), dt.datetime(1969, 12, 1, tzinfo=dt.UTC)
    assert tables.rows(months) == [(december, 1), (march, 1)]


def nulls(spark: SparkSession, tables: Tables) -> None:
    schema = st.StructType(
        [
            st.StructField("id", st.LongType(), nullable=False),
            st.StructField("flag", st.BooleanType()),
            st.StructField("tiny", st.ByteType()),
            st.StructField("small", st.ShortType()),
            st.StructField("real", st.FloatType()),
            st.StructField("text", st.StringType()),
            st.StructField("raw", st.BinaryType()),
            st.StructField("day", st.DateType()),
        ]
    )
    rows = [(1, True, 1, 2, 0.5, "é", b"\x00\xff", dt.date(2026, 3, 1)), (2, *[None] * 7)]
    given = spark.createDataFrame(rows, schema)
    tables.catalog.create_table(f"{tables.database}.values", given.schema)

    given.write.format("fluss").options(**tables.source).mode("append").save(f"{tables.database}.values")
    df = spark.read.format("fluss").options(**tables.source).load(f"{tables.database}.values")

    assert df.schema == given.schema
    assert tables.rows(f"{tables.database}.values") == rows
    assert df.where("text IS NULL AND flag IS NULL").select("id").collect() == [(2,)]


def wider_and_narrower_types(spark: SparkSession, tables: Tables) -> None:
    totals = tables.create("totals", "id BIGINT, total DOUBLE")

    given = spark.createDataFrame([("1", 2)], "id STRING, total INT")
    given.select(f.col("id").cast("int"), f.col("total").cast("float")).write.format("fluss").options(
        **tables.source
    ).mode("append").save(totals)

    assert tables.rows(totals) == [(1, 2.0)]

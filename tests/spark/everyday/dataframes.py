"""DataFrames: loading, saving, and what is done in between."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pandas as pd
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Observation, SparkSession, Window
from pyspark.sql import functions as f

from tests.spark.everyday.tables import Tables

ORDERS = "id INT, product STRING, amount INT"
ROWS = [(1, "rope", 2), (2, "oar", 5), (3, "rope", 7), (4, "buoy", None)]


def load_and_save(spark: SparkSession, tables: Tables) -> None:
    orders, copy = tables.create("orders", ORDERS, ROWS), tables.create("copy", ORDERS)
    address = tables.source["bootstrap.servers"]

    df = spark.read.format("fluss").option("bootstrap.servers", address).option("table", orders).load()
    df.write.format("fluss").option("bootstrap.servers", address).option("table", copy).mode("append").save()

    assert tables.rows(copy) == ROWS


def read_with_a_schema(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, ROWS)

    df = spark.read.format("fluss").options(**tables.source).schema("product STRING, id INT").load(orders)

    assert df.columns == ["product", "id"]
    assert df.orderBy("id").collect() == [("rope", 1), ("oar", 2), ("rope", 3), ("buoy", 4)]


def select_filter_and_sort(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, ROWS)

    df = spark.read.format("fluss").options(**tables.source).load(orders)
    found = (
        df.where((df.amount > 2) | df.amount.isNull())
        .withColumn("cents", df.amount * 100)
        .withColumnRenamed("product", "name")
        .drop("amount")
        .orderBy(f.desc("id"))
    )

    assert found.collect() == [(4, "buoy", None), (3, "rope", 700), (2, "oar", 500)]
    assert found.limit(1).collect() == found.take(1) == [(4, "buoy", None)]
    assert (df.count(), df.select("product").distinct().count(), df.first()["id"]) == (4, 3, 1)


def aggregate(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, ROWS)
    totals = tables.create("totals", "product STRING NOT NULL, orders BIGINT, total BIGINT", primary_key="product")

    df = spark.read.format("fluss").options(**tables.source).load(orders)
    summed = df.groupBy("product").agg(f.count("*").alias("orders"), f.sum("amount").alias("total"))
    summed.write.format("fluss").options(**tables.source).mode("append").save(totals)

    assert tables.rows(totals) == [("buoy", 1, None), ("oar", 1, 5), ("rope", 2, 9)]


def join(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, ROWS)
    prices = tables.create(
        "prices", "product STRING NOT NULL, price DECIMAL(6, 2)", primary_key="product",
        rows=[("rope", Decimal("1.50")), ("oar", Decimal("20.00")), ("anchor", Decimal("99.00"))],
    )  # fmt: skip

    left = spark.read.format("fluss").options(**tables.source).load(orders)
    right = spark.read.format("fluss").options(**tables.source).load(prices)
    cost = left.join(right, "product").select("id", (f.col("amount") * f.col("price")).cast("double").alias("cost"))

    assert cost.orderBy("id").collect() == [(1, 3.0), (2, 100.0), (3, 10.5)]
    assert left.join(right, "product", "left_anti").select("product").collect() == [("buoy",)]
    assert left.join(right, "product", "left_semi").count() == 3
    assert sorted(row.product for row in left.join(right, "product", "full").collect()) == [
        "anchor", "buoy", "oar", "rope", "rope",
    ]  # fmt: skip


def pivot(spark: SparkSession, tables: Tables) -> None:
    sales = tables.create(
        "sales",
        "year INT, product STRING, amount INT",
        [(2025, "a", 1), (2025, "b", 2), (2026, "a", 4), (2026, "a", 8)],
    )

    df = spark.read.format("fluss").options(**tables.source).load(sales)
    wide = df.groupBy("year").pivot("product", ["a", "b"]).sum("amount").orderBy("year")
    assert wide.collect() == [(2025, 1, 2), (2026, 12, None)]

    long = wide.unpivot("year", ["a", "b"], "product", "amount").orderBy("year", "product")
    assert long.collect() == [(2025, "a", 1), (2025, "b", 2), (2026, "a", 12), (2026, "b", None)]


def window_functions(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, ROWS[:3])

    df = spark.read.format("fluss").options(**tables.source).load(orders)
    by_product = Window.partitionBy("product").orderBy("id")
    found = df.select(
        "id",
        f.row_number().over(by_product).alias("number"),
        f.lag("amount").over(by_product).alias("before"),
        f.sum("amount").over(by_product.rowsBetween(Window.unboundedPreceding, 0)).alias("so_far"),
    )

    assert found.orderBy("id").collect() == [(1, 1, None, 2), (2, 1, None, 5), (3, 2, 2, 9)]


def functions_in_python(spark: SparkSession, tables: Tables) -> None:
    orders, shouted = tables.create("orders", ORDERS, ROWS), tables.create("shouted", "id INT, product STRING")

    @f.udf("STRING")
    def shout(text):
        return text.upper() + "!"

    df = spark.read.format("fluss").options(**tables.source).load(orders)
    df.select("id", shout("product").alias("product")).write.format("fluss").options(**tables.source).mode(
        "append"
    ).save(shouted)

    assert tables.rows(shouted) == [(1, "ROPE!"), (2, "OAR!"), (3, "ROPE!"), (4, "BUOY!")]


def functions_in_pandas(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, ROWS[:3])

    @f.pandas_udf("BIGINT")
    def doubled(amounts: pd.Series) -> pd.Series:
        return amounts * 2

    @f.pandas_udf("DOUBLE")
    def mean(amounts: pd.Series) -> float:
        return amounts.mean()

    df = spark.read.format("fluss").options(**tables.source).load(orders)

    assert df.select("id", doubled("amount").alias("twice")).orderBy("id").collect() == [(1, 4), (2, 10), (3, 14)]
    assert df.groupBy("product").agg(mean("amount").alias("mean")).orderBy("product").collect() == [
        ("oar", 5.0),
        ("rope", 4.5),
    ]


def groups_in_pandas(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, ROWS[:3])
    centred = tables.create("centred", "id INT, amount DOUBLE")

    def centre(group: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"id": group["id"], "amount": group["amount"] - group["amount"].mean()})

    df = spark.read.format("fluss").options(**tables.source).load(orders)
    df.groupBy("product").applyInPandas(centre, "id INT, amount DOUBLE").write.format("fluss").options(
        **tables.source
    ).mode("append").save(centred)

    assert tables.rows(centred) == [(1, -2.5), (2, 0.0), (3, 2.5)]


def map_in_pandas_and_arrow(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, ROWS[:3])
    large = tables.create("large", ORDERS)

    def large_ones(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame[frame["amount"] > 4]

    def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    df = spark.read.format("fluss").options(**tables.source).load(orders)
    df.mapInPandas(large_ones, df.schema).write.format("fluss").options(**tables.source).mode("append").save(large)

    assert tables.rows(large) == [(2, "oar", 5), (3, "rope", 7)]
    assert df.mapInArrow(sizes, "rows BIGINT").agg(f.sum("rows")).collect() == [(3,)]


def pandas_in_and_out(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", "id BIGINT, product STRING, price DOUBLE, at TIMESTAMP")
    given = pd.DataFrame(
        {
            "id": [1, 2],
            "product": ["rope", None],
            "price": [1.5, 2.5],
            "at": pd.to_datetime(["2026-03-01 12:00", "2026-03-02 12:00"]),
        }
    )

    spark.createDataFrame(given).write.format("fluss").options(**tables.source).mode("append").save(orders)
    df = spark.read.format("fluss").options(**tables.source).load(orders)

    pd.testing.assert_frame_equal(df.orderBy("id").toPandas(), given, check_dtype=False)
    assert df.toArrow().sort_by("id").column("product").to_pylist() == ["rope", None]


def arrow_in(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS)
    given = pa.table({"id": pa.array([1], pa.int32()), "product": ["rope"], "amount": pa.array([2], pa.int32())})

    spark.createDataFrame(given).write.format("fluss").options(**tables.source).mode("append").save(orders)

    assert tables.rows(orders) == ROWS[:1]


def cache(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, ROWS)

    df = spark.read.format("fluss").options(**tables.source).load(orders).cache()
    assert df.count() == 4
    tables.add(orders, (5, "oar", 1))
    assert df.count() == 4
    assert df.storageLevel.useMemory
    df.unpersist()
    again = spark.read.format("fluss").options(**tables.source).load(orders).persist(StorageLevel.DISK_ONLY)
    assert again.agg(f.sum("amount")).collect() == [(15,)]
    again.unpersist()


def repartition(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, ROWS, buckets=3)
    newest = tables.create("newest", "product STRING NOT NULL, id INT", primary_key="product", buckets=2)

    df = spark.read.format("fluss").options(**tables.source).load(orders)
    assert df.repartition(4).select(f.spark_partition_id()).distinct().count() <= 4
    df.repartition(2, "product").sortWithinPartitions("id").select("product", "id").write.format("fluss").options(
        **tables.source
    ).mode("append").save(newest)
    assert df.coalesce(1).select(f.spark_partition_id().alias("part")).distinct().collect() == [(0,)]

    assert tables.rows(newest) == [("buoy", 4), ("oar", 2), ("rope", 3)]


def missing_values(spark: SparkSession, tables: Tables) -> None:
    people = tables.create("people", "id INT, name STRING, age INT", [(1, "Ada", 36), (2, None, 41), (3, "Emmy", None)])

    df = spark.read.format("fluss").options(**tables.source).load(people)

    assert df.na.drop().collect() == [(1, "Ada", 36)]
    filled = df.na.fill({"name": "?", "age": 0}).orderBy("id")
    assert filled.collect() == [(1, "Ada", 36), (2, "?", 41), (3, "Emmy", 0)]
    assert df.select(f.coalesce("age", f.lit(-1))).agg(f.sum("coalesce(age, -1)")).collect() == [(76,)]
    assert df.where(f.col("name").eqNullSafe(None)).select("id").collect() == [(2,)]
    assert df.agg(f.count("name"), f.avg("age")).collect() == [(2, 38.5)]


def observe(spark: SparkSession, tables: Tables) -> None:
    orders, copy = tables.create("orders", ORDERS, ROWS), tables.create("copy", ORDERS)
    quality = Observation("quality")

    df = spark.read.format("fluss").options(**tables.source).load(orders)
    observed = df.observe(quality, f.count("*").alias("rows"), f.count_if(f.isnull("amount")).alias("nulls"))
    observed.write.format("fluss").options(**tables.source).mode("append").save(copy)

    assert quality.get == {"rows": 4, "nulls": 1}
    assert tables.rows(copy) == ROWS


def union_and_difference(spark: SparkSession, tables: Tables) -> None:
    today = tables.create("today", ORDERS, ROWS[:3])
    before = tables.create("before", "product STRING, id INT, amount INT", [("rope", 1, 2), ("lamp", 9, 1)])

    new = spark.read.format("fluss").options(**tables.source).load(today)
    old = spark.read.format("fluss").options(**tables.source).load(before)

    assert new.unionByName(old).distinct().count() == 4
    assert sorted(new.exceptAll(old.select(new.columns)).collect()) == [(2, "oar", 5), (3, "rope", 7)]
    assert new.intersect(old.select(new.columns)).collect() == [(1, "rope", 2)]
    assert new.dropDuplicates(["product"]).count() == 2


def describe(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, ROWS)

    df = spark.read.format("fluss").options(**tables.source).load(orders)

    assert df.schema.simpleString() == "struct<id:int,product:string,amount:int>"
    assert df.dtypes == [("id", "int"), ("product", "string"), ("amount", "int")]
    assert df.describe("amount").collect() == [
        ("count", "3"),
        ("mean", "4.666666666666667"),
        ("stddev", "2.516611478423583"),
        ("min", "2"),
        ("max", "7"),
    ]
    assert df.approxQuantile("amount", [0.5], 0.0) == [5.0]
    assert not df.isEmpty()


def partial_updates(spark: SparkSession, tables: Tables) -> None:
    customers = tables.create(
        "customers", "id INT NOT NULL, name STRING, country STRING", [(1, "Ada", "GB"), (2, "Emmy", "DE")],
        primary_key="id",
    )  # fmt: skip

    moved = spark.createDataFrame([(2, "US")], "id INT, country STRING")
    moved.write.format("fluss").options(**tables.source).option("target.columns", "id, country").mode("append").save(
        customers
    )
    gone = spark.createDataFrame([(1,)], "id INT")
    gone.write.format("fluss").options(**tables.source).option("write.mode", "delete").mode("append").save(customers)

    assert tables.rows(customers) == [(2, "Emmy", "US")]


def partitioned_tables(spark: SparkSession, tables: Tables) -> None:
    visits = tables.create("visits", "page STRING, day STRING", partitioned_by="day")

    given = spark.createDataFrame([("a", "mon"), ("b", "mon"), ("c", "tue")], "page STRING, day STRING")
    given.write.format("fluss").options(**tables.source).mode("append").save(visits)
    df = spark.read.format("fluss").options(**tables.source).load(visits)

    assert df.where("day = 'mon'").orderBy("page").collect() == [("a", "mon"), ("b", "mon")]
    assert df.groupBy("day").count().orderBy("day").collect() == [("mon", 2), ("tue", 1)]

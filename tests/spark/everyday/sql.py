"""SQL: tables and views by their names."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.spark.everyday.tables import Tables

ORDERS = "id INT, product STRING, amount INT"
ROWS = [(1, "rope", 2), (2, "oar", 5), (3, "rope", 7)]
PRICES = "product STRING NOT NULL, price INT"


def query_a_view(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, ROWS)

    spark.read.format("fluss").options(**tables.source).load(orders).createOrReplaceTempView("orders")
    found = spark.sql("SELECT product, sum(amount) AS total FROM orders GROUP BY product ORDER BY product").collect()
    spark.catalog.dropTempView("orders")

    assert found == [("oar", 5), ("rope", 9)]


def query_a_view_made_by_sql(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, ROWS)

    spark.sql(
        f"""CREATE OR REPLACE TEMPORARY VIEW orders_view USING fluss
            OPTIONS (`bootstrap.servers` '{tables.source["bootstrap.servers"]}', `table` '{orders}')"""
    )
    found = spark.sql("SELECT max(amount) FROM orders_view").collect()
    spark.catalog.dropTempView("orders_view")

    assert found == [(7,)]


def query_with_common_expressions(spark: SparkSession, tables: Tables) -> None:
    orders = tables.attach("orders", ORDERS, ROWS)

    found = spark.sql(
        f"""WITH totals AS (SELECT product, sum(amount) AS total FROM {orders} GROUP BY product),
                 largest AS (SELECT max(total) AS total FROM totals)
            SELECT product FROM totals JOIN largest USING (total)"""
    ).collect()

    assert found == [("rope",)]


def join_in_sql(spark: SparkSession, tables: Tables) -> None:
    orders = tables.attach("orders", ORDERS, ROWS)
    prices = tables.attach("prices", PRICES, [("rope", 3), ("lamp", 8)], primary_key="product")

    found = spark.sql(
        f"SELECT o.id, o.amount * p.price FROM {orders} o LEFT JOIN {prices} p ON o.product = p.product ORDER BY o.id"
    ).collect()
    assert found == [(1, 6), (2, None), (3, 21)]

    missing = spark.sql(
        f"SELECT id FROM {orders} o WHERE NOT EXISTS (SELECT 1 FROM {prices} p WHERE p.product = o.product)"
    )
    assert missing.collect() == [(2,)]
    assert spark.sql(f"SELECT product FROM {prices} EXCEPT SELECT product FROM {orders}").collect() == [("lamp",)]


def aggregate_in_sql(spark: SparkSession, tables: Tables) -> None:
    sales = tables.attach(
        "sales", "year INT, product STRING, amount INT", [(2025, "a", 1), (2025, "b", 2), (2026, "a", 4)]
    )

    rolled = spark.sql(
        f"""SELECT year, product, sum(amount) FROM {sales} GROUP BY ROLLUP (year, product)
            ORDER BY year NULLS LAST, product NULLS LAST"""
    )
    assert rolled.collect() == [
        (2025, "a", 1),
        (2025, "b", 2),
        (2025, None, 3),
        (2026, "a", 4),
        (2026, None, 4),
        (None, None, 7),
    ]
    wide = spark.sql(f"SELECT * FROM {sales} PIVOT (sum(amount) FOR product IN ('a', 'b')) ORDER BY year")
    assert wide.collect() == [(2025, 1, 2), (2026, 4, None)]
    some = spark.sql(
        f"SELECT product, count(*) FILTER (WHERE amount > 1) AS n FROM {sales} GROUP BY 1 HAVING n > 0 ORDER BY 1"
    )
    assert some.collect() == [("a", 1), ("b", 1)]


def window_functions_in_sql(spark: SparkSession, tables: Tables) -> None:
    orders = tables.attach("orders", ORDERS, ROWS)

    found = spark.sql(
        f"""SELECT product, amount FROM
              (SELECT *, rank() OVER (PARTITION BY product ORDER BY amount DESC) AS place FROM {orders})
            WHERE place = 1 ORDER BY product"""
    ).collect()

    assert found == [("oar", 5), ("rope", 7)]


def parameters_in_sql(spark: SparkSession, tables: Tables) -> None:
    orders = tables.attach("orders", ORDERS, ROWS)

    named = spark.sql(
        "SELECT id FROM identifier(:table) WHERE amount > :least ORDER BY id", args={"table": orders, "least": 4}
    )
    assert named.collect() == [(2,), (3,)]
    assert spark.sql("SELECT count(*) FROM {orders}", orders=spark.table(orders)).collect() == [(3,)]


def insert_values(spark: SparkSession, tables: Tables) -> None:
    orders = tables.attach("orders", ORDERS)
    prices = tables.attach("prices", PRICES, [("rope", 3)], primary_key="product")

    spark.sql(f"INSERT INTO {orders} VALUES (1, 'rope', 2), (2, 'oar', 5)")
    spark.sql(f"INSERT INTO {orders} (id, amount, product) VALUES (3, 7, 'rope')")
    spark.sql(f"INSERT INTO TABLE {prices} SELECT product, max(amount) FROM {orders} GROUP BY product")

    assert tables.rows(orders) == ROWS
    assert tables.rows(prices) == [("oar", 5), ("rope", 7)]


def insert_by_name(spark: SparkSession, tables: Tables) -> None:
    orders = tables.attach("orders", ORDERS)

    spark.sql(f"INSERT INTO {orders} BY NAME SELECT 'oar' AS product, 5 AS amount, 2 AS id")

    assert tables.rows(orders) == [(2, "oar", 5)]


def insert_a_dataframe(spark: SparkSession, tables: Tables) -> None:
    orders = tables.attach("orders", ORDERS)

    spark.createDataFrame(ROWS, ORDERS).write.insertInto(orders)

    assert tables.rows(orders) == ROWS


def save_as_a_table(spark: SparkSession, tables: Tables) -> None:
    orders = tables.attach("orders", ORDERS)

    spark.createDataFrame(ROWS, ORDERS).write.format("fluss").mode("append").saveAsTable(orders)

    assert tables.rows(orders) == ROWS


def write_to_a_table(spark: SparkSession, tables: Tables) -> None:
    orders = tables.attach("orders", ORDERS)

    spark.createDataFrame(ROWS, ORDERS).writeTo(orders).append()

    assert tables.rows(orders) == ROWS


def read_a_named_table(spark: SparkSession, tables: Tables) -> None:
    orders = tables.attach("orders", ORDERS, ROWS)
    database, _, name = orders.partition(".")

    assert spark.table(orders).orderBy("id").collect() == ROWS
    assert spark.read.table(orders).count() == 3
    tables.add(orders, (4, "buoy", 1))
    assert spark.sql(f"SELECT count(*) FROM {orders}").collect() == [(4,)]
    assert spark.catalog.tableExists(orders)
    assert [row.tableName for row in spark.sql(f"SHOW TABLES IN {database}").where("NOT isTemporary").collect()] == [
        name
    ]
    assert [row.col_name for row in spark.sql(f"DESCRIBE TABLE {orders}").collect()] == ["id", "product", "amount"]
    assert [column.name for column in spark.catalog.listColumns(orders)] == ["id", "product", "amount"]
    spark.catalog.setCurrentDatabase(database)
    try:
        assert spark.sql(f"SELECT max(id) FROM {name}").collect() == [(4,)]
    finally:
        spark.catalog.setCurrentDatabase("default")


def cache_a_table(spark: SparkSession, tables: Tables) -> None:
    orders = tables.attach("orders", ORDERS, ROWS)

    spark.sql(f"CACHE TABLE {orders}")
    assert spark.catalog.isCached(orders)
    assert spark.table(orders).count() == 3
    spark.sql(f"UNCACHE TABLE {orders}")

    assert spark.table(orders).agg(f.sum("amount")).collect() == [(14,)]


def functions_in_sql(spark: SparkSession, tables: Tables) -> None:
    orders = tables.attach("orders", ORDERS, ROWS)

    spark.udf.register("shouted", lambda text: text.upper(), "STRING")
    found = spark.sql(f"SELECT DISTINCT shouted(product) AS product FROM {orders} ORDER BY 1").collect()

    assert found == [("OAR",), ("ROPE",)]


def table_functions(spark: SparkSession, tables: Tables) -> None:
    orders = tables.attach("orders", ORDERS, ROWS[:2])

    @f.udtf(returnType="number INT")
    class Numbers:
        def eval(self, count: int):
            for number in range(count):
                yield (number,)

    spark.udtf.register("numbers", Numbers)
    found = spark.sql(f"SELECT id, number FROM {orders}, LATERAL numbers(id) ORDER BY id, number").collect()

    assert found == [(1, 0), (2, 0), (2, 1)]


def make_a_parquet_table(spark: SparkSession, tables: Tables) -> None:
    orders = tables.attach("orders", ORDERS, ROWS)
    copy = f"{tables.database}.files"

    spark.sql(f"CREATE TABLE {copy} USING parquet AS SELECT * FROM {orders} WHERE amount > 2")
    found = spark.table(copy).orderBy("id").collect()
    spark.sql(f"INSERT INTO {orders} SELECT id + 10, product, amount FROM {copy}")
    spark.sql(f"DROP TABLE {copy}")

    assert found == ROWS[1:]
    assert tables.rows(orders) == [*ROWS, (12, "oar", 5), (13, "rope", 7)]

"""Programs that Spark refuses, because the tables are those of a data source in Python, and what they are told.

`docs/spark.md` lists them with what to write instead.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import DataStreamWriter

from tests.spark.everyday.tables import Program, Tables

ORDERS = "id INT NOT NULL, product STRING"
ROWS = [(1, "rope"), (2, "oar")]


def _orders(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, ORDERS)


def _attached(tables: Tables) -> str:
    return tables.attach("orders", ORDERS, ROWS, primary_key="id")


def _counts(spark: SparkSession, tables: Tables) -> DataStreamWriter:
    orders = tables.create("orders", ORDERS, ROWS)
    stream = spark.readStream.format("fluss").options(**tables.source).load(orders)
    writer = stream.groupBy("product").count().writeStream.format("fluss").options(**tables.source)
    return writer.option("checkpointLocation", tables.path("checkpoint"))


def complete_mode(spark: SparkSession, tables: Tables) -> None:
    counts = tables.create("counts", "product STRING, count BIGINT")
    _counts(spark, tables).outputMode("complete").start(counts).processAllAvailable()


def update_mode(spark: SparkSession, tables: Tables) -> None:
    counts = tables.create("counts", "product STRING NOT NULL, count BIGINT", primary_key="product")
    _counts(spark, tables).outputMode("update").start(counts).processAllAvailable()


def continuous_trigger(spark: SparkSession, tables: Tables) -> None:
    orders, copy = tables.create("orders", ORDERS), tables.create("copy", ORDERS)
    stream = spark.readStream.format("fluss").options(**tables.source).load(orders)
    writer = stream.writeStream.format("fluss").options(**tables.source).trigger(continuous="1 second")
    writer.option("checkpointLocation", tables.path("checkpoint")).start(copy)


def save_without_a_mode(spark: SparkSession, tables: Tables) -> None:
    _orders(spark).write.format("fluss").options(**tables.source).save(tables.create("orders", ORDERS))


def save_unless_there(spark: SparkSession, tables: Tables) -> None:
    _orders(spark).write.format("fluss").options(**tables.source).mode("ignore").save(tables.create("orders", ORDERS))


def overwrite(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, ROWS)
    _orders(spark).write.format("fluss").options(**tables.source).mode("overwrite").save(orders)


def overwrite_in_sql(spark: SparkSession, tables: Tables) -> None:
    spark.sql(f"INSERT OVERWRITE {_attached(tables)} VALUES (1, 'rope')")


def overwrite_a_named_table(spark: SparkSession, tables: Tables) -> None:
    _orders(spark).write.insertInto(_attached(tables), overwrite=True)


def overwrite_some_rows(spark: SparkSession, tables: Tables) -> None:
    _orders(spark).writeTo(_attached(tables)).overwrite(f.col("id") == 1)


def partition_a_write(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, partitioned_by="product")
    _orders(spark).write.format("fluss").options(**tables.source).mode("append").partitionBy("product").save(orders)


def bucket_a_write(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS)
    _orders(spark).write.format("fluss").options(**tables.source).mode("append").bucketBy(2, "id").save(orders)


def insert_into_a_partition(spark: SparkSession, tables: Tables) -> None:
    orders = tables.attach("orders", ORDERS, partitioned_by="product")
    spark.sql(f"INSERT INTO {orders} PARTITION (product = 'rope') SELECT 1")


def show_partitions(spark: SparkSession, tables: Tables) -> None:
    orders = tables.attach("orders", ORDERS, partitioned_by="product")
    spark.sql(f"SHOW PARTITIONS {orders}").collect()


def delete(spark: SparkSession, tables: Tables) -> None:
    spark.sql(f"DELETE FROM {_attached(tables)} WHERE id = 1")


def update(spark: SparkSession, tables: Tables) -> None:
    spark.sql(f"UPDATE {_attached(tables)} SET product = 'oar' WHERE id = 1")


def merge(spark: SparkSession, tables: Tables) -> None:
    _orders(spark).createOrReplaceTempView("new_orders")
    spark.sql(
        f"""MERGE INTO {_attached(tables)} AS old USING new_orders AS new ON old.id = new.id
            WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""
    )


def truncate(spark: SparkSession, tables: Tables) -> None:
    spark.sql(f"TRUNCATE TABLE {_attached(tables)}")


def create_as_select(spark: SparkSession, tables: Tables) -> None:
    orders = _attached(tables)
    spark.sql(f"CREATE TABLE {tables.database}.copy USING fluss AS SELECT * FROM {orders}")


def create_by_writing(spark: SparkSession, tables: Tables) -> None:
    _attached(tables)
    _orders(spark).writeTo(f"{tables.database}.copy").using("fluss").create()


def save_in_the_default_format(spark: SparkSession, tables: Tables) -> None:
    _orders(spark).write.mode("append").saveAsTable(_attached(tables))


def read_an_earlier_time(spark: SparkSession, tables: Tables) -> None:
    spark.sql(f"SELECT * FROM {_attached(tables)} TIMESTAMP AS OF '2026-01-01'").collect()


def compute_statistics(spark: SparkSession, tables: Tables) -> None:
    spark.sql(f"ANALYZE TABLE {_attached(tables)} COMPUTE STATISTICS")


def name_the_format_in_a_query(spark: SparkSession, tables: Tables) -> None:
    spark.sql(f"SELECT * FROM fluss.`{_attached(tables)}`").collect()


NO_OVERWRITE = "can't be overwritten"
NO_PARTITIONS = "does not support partition management"
ERRORS: dict[Program, str] = {
    complete_mode: "can't be overwritten by each micro-batch",
    update_mode: "does not support Update mode",
    continuous_trigger: "does not support continuous processing",
    save_without_a_mode: 'cannot be written in the "ErrorIfExists" mode',
    save_unless_there: 'cannot be written in the "Ignore" mode',
    overwrite: NO_OVERWRITE,
    overwrite_in_sql: NO_OVERWRITE,
    overwrite_a_named_table: NO_OVERWRITE,
    overwrite_some_rows: "does not support overwrite by filter",
    partition_a_write: "do not match the existing table's",
    bucket_a_write: "'save' does not support bucketBy",
    insert_into_a_partition: "cannot contain the non-partition column",
    show_partitions: NO_PARTITIONS,
    delete: "does not support deletes",
    update: "does not support UPDATE TABLE",
    merge: "does not support MERGE INTO TABLE",
    truncate: "does not support truncates",
    create_as_select: "needs .option('bootstrap.servers'",
    create_by_writing: "needs .option('bootstrap.servers'",
    save_in_the_default_format: "doesn't match the specified format",
    read_an_earlier_time: "Time travel on the relation",
    compute_statistics: "ANALYZE TABLE is not supported",
    name_the_format_in_a_query: "Unsupported data source type for direct query",
}

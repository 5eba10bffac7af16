"""Where streams end: tables, other sinks, and the program's own code."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.spark.everyday.tables import Tables

ORDERS = "id INT, product STRING, amount INT"
THREE = [(1, "rope", 2), (2, "oar", 5), (3, "rope", 7)]


def append_to_a_table(spark: SparkSession, tables: Tables) -> None:
    orders, copy = tables.create("orders", ORDERS, THREE), tables.create("copy", ORDERS)

    query = (
        spark.readStream.format("fluss")
        .option("bootstrap.servers", tables.source["bootstrap.servers"])
        .option("table", orders)
        .load()
        .writeStream.format("fluss")
        .option("bootstrap.servers", tables.source["bootstrap.servers"])
        .option("table", copy)
        .option("checkpointLocation", tables.path("checkpoint"))
        .queryName("copy of orders")
        .outputMode("append")
        .start()
    )
    query.processAllAvailable()
    query.stop()

    assert query.name == "copy of orders"
    assert tables.rows(copy) == THREE


def foreach_row(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, THREE)
    stock = tables.create("stock", "id INT NOT NULL, product STRING", primary_key="id")
    address = tables.source["bootstrap.servers"]

    class Upserts:
        def open(self, partition_id, epoch_id):
            import fluss.sync

            self.connection = fluss.sync.connect(address)
            self.writer = (
                self.connection.get_table(fluss.sync.TablePath(*stock.split("."))).new_upsert().create_writer()
            )
            return True

        def process(self, row):
            self.writer.upsert({"id": row.id, "product": row.product})

        def close(self, error):
            self.writer.flush()
            self.connection.close()

    stream = spark.readStream.format("fluss").options(**tables.source).load(orders)
    query = stream.writeStream.foreach(Upserts()).option("checkpointLocation", tables.path("checkpoint")).start()
    query.processAllAvailable()
    query.stop()

    assert tables.rows(stock) == [(1, "rope"), (2, "oar"), (3, "rope")]


def foreach_batch_into_two_tables(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, THREE)
    log = tables.create("log", f"{ORDERS}, batch BIGINT")
    newest = tables.create("newest", "product STRING NOT NULL, id INT", primary_key="product")
    source = tables.source

    def write(batch, batch_id):
        batch.persist()
        batch.withColumn("batch", f.lit(batch_id).cast("bigint")).write.format("fluss").options(**source).mode(
            "append"
        ).save(log)
        by_product = batch.groupBy("product").agg(f.max("id").alias("id"))
        by_product.write.format("fluss").options(**source).mode("append").save(newest)
        batch.unpersist()

    stream = spark.readStream.format("fluss").options(**source).load(orders)
    query = (
        stream.writeStream.foreachBatch(write)
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    assert tables.rows(log) == [(*row, 0) for row in THREE]
    assert tables.rows(newest) == [("oar", 2), ("rope", 3)]


def foreach_batch_in_sql(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, THREE)
    totals = tables.attach("totals", "product STRING NOT NULL, total BIGINT", primary_key="product")

    def add_up(batch, batch_id):
        batch.createOrReplaceTempView("arrived")
        batch.sparkSession.sql(
            f"""INSERT INTO {totals}
                SELECT product, sum(amount) + coalesce(max(total), 0) FROM arrived LEFT JOIN {totals} USING (product)
                GROUP BY product"""
        )

    stream = spark.readStream.format("fluss").options(**tables.source).load(orders)
    query = stream.writeStream.foreachBatch(add_up).option("checkpointLocation", tables.path("checkpoint")).start()
    query.processAllAvailable()
    tables.add(orders, (4, "oar", 10))
    query.processAllAvailable()
    query.stop()

    assert tables.rows(totals) == [("oar", 15), ("rope", 9)]


def foreach_batch_with_deletes(spark: SparkSession, tables: Tables) -> None:
    """A table is kept like another, of which every change is read."""
    columns, key = "id INT NOT NULL, product STRING", "id"
    stock = tables.create("stock", columns, [(1, "rope"), (2, "oar")], primary_key=key)
    mirror = tables.create("mirror", columns, primary_key=key)
    source = tables.source

    stream = spark.readStream.format("fluss").options(**source).option("changelog", "true").load(stock)

    def apply(changes, batch_id):
        changes.write.format("fluss").options(**source).option("write.mode", "changelog").mode("append").save(mirror)

    query = stream.writeStream.foreachBatch(apply).option("checkpointLocation", tables.path("checkpoint")).start()
    query.processAllAvailable()
    gone = spark.createDataFrame([(1,)], "id INT")
    gone.write.format("fluss").options(**source).option("write.mode", "delete").mode("append").save(stock)
    tables.add(stock, (2, "paddle"))
    query.processAllAvailable()
    query.stop()

    assert tables.rows(mirror) == [(2, "paddle")]


def two_queries_of_one_stream(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, THREE)
    small, large = tables.create("small", ORDERS), tables.create("large", ORDERS)

    stream = spark.readStream.format("fluss").options(**tables.source).load(orders)
    for name, condition, table in (("small", "amount < 5", small), ("large", "amount >= 5", large)):
        stream.where(condition).writeStream.format("fluss").options(**tables.source).queryName(name).option(
            "checkpointLocation", tables.path(name)
        ).start(table)
    assert {query.name for query in spark.streams.active} == {"small", "large"}
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()

    assert tables.rows(small) == THREE[:1]
    assert tables.rows(large) == THREE[1:]


def write_to_memory(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, THREE)

    stream = spark.readStream.format("fluss").options(**tables.source).load(orders)
    query = stream.writeStream.format("memory").queryName("in_memory").outputMode("append").start()
    query.processAllAvailable()
    query.stop()

    assert spark.sql("SELECT * FROM in_memory ORDER BY id").collect() == THREE


def write_to_the_console(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, THREE)

    stream = spark.readStream.format("fluss").options(**tables.source).load(orders)
    query = stream.writeStream.format("console").option("truncate", "false").option("numRows", 2).start()
    query.processAllAvailable()
    query.stop()

    assert query.exception() is None
    assert sum(progress.sources[0].numInputRows for progress in query.recentProgress) == len(THREE)


def write_parquet_files(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, THREE)

    stream = spark.readStream.format("fluss").options(**tables.source).load(orders)
    query = (
        stream.writeStream.format("parquet")
        .partitionBy("product")
        .option("path", tables.path("files"))
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    found = spark.read.parquet(tables.path("files")).select("id", "product", "amount").orderBy("id")
    assert found.collect() == THREE


def stream_to_a_named_table(spark: SparkSession, tables: Tables) -> None:
    orders, copy = tables.attach("orders", ORDERS, THREE), tables.attach("copy", ORDERS)

    query = (
        spark.readStream.table(orders)
        .where("amount > 2")
        .writeStream.option("checkpointLocation", tables.path("checkpoint"))
        .toTable(copy)
    )
    query.processAllAvailable()
    query.stop()

    assert spark.table(copy).orderBy("id").collect() == THREE[1:]


def stream_from_parquet_files(spark: SparkSession, tables: Tables) -> None:
    copy = tables.create("copy", ORDERS)
    spark.createDataFrame(THREE, ORDERS).write.parquet(tables.path("files"))

    query = (
        spark.readStream.schema(ORDERS)
        .option("maxFilesPerTrigger", 1)
        .parquet(tables.path("files"))
        .writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(availableNow=True)
        .start(copy)
    )
    query.awaitTermination()

    assert tables.rows(copy) == THREE


def stream_from_the_rate_source(spark: SparkSession, tables: Tables) -> None:
    ticks = tables.create("ticks", "timestamp TIMESTAMP, value BIGINT")

    query = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 5)
        .load()
        .writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(once=True)
        .start(ticks)
    )
    query.awaitTermination()

    assert [value for _, value in tables.rows(ticks)] == [0, 1, 2, 3, 4]


def write_each_row_once(spark: SparkSession, tables: Tables) -> None:
    """With `exactly.once` a query that is stopped anywhere goes on without repeating a row."""
    orders, copy = tables.create("orders", ORDERS, THREE), tables.create("copy", ORDERS)

    stream = spark.readStream.format("fluss").options(**tables.source).load(orders)
    writer = (
        stream.writeStream.format("fluss")
        .options(**tables.source)
        .option("exactly.once", "true")
        .option("checkpointLocation", tables.path("checkpoint"))
        .trigger(availableNow=True)
    )
    writer.start(copy).awaitTermination()
    tables.add(orders, (4, "buoy", 1))
    writer.start(copy).awaitTermination()

    assert tables.rows(copy) == [*THREE, (4, "buoy", 1)]


def keep_a_partitioned_table(spark: SparkSession, tables: Tables) -> None:
    orders = tables.create("orders", ORDERS, THREE)
    by_product = tables.create("by_product", ORDERS, partitioned_by="product")

    stream = spark.readStream.format("fluss").options(**tables.source).load(orders)
    query = (
        stream.writeStream.format("fluss")
        .options(**tables.source)
        .option("checkpointLocation", tables.path("checkpoint"))
        .start(by_product)
    )
    query.processAllAvailable()
    tables.add(orders, (4, "buoy", 1))
    query.processAllAvailable()
    query.stop()

    assert tables.rows(by_product) == [*THREE, (4, "buoy", 1)]
    ropes = spark.read.format("fluss").options(**tables.source).option("partitions", "product=rope").load(by_product)
    assert sorted(ropes.collect()) == [THREE[0], THREE[2]]

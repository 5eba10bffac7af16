"""What every version of Spark that may be installed does: reads, writes, SQL by name and streams in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, datasource

import fluss.spark
from tests.spark.conftest import Backend

pytestmark = pytest.mark.spark


def test_batches_and_tables_by_name(ours: Backend) -> None:
    with fluss.spark.Catalog(ours.spark, ours.address) as catalog:
        orders, stock = f"{ours.database}.orders", f"{ours.database}.stock"
        catalog.create_table(orders, "id BIGINT, name STRING, amount DECIMAL(10, 2), day DATE", buckets=2)
        catalog.create_table(stock, "name STRING NOT NULL, amount INT", primary_key="name")
        rows = ours.spark.range(1_000).selectExpr(
            "id", "concat('n', id % 3) AS name", "CAST(id AS DECIMAL(10, 2)) AS amount", "DATE'2026-01-01' AS day"
        )
        rows.write.format("fluss").options(**catalog.options).mode("append").save(orders)
        assert sorted(catalog.table(orders).collect()) == sorted(rows.collect())
        picked = catalog.table(orders, columns="id, name", filter="id >= 990 AND name = 'n0'")
        assert {tuple(row) for row in picked.collect()} == {(990, "n0"), (993, "n0"), (996, "n0"), (999, "n0")}

        catalog.attach(orders), catalog.attach(stock)
        for _ in range(2):
            ours.spark.sql(f"INSERT INTO {stock} SELECT name, CAST(count(*) AS INT) FROM {orders} GROUP BY name")
        found = ours.spark.sql(f"SELECT * FROM {stock} ORDER BY name").collect()
        assert [tuple(row) for row in found] == [("n0", 334), ("n1", 333), ("n2", 333)]


def test_streams(ours: Backend, tmp_path: Path) -> None:
    with fluss.spark.Catalog(ours.spark, ours.address) as catalog:
        source, copy, sums = (f"{ours.database}.{name}" for name in ("source", "copy", "sums"))
        catalog.create_table(source, "id BIGINT, name STRING", buckets=2)
        catalog.create_table(copy, "id BIGINT, name STRING", buckets=2)
        catalog.create_table(sums, "name STRING NOT NULL, amount BIGINT", primary_key="name")

        def upsert(batch: DataFrame, number: int) -> None:
            batch.write.format("fluss").options(**catalog.options).mode("append").save(sums)

        for round_ in (1, 2):
            rows = ours.spark.range(100).selectExpr("id", "concat('n', id % 2) AS name")
            rows.write.format("fluss").options(**catalog.options).mode("append").save(source)
            counted = catalog.read_stream(source).groupBy("name").count().withColumnRenamed("count", "amount")
            writer = counted.writeStream.queryName("counts").outputMode("update").foreachBatch(upsert)
            writer = writer.option("checkpointLocation", str(tmp_path / "sums"))
            assert writer.trigger(availableNow=True).start().awaitTermination(120)
            expected = {("n0", 50 * round_), ("n1", 50 * round_)}
            assert {tuple(row) for row in catalog.table(sums).collect()} == expected

            if hasattr(datasource, "DataSourceStreamArrowWriter"):
                _copy(catalog, source, copy, tmp_path)
                assert catalog.table(copy).count() == 100 * round_
            else:
                with pytest.raises(StreamingQueryException, match=r"with 4.0, write each micro-batch by .foreachBatch"):
                    _copy(catalog, source, copy, tmp_path)


def _copy(catalog: fluss.spark.Catalog, source: str, copy: str, folder: Path) -> None:
    writer = catalog.read_stream(source).writeStream.format("fluss").queryName("copy").options(**catalog.options)
    writer = writer.option("exactly.once", "true").option("checkpointLocation", str(folder / "copy"))
    assert writer.trigger(availableNow=True).start(copy).awaitTermination(120)

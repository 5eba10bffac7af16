"""A program on Spark Connect: `python -m tests.spark.connect_driver HOST:PORT`. Prints what it found as JSON.

A process of its own, because one process is a client of Spark Connect or has a Spark session itself, not both.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.timeType.enabled": "true",
}


def _run(spark: Any, address: str, folder: Path) -> dict[str, Any]:
    import fluss.spark

    found: dict[str, Any] = {"session": type(spark).__module__}
    with fluss.spark.Catalog(spark, address) as catalog:
        catalog.create_database("remote")
        catalog.create_table("remote.numbers", "id BIGINT, tags ARRAY<STRING>, at TIME", buckets=2)
        catalog.create_table("remote.sums", "parity BIGINT, total BIGINT", primary_key="parity")
        rows = spark.range(10).selectExpr("id", "array(string(id)) AS tags", "TIME'10:30:00' AS at")
        rows.write.format("fluss").options(**catalog.options).mode("append").save("remote.numbers")
        frame = spark.read.format("fluss").options(**catalog.options).load("remote.numbers")
        found["read"] = [frame.count(), frame.selectExpr("sum(int(tags[0]))").first()[0]]

        numbers, sums = catalog.attach("remote.numbers"), catalog.attach("remote.sums")
        spark.sql(f"INSERT INTO {sums} SELECT id % 2, sum(id) FROM {numbers} GROUP BY 1")
        found["sql"] = [list(row) for row in spark.sql(f"SELECT * FROM {sums} ORDER BY parity").collect()]
        found["described"] = [row.col_name for row in catalog.describe("remote.sums").collect()]

        stream = catalog.read_stream("remote.numbers").writeStream.format("fluss").options(**catalog.options)
        stream = stream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
        stream.start("remote.numbers").awaitTermination(120)
        found["stream"] = [spark.table(numbers).count(), spark.table(numbers).distinct().count()]
        catalog.drop_database("remote", cascade=True)
        found["left"] = [database.name for database in spark.catalog.listDatabases()]
    return found


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory() as folder:
        builder = SparkSession.builder.remote("local[2]").config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        for key, value in SETTINGS.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        try:
            print(json.dumps(_run(spark, sys.argv[1], Path(folder))))
        finally:
            spark.stop()


if __name__ == "__main__":
    main()

"""A Spark driver with five streams, until it is killed or, with "drain", until it has caught up.

A window, an aggregation that `foreachBatch` upserts, a join of two streams, a copy by changelog, and an audit of all
changes. Run as a process of its own: python -m tests.spark.five_streams JSON
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import DataStreamWriter

from fluss.spark import session

SOURCES: Final = ("events", "orders", "payments", "accounts")
SINKS: Final = ("windows", "totals", "joined", "copy", "audit")
WINDOW_S: Final = 10
PAYMENT_S_MAX: Final = 60


class Streams:
    """The five, not started."""

    def __init__(self, spark: SparkSession, plan: dict[str, Any]) -> None:
        self._spark = spark
        self._address = {"bootstrap.servers": plan["address"]}
        self._rows_per_trigger = plan["rows_per_trigger"]

    def _read(self, table: str, **options: str) -> DataFrame:
        reader = self._spark.readStream.format("fluss").options(**self._address, **options)
        return reader.option("maxRowsPerTrigger", self._rows_per_trigger).load(f"fluss.{table}")

    def _changes(self) -> DataFrame:
        return self._read("accounts", **{"changelog": "true", "scan.startup.mode": "earliest"})

    def _to(self, table: str, frame: DataFrame, **options: str) -> DataStreamWriter:
        writer = frame.writeStream.format("fluss").outputMode("append")
        return writer.options(**self._address, **options).option("table", f"fluss.{table}")

    def windows(self) -> DataStreamWriter:
        """Counts and sums of windows that are over."""
        events = self._read("events").withWatermark("at", "1 minute")
        grouped = events.groupBy(sf.window("at", f"{WINDOW_S} seconds"), "kind")
        sums = grouped.agg(sf.count("*").alias("events"), sf.sum("amount").alias("amount"))
        frame = sums.selectExpr("window.start AS since", "kind", "events", "amount")
        return self._to("windows", frame, **{"exactly.once": "true"})

    def totals(self) -> DataStreamWriter:
        """Counts and sums so far, upserted."""
        address = self._address

        def upsert(batch: DataFrame, _: int) -> None:
            batch.write.format("fluss").options(**address).mode("append").save("fluss.totals")

        aggregates = (sf.count("*").alias("events"), sf.sum("amount").alias("amount"), sf.max("id").alias("latest"))
        return (
            self._read("events").groupBy("kind").agg(*aggregates).writeStream.outputMode("update").foreachBatch(upsert)
        )

    def joined(self) -> DataStreamWriter:
        """Orders with payments that came in time."""
        orders = self._read("orders").withWatermark("at", "2 minutes")
        payments = self._read("payments").withWatermark("paid_at", "2 minutes")
        in_time = f"paid_at >= at AND paid_at <= at + INTERVAL {PAYMENT_S_MAX} SECONDS"
        frame = orders.join(payments, sf.expr(f"id = order_id AND {in_time}")).select("id", "amount", "paid")
        return self._to("joined", frame, **{"exactly.once": "true"})

    def copy(self) -> DataStreamWriter:
        """The accounts as they are."""
        return self._to("copy", self._changes(), **{"write.mode": "changelog"})

    def audit(self) -> DataStreamWriter:
        """Every change of the accounts."""
        frame = self._changes().selectExpr("_change_type AS change", "_log_offset AS log_offset", "id", "balance")
        return self._to("audit", frame, **{"exactly.once": "true"})


def main(plan: dict[str, Any]) -> None:
    with session("five streams") as spark:
        streams = Streams(spark, plan)
        queries = []
        for name in SINKS:
            writer = getattr(streams, name)().queryName(name).trigger(processingTime="200 milliseconds")
            queries.append(writer.option("checkpointLocation", f"{plan['checkpoints']}/{name}").start())
        print("streaming", flush=True)
        if plan["drain"]:
            for query in queries:
                query.processAllAvailable()
            for query in queries:
                query.stop()
            print("drained", flush=True)
            return
        while all(query.isActive for query in queries):
            time.sleep(0.1)
        failures = [f"{query.name}: {query.exception()}" for query in queries if not query.isActive]
        print("a query failed:", failures, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

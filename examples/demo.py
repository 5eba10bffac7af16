"""Orders flow into a table, Spark sums them up, the result flows into another table.

Run with `make demo`, or `python examples/demo.py` where the package and PySpark are installed. Needs Java 17 or later.
"""

from __future__ import annotations

import datetime as dt
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from fluss.spark import session
from fluss.sync import Config, DataTypes, FlussConnection, Schema, TableDescriptor, TablePath
from fluss.testing import FlussServer

ORDER_COUNT = 20_000
BUCKETS = 4
SEED = 20_260_101
PRODUCTS = {"anchor": "129.00", "buoy": "34.50", "compass": "48.95", "lantern": "22.80", "oar": "61.25", "rope": "9.99"}
CUSTOMERS = ["Ada", "Blaise", "Carl", "Dorothy", "Emmy", "Grace"]

ORDERS = TablePath("shop", "orders")
REVENUE = TablePath("shop", "revenue")
ORDERS_SCHEMA = (
    Schema.builder()
    .column("order_id", DataTypes.bigint())
    .column("customer", DataTypes.string())
    .column("product", DataTypes.string())
    .column("quantity", DataTypes.int())
    .column("price", DataTypes.decimal(10, 2))
    .column("ordered_at", DataTypes.timestamp())
    .build()
)
REVENUE_SCHEMA = (
    Schema.builder()
    .column("product", DataTypes.string())
    .column("orders", DataTypes.bigint())
    .column("revenue", DataTypes.decimal(18, 2))
    .build()
)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Say what happens and how long it took."""
    print(f"{text:.<64}", end=" ", flush=True)
    started_at = time.perf_counter()
    yield
    print(f"{time.perf_counter() - started_at:6.2f} s", flush=True)


def make_orders() -> list[dict[str, Any]]:
    """The same orders on every run."""
    chance = random.Random(SEED)
    return [
        {
            "order_id": order_id,
            "customer": chance.choice(CUSTOMERS),
            "product": (product := chance.choice(list(PRODUCTS))),
            "quantity": chance.randint(1, 9),
            "price": Decimal(PRODUCTS[product]),
            "ordered_at": dt.datetime(2026, 1, 1, 8) + dt.timedelta(seconds=order_id),
        }
        for order_id in range(1, ORDER_COUNT + 1)
    ]


def append_orders(connection: FlussConnection, orders: list[dict[str, Any]]) -> None:
    """Append row by row; the client sends them in batches, and leaving the block waits until all are on disk."""
    with connection.get_table(ORDERS).new_append().create_writer() as writer:
        for order in orders:
            writer.append(order)


def sum_up(spark: SparkSession, address: str) -> None:
    """Read the orders with Spark, one task per bucket, and append the revenue of each product to the other table."""
    source = {"bootstrap.servers": address}
    orders: DataFrame = spark.read.format("fluss").options(**source).load(str(ORDERS))
    revenue = orders.groupBy("product").agg(
        f.count("*").alias("orders"),
        f.sum(f.col("quantity") * f.col("price")).cast("decimal(18,2)").alias("revenue"),
    )
    revenue.write.format("fluss").options(**source).mode("append").save(str(REVENUE))


def read_revenue(connection: FlussConnection) -> list[dict[str, Any]]:
    """Read the result with the client: everything from the first row to the latest, as one Arrow table."""
    with connection.get_table(REVENUE).new_scan().create_record_batch_log_scanner() as scanner:
        scanner.subscribe(bucket_id=0, start_offset=0)
        return list(scanner.to_arrow().sort_by([("revenue", "descending")]).to_pylist())


def expected_revenue(orders: list[dict[str, Any]]) -> dict[str, tuple[int, Decimal]]:
    """The same sums in plain Python."""
    sums = dict.fromkeys(PRODUCTS, (0, Decimal(0)))
    for order in orders:
        count, revenue = sums[order["product"]]
        sums[order["product"]] = (count + 1, revenue + order["quantity"] * order["price"])
    return sums


def run(stack: ExitStack) -> bool:
    """The whole story; whatever is put on the stack is stopped at its end."""
    orders = make_orders()
    with step("Starting the server"):
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        address = stack.enter_context(FlussServer(Path(folder) / "data")).bootstrap_servers
        connection = stack.enter_context(FlussConnection.create(Config({"bootstrap.servers": address})))
    with step(f"Creating {ORDERS} ({BUCKETS} buckets) and {REVENUE}"):
        admin = connection.get_admin()
        admin.create_database(ORDERS.database_name)
        admin.create_table(ORDERS, TableDescriptor(ORDERS_SCHEMA, bucket_count=BUCKETS, bucket_keys=["order_id"]))
        admin.create_table(REVENUE, TableDescriptor(REVENUE_SCHEMA, bucket_count=1))
    with step(f"Appending {ORDER_COUNT:,} orders to {ORDERS}"):
        append_orders(connection, orders)
    with step("Starting Spark (the slow part)"):
        spark = stack.enter_context(session("fluss demo"))
    with step(f"Spark: {ORDERS} -> revenue per product -> {REVENUE}"):
        sum_up(spark, address)
    with step(f"Reading {REVENUE} with the client"):
        rows = read_revenue(connection)

    print(f"\n{'product':<12}{'orders':>10}{'revenue':>16}\n{'-' * 38}")
    for row in rows:
        print(f"{row['product']:<12}{row['orders']:>10,}{row['revenue']:>16,}")
    print(f"{'-' * 38}\n{'total':<12}{sum(r['orders'] for r in rows):>10,}{sum(r['revenue'] for r in rows):>16,}\n")
    found = [(row["product"], (row["orders"], row["revenue"])) for row in rows]
    return sorted(found) == sorted(expected_revenue(orders).items())


if __name__ == "__main__":
    try:
        with ExitStack() as stack:
            correct = run(stack)
    except KeyboardInterrupt:
        print("\nInterrupted; everything is stopped.")
        sys.exit(130)
    print("The sums equal those of the appended orders." if correct else "The sums are WRONG.")
    sys.exit(0 if correct else 1)

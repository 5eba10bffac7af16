"""The reference pipeline: orders stream in, Spark enriches and sums them up, the result is a table of its own.

    shop.orders (a log)  ──stream──▶  Spark: looks customers up, sums up  ──upserts──▶  shop.revenue (primary key)
    shop.customers (primary key)  ──────────────┘
    shop.orders  ──tiering──▶  Apache Iceberg;  Iceberg and the orders since then  ──▶  one union read

Run with `make demo`, or `python examples/pipeline.py [PICTURE [FOLDER]]` where the package and PySpark are installed.
Needs Java 17 or later. The tables stay in the folder, for a look around; the next run makes them anew.
"""

from __future__ import annotations

import datetime as dt
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import fluss.spark
from fluss.lake.report import TieringReport
from fluss.sync import Config, FlussConnection, TablePath
from fluss.testing import FlussServer

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

ORDER_COUNT = 50_000
LATE_ORDER_COUNT = 500  # that come in after tiering
ORDERS_PER_WRITE = 500
WAIT_S = 0.2
SEED = 20_260_101
PRODUCTS = {"anchor": "129.00", "buoy": "34.50", "compass": "48.95", "lantern": "22.80", "oar": "61.25", "rope": "9.99"}
COUNTRIES = ["AT", "CH", "DE", "FR", "GB", "NL"]
CUSTOMER_COUNT = 200

ORDERS, CUSTOMERS, REVENUE = "shop.orders", "shop.customers", "shop.revenue"
ORDERS_DDL = (
    "order_id BIGINT, customer_id INT, product STRING, quantity INT, price DECIMAL(10, 2), ordered_at TIMESTAMP"
)
CUSTOMERS_DDL = "customer_id INT NOT NULL, name STRING, country STRING"
REVENUE_DDL = "country STRING NOT NULL, product STRING NOT NULL, orders BIGINT, revenue DECIMAL(20, 2)"

Row = dict[str, Any]


def make_orders(first: int, count: int) -> list[Row]:
    """The same orders on every run."""
    chance = random.Random(SEED + first)
    began = dt.datetime(2026, 1, 1, 8, tzinfo=dt.UTC)
    return [
        {
            "order_id": order_id,
            "customer_id": chance.randrange(CUSTOMER_COUNT),
            "product": (product := chance.choice(list(PRODUCTS))),
            "quantity": chance.randint(1, 9),
            "price": Decimal(PRODUCTS[product]),
            "ordered_at": began + dt.timedelta(seconds=order_id),
        }
        for order_id in range(first, first + count)
    ]


def make_customers() -> list[Row]:
    """Everybody lives somewhere."""
    return [
        {"customer_id": number, "name": f"customer {number}", "country": COUNTRIES[number % len(COUNTRIES)]}
        for number in range(CUSTOMER_COUNT)
    ]


def moved(customers: list[Row]) -> list[Row]:
    """Every fifth customer moves to the next country."""
    return [
        {**customer, "country": COUNTRIES[(COUNTRIES.index(customer["country"]) + 1) % len(COUNTRIES)]}
        for customer in customers[::5]
    ]


# ---- the pipeline ----


def create_tables(catalog: fluss.spark.Catalog) -> None:
    """A log table, and two tables with primary keys."""
    catalog.create_database("shop")
    catalog.create_table(ORDERS, ORDERS_DDL, buckets=2, properties={"table.datalake.enabled": True})
    catalog.create_table(CUSTOMERS, CUSTOMERS_DDL, primary_key=["customer_id"])
    catalog.create_table(REVENUE, REVENUE_DDL, primary_key=["country", "product"])


def looking_up_customers(config: dict[str, str]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Adds the customer's country, as it is at this moment, to batches of orders. Runs in Spark's tasks."""

    def look_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with FlussConnection.create(Config(config)) as connection:
            lookuper = connection.get_table(TablePath("shop", "customers")).new_lookup().create_lookuper()
            for batch in batches:
                customers = lookuper.lookup_many(batch.select(["customer_id"]))
                countries = customers["country"].combine_chunks()
                yield pa.RecordBatch.from_arrays([*batch.columns, countries], [*batch.schema.names, "country"])

    return look_up


def start_stream(spark: SparkSession, options: dict[str, str], checkpoint: Path) -> StreamingQuery:
    """Orders in, sums per country and product out, again and again as they change."""
    orders: DataFrame = spark.readStream.format("fluss").options(**options).load(ORDERS)
    enriched = orders.mapInArrow(looking_up_customers(options), f"{ORDERS_DDL}, country STRING")
    revenue = enriched.groupBy("country", "product").agg(
        f.count("*").alias("orders"),
        f.sum(f.col("quantity") * f.col("price")).cast("decimal(20, 2)").alias("revenue"),
    )

    def upsert(changed: DataFrame, _: int) -> None:
        changed.write.format("fluss").options(**options).mode("append").save(REVENUE)

    # The sums that changed are upserted by country and product: a micro-batch that is repeated changes nothing.
    writer = revenue.writeStream.outputMode("update").foreachBatch(upsert)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="0.5 seconds").start()


def feed(connection: FlussConnection, orders: list[Row], advance: Callable[[int], None]) -> None:
    """Append orders while Spark works; leaving the block waits until all are on disk."""
    with connection.get_table(TablePath("shop", "orders")).new_append().create_writer() as writer:
        for start in range(0, len(orders), ORDERS_PER_WRITE):
            for order in orders[start : start + ORDERS_PER_WRITE]:
                writer.append(order)
            writer.flush()
            advance(ORDERS_PER_WRITE)


def upsert_customers(connection: FlussConnection, customers: list[Row]) -> None:
    """New customers, and those that moved."""
    with connection.get_table(TablePath("shop", "customers")).new_upsert().create_writer() as writer:
        for customer in customers:
            writer.upsert(customer)


def wait_for_sums(connection: FlussConnection, query: StreamingQuery, count: int, show: Callable[[int], None]) -> None:
    """Wait until so many orders are summed up. The sums can be read all the while, also while Spark writes them."""
    revenue = connection.get_table(TablePath("shop", "revenue"))
    summed_up = 0
    while summed_up < count:
        if not query.isActive:
            raise SystemExit(f"The stream has ended: {query.exception()}")
        time.sleep(WAIT_S)
        summed_up = sum(revenue.new_scan().project_by_name(["orders"]).to_arrow()["orders"].to_pylist())
        show(summed_up)


def tier(spark: SparkSession, options: dict[str, str]) -> TieringReport:
    """Move the orders to the lake: Spark's tasks write Parquet files, one snapshot of an Iceberg table has them all."""
    (report,) = fluss.spark.tier(spark, bootstrap_servers=options["bootstrap.servers"], tables=[ORDERS])
    if report.status != "tiered":
        raise SystemExit(f"Tiering ended as {report.status}: {report.reason}")
    return report


def union_read(connection: FlussConnection) -> dict[str, int]:
    """Orders per product, counted by DuckDB over the lake and the orders that are not there yet, each once."""
    orders = connection.get_table(TablePath("shop", "orders")).new_scan().union().to_duckdb()
    return dict(orders.query("orders", "SELECT product, count(*) FROM orders GROUP BY product").fetchall())


# ---- what people see ----


def expected(parts: list[tuple[list[Row], list[Row]]]) -> dict[tuple[str, str], tuple[int, Decimal]]:
    """The same sums in plain Python, from orders and the customers at their time."""
    counts: Counter[tuple[str, str]] = Counter()
    sums: dict[tuple[str, str], Decimal] = {}
    for orders, customers in parts:
        countries = {customer["customer_id"]: customer["country"] for customer in customers}
        for order in orders:
            key = (countries[order["customer_id"]], order["product"])
            counts[key] += 1
            sums[key] = sums.get(key, Decimal(0)) + order["quantity"] * order["price"]
    return {key: (counts[key], sums[key]) for key in counts}


def show(console: Console, by_country: list[Any]) -> None:
    """The result as a table."""
    table = Table(title="Revenue by country")
    table.add_column("country")
    for heading in ("orders", "revenue", "best product"):
        table.add_column(heading, justify="right")
    for row in by_country:
        table.add_row(row["country"], f"{row['orders']:,}", f"{row['revenue']:,}", row["best"])
    console.print(table)


def plot(rows: list[Row], picture: Path) -> None:
    """The result as a picture: a bar per country, a colour per product."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    bottoms = dict.fromkeys(COUNTRIES, 0.0)
    for product in PRODUCTS:
        heights = {row["country"]: float(row["revenue"]) / 1e6 for row in rows if row["product"] == product}
        values = [heights.get(country, 0.0) for country in COUNTRIES]
        axes.bar(COUNTRIES, values, bottom=list(bottoms.values()), label=product)
        bottoms = {country: bottoms[country] + value for country, value in zip(COUNTRIES, values, strict=True)}
    axes.set_title("Revenue by country and product")
    axes.set_ylabel("million")
    axes.legend(ncols=len(PRODUCTS), loc="upper center", bbox_to_anchor=(0.5, -0.08), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=150)


def suggest(console: Console, folder: Path) -> None:
    """What to try next: each command starts a server on the folder, which leaves again by itself."""
    fluss_command = Path(sys.executable).with_name("fluss")
    if fluss_command.is_relative_to(Path.cwd()):
        fluss_command = fluss_command.relative_to(Path.cwd())
    console.print("\nThe tables are still there. Try next:")
    for command in (
        f"table describe {ORDERS}",
        f"lookup {CUSTOMERS} customer_id=7",
        f'sql "SELECT product, count(*) AS orders FROM {ORDERS} GROUP BY product ORDER BY orders DESC"',
    ):
        console.print(f"  {fluss_command} {command} --bootstrap file:{folder}", soft_wrap=True, highlight=False)


def emptied(folder: Path) -> Path:
    """The folder without the tables of an earlier run; one that holds something else is left alone."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / "format_version").exists():
            raise SystemExit(f"{folder} is not empty and has no tables; name another folder.")
        shutil.rmtree(folder)
    return folder


def run(stack: ExitStack, console: Console, picture: Path, folder: Path) -> bool:
    """The whole story; whatever is put on the stack is stopped at its end."""
    checkpoint = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    with console.status("Starting the server"):
        server = stack.enter_context(FlussServer(folder, log_file=checkpoint / "server.log"))
        options = {"bootstrap.servers": server.bootstrap_servers}
        connection = stack.enter_context(FlussConnection.create(Config(options)))
    console.print("Starting Spark; its Java warns of an incubator module, which is all right")
    spark = stack.enter_context(fluss.spark.session("fluss pipeline"))
    catalog = fluss.spark.Catalog(spark, server.bootstrap_servers)
    create_tables(catalog)

    customers = make_customers()
    upsert_customers(connection, customers)
    first, second = (make_orders(start, ORDER_COUNT // 2) for start in (0, ORDER_COUNT // 2))
    query = start_stream(spark, options, checkpoint)
    stack.callback(query.stop)
    with Progress(console=console) as progress:
        fed = progress.add_task("Orders stream in", total=ORDER_COUNT)
        summed_up = progress.add_task("Spark sums them up", total=ORDER_COUNT)
        feed(connection, first, lambda count: progress.advance(fed, count))
        wait_for_sums(connection, query, len(first), lambda count: progress.update(summed_up, completed=count))
        movers = moved(customers)
        upsert_customers(connection, movers)
        feed(connection, second, lambda count: progress.advance(fed, count))
        wait_for_sums(connection, query, ORDER_COUNT, lambda count: progress.update(summed_up, completed=count))

    catalog.attach(REVENUE)
    by_country = spark.sql(
        f"SELECT country, sum(orders) AS orders, sum(revenue) AS revenue, max_by(product, revenue) AS best "
        f"FROM {REVENUE} GROUP BY country ORDER BY revenue DESC"
    ).collect()
    show(console, by_country)
    rows: list[Row] = connection.get_table(TablePath("shop", "revenue")).new_scan().to_arrow().to_pylist()
    plot(rows, picture)
    console.print(f"The picture is {picture}")
    query.stop()
    late = make_orders(ORDER_COUNT, LATE_ORDER_COUNT)
    in_all = use_lake(spark, connection, options, late, console)
    after = list({customer["customer_id"]: customer for customer in (*customers, *movers)}.values())
    found = {(row["country"], row["product"]): (row["orders"], row["revenue"]) for row in rows}
    return found == expected([(first, customers), (second, after)]) and in_all == Counter(
        order["product"] for order in (*first, *second, *late)
    )


def use_lake(
    spark: SparkSession, connection: FlussConnection, options: dict[str, str], late: list[Row], console: Console
) -> dict[str, int]:
    """Tier, let some more orders come in, and read all of them."""
    with console.status("Orders move to the lake"):
        report = tier(spark, options)
    feed(connection, late, lambda _: None)
    counts = union_read(connection)
    console.print(
        f"{report.row_count:,} orders are in the lake now (Apache Iceberg, {report.files_added} Parquet files), "
        f"{len(late):,} came in since; a union read finds {sum(counts.values()):,}"
    )
    return counts


def main() -> int:
    console = Console()
    began_s = time.monotonic()
    console.print(str(__doc__).partition("\nRun with")[0], highlight=False, soft_wrap=True)
    given = [Path(argument) for argument in sys.argv[1:]]
    picture, folder = (*given, *(Path("revenue.png"), Path("fluss-demo"))[len(given) :])
    try:
        with ExitStack() as stack:
            correct = run(stack, console, picture, emptied(folder))
    except KeyboardInterrupt:
        console.print("\nInterrupted; everything is stopped.")
        return 130
    console.print("The sums equal those of the orders." if correct else "[red]The sums are WRONG.")
    console.print(f"That took {time.monotonic() - began_s:.0f} seconds.", highlight=False)
    if correct:
        suggest(console, folder)
    return 0 if correct else 1


if __name__ == "__main__":
    sys.exit(main())

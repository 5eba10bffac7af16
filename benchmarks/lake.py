"""`python -m benchmarks.lake`, called by `make bench-lake`: tiering to Iceberg, and union reads of it.

Tiering is timed in its parts: tasks (reading the log, writing Parquet), the lake's commit, and the registration with
the server. Every figure is checked: rows of the lake are counted and summed by pyiceberg or DuckDB, never by us alone.
"""

from __future__ import annotations

import datetime as dt
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from benchmarks.data import BATCH_ROWS, KV_SCHEMA, LOG_SCHEMA, kv_batches, log_batches, sum_of_ids
from benchmarks.environment import describe
from benchmarks.report import table
from fluss.lake.options import LakeOptions
from fluss.lake.report import TieringReport
from fluss.spark import session, tier
from fluss.sync import Config, FlussConnection, FlussTable, Schema, TableDescriptor, TablePath
from fluss.testing import FlussServer

_ROOT = Path(__file__).parents[1]
_REPORTS = _ROOT / "docs" / "benchmarks"
_BUCKETS = 4
_UPDATED_SHARE = 10  # every so manieth key is updated
_QUERY = "SELECT sensor, count(*) AS n, avg(reading) FROM readings GROUP BY sensor ORDER BY n DESC, sensor LIMIT 10"

Times = dict[str, list[float]]


class Bench:
    """One session and one server."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        self.spark = spark
        self.address = address
        self.connection = FlussConnection.create(Config({"bootstrap.servers": address}))

    def create(self, name: str, schema: pa.Schema, keys: list[str] | None = None) -> FlussTable:
        path = TablePath("fluss", name)
        descriptor = TableDescriptor(
            Schema(schema, primary_keys=keys or []),
            bucket_count=_BUCKETS,
            properties={"table.datalake.enabled": "true"},
        )
        self.connection.get_admin().create_table(path, descriptor)
        return self.connection.get_table(path)

    def append(self, name: FlussTable, rows: list[pa.RecordBatch]) -> None:
        with name.new_append().create_writer() as writer:
            for batch in rows:
                writer.write_arrow_batch(batch)

    def upsert(self, name: FlussTable, rows: list[pa.RecordBatch]) -> None:
        with name.new_upsert().create_writer() as writer:
            for batch in rows:
                writer.write_arrow_batch(batch)

    def tier(self, of: FlussTable) -> tuple[float, TieringReport]:
        began = time.perf_counter()
        (report,) = tier(self.spark, bootstrap_servers=self.address, tables=[str(of.table_path)])
        seconds = time.perf_counter() - began
        if report.status != "tiered":
            raise click.ClickException(f"{of.table_path} was not tiered: {report.reason}")
        return seconds, report

    def check(self, of: FlussTable, rows: int, ids: int) -> None:
        """The lake has these rows, as pyiceberg reads them."""
        lake = LakeOptions.of(of.get_table_info()).open().load_table(of.table_path)
        assert lake is not None
        found = lake._table.scan(selected_fields=("id",)).to_arrow()
        if (found.num_rows, pc.sum(found["id"]).as_py()) != (rows, ids):
            raise click.ClickException(f"The lake has {found.num_rows} rows of {of.table_path}, not {rows}.")


def measure_tiering(bench: Bench, rows: int, rounds: int, say: Callable[[str], None]) -> dict[str, Times]:
    """Seconds of rounds of tiering and of their parts; the first warms up."""
    found: dict[str, Times] = {}
    log, keyed = log_batches(rows, BATCH_ROWS), kv_batches(rows, BATCH_ROWS, 1)
    changed = kv_batches(rows // _UPDATED_SHARE, BATCH_ROWS, 2)
    for number in range(rounds + 1):
        plain, keys = bench.create(f"log_{number}", LOG_SCHEMA), bench.create(f"keys_{number}", KV_SCHEMA, ["id"])
        bench.append(plain, log)
        bench.upsert(keys, keyed)
        taken = {f"log table, {rows:,} rows": bench.tier(plain)}
        taken[f"primary-key table, {rows:,} keys"] = bench.tier(keys)
        bench.upsert(keys, changed)
        taken[f"the same, {rows // _UPDATED_SHARE:,} keys updated (all files rewritten)"] = bench.tier(keys)
        for of in (plain, keys):
            bench.check(of, rows, sum_of_ids(rows))
            bench.connection.get_admin().drop_table(of.table_path)
        for name, (seconds, report) in taken.items():
            say(f"{name}: {seconds:.2f} s ({report.tasks_s:.2f} + {report.commit_s:.2f} + {report.register_s:.2f})")
            if number:
                parts = {"all": seconds, "tasks": report.tasks_s}
                in_tasks = report.read_s + report.write_s
                parts |= {"read": report.read_s / in_tasks, "write": report.write_s / in_tasks}
                parts |= {"commit": report.commit_s, "registration": report.register_s}
                for part, value in parts.items():
                    found.setdefault(name, {}).setdefault(part, []).append(value)
    return found


def measure_union(bench: Bench, tiered: int, fresh: int, rounds: int, say: Callable[[str], None]) -> Times:
    """Seconds of queries of DuckDB over lake and fresh rows, the first one apart: it opens the files."""
    readings = bench.create("readings", LOG_SCHEMA)
    rows = log_batches(tiered + fresh, BATCH_ROWS)
    bench.append(readings, rows[: tiered // rows[0].num_rows])
    seconds, report = bench.tier(readings)
    say(f"{report.row_count:,} rows tiered in {seconds:.1f} s")
    bench.append(readings, rows[tiered // rows[0].num_rows :])
    found: Times = {"first query": [], "query, planned anew": [], "query of the same relation": [], "to_arrow": []}
    for number in range(rounds + 1):
        began = time.perf_counter()
        relation = readings.new_scan().union().to_duckdb()
        relation.query("readings", _QUERY).fetchall()
        found["query, planned anew" if number else "first query"].append(time.perf_counter() - began)
        began = time.perf_counter()
        relation.query("readings", _QUERY).fetchall()
        found["query of the same relation"].append(time.perf_counter() - began)
        counted = relation.query("readings", "SELECT count(*), sum(id) FROM readings").fetchall()[0]
        if counted != (tiered + fresh, sum_of_ids(tiered + fresh)):
            raise click.ClickException(f"A union read found {counted}, not {tiered + fresh:,} rows.")
    began = time.perf_counter()
    everything = readings.new_scan().union().to_arrow()
    found["to_arrow"].append(time.perf_counter() - began)
    if everything.num_rows != tiered + fresh:
        raise click.ClickException(f"A union read found {everything.num_rows:,} rows.")
    for name, values in found.items():
        say(f"{name}: {median(values):.2f} s")
    return found


def render(tiering: dict[str, Times], union: Times, what: str, environment: dict[str, str], stamp: str) -> str:
    """The figures as Markdown."""

    def cell(values: list[float]) -> str:
        return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"

    def share(values: list[float]) -> str:
        return f"{median(values):.0%}"

    lines = [
        [
            name,
            *(cell(parts[key]) for key in ("all", "tasks")),
            *(share(parts[key]) for key in ("read", "write")),
            *(cell(parts[key]) for key in ("commit", "registration")),
        ]
        for name, parts in tiering.items()
    ]
    return "\n".join(
        [
            f"# Lake benchmark {stamp}\n",
            table(["", ""], [list(item) for item in environment.items()]),
            "Seconds of a tiering round in a warm Spark session on two cores, and its parts: tasks read the log and "
            "write Parquet; the commit makes an Iceberg snapshot; the registration tells the server. Medians, lowest "
            "and highest of the rounds.\n",
            table(["", "whole round", "tasks", "of them reading", "writing", "commit", "registration"], lines),
            f"Seconds of a grouping query of DuckDB over {what}; `to_arrow` loads all of them.\n",
            table(["", "seconds"], [[name, cell(values)] for name, values in union.items()]),
        ]
    )


@click.command()
@click.option(
    "--rows", type=click.IntRange(10_000), default=1_000_000, show_default=True, help="Rows tiered at a time."
)
@click.option("--tiered", type=click.IntRange(10_000), default=10_000_000, show_default=True, help="For union reads.")
@click.option("--fresh", type=click.IntRange(10_000), default=1_000_000, show_default=True, help="For union reads.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=_REPORTS, help="Folder for the report.")
def main(rows: int, tiered: int, fresh: int, rounds: int, output: Path) -> None:
    """Measure tiering to Iceberg and union reads of lake and fresh rows."""
    scratch = _ROOT / ".peers"
    scratch.mkdir(exist_ok=True)

    def say(line: str) -> None:
        click.echo(line, err=True)

    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=scratch) as name,
        FlussServer(Path(name) / "data") as server,
        session("fluss benchmark") as spark,
    ):
        environment = {**describe(Path(name)), "Spark": spark.version}
        bench = Bench(spark, server.bootstrap_servers)
        tiering = measure_tiering(bench, rows, rounds, say)
        union = measure_union(bench, tiered, fresh, rounds, say)
        bench.connection.close()
    stamp = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d-%H%M")
    text = render(tiering, union, f"{tiered:,} tiered and {fresh:,} fresh rows", environment, stamp)
    click.echo(text)
    result: dict[str, Any] = {"environment": environment, "rows": rows, "tiering": tiering, "union": union}
    output.mkdir(parents=True, exist_ok=True)
    for stem in (f"lake-{stamp}", "lake-latest"):
        (output / f"{stem}.md").write_text(text)
        (output / f"{stem}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()

"""`python -m benchmarks.spark`, called by `make bench-spark`: Spark reads and writes, beside what else Spark could do.

All of it in one session on two cores, taking turns. Reads end in Spark's `noop` sink. Every figure is checked: rows
that are read are counted and summed once before the clock, rows that are written are read back by the client.
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
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from benchmarks.data import BATCH_ROWS, LOG_SCHEMA, log_batches, sum_of_ids
from benchmarks.environment import describe
from benchmarks.report import table
from benchmarks.spark_peers import ArrowFiles, Discard
from fluss.spark import session
from fluss.sync import Config, FlussConnection, Schema, TableDescriptor, TablePath
from fluss.testing import FlussServer

_ROOT = Path(__file__).parents[1]
_REPORTS = _ROOT / "docs" / "benchmarks"
_BUCKETS = 4
_READ, _WRITTEN = TablePath("fluss", "spark_read"), TablePath("fluss", "spark_write")
_SMALL_ROWS = 100
_DDL = "id bigint, sensor string, reading double, at timestamp_ntz, quality int"

Times = dict[str, list[float]]


class Bench:
    """One session, one server, one set of rows in three places."""

    def __init__(self, spark: SparkSession, address: str, folder: Path, rows: int) -> None:
        self.spark = spark
        self.address = address
        self.folder = folder
        self.rows = rows
        self.connection = FlussConnection.create(Config({"bootstrap.servers": address}))
        for source in (ArrowFiles, Discard):
            spark.dataSource.register(source)

    def prepare(self) -> None:
        """The same rows as a table, as Arrow files and as Parquet files, one per bucket."""
        rows = log_batches(self.rows, BATCH_ROWS)
        self._create(_READ)
        with self.connection.get_table(_READ).new_append().create_writer() as writer:
            for batch in rows:
                writer.write_arrow_batch(batch)
        for kind in ("arrow", "parquet"):
            (self.folder / kind).mkdir()
        for bucket in range(_BUCKETS):
            part = pa.Table.from_batches(rows[bucket::_BUCKETS])
            with pa.ipc.new_file(self.folder / "arrow" / f"{bucket}.arrow", LOG_SCHEMA) as file:
                file.write_table(part, max_chunksize=10_000)
            pq.write_table(part, self.folder / "parquet" / f"{bucket}.parquet")

    def _create(self, path: TablePath) -> None:
        descriptor = TableDescriptor(Schema(LOG_SCHEMA), bucket_count=_BUCKETS)
        self.connection.get_admin().create_table(path, descriptor, ignore_if_exists=True)

    def fluss(self) -> DataFrame:
        return self.spark.read.format("fluss").option("bootstrap.servers", self.address).load(str(_READ))

    def arrow_files(self) -> DataFrame:
        return self.spark.read.format("arrow_files").schema(_DDL).load(str(self.folder / "arrow"))

    def parquet(self) -> DataFrame:
        return self.spark.read.parquet(str(self.folder / "parquet"))

    def check(self, frame: DataFrame) -> None:
        found = frame.agg(f.count("*"), f.sum("id")).collect()[0]
        if tuple(found) != (self.rows, sum_of_ids(self.rows)):
            raise click.ClickException(f"{found} rows and sum of ids were read, not {self.rows}.")

    def read(self, frame: DataFrame) -> float:
        return _timed(lambda: frame.write.format("noop").mode("overwrite").save())

    def discard(self) -> float:
        return _timed(lambda: self.parquet().write.format("discard").mode("append").save())

    def append(self) -> float:
        """Append all rows with Spark to a new table; they are counted by the client."""
        self._create(_WRITTEN)
        frame = self.parquet()
        writer = frame.write.format("fluss").option("bootstrap.servers", self.address).mode("append")
        seconds = _timed(lambda: writer.save(str(_WRITTEN)))
        stored = self.connection.get_table(_WRITTEN).new_scan().project_by_name(["id"]).to_arrow()
        if (stored.num_rows, pc.sum(stored["id"]).as_py()) != (self.rows, sum_of_ids(self.rows)):
            raise click.ClickException(f"{stored.num_rows} rows were stored, not {self.rows}.")
        self.connection.get_admin().drop_table(_WRITTEN)
        return seconds

    def micro_batches(self, source: str, count: int) -> list[float]:
        """Seconds of each of some micro-batches of a few rows, from a source to nowhere."""
        stream = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", _SMALL_ROWS)
        if source == "fluss":
            stream = self.spark.readStream.format("fluss").option("bootstrap.servers", self.address)
            stream = stream.option("table", str(_READ)).option("scan.startup.mode", "latest")
        checkpoint = tempfile.mkdtemp(dir=self.folder)
        query = stream.load().writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        try:
            if source == "fluss":
                query.processAllAvailable()
                small = log_batches(_SMALL_ROWS, BATCH_ROWS)[0]
                for _ in range(count + 1):
                    with self.connection.get_table(_READ).new_append().create_writer() as writer:
                        writer.write_arrow_batch(small)
                    query.processAllAvailable()
            else:
                while len(_durations(query)) < count + 1:
                    time.sleep(0.2)
        finally:
            query.stop()
        return _durations(query)[1 : count + 1]  # the first one starts workers


def _durations(query: Any) -> list[float]:
    """Of the micro-batches that had rows."""
    return [item["batchDuration"] / 1000 for item in query.recentProgress if item["numInputRows"]]


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(bench: Bench, rounds: int, say: Callable[[str], None]) -> Times:
    """Seconds of each kind of work, round by round; the first round warms up."""
    reads = {"read: Flussbett": bench.fluss, "read: Arrow files": bench.arrow_files, "read: Parquet": bench.parquet}
    for make in reads.values():
        bench.check(make())
    times: Times = {}
    for number in range(rounds + 1):
        taken = {name: bench.read(make()) for name, make in reads.items()}
        taken |= {"write: Flussbett": bench.append(), "write: discarded": bench.discard()}
        say(", ".join(f"{name} {seconds:.2f} s" for name, seconds in taken.items()))
        if number:
            for name, seconds in taken.items():
                times.setdefault(name, []).append(seconds)
    for source in ("fluss", "rate"):
        label = "micro-batch: Flussbett" if source == "fluss" else "micro-batch: Spark's own source"
        times[label] = bench.micro_batches(source, 5 * rounds)
        say(f"{label} {median(times[label]):.2f} s")
    return times


def render(times: Times, rows: int, environment: dict[str, str], stamp: str) -> str:
    """The figures as Markdown."""
    lines = []
    peers = {"read": "read: Arrow files", "write": "write: discarded", "micro-batch": "micro-batch: Spark's own source"}
    for name, seconds in times.items():
        middle = median(seconds)
        ratio = median(times[peers[name.partition(":")[0]]]) / middle
        rate = "" if name.startswith("micro") else f"{rows / middle / 1e6:.2f}"
        lines.append([name, f"{middle:.2f} ({min(seconds):.2f}-{max(seconds):.2f})", rate, f"{ratio:.2f}x"])
    return "\n".join(
        [
            f"# Spark benchmark {stamp}\n",
            table(["", ""], [list(item) for item in environment.items()]),
            f"{rows:,} rows of 5 columns in {_BUCKETS} buckets; medians, lowest and highest of the rounds, all in one "
            "session on two cores, taking turns. The ratio of a read is to a Python data source that reads Arrow "
            "files, of a write to an Arrow writer that throws the rows away, of a micro-batch (its whole time, "
            f"{_SMALL_ROWS} rows) to Spark's own `rate-micro-batch` source.\n",
            table(["", "seconds", "million rows/s", "ratio"], lines),
        ]
    )


@click.command()
@click.option("--rows", type=click.IntRange(10_000), default=4_000_000, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=_REPORTS, help="Folder for the report.")
def main(rows: int, rounds: int, output: Path) -> None:
    """Compare Spark reads and writes of Flussbett with what Spark reads and writes otherwise."""
    scratch = _ROOT / ".peers"
    scratch.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=scratch) as name,
        FlussServer(Path(name) / "data") as server,
        session("fluss benchmark") as spark,
    ):
        environment = {**describe(Path(name)), "Spark": spark.version}
        bench = Bench(spark, server.bootstrap_servers, Path(name), rows)
        bench.prepare()
        times = measure(bench, rounds, lambda line: click.echo(line, err=True))
        bench.connection.close()
    stamp = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d-%H%M")
    text = render(times, rows, environment, stamp)
    click.echo(text)
    output.mkdir(parents=True, exist_ok=True)
    for stem in (f"spark-{stamp}", "spark-latest"):
        (output / f"{stem}.md").write_text(text)
        (output / f"{stem}.json").write_text(json.dumps({"environment": environment, "rows": rows, "seconds": times}))


if __name__ == "__main__":
    main()

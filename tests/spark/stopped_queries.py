"""Queries that go on when their server restarts, and are stopped, also while it is away, in a process of its own.

python -m tests.spark.stopped_queries DIRECTORY: what it writes to standard error is what users would see.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from fluss.spark import session
from fluss.sync import Config, FlussConnection, Schema, TableDescriptor, TablePath
from fluss.testing import FlussServer

ROUNDS: Final = 2
PROGRESS_S_MAX: Final = 120.0
IDS: Final = pa.schema([("id", pa.int64())])
TABLES: Final = ("source", "copy", "once", "kept")

Program: TypeAlias = Callable[[DataFrame, dict[str, str]], DataStreamWriter]


def copied(rows: DataFrame, options: dict[str, str]) -> DataStreamWriter:
    return rows.writeStream.format("fluss").options(**options).option("table", "fluss.copy")


def stored_once(rows: DataFrame, options: dict[str, str]) -> DataStreamWriter:
    return rows.writeStream.format("fluss").options(**options, **{"table": "fluss.once", "exactly.once": "true"})


def for_each_batch(rows: DataFrame, options: dict[str, str]) -> DataStreamWriter:
    def keep(batch: DataFrame, _: int) -> None:
        batch.write.format("fluss").options(**options).mode("append").save("fluss.kept")

    return rows.writeStream.foreachBatch(keep)


# In the order in which they are stopped. The last may be committing: Spark does not interrupt that.
PROGRAMS: Final[tuple[Program, ...]] = (copied, for_each_batch, stored_once)


def _start(spark: SparkSession, options: dict[str, str], program: Program, folder: Path) -> StreamingQuery:
    rows = spark.readStream.format("fluss").options(**options).option("maxRowsPerTrigger", 50).load("fluss.source")
    return program(rows, options).option("checkpointLocation", str(folder / program.__name__)).start()


def _await_progress(query: StreamingQuery) -> None:
    """Wait for a micro-batch with rows that ends after this was called."""
    deadline = time.monotonic() + PROGRESS_S_MAX
    before = query.lastProgress
    while query.lastProgress is None or (before is not None and query.lastProgress.batchId == before.batchId):
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def main(folder: Path) -> None:
    chance = random.Random(0)
    with FlussServer(folder / "data") as server, session("stopped") as spark:
        address = server.bootstrap_servers
        with FlussConnection.create(Config({"bootstrap.servers": address})) as connection:
            for name in TABLES:
                connection.get_admin().create_table(TablePath("fluss", name), TableDescriptor(Schema(IDS)))
            with connection.get_table(TablePath("fluss", "source")).new_append().create_writer() as writer:
                writer.write_arrow(pa.table({"id": range(100_000)}, schema=IDS))
        options: dict[str, Any] = {"bootstrap.servers": address}
        for number in range(ROUNDS):
            queries = [_start(spark, options, program, folder) for program in PROGRAMS]
            for query in queries:
                _await_progress(query)
            if number == ROUNDS - 1:
                server.kill()
                time.sleep(2)
                server.start()
                for query in queries:
                    _await_progress(query)
                print("went on", flush=True)
                server.kill()
                # So that some of them wait.
                time.sleep(2)
            back = threading.Timer(1, server.start)
            for query in queries:
                time.sleep(chance.random() / 2)
                if query is queries[-1] and number == ROUNDS - 1:
                    back.start()
                query.stop()
                assert query.exception() is None
                print("stopped", flush=True)
        back.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Files that a stream reads, one for each micro-batch."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from fluss.sync import DataTypes, Schema, TablePath
from tests.spark.conftest import Backend

T = DataTypes
EVENTS = Schema.builder().column("id", T.bigint()).column("value", T.bigint()).build()
FIRST_FILE_S = 1_700_000_000
# Where a run of the stream is made to fail, once each: in a task of micro-batch 0 when its rows are written, in the
# commit of micro-batch 1 before anything is done, in that of micro-batch 2 when all is done.
FAILURES = ((0, "task"), (1, "before commit"), (2, "after commit"))


class Feed:
    """A folder of files, each a micro-batch, that Spark reads again as it was."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self._folder = folder / "feed"
        self._folder.mkdir()
        self._spark = spark
        self.checkpoint = folder / "checkpoint"

    def add(self, number: int, rows: pa.Table) -> None:
        """The micro-batch with this number; Spark takes files in the order of their age."""
        hidden, file = self._folder / f".{number}", self._folder / f"{number}.parquet"
        pq.write_table(rows, hidden)
        os.utime(hidden, (FIRST_FILE_S + number, FIRST_FILE_S + number))
        hidden.rename(file)

    def stream(self) -> DataFrame:
        reader = self._spark.readStream.schema("id bigint, value bigint").option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self._folder))

    def run(self, frame: DataFrame, backend: Backend, path: TablePath, source: str = "fluss", **options: str) -> None:
        """Write all there is and stop."""
        writer = frame.writeStream.format(source).option("bootstrap.servers", backend.address)
        writer = writer.options(table=str(path), checkpointLocation=str(self.checkpoint), **options)
        query: StreamingQuery = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    def restart_until_done(self, frame: DataFrame, backend: Backend, path: TablePath, **options: str) -> int:
        """The same with restarts; returns how often it failed."""
        for failures in range(len(FAILURES) + 2):
            try:
                self.run(frame, backend, path, "failing", **options)
            except StreamingQueryException as error:
                if "made to fail" not in str(error):
                    raise
            else:
                return failures
        raise AssertionError("the stream fails for ever")

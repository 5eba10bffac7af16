"""A stream with exactly-once that kills what it runs on, in a process of its own: see `test_stream_write_kills`.

Arguments: address, table, folder. The folder has the feed, the checkpoint, and a mark for each kill that was made.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from fluss.spark import session
from fluss.spark.source import FlussDataSource
from fluss.spark.write.writer import BATCH_ID, FlussStreamWriter

BATCH_COUNT = 4
# Micro-batch, place, and what is killed there: the worker of a task, or the driver with all that belongs to it.
KILLS = ((1, "task", "worker"), (2, "before commit", "driver"), (3, "after commit", "driver"))


def main(address: str, table: str, folder: str) -> None:
    # A task is tried again in the same job, which Spark on one machine does not do unless it is told to.
    with session("killed stream", **{"spark.master": "local[2,3]"}) as spark:
        driver = (spark.sparkContext._gateway.proc.pid, os.getpid())

        def kill_once(batch_id: int, place: str) -> None:
            for at_batch, at_place, victim in KILLS:
                mark = Path(folder) / f"killed-{at_batch}-{at_place}"
                if (batch_id, place) == (at_batch, at_place) and not mark.exists():
                    mark.touch()
                    for pid in driver if victim == "driver" else (os.getpid(),):
                        os.kill(pid, signal.SIGKILL)

        class Writer(FlussStreamWriter):
            def write(self, iterator: Any) -> Any:
                message = FlussStreamWriter.write(self, iterator)
                context = TaskContext.get()
                if context is not None and context.partitionId() == 1:
                    kill_once(int(str(context.getLocalProperty(BATCH_ID))), "task")
                return message

            def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
                kill_once(batchId, "before commit")
                FlussStreamWriter.commit(self, messages, batchId)
                kill_once(batchId, "after commit")

        class Killing(FlussDataSource):
            @classmethod
            def name(cls) -> str:
                return "killing"

            def streamWriter(self, schema: Any, overwrite: bool) -> Writer:  # noqa: N802
                return Writer(self._parsed, schema)

        spark.dataSource.register(Killing)
        reader = spark.readStream.schema("id bigint, value bigint").option("maxFilesPerTrigger", 1)
        writer = reader.parquet(f"{folder}/feed").repartition(2).writeStream.format("killing")
        writer = writer.options(**{"bootstrap.servers": address, "table": table, "exactly.once": "true"})
        writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
        writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A Spark driver that streams one table into several, until it is killed or, with "drain", until it has caught up.

Run as a process of its own: python -m tests.spark.stream_driver JSON
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from fluss.spark import session


def main(plan: dict[str, Any]) -> None:
    # Tasks may fail twice before the query does.
    with session("fluss crash test", **{"spark.master": "local[2,3]"}) as spark:
        queries = []
        for sink, wanted in plan["sinks"].items():
            stream = spark.readStream.format("fluss").option("bootstrap.servers", plan["address"])
            frame = stream.option("maxRowsPerTrigger", plan["rows_per_trigger"]).load(plan["source"])
            writer = frame.select(*wanted["columns"]).writeStream.format("fluss").outputMode("append")
            writer = writer.option("bootstrap.servers", plan["address"]).option("table", sink)
            writer = writer.option("exactly.once", wanted["exactly_once"])
            writer = writer.option("checkpointLocation", f"{plan['checkpoints']}/{sink}")
            queries.append(writer.trigger(processingTime="200 milliseconds").start(sink))
        print("streaming", flush=True)
        if plan["drain"]:
            for query in queries:
                query.processAllAvailable()
                query.stop()
            print("drained", flush=True)
            return
        while all(query.isActive for query in queries):
            time.sleep(0.1)
        failures = [str(query.exception()) for query in queries if not query.isActive]
        print("a query failed:", failures, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

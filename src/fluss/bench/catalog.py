"""The workloads there are; their modules are imported when they run."""

from __future__ import annotations

from typing import Final, NamedTuple


class Workload(NamedTuple):
    module: str
    function: str
    text: str


WORKLOADS: Final = {
    "append": Workload("fluss.bench.writes", "append", "Append Arrow batches, and flush."),
    "append-rows": Workload("fluss.bench.writes", "append_rows", "Append row by row, and flush."),
    "scan": Workload("fluss.bench.reads", "scan", "Read a whole log table to Arrow."),
    "scan-projected": Workload("fluss.bench.reads", "scan_projected", "The same, 2 of its 5 columns."),
    "poll": Workload("fluss.bench.reads", "poll", "Poll the records of a log table."),
    "upsert": Workload("fluss.bench.writes", "upsert", "Insert Arrow batches by key, then update them."),
    "upsert-rows": Workload("fluss.bench.writes", "upsert_rows", "Insert by key row by row, and flush."),
    "lookup": Workload("fluss.bench.latencies", "lookup", "Look up keys one after the other."),
    "lookup-many": Workload("fluss.bench.latencies", "lookup_many", "Look up 1,000 keys at a time."),
    "prefix-lookup": Workload("fluss.bench.latencies", "prefix_lookup", "Look up all 10 rows of a key's prefix."),
    "ack": Workload("fluss.bench.latencies", "ack", "Append one row and flush: until it is stored."),
    "visible": Workload("fluss.bench.latencies", "visible", "Append one row: until a reader that follows has it."),
    "changes": Workload("fluss.bench.reads", "changes", "Follow a changelog of inserts and updates."),
}

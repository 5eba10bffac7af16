"""Primary-key tables: upserts of new and of known keys, lookups one after another and many at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median

from benchmarks.corners import RunningCorner
from benchmarks.workloads import CLIENT_CPU, KROWS_PER_S, Metric, Sample, Sizes, Workload, p99, rates

_KEYED, _ROWS = "keyed", "keyed rows"
_FIRST, _SECOND = 1, 2  # versions of all rows
# pyfluss looks up one row at a time with one lookuper: its best is one for each call that is under way.
_TASKS = 1_000
# A million rows take a while.
_ROUNDS_MAX = 3


def _upsert_bulk(version: int) -> Callable[[RunningCorner, Sizes], Sample]:
    def measure(running: RunningCorner, sizes: Sizes) -> Sample:
        table = running.create_kv_table(_KEYED, buckets=sizes.buckets) if version == _FIRST else running.tables[_KEYED]
        arguments = {"table": table, "rows": sizes.kv_rows, "version": version}
        answer = running.writer.call("upsert_bulk", config=running.config(), **arguments)
        return {**rates(answer), "server_memory_mb": running.server_memory_mb()}

    return measure


def _upsert_rows(version: int) -> Callable[[RunningCorner, Sizes], Sample]:
    def measure(running: RunningCorner, sizes: Sizes) -> Sample:
        table = running.create_kv_table(_ROWS, buckets=sizes.buckets) if version == _FIRST else running.tables[_ROWS]
        arguments = {"table": table, "rows": sizes.kv_dict_rows, "version": version}
        answer = running.writer.call("upsert_rows", config=running.config(), **arguments)
        if version == _SECOND:
            lookups = min(sizes.kv_dict_rows, sizes.lookups)
            running.writer.call("lookup_one_by_one", config=running.config(), lookups=lookups, **arguments)
            running.drop_table(_ROWS)
        return rates(answer)

    return measure


def _lookup_one_by_one(running: RunningCorner, sizes: Sizes) -> Sample:
    arguments = {"table": running.tables[_KEYED], "rows": sizes.kv_rows, "version": _SECOND}
    seconds = running.writer.call("lookup_one_by_one", config=running.config(), lookups=sizes.lookups, **arguments)
    times_ms = [second * 1e3 for second in seconds]
    return {"lookup_ms": median(times_ms), "lookup_p99_ms": p99(times_ms)}


def _lookup_concurrently(running: RunningCorner, sizes: Sizes) -> Sample:
    arguments = {"table": running.tables[_KEYED], "rows": sizes.kv_rows, "version": _SECOND}
    answer = running.writer.call(
        "lookup_concurrently",
        config=running.config(),
        lookups=sizes.concurrent_lookups,
        tasks=_TASKS,
        shared=running.corner.client != "pyfluss",
        **arguments,
    )
    running.drop_table(_KEYED)
    return rates(answer)


_KROWS = replace(KROWS_PER_S, is_compared=True)
_MEMORY = Metric("server_memory_mb", "server memory, MB", higher_is_better=False)
_BULK = (_KROWS, CLIENT_CPU, _MEMORY)
_LOOKUP = (
    Metric("lookup_ms", "median ms", higher_is_better=False, is_compared=True),
    Metric("lookup_p99_ms", "p99 ms", higher_is_better=False),
)

# In the order of a round: each one works on the table of the one before it.
KV_WORKLOADS = tuple(
    replace(workload, rounds_max=_ROUNDS_MAX)
    for workload in (
        Workload("upsert_rows_insert", "Row upsert, new keys", (_KROWS, CLIENT_CPU), _upsert_rows(_FIRST)),
        Workload("upsert_rows_update", "Row upsert, known keys", (_KROWS, CLIENT_CPU), _upsert_rows(_SECOND)),
        Workload("upsert_bulk_insert", "Bulk upsert, new keys", _BULK, _upsert_bulk(_FIRST)),
        Workload("upsert_bulk_update", "Bulk upsert, known keys", _BULK, _upsert_bulk(_SECOND)),
        Workload("lookup", "Lookups one after another", _LOOKUP, _lookup_one_by_one),
        Workload("lookup_concurrent", "Lookups, 1,000 at a time", (_KROWS, CLIENT_CPU), _lookup_concurrently),
    )
)

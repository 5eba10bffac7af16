"""Primary-key tables: upserts of new and of known keys, their changelog, lookups."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.corners import RunningCorner
from benchmarks.data import sum_of_ids
from benchmarks.workloads import CPU, KROWS_PER_S, Metric, Sample, Sizes, Workload, check, p99, rates

_FIRST, _SECOND = 1, 2  # versions of all rows
_TASKS = 1_000
_SPOT_CHECKS = 2_000

_Measure = Callable[[RunningCorner, Sizes], Sample]


def upsert(running: RunningCorner, command: str, table: str, rows: int, version: int) -> Sample:
    """One version of all rows; some of them are looked up afterwards."""
    arguments: dict[str, Any] = {"table": table, "rows": rows, "version": version}
    answer = running.call(command, **arguments)
    look_up_concurrently(running, lookups=min(rows, _SPOT_CHECKS), **arguments)
    return rates(answer)


def look_up_concurrently(running: RunningCorner, *, as_shipped: bool = False, **arguments: Any) -> Sample:
    # pyfluss looks up one row at a time with one lookuper: its best is one for each call that is under way.
    shared = as_shipped or running.corner.client != "pyfluss"
    return rates(running.call("lookup_concurrently", tasks=_TASKS, shared=shared, **arguments))


def create_kv_table(running: RunningCorner, buckets: int) -> str:
    return running.create_table("create_kv_table", buckets=buckets)


def _upserts(command: str, rows_of: Callable[[Sizes], int]) -> tuple[_Measure, _Measure]:
    """Inserts into a new table, and updates of one that has the keys and is not needed afterwards."""

    def insert(running: RunningCorner, sizes: Sizes) -> Sample:
        rows, found = rows_of(sizes), Sample()

        def make() -> str:
            table = create_kv_table(running, sizes.buckets)
            found.update(upsert(running, command, table, rows, _FIRST))
            return table

        running.drop_kept_table(command)
        running.kept_table(command, rows, make)
        return found

    def update(running: RunningCorner, sizes: Sizes) -> Sample:
        rows = rows_of(sizes)
        table = running.kept_table(command, rows, lambda: _filled(running, sizes.buckets, rows))
        sample = upsert(running, command, table, rows, _SECOND)
        running.drop_kept_table(command)
        return sample

    return insert, update


def _filled(running: RunningCorner, buckets: int, rows: int, *versions: int) -> str:
    table = create_kv_table(running, buckets)
    for version in versions or [_FIRST]:
        running.call("upsert_bulk", table=table, rows=rows, version=version)
    return table


def _changelog(running: RunningCorner, sizes: Sizes) -> Sample:
    keys = sizes.kv_dict_rows
    table = running.kept_table("changelog", keys, lambda: _filled(running, sizes.buckets, keys, _FIRST, _SECOND))
    answer = running.call("follow_changelog", table=table, records=3 * keys)
    kinds = {"+I": keys, "-U": keys, "+U": keys}
    check(running.corner.title, answer, rows=3 * keys, kinds=kinds, sum_of_ids=3 * sum_of_ids(keys))
    return rates(answer)


def _keyed(running: RunningCorner, sizes: Sizes) -> dict[str, Any]:
    rows = sizes.kv_rows
    table = running.kept_table("to look up", rows, lambda: _filled(running, sizes.buckets, rows))
    return {"table": table, "rows": rows, "version": _FIRST}


def _lookup(running: RunningCorner, sizes: Sizes) -> Sample:
    return lookup_times(running.call("lookup_one_by_one", lookups=sizes.lookups, **_keyed(running, sizes)))


def _lookup_concurrently(*, as_shipped: bool) -> _Measure:
    def measure(running: RunningCorner, sizes: Sizes) -> Sample:
        arguments = {"lookups": sizes.concurrent_lookups, **_keyed(running, sizes)}
        return look_up_concurrently(running, as_shipped=as_shipped, **arguments)

    return measure


def _lookup_prefixes(running: RunningCorner, sizes: Sizes) -> Sample:
    rows = sizes.prefix_rows

    def make() -> str:
        table = running.create_table("create_prefix_table", buckets=sizes.buckets)
        running.call("upsert_prefix_rows", table=table, rows=rows)
        return table

    table = running.kept_table("prefixes", rows, make)
    return lookup_times(running.call("lookup_prefixes", table=table, rows=rows, lookups=sizes.lookups))


def lookup_times(answer: dict[str, Any]) -> Sample:
    times_ms = [seconds * 1e3 for seconds in answer["times"]]
    return {**rates(answer), "lookup_ms": median(times_ms), "lookup_p99_ms": p99(times_ms)}


_ROWS = (KROWS_PER_S, *CPU)
_LOOKUP = (
    Metric("lookup_ms", "median ms", higher_is_better=False, is_compared=True),
    Metric("lookup_p99_ms", "p99 ms", higher_is_better=False),
    *CPU,
)
_insert_rows, _update_rows = _upserts("upsert_rows", lambda sizes: sizes.kv_dict_rows)
_insert_bulk, _update_bulk = _upserts("upsert_bulk", lambda sizes: sizes.kv_rows)

# In the order of a round: an update works on the table of the insert before it.
KV_WORKLOADS = (
    Workload("upsert_rows_insert", "Row upsert, new keys", _ROWS, _insert_rows),
    Workload("upsert_rows_update", "Row upsert, known keys", _ROWS, _update_rows),
    Workload("upsert_bulk_insert", "Bulk upsert, new keys", _ROWS, _insert_bulk),
    Workload("upsert_bulk_update", "Bulk upsert, known keys", _ROWS, _update_bulk),
    Workload("changelog", "Changelog of a primary-key table", _ROWS, _changelog),
    Workload("lookup", "Lookups one after another", _LOOKUP, _lookup),
    Workload("lookup_concurrent", "Lookups, 1,000 at a time", _ROWS, _lookup_concurrently(as_shipped=False)),
    Workload(
        "lookup_concurrent_as_shipped",
        "Lookups, 1,000 at a time, one lookuper",
        _ROWS,
        _lookup_concurrently(as_shipped=True),
    ),
    Workload("lookup_prefix", "Prefix lookups one after another, ten rows each", _LOOKUP, _lookup_prefixes),
)

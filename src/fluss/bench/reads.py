"""Workloads that read many rows, again and again from the same table."""

from __future__ import annotations

import time
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from fluss.bench.bench import Bench
from fluss.bench.data import LOG_SCHEMA, PROJECTED, WrongResultError, check_rows, joined, kv_batches, log_batches
from fluss.bench.writes import append_all, upsert_all
from fluss.sync import EARLIEST_OFFSET, FlussTable

POLL_MS: Final = 1_000
# A reader that gets nothing for so long has lost rows.
SILENCE_S_MAX: Final = 30.0
_CHANGE_TYPE: Final = "_change_type"


def scan(bench: Bench) -> None:
    _scan(bench, LOG_SCHEMA.names)


def scan_projected(bench: Bench) -> None:
    _scan(bench, PROJECTED)


def poll(bench: Bench) -> None:
    batches = log_batches(bench.size.single_rows, bench.size.batch_rows)
    expected, meter = joined(batches), bench.meter()
    with bench.log_table() as table:
        append_all(table, batches)
        while meter.more():
            with meter.run(expected.num_rows, expected.nbytes):
                found = _polled(table, bench.size.buckets, expected.num_rows)
            check_rows(pa.Table.from_pylist(found, LOG_SCHEMA), expected)


def changes(bench: Bench) -> None:
    """An update is two changes: the row before and after it."""
    versions = [kv_batches(bench.size.rows, bench.size.batch_rows, version) for version in (1, 2)]
    old, new = (joined(batches) for batches in versions)
    meter = bench.meter()
    with bench.kv_table() as table:
        for batches in versions:
            upsert_all(table, batches)
        while meter.more():
            with meter.run(2 * old.num_rows + new.num_rows, 2 * old.nbytes + new.nbytes):
                found = _followed(table, 2 * old.num_rows + new.num_rows)
            for kind, rows in (("+I", old), ("-U", old), ("+U", new)):
                check_rows(found.filter(pc.equal(found[_CHANGE_TYPE], kind)), rows)


class Patience:
    """Raises when rows have not come for too long."""

    def __init__(self, rows: int) -> None:
        self._wanted, self._came, self._last_s = rows, 0, time.monotonic()

    def missing(self, came: int) -> bool:
        """Whether rows are still to come, now that so many are there."""
        now_s = time.monotonic()
        if came > self._came:
            self._came, self._last_s = came, now_s
        elif came < self._wanted and now_s - self._last_s > SILENCE_S_MAX:
            raise WrongResultError(f"{came:,} of {self._wanted:,} rows came, then none for {SILENCE_S_MAX:g} s.")
        return came < self._wanted


def _scan(bench: Bench, columns: list[str]) -> None:
    batches = log_batches(bench.size.rows, bench.size.batch_rows)
    expected, meter = joined(batches).select(columns), bench.meter()
    with bench.log_table() as table:
        append_all(table, batches)
        scanned = table.new_scan().project_by_name(columns) if columns != LOG_SCHEMA.names else table.new_scan()
        while meter.more():
            with meter.run(expected.num_rows, expected.nbytes):
                found = scanned.to_arrow()
            check_rows(found, expected)


def _polled(table: FlussTable, buckets: int, rows: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    patience = Patience(rows)
    with table.new_scan().create_log_scanner() as scanner:
        scanner.subscribe_buckets(dict.fromkeys(range(buckets), EARLIEST_OFFSET))
        while patience.missing(len(found)):
            found.extend(record.row for record in scanner.poll(POLL_MS))
    return found


def _followed(table: FlussTable, rows: int) -> pa.Table:
    found: list[pa.Table] = []
    came, patience = 0, Patience(rows)
    with table.changes("earliest") as reader:
        while patience.missing(came):
            found.append(reader.poll(POLL_MS))
            came += found[-1].num_rows
    return pa.concat_tables(found)

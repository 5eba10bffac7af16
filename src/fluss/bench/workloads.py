"""Workloads: many rows written, many rows read again and again, how long lookups and single rows take."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss.bench.bench import Bench
from fluss.bench.data import (
    LOG_SCHEMA,
    PROJECTED,
    ROWS_PER_PREFIX,
    WrongResultError,
    check_equal,
    check_rows,
    joined,
    kv_batches,
    log_batches,
    prefix_batches,
)
from fluss.sync import EARLIEST_OFFSET, FlussError, FlussTable, LogScanner


def append_all(table: FlussTable, batches: list[pa.RecordBatch]) -> None:
    """Append batches, and wait until they are stored."""
    writer = table.new_append().create_writer()
    for batch in batches:
        writer.write_arrow_batch(batch)
    writer.flush()


def upsert_all(table: FlussTable, batches: list[pa.RecordBatch]) -> None:
    """Upsert batches, and wait until they are stored."""
    writer = table.new_upsert().create_writer()
    for batch in batches:
        writer.write_arrow_batch(batch)
    writer.flush()


def append(bench: Bench) -> None:
    batches = log_batches(bench.size.rows, bench.size.batch_rows)
    expected, meter = joined(batches), bench.meter()
    while meter.more():
        with bench.log_table() as table:
            with meter.run(expected.num_rows, expected.nbytes):
                append_all(table, batches)
            check_rows(table.new_scan().to_arrow(), expected)


def append_rows(bench: Bench) -> None:
    expected = joined(log_batches(bench.size.single_rows, bench.size.batch_rows))
    rows, meter = expected.to_pylist(), bench.meter()
    while meter.more():
        with bench.log_table() as table:
            writer = table.new_append().create_writer()
            with meter.run(expected.num_rows, expected.nbytes):
                for row in rows:
                    writer.append(row)
                writer.flush()
            check_rows(table.new_scan().to_arrow(), expected)


def upsert(bench: Bench) -> None:
    versions = [kv_batches(bench.size.rows, bench.size.batch_rows, version) for version in (1, 2)]
    expected = [joined(batches) for batches in versions]
    meters = [bench.meter("insert"), bench.meter("update")]
    while meters[0].more():
        with bench.kv_table() as table:
            for batches, rows, meter in zip(versions, expected, meters, strict=True):
                with meter.run(rows.num_rows, rows.nbytes):
                    upsert_all(table, batches)
                check_rows(table.new_scan().to_arrow(), rows)


def upsert_rows(bench: Bench) -> None:
    batches = kv_batches(bench.size.single_rows, bench.size.batch_rows, version=1)
    rows = [row for batch in batches for row in batch.to_pylist()]
    expected, meter = joined(batches), bench.meter()
    while meter.more():
        with bench.kv_table() as table:
            writer = table.new_upsert().create_writer()
            with meter.run(expected.num_rows, expected.nbytes):
                for row in rows:
                    writer.upsert(row)
                writer.flush()
            check_rows(table.new_scan().to_arrow(), expected)


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


MANY_KEYS: Final = 1_000
_LOOKUP_SEED: Final = 13


def lookup(bench: Bench) -> None:
    batches = kv_batches(bench.size.rows, bench.size.batch_rows, version=1)
    expected, chance = joined(batches), random.Random(_LOOKUP_SEED)
    row_bytes = expected.nbytes // expected.num_rows
    with bench.kv_table() as table:
        upsert_all(table, batches)
        lookuper = table.new_lookup().create_lookuper()
        lookuper.lookup([0])  # opens the connections
        meter = bench.meter(single=True)
        while meter.more():
            number = chance.randrange(expected.num_rows)
            with meter.run(1, row_bytes):
                found = lookuper.lookup([number])
            check_equal(found, expected.slice(number, 1).to_pylist()[0])


def lookup_many(bench: Bench) -> None:
    batches = kv_batches(bench.size.rows, bench.size.batch_rows, version=1)
    expected, chance = joined(batches), np.random.default_rng(_LOOKUP_SEED)
    row_bytes = expected.nbytes // expected.num_rows
    with bench.kv_table() as table:
        upsert_all(table, batches)
        lookuper = table.new_lookup().create_lookuper()
        lookuper.lookup([0])
        meter = bench.meter(single=True)
        while meter.more():
            numbers = chance.integers(0, expected.num_rows, MANY_KEYS)
            keys = pa.table({"id": numbers})
            with meter.run(MANY_KEYS, MANY_KEYS * row_bytes):
                found = lookuper.lookup_many(keys)
            check_rows(found, expected.take(np.sort(numbers)))


def prefix_lookup(bench: Bench) -> None:
    batches = prefix_batches(bench.size.rows, bench.size.batch_rows)
    expected, chance = joined(batches), random.Random(_LOOKUP_SEED)
    row_bytes = expected.nbytes // expected.num_rows
    with bench.prefix_table() as table:
        upsert_all(table, batches)
        lookuper = table.new_lookup().lookup_by(["owner"]).create_lookuper()
        lookuper.lookup([0])
        meter = bench.meter(single=True)
        while meter.more():
            owner = chance.randrange(expected.num_rows) // ROWS_PER_PREFIX
            rows = expected.slice(owner * ROWS_PER_PREFIX, ROWS_PER_PREFIX)
            with meter.run(rows.num_rows, rows.num_rows * row_bytes):
                found = lookuper.lookup([owner])
            check_equal(sorted(found, key=lambda row: int(row["id"])), rows.to_pylist())


# Rows have different ids; their other values repeat.
_VARIETY: Final = 1_000
# Between two rows, so that they meet a waiting reader at any point of its wait.
_PAUSE_S: Final = (0.0, 0.005)
_SEED: Final = 11

Seen = queue.SimpleQueue[tuple[int, float] | FlussError]


def ack(bench: Bench) -> None:
    templates, meter = _templates(), bench.meter(single=True)
    with bench.log_table() as table:
        writer = table.new_append().create_writer()
        for number in count():
            row = _row(templates, number)
            if number == 0:  # opens the connections
                writer.append(row)
                writer.flush()
                continue
            if not meter.more():
                break
            with meter.run():
                writer.append(row)
                writer.flush()
        rows = pa.Table.from_pylist([_row(templates, done) for done in range(number)], table.arrow_schema)
        check_rows(table.new_scan().to_arrow(), rows)


def visible(bench: Bench) -> None:
    templates, chance, meter = _templates(), random.Random(_SEED), bench.meter(single=True, paused=True)
    with bench.log_table() as table, _tailing(table, bench.size.buckets) as seen:
        writer = table.new_append().create_writer()
        writer.append(_row(templates, 0))
        writer.flush()
        check_equal(_next(seen)[0], 0)
        for number in count(1):
            if not meter.more():
                break
            row = _row(templates, number)
            time.sleep(chance.uniform(*_PAUSE_S))
            with meter.run() as run:
                writer.append(row)
                writer.flush()
                came, run.ended_s = _next(seen)
            check_equal(came, number)


def _templates() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = joined(log_batches(_VARIETY, _VARIETY)).to_pylist()
    return rows


def _row(templates: list[dict[str, Any]], number: int) -> dict[str, Any]:
    return {**templates[number % _VARIETY], "id": number}


@contextmanager
def _tailing(table: FlussTable, buckets: int) -> Iterator[Seen]:
    """Follow a table in a thread: which rows came, and when."""
    seen: Seen = queue.SimpleQueue()
    stopped = threading.Event()
    with table.new_scan().create_record_batch_log_scanner() as scanner:
        scanner.subscribe_buckets(dict.fromkeys(range(buckets), EARLIEST_OFFSET))
        thread = threading.Thread(target=_tail, args=(scanner, seen, stopped), name="bench-tail", daemon=True)
        thread.start()
        try:
            yield seen
        finally:
            stopped.set()
            thread.join()


def _tail(scanner: LogScanner, seen: Seen, stopped: threading.Event) -> None:
    try:
        while not stopped.is_set():
            batches = scanner.poll_record_batch(POLL_MS)
            now_s = time.perf_counter()
            for batch in batches:
                for number in batch.batch["id"].to_pylist():
                    seen.put((number, now_s))
    except FlussError as error:
        seen.put(error)


def _next(seen: Seen) -> tuple[int, float]:
    try:
        item = seen.get(timeout=SILENCE_S_MAX)
    except queue.Empty:
        raise WrongResultError(f"A row was stored, but did not come within {SILENCE_S_MAX:g} s.") from None
    if isinstance(item, FlussError):
        raise item
    return item

"""Workloads of lookups and of single rows: how long each takes."""

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

from fluss.bench.bench import Bench
from fluss.bench.data import (
    ROWS_PER_PREFIX,
    WrongResultError,
    check_equal,
    check_rows,
    joined,
    kv_batches,
    log_batches,
    prefix_batches,
)
from fluss.bench.reads import POLL_MS, SILENCE_S_MAX
from fluss.bench.writes import upsert_all
from fluss.sync import EARLIEST_OFFSET, FlussError, FlussTable, LogScanner

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

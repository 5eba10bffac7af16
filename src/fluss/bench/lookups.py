"""Workloads that look rows up by key."""

from __future__ import annotations

import random
from typing import Final

import numpy as np
import pyarrow as pa

from fluss.bench.bench import Bench
from fluss.bench.checks import check_equal, check_rows
from fluss.bench.data import ROWS_PER_PREFIX, joined, kv_batches, prefix_batches
from fluss.bench.writes import upsert_all

MANY_KEYS: Final = 1_000
_SEED: Final = 13


def lookup(bench: Bench) -> None:
    batches = kv_batches(bench.size.rows, bench.size.batch_rows, version=1)
    expected, chance = joined(batches), random.Random(_SEED)
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
    expected, chance = joined(batches), np.random.default_rng(_SEED)
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
    expected, chance = joined(batches), random.Random(_SEED)
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

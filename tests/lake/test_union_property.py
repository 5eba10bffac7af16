"""Union reads are exact at every moment: between random writes and rounds of tiering, and during them."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from fluss.sync import FlussTable
from tests.kit.lake.lake import Lake
from tests.kit.lake.unions import WAYS, History, Offsets, latest, read_union, tier_fully, tier_halfway

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.int64())])
KEYS = 40


class Writer:
    """Writes at random: new rows to a log table; inserts, updates and deletes to one with a key."""

    def __init__(self, table: FlussTable, dice: random.Random) -> None:
        self._table = table
        self._dice = dice
        self._next = 0
        self._keys: dict[int, int] = {}

    def write(self) -> None:
        """A few rows, all acknowledged on return."""
        count = self._dice.randrange(1, 30)
        if not self._table.has_primary_key():
            with self._table.new_append().create_writer() as writer:
                for _ in range(count):
                    writer.append({"id": self._next, "value": -self._next})
                    self._next += 1
            return
        with self._table.new_upsert().create_writer() as writer:
            for _ in range(count):
                key = self._dice.randrange(KEYS)
                if self._dice.random() < 0.3:
                    writer.delete({"id": key})
                    self._keys.pop(key, None)
                else:
                    self._next += 1  # each value is written once, so that no two states are alike
                    writer.upsert({"id": key, "value": self._next})
                    self._keys[key] = self._next

    @property
    def rows(self) -> dict[int, int]:
        """What the table must have."""
        return self._keys if self._table.has_primary_key() else {number: -number for number in range(self._next)}


def make(lake: Lake, is_keyed: bool) -> tuple[FlussTable, random.Random]:
    seed = int(os.environ.get("FLUSS_SEED", random.randrange(2**32)))
    print("seed", seed)
    return lake.create("moving", COLUMNS, keys=["id"] if is_keyed else None, buckets=3), random.Random(seed)


def tier_somehow(lake: Lake, table: FlussTable, dice: random.Random) -> None:
    kind = dice.randrange(4)
    if kind < 2:
        tier_fully(lake, table)
    else:
        tier_halfway(lake, table, is_committed=kind == 2)


@pytest.mark.parametrize("step_count", [30, pytest.param(300, marks=pytest.mark.full)])
@pytest.mark.parametrize("is_keyed", [False, True], ids=["log", "key"])
def test_between_writes_and_rounds(lake: Lake, is_keyed: bool, step_count: int) -> None:
    table, dice = make(lake, is_keyed)
    writer = Writer(table, dice)
    for _ in range(step_count):
        step = dice.random()
        if step < 0.4:
            writer.write()
        elif step < 0.7:
            tier_somehow(lake, table, dice)
        else:
            found = read_union(table, dice.choice(WAYS))
            rows = dict(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))
            assert (rows, found.num_rows) == (writer.rows, len(writer.rows))


@pytest.mark.parametrize("write_count", [100, pytest.param(300, marks=pytest.mark.full)])
@pytest.mark.parametrize("is_keyed", [False, True], ids=["log", "key"])
def test_during_writes_and_rounds(lake: Lake, is_keyed: bool, write_count: int) -> None:
    table, dice = make(lake, is_keyed)
    writer = Writer(table, random.Random(dice.random()))
    is_over = threading.Event()
    reads: list[tuple[pa.Table, Offsets, Offsets]] = []

    def write() -> None:
        for _ in range(write_count):
            writer.write()

    def tier() -> None:
        own = random.Random(dice.random())
        while not is_over.is_set():
            tier_somehow(lake, table, own)

    with in_thread(write) as writing, in_thread(tier, is_over.set):
        while writing.is_alive() or len(reads) < len(WAYS):
            begin = latest(table)
            found = read_union(table, WAYS[len(reads) % len(WAYS)])
            reads.append((found, begin, latest(table)))
    history = History(table)
    for found, begin, end in reads:
        ids, values = found["id"].to_pylist(), found["value"].to_pylist()
        if is_keyed:
            assert len(set(ids)) == len(ids), "a key came twice"
            history.check_rows(dict(zip(ids, values, strict=True)), begin, end)
        else:
            history.check_log(ids, begin, end)
    final = read_union(table, "arrow")
    assert dict(zip(final["id"].to_pylist(), final["value"].to_pylist(), strict=True)) == writer.rows


@contextmanager
def in_thread(work: Callable[[], None], stop: Callable[[], None] = lambda: None) -> Iterator[threading.Thread]:
    """Work that goes on meanwhile; what it raises is raised here."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield thread
    finally:
        stop()
        thread.join()
    if errors:
        raise errors[0]

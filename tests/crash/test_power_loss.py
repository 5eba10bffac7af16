"""Power loss at random moments: what was acknowledged, or shown to a reader, is there after every one of them.

The storage layer runs here without a server: thousands of losses take minutes, and each is a matter of one seed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from typing import Literal

import pytest

import fluss
from fluss.formats.log_batch import parse_header
from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket
from fluss.storage.commit import Durable
from fluss.storage.store import Storage, StorageOptions
from tests.crash.oracle import Bucket, BucketContent, Fate, ReaderLog, WriterLog, violations
from tests.crash.power import PowerSupply
from tests.crash.rows import Row, StoredBatch, descriptor, stored_batches, wire_batch

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at descriptors through /proc")

PATH = fluss.TablePath("fluss", "power")
BUCKETS = 2
WRITERS = 3
SEGMENT_SIZE_BYTES = 2 << 10
STEPS_MAX = 60
LOSSES_PER_SEED = 3
SEEDS = 12
FULL_SEEDS = 10_000
FULL_CHUNKS = 20
READ_BYTES = 1 << 20


class History:
    """All that is known across the losses of one seed."""

    def __init__(self, chance: random.Random, durability: Literal["fsync", "os"]) -> None:
        self.chance = chance
        self.durability = durability
        self.writers = [WriterLog(number, PATH.table_name) for number in range(WRITERS)]
        self.table_id: int | None = None
        self.seen: dict[Bucket, list[Row]] = {}
        self._under_way: list[tuple[Durable, WriterLog, list[Row]]] = []

    def options(self, root: Path) -> StorageOptions:
        return StorageOptions(root, self.durability, segment_size_bytes=SEGMENT_SIZE_BYTES)

    async def write(self, storage: Storage) -> None:
        """Append some batches, wait for some of them; the power may fail after any step."""
        if self.table_id is None:
            json = descriptor(BUCKETS)
            entry = await storage.catalog.create_table(
                PATH, json.to_json().decode(), '{"version":1,"columns":[]}', BUCKETS
            )
            self.table_id = entry.table_id
        # A server gives a writer that lost its connection a new id, and sequences begin at 0 again.
        ids = [await storage.catalog.next_writer_id() for _ in self.writers]
        sequences = [[0] * BUCKETS for _ in self.writers]
        for _ in range(self.chance.randint(0, STEPS_MAX)):
            number, bucket = self.chance.randrange(WRITERS), self.chance.randrange(BUCKETS)
            rows = self.writers[number].begin(self.chance.randint(1, 8))
            batch = wire_batch(rows, ids[number], sequences[number][bucket])
            log = storage.bucket(TableBucket(self.table_id, bucket))
            appended = log.append(batch, parse_header(batch), time.time_ns() // 1_000_000)
            sequences[number][bucket] += 1
            self._under_way.append((appended.durable, self.writers[number], rows))
            if self.chance.random() < 0.2:
                await asyncio.wait([appended.durable])
            elif self.chance.random() < 0.3:
                await asyncio.sleep(0)

    def look(self, storage: Storage) -> None:
        """Note what is acknowledged and what readers can see at this moment."""
        for durable, writer, rows in self._under_way:
            if durable.done() and durable.exception() is None:
                writer.settle(rows, Fate.ACKNOWLEDGED)
        self._under_way.clear()
        for bucket, content in self.stored(storage).items():
            self.seen[bucket] = [row for batch in content.batches for row in batch.rows]

    def stored(self, storage: Storage) -> dict[Bucket, BucketContent]:
        assert self.table_id is not None
        found: dict[Bucket, BucketContent] = {}
        for number in range(BUCKETS):
            log = storage.bucket(TableBucket(self.table_id, number))
            batches: list[StoredBatch] = []
            offset = 0
            while offset < log.high_watermark:
                batches += stored_batches(log.read(offset, READ_BYTES))
                offset = batches[-1].base_offset + len(batches[-1].rows)
            found[Bucket(PATH.table_name, number)] = BucketContent(batches, log.high_watermark)
        return found

    def problems(self, storage: Storage) -> list[str]:
        reader = ReaderLog("a reader before the loss")
        for bucket, rows in self.seen.items():
            reader.see(bucket, 0, rows)
        try:
            stored = self.stored(storage)
        except FlussError as error:
            return [f"unreadable: {error}"]
        return violations(self.writers, [reader], stored)


async def lose_power(
    directory: Path, seed: int, monkeypatch: pytest.MonkeyPatch, durability: Literal["fsync", "os"] = "fsync"
) -> list[str]:
    """Write, lose power, recover, compare, go on from there; returns what was broken."""
    chance = random.Random(seed)
    history = History(chance, durability)
    root = directory / "0"
    for loss in range(1, LOSSES_PER_SEED + 1):
        power = PowerSupply(root)
        after = directory / str(loss)
        with power.connected(monkeypatch):
            storage = await Storage.open(history.options(root))
            await history.write(storage)
            history.look(storage)
            power.image(after, chance)
            await storage.close()
        root = after
        recovered = await Storage.open(history.options(root))
        try:
            problems = history.problems(recovered)
        finally:
            await recovered.close()
        if problems:
            return [f"seed {seed}, loss {loss}: {problem}" for problem in problems]
    return []


async def lose_power_often(directory: Path, first_seed: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(first_seed, first_seed + count):
        place = directory / str(seed)
        place.mkdir()
        problems = await lose_power(place, seed, monkeypatch)
        assert not problems, "\n".join(problems[:10])


async def test_acknowledged_rows_outlive_power_losses(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lose_power_often(tmp_path, seed, SEEDS, monkeypatch)


async def test_without_syncs_the_loss_is_noticed(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: with durability "os" acknowledged rows do vanish, or can't be read."""
    for number in range(SEEDS):
        place = tmp_path / str(number)
        place.mkdir()
        if await lose_power(place, seed + number, monkeypatch, "os"):
            return
    raise AssertionError(f"{SEEDS} power losses without a sync before them broke nothing")


@pytest.mark.full
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("chunk", range(FULL_CHUNKS))
async def test_ten_thousand_seeds(tmp_path: Path, seed: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count = FULL_SEEDS // FULL_CHUNKS
    await lose_power_often(tmp_path, seed + chunk * count, count, monkeypatch)

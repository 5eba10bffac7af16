"""Losses of power by seed, on the storage layer in one process: `python -m tests.crash.power_runs --seeds 0:10000`.

A seed is a handful of tables that are written to at once, with retention beside them, until the power fails at some
step; then again on what was left. The scratch directories lie in memory where the system has room for that.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from fluss.model.clock import wall_clock_ms
from fluss.model.errors import FlussError
from fluss.storage.log.retention import Retention
from fluss.storage.store import Storage, StorageOptions
from tests.crash.ledger import record
from tests.crash.power import Loss, PowerSupply
from tests.crash.power_keys import KeyTable, StagedKeyTable, snapshots_in
from tests.crash.power_tables import (
    LakeTable,
    LogTable,
    PartitionedTable,
    PoweredTable,
    RetainedTable,
    StagedTable,
    quietly,
)
from tests.kit.storage.logs import trusted

SUITE = "power"
SEGMENT_SIZE_BYTES = 2 << 10
KV_MEMORY_BYTES = 8 << 20
LOSSES_PER_SEED = 2
TABLES_MAX = 3
TABLE_STEPS_MAX = 14
LOSS_STEP_MAX = 250
RETENTION_PASSES_MAX = 2
STORE_REMOVED_SHARE = 0.3
RECORDED_SEEDS = 500  # at a time: a run that is stopped has done those before
EIGHT_DAYS_MS = 8 * 24 * 60 * 60 * 1_000  # longer than logs are kept
_MEMORY = Path("/dev/shm")

KINDS: tuple[type[PoweredTable], ...] = (
    LogTable,
    RetainedTable,
    LakeTable,
    PartitionedTable,
    StagedTable,
    StagedKeyTable,
    KeyTable,
)

Durability = Literal["fsync", "os"]


def tables(chance: random.Random, kinds: Sequence[type[PoweredTable]]) -> list[PoweredTable]:
    """Some of the kinds, so that each seed is short and different."""
    chosen = chance.sample(kinds, chance.randint(1, min(len(kinds), TABLES_MAX)))
    return [kind(random.Random(f"{chance.random()}/{kind.name}")) for kind in chosen]


class Seed:
    """The losses of one seed; `problems` is what they have broken."""

    def __init__(
        self, directory: Path, seed: int, durability: Durability, kinds: Sequence[type[PoweredTable]] = KINDS
    ) -> None:
        self._directory = directory
        self._chance = random.Random(seed)
        self._durability: Durability = durability
        self._tables = tables(self._chance, kinds)
        self._storage: Storage | None = None
        self._known: list[Any] = [None] * len(self._tables)
        self._noted = self._known
        self._compared = 0  # tables

    async def problems(self) -> list[str]:
        root = self._directory / "0"
        for loss in range(1, LOSSES_PER_SEED + 1):
            after = self._directory / str(loss)
            if found := await self._until_loss(root, after):
                return [f"after loss {loss - 1}: {problem}" for problem in found]
            self._known = self._noted
            shutil.rmtree(root)
            root = after
            if self._chance.random() < STORE_REMOVED_SHARE:
                _remove_stores(root)
        found = await self._until_loss(root, None)
        return [f"after loss {LOSSES_PER_SEED}: {problem}" for problem in found]

    async def _until_loss(self, root: Path, after: Path | None) -> list[str]:
        """Open, compare with what was known, and go on until the power fails."""
        chance = self._chance
        step = chance.randint(1, LOSS_STEP_MAX)
        loss = None if after is None else Loss(step, after, random.Random(chance.random()), self._note)
        power = PowerSupply(root, loss)
        patch = pytest.MonkeyPatch()
        with power.connected(patch):
            self._compared = 0
            try:
                self._storage = storage = await Storage.open(self._options(root))
            except (FlussError, OSError) as error:
                return [f"the storage does not open: {error}"]
            try:
                found = await self._check(storage)
                if not found and after is not None:
                    await self._work(storage, power)
                power.lose()
            finally:
                self._storage = None
                await storage.close()
        return found

    def _note(self) -> None:
        """What is safe now; of a table that was not compared yet, what was safe before."""
        self._noted = [
            table.known(self._storage) if number < self._compared else self._known[number]
            for number, table in enumerate(self._tables)
        ]

    def _options(self, root: Path) -> StorageOptions:
        return StorageOptions(
            root,
            self._durability,
            segment_size_bytes=SEGMENT_SIZE_BYTES,
            disk_free_bytes_min=0,
            kv_memory_bytes=KV_MEMORY_BYTES,
        )

    async def _check(self, storage: Storage) -> list[str]:
        found: list[str] = []
        for number, known in enumerate(self._known):
            table = self._tables[number]
            if is_new := known is None and not storage.catalog.table_exists(table.path):
                table = self._tables[number] = type(table)(table.chance)  # what was done after the loss never was
            try:
                problems = [] if is_new else await table.check(storage, known)
                self._compared = number + 1
                problems = problems or ([] if is_new else await table.carry_on(storage))
            except (FlussError, AssertionError, OSError) as error:
                problems = [f"{type(error).__name__}: {error}"]
            found += [f"{table.name}: {problem}" for problem in problems]
        return found

    async def _work(self, storage: Storage, power: PowerSupply) -> None:
        chance = self._chance
        jobs = [self._write(table, storage, power, chance.randint(1, TABLE_STEPS_MAX)) for table in self._tables]
        await asyncio.gather(*map(quietly, [*jobs, self._retain(storage, power, chance)]))

    async def _write(self, table: PoweredTable, storage: Storage, power: PowerSupply, steps: int) -> None:
        await table.create(storage)
        for _ in range(steps):
            if power.is_lost:
                return
            await table.step(storage)

    async def _retain(self, storage: Storage, power: PowerSupply, chance: random.Random) -> None:
        has_keys = any(isinstance(table, KeyTable | StagedKeyTable) for table in self._tables)
        snapshots = snapshots_in(storage) if has_keys else None
        retention = Retention(storage, kv_snapshots=snapshots, clock=trusted(lambda: wall_clock_ms() + EIGHT_DAYS_MS))
        for _ in range(chance.randint(0, RETENTION_PASSES_MAX)):
            for _ in range(chance.randint(0, 30)):
                await asyncio.sleep(0)
            if not power.is_lost:
                await retention.run_once()


def _remove_stores(root: Path) -> None:
    """A bad block has taken them: rows come from snapshots and logs."""
    for path in root.glob("tables/**/kv"):
        shutil.rmtree(path)


async def lose_power(
    directory: Path, seed: int, durability: Durability = "fsync", kinds: Sequence[type[PoweredTable]] = KINDS
) -> list[str]:
    """What the losses of a seed have broken."""
    place = directory / str(seed)
    place.mkdir(parents=True)
    found = await Seed(place, seed, durability, kinds).problems()
    if not found:
        shutil.rmtree(place)
    return [f"seed {seed}, {problem}" for problem in found]


def scratch() -> Path | None:
    """Where scratch directories are made; None: where the system has them."""
    return _MEMORY if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 1 << 30 else None


async def run(seeds: range, directory: Path) -> int:
    failures = 0
    for seed in seeds:
        found = await lose_power(directory, seed)
        failures += bool(found)
        for line in found[:10]:
            print(line, flush=True)
    return failures


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="first:last, the last one not included")
    parser.add_argument("--suite", default=SUITE, help="the name in the ledger")
    parser.add_argument("--no-ledger", action="store_true")
    parser.add_argument("--keep", type=Path, help="a directory for the files of seeds that fail")
    options = parser.parse_args(arguments)
    first, last = map(int, options.seeds.split(":"))
    logging.disable(logging.CRITICAL)
    started_s = time.monotonic()
    failures = 0
    with tempfile.TemporaryDirectory(prefix="power-", dir=scratch()) as directory:
        for start in range(first, last, RECORDED_SEEDS):
            seeds = range(start, min(start + RECORDED_SEEDS, last))
            failed = asyncio.run(run(seeds, Path(directory)))
            failures += failed
            if not options.no_ledger:
                record(options.suite, seeds[0], seeds[-1], failed)
        if options.keep is not None and failures:
            shutil.copytree(directory, options.keep, dirs_exist_ok=True)
    minutes = (time.monotonic() - started_s) / 60
    print(f"{last - first} seeds, {failures} failures, {(last - first) / minutes:.0f} seeds a minute")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

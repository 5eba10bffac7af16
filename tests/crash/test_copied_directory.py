"""A data directory that was copied while it was in use, which is no backup: errors, but no wrong row.

The copy goes through the folders in an order drawn by chance, and rows are written between any two files. So the copy
has files of many moments: a catalog that is older than the rows, marks of logs that are longer, stores with files that
do not belong together.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import patch

import pytest

from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket, TablePath
from fluss.storage import files
from fluss.storage.directory import DataDirectoryError
from fluss.storage.kv.snapshots import KvSnapshots
from fluss.storage.store import Storage
from tests.kit.storage.kv_tables import Table, fold, opened, row
from tests.kit.storage.logs import append, texts

SEEDS = 3
FULL_SEEDS = 300
KEYS = 20
STEPS_BEFORE = 30
STEPS_MAX = 4  # between two files
SEGMENT_BYTES = 4_000
LOG, ROWS = TablePath("fluss", "log"), TablePath("fluss", "rows")
_NAMES_A_FILE = re.compile(r"\d{20}\.log|catalog\.db|/kv|tables/\d+/\d+|marks")


class Written:
    """What was written, and how far it was acknowledged when the copy began."""

    def __init__(self, storage: Storage, log: TableBucket, table: Table, chance: random.Random) -> None:
        self._storage = storage
        self._log = log
        self._table = table
        self._chance = chance
        self._snapshots = KvSnapshots(storage, storage.kv.bucket)
        self.texts: list[str] = []
        self.scores: dict[int, list[int]] = {}
        self.texts_before = 0
        self.scores_before: dict[int, int] = {}

    async def step(self) -> None:
        number = len(self.texts)
        await append(await self._storage.opened(self._log), f"row {number}", records=1).durable
        self.texts.append(f"row {number}")
        rows = [row(self._chance.randrange(KEYS), "x" * self._chance.randrange(200), number) for _ in range(3)]
        rows = list({one["id"]: one for one in rows}.values())
        await self._table.kv().put(self._table.batch(rows)).applied
        for one in rows:
            self.scores.setdefault(one["id"], []).append(number)
        if self._chance.random() < 0.05:
            await self._snapshots.make(self._table.bucket())

    def begin(self) -> None:
        self.texts_before = len(self.texts)
        self.scores_before = {key: scores[-1] for key, scores in self.scores.items()}


async def copy(source: Path, target: Path, chance: random.Random) -> AsyncIterator[None]:
    """Copy a folder; the caller goes on writing at each step."""
    target.mkdir()
    names = [entry.name for entry in source.iterdir()]
    chance.shuffle(names)
    for name in names:
        path = source / name
        if path.is_dir():
            async for _ in copy(path, target / name, chance):
                yield
        elif path.exists():
            shutil.copy2(path, target / name)
            yield


async def copied(root: Path, target: Path, chance: random.Random) -> Written:
    async with opened(root, segment_size_bytes=SEGMENT_BYTES) as storage:
        entry = await storage.catalog.create_table(LOG, "{}", "{}", 1)
        table = await Table.create(storage, name=ROWS.table_name)
        written = Written(storage, TableBucket(entry.table_id, 0), table, chance)
        for _ in range(STEPS_BEFORE):
            await written.step()
        written.begin()
        async for _ in copy(root, target, chance):
            for _ in range(chance.randint(0, STEPS_MAX)):
                await written.step()
    return written


async def check(root: Path, written: Written) -> str:
    """Everything that can be read is right; returns what was refused."""
    try:
        async with opened(root, segment_size_bytes=SEGMENT_BYTES) as storage:
            return await _check_log(storage, written) + await _check_rows(storage, written)
    except DataDirectoryError as error:
        return _checked(error)


async def _check_log(storage: Storage, written: Written) -> str:
    table = storage.catalog.table(LOG)
    try:
        log = await storage.opened(TableBucket(table.table_id, 0))
        found = texts(log)
    except FlussError as error:
        return _checked(error)
    assert found == written.texts[: len(found)]
    assert len(found) >= written.texts_before
    return ""


async def _check_rows(storage: Storage, written: Written) -> str:
    table = Table(storage, ROWS)
    try:
        rows = await table.all_rows()
        changelog = fold(table.changelog()) if (await storage.opened(table.bucket())).log_start_offset == 0 else None
    except FlussError as error:
        return _checked(error)
    found = {one["id"]: one["score"] for one in rows}
    assert changelog is None or {one["id"]: one["score"] for one in changelog.values()} == found
    for key, score in written.scores_before.items():
        assert found.get(key, -1) >= score, f"key {key} went back"
    for key, score in found.items():
        assert score in written.scores[key], f"key {key} has a value that nobody wrote"
    return ""


def _checked(error: FlussError) -> str:
    assert _NAMES_A_FILE.search(error.message), f"no file is named: {error.message}"
    return f"{error.message}\n"


async def run(directory: Path, seed: int) -> str:
    root, target = directory / f"source-{seed}", directory / f"copy-{seed}"
    chance = random.Random(seed)
    written = await copied(root, target, chance)
    boot = files.boot_id() if chance.random() < 0.5 else b"of another machine"
    with patch.object(files, "boot_id", lambda: boot):
        refused = await check(target, written)
    shutil.rmtree(root)
    shutil.rmtree(target)
    return refused


async def test_a_copy_of_a_directory_in_use_has_no_wrong_row(tmp_path: Path, seed: int) -> None:
    for number in range(SEEDS):
        await run(tmp_path, seed + number)


@pytest.mark.full
@pytest.mark.timeout(3_600)
async def test_three_hundred_copies(tmp_path: Path) -> None:
    refused = [await run(tmp_path, number) for number in range(FULL_SEEDS)]
    assert any(refused)
    assert not all(refused), "nothing of any copy could be read"

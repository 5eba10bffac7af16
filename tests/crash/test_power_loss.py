"""Power loss at random moments: what was acknowledged, or shown to a reader, is there after every one of them.

The storage layer runs here without a server: thousands of losses take minutes, and each is a matter of one seed. The
long form is `python -m tests.crash.power_runs`, whose runs add up in the ledger.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fluss.storage import files, lake_snapshots
from fluss.storage.catalog.db import CatalogDatabase, StagedQuery
from fluss.storage.failpoints import Site
from fluss.storage.kv import snapshots as kv_snapshots
from fluss.storage.log import log, segment
from tests.crash.power import Loss, PowerSupply
from tests.crash.power_keys import KeyTable
from tests.crash.power_runs import Durability, lose_power, run, scratch
from tests.crash.power_tables import LakeTable, LogTable, PartitionedTable, PoweredTable, RetainedTable, StagedTable

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at descriptors through /proc")

SEEDS = 40
NOTICED_SEEDS_MAX = 300
FULL_SEEDS = 10_000
FULL_CHUNKS = 20


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="power-", dir=scratch()) as path:
        yield Path(path)


async def test_acknowledged_rows_outlive_power_losses(directory: Path, seed: int) -> None:
    assert not await run(range(seed, seed + SEEDS), directory)


@pytest.mark.full
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("chunk", range(FULL_CHUNKS))
async def test_ten_thousand_seeds(directory: Path, seed: int, chunk: int) -> None:
    count = FULL_SEEDS // FULL_CHUNKS
    first = seed + chunk * count
    assert not await run(range(first, first + count), directory)


# --- the check can fail


def _no_syncs_of_files(patch: pytest.MonkeyPatch) -> None:
    replace = files.replace_parts
    patch.setattr(files, "replace_parts", lambda *arguments, durable: replace(*arguments, durable=False))


def _no_syncs_of_directories(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files, "sync_directory", lambda path, site: None)


def _no_sync_after_renames(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(files, "rename", lambda path, target, site: os.rename(path, target))


def _numbers_from_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CatalogDatabase, "set_row_ids", lambda database, next_ids: None)


def _no_decisions(patch: pytest.MonkeyPatch) -> None:
    put = CatalogDatabase.put_staged_query

    def put_without(database: CatalogDatabase, entry: StagedQuery) -> None:
        if entry.decided is None:
            put(database, entry)

    patch.setattr(CatalogDatabase, "put_staged_query", put_without)


def _writers_forgotten(patch: pytest.MonkeyPatch) -> None:
    def remove(directory: Path, start_offset: int, writers_path: Path) -> None:
        for base_offset in segment.list_base_offsets(directory):
            if base_offset < start_offset:
                files.remove(segment.segment_path(directory, base_offset, ".log"), Site.SEGMENT_REMOVE)
                files.sync_directory(directory, Site.SEGMENT_REMOVE)

    patch.setattr(log, "remove_segment_files", remove)


def _cut_beyond_snapshots(patch: pytest.MonkeyPatch) -> None:
    async def kept_from(snapshots: Any, bucket: Any, wanted: int) -> int:
        return wanted

    patch.setattr(kv_snapshots.KvSnapshots, "log_kept_from", kept_from)


def _cut_beyond_the_lake(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lake_snapshots.LakeSnapshots, "log_kept_from", lambda snapshots, bucket: 1 << 60)


DEFECTS: dict[Callable[[pytest.MonkeyPatch], None], type[PoweredTable]] = {
    _no_syncs_of_files: LakeTable,
    _no_syncs_of_directories: PartitionedTable,
    _no_sync_after_renames: KeyTable,
    _numbers_from_memory: KeyTable,
    _no_decisions: StagedTable,
    _writers_forgotten: RetainedTable,
    _cut_beyond_snapshots: KeyTable,
    _cut_beyond_the_lake: LakeTable,
}


def notice(directory: Path, kind: type[PoweredTable], durability: Durability = "fsync") -> list[str]:
    for seed in range(NOTICED_SEEDS_MAX):
        if found := asyncio.run(lose_power(directory, seed, durability, [kind])):
            return found
    raise AssertionError(f"{NOTICED_SEEDS_MAX} seeds found nothing wrong")


def test_without_syncs_of_logs_the_loss_is_noticed(directory: Path) -> None:
    assert notice(directory, LogTable, "os")


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_noticed(
    directory: Path, monkeypatch: pytest.MonkeyPatch, defect: Callable[[pytest.MonkeyPatch], None]
) -> None:
    defect(monkeypatch)
    assert notice(directory, DEFECTS[defect])


# --- the power supply itself


def images(root: Path, work: Callable[[int], None], directory: Path, monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """All contents that the file `root / "file"` was found to have, over many losses."""
    root.mkdir()
    fd = os.open(root / "file", os.O_RDWR | os.O_CREAT)
    power = PowerSupply(root)
    found = set()
    with power.connected(monkeypatch):
        work(fd)
        for number in range(200):
            power.image(directory / str(number), random.Random(number))
            found.add((directory / str(number) / "file").read_bytes())
    os.close(fd)
    return found


def test_writes_in_place_are_lost_torn_or_reordered(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(fd: int) -> None:
        files.write_at(fd, b"old-old-", 0, Site.SEGMENT_APPEND)
        files.sync(fd, Site.SEGMENT_APPEND)
        files.write_at(fd, b"AAAA", 0, Site.SEGMENT_APPEND)
        files.write_at(fd, b"BBBB", 4, Site.SEGMENT_APPEND)

    found = images(directory / "root", work, directory, monkeypatch)
    assert {b"old-old-", b"AAAABBBB", b"AAAAold-", b"old-BBBB"} <= found
    assert found & {b"AAAABld-", b"AAAABBd-", b"AAAABBB-"}
    assert found & {b"AAAAoBBB", b"AAAAolBB", b"AAAAoldB"}


def test_what_was_synced_stays(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(fd: int) -> None:
        files.write_at(fd, b"synced", 0, Site.SEGMENT_APPEND)
        files.sync(fd, Site.SEGMENT_APPEND)
        files.write_at(fd, b"+more", 6, Site.SEGMENT_APPEND)

    found = images(directory / "root", work, directory, monkeypatch)
    assert all(content.startswith(b"synced") for content in found)
    assert {b"synced", b"synced+more", b"synced+mo"} <= found


def test_a_name_is_as_before_or_as_after(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = directory / "root"
    root.mkdir()
    power = PowerSupply(root)
    seen = set()
    with power.connected(monkeypatch):
        for name in ("replaced", "removed"):
            files.replace(root / name, b"old", Site.LAKE_REPLACE, durable=True)
        files.replace(root / "replaced", b"new", Site.LAKE_REPLACE, durable=False)
        files.remove(root / "removed", Site.LAKE_REMOVE)
        for number in range(100):
            power.image(target := directory / str(number), random.Random(number))
            seen.add(((target / "removed").exists(), (target / "replaced").read_bytes()))
    assert {(is_there, content) for is_there in (True, False) for content in (b"old", b"new")} <= seen


def test_the_power_fails_at_a_step_of_a_thread(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, after = directory / "root", directory / "after"
    root.mkdir()
    noted = []
    power = PowerSupply(root, Loss(3, after, random.Random(0), lambda: noted.append(True)))
    with power.connected(monkeypatch):
        files.replace(root / "a", b"a", Site.LAKE_REPLACE, durable=True)
        files.replace(root / "b", b"b", Site.LAKE_REPLACE, durable=True)
    assert noted == [True]
    assert power.is_lost
    assert not (after / "b").exists()

"""Staged writes killed at every step, and killed again while they recover: each committed row is there once."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss.model.paths import TablePath
from fluss.storage.failpoints import NAMES
from fluss.storage.store import Storage
from tests.crash.storage import staging_crash_driver as driver
from tests.crash.storage.driven import KILLED, run_driver
from tests.kit.storage.staging import check, create_all, staged_files, write

# What a run without a kill passes: the decision and the end of each of nine commits, appends to six buckets.
_POINTS = [
    *(name for name in NAMES if name.startswith("staging.")),
    *(
        f"staging.replace.{step}:{count}"
        for step in ("torn_write", "before_rename", "after_rename")
        for count in (5, 30)
    ),
    *(f"staging.remove.{step}:{count}" for step in ("before_remove", "after_remove") for count in (2, 5, 20)),
    *(
        f"catalog.commit.{step}:{count}"
        for step in ("before_commit", "after_commit")
        for count in (5, 6, 7, 8, 11, 14, 19, 21)
    ),
    *(
        f"segment.append.{step}:{count}"
        for step in ("before_write", "torn_write", "after_write")
        for count in (1, 3, 14, 25, 45)
    ),
    *(f"segment.commit.{step}:{count}" for step in ("before_sync", "after_sync") for count in (1, 2, 4, 9)),
    *(f"kv.commit.{step}:{count}" for step in ("before_commit", "after_commit") for count in (1, 2, 5)),
]
_DURING_RECOVERY = [
    "staging.remove.before_remove",
    "catalog.commit.before_commit",
    "catalog.commit.after_commit",
    "segment.append.torn_write",
    "segment.append.after_write",
    "segment.commit.before_sync",
    "kv.commit.after_commit",
]


def last_decided(storage: Storage, path: TablePath) -> int:
    """The batch that may come again; 0 when there is none yet."""
    table_id = storage.catalog.table(path).table_id
    for entry in storage.catalog.staged_queries().values():
        if entry.table_id == table_id:
            return max(0, entry.committed if entry.decided is None else entry.decided.batch_id)
    return 0


async def check_promises(root: Path, told: list[list[str]], *, recover: bool) -> None:
    """What was told is stored once; after the last batch and those behind it are written again, so is everything."""
    storage = await Storage.open(driver.options(root))
    try:
        await create_all(storage)
        if recover:
            await storage.staging.recover()
            assert all(entry.decided is None for entry in storage.catalog.staged_queries().values())
            for path in driver.PATHS:
                entry = storage.catalog.table(path)
                committed = [
                    e.committed for e in storage.catalog.staged_queries().values() if e.table_id == entry.table_id
                ]
                acknowledged = sum(words[:2] == ["committed", path.table] for words in told)
                count = committed[0] + 1 if committed else 0
                assert count >= acknowledged, "a commit that was acknowledged is lost"
                await check(storage, path, count)
        for path in driver.PATHS:
            for batch_id in range(last_decided(storage, path), driver.BATCHES):
                await write(storage, path, batch_id, 7)
            await check(storage, path, driver.BATCHES)
        assert staged_files(storage) == []
        assert storage.staging.size_bytes == 0
    finally:
        await storage.close()


async def test_without_a_fail_point_the_driver_ends_well(tmp_path: Path) -> None:
    code, told = run_driver(driver.run, str(tmp_path / "data"), None)
    assert code == 0
    assert told[-1] == ["done"]
    await check_promises(tmp_path / "data", told, recover=True)


@pytest.mark.parametrize(("number", "point"), list(enumerate(_POINTS)))
async def test_killed_at(tmp_path: Path, number: int, point: str) -> None:
    """Every second time the commits are carried out when they are repeated, and not before."""
    code, told = run_driver(driver.run, str(tmp_path / "data"), point)
    assert code == KILLED, f"{point} was never hit"
    await check_promises(tmp_path / "data", told, recover=number % 2 == 0)


@pytest.mark.parametrize("second", _DURING_RECOVERY)
@pytest.mark.parametrize("first", ["segment.append.after_write:15", "catalog.commit.after_commit:11"])
async def test_killed_again_while_it_recovers(tmp_path: Path, first: str, second: str) -> None:
    assert run_driver(driver.run, str(tmp_path / "data"), first)[0] == KILLED
    code, told = run_driver(driver.run, str(tmp_path / "data"), second)
    assert code == KILLED, f"{second} was never hit"
    await check_promises(tmp_path / "data", told, recover=True)

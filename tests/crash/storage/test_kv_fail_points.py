"""A primary-key table killed at every step: its rows are those of its changelog, and no acknowledged put is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss.storage.failpoints import NAMES
from fluss.storage.store import Storage
from tests.crash.storage import kv_crash_driver as driver
from tests.crash.storage.driven import KILLED, run_driver
from tests.kit.storage.kv_tables import Table, by_id, fold

_POINTS = [
    *(name for name in NAMES if name.startswith("kv.")),
    *(f"kv.commit.{step}:{count}" for step in ("before_commit", "after_commit") for count in (2, 7, 12)),
    *(f"segment.append.{step}:{count}" for step in ("before_write", "torn_write", "after_write") for count in (1, 20)),
    *(f"segment.commit.{step}:{count}" for step in ("before_sync", "after_sync") for count in (1, 5)),
    "segment.create.after_create:2",
    "kv.restore.after_remove:3",
]


async def check_promises(root: Path, told: list[list[str]]) -> None:
    storage = await Storage.open(driver.options(str(root)))
    try:
        if not storage.catalog.table_exists(driver.T):
            assert not told
            return
        table = Table(storage, driver.T)
        puts = len(table.log_batches())
        acknowledged = max((int(words[1]) + 1 for words in told if words[0] == "ack"), default=0)
        assert puts >= acknowledged, "an acknowledged put is lost"
        expected = by_id(driver.rows_after(puts).values())
        assert by_id(fold(table.changelog()).values()) == expected
        assert await table.all_rows() == expected
        assert await table.kv().row_count() == len(expected)
        # The client sends what it was not told of again, and goes on.
        for sequence in range(max(0, puts - 3), puts + 3):
            rows, deletes = driver.batch(sequence)
            await table.kv().put(table.batch(rows, deletes, writer_id=driver.WRITER_ID, sequence=sequence)).applied
        assert await table.all_rows() == by_id(driver.rows_after(puts + 3).values())
        assert len(table.log_batches()) == puts + 3
        await check_numbers(storage, told)
    finally:
        await storage.close()


async def check_numbers(storage: Storage, told: list[list[str]]) -> None:
    """None that was told comes again."""
    if storage.catalog.table_exists(driver.NUMBERED):
        numbers = [int(word) for words in told if words[0] == "numbers" for word in words[1:]]
        numbers += await driver.number(Table(storage, driver.NUMBERED), range(1_000, 1_010))
        assert len(set(numbers)) == len(numbers)


async def test_without_a_fail_point_the_driver_ends_well(tmp_path: Path) -> None:
    code, told = run_driver(driver.run, str(tmp_path / "data"), None)
    assert code == 0
    assert told[-1] == ["done"]
    await check_promises(tmp_path / "data", told)


@pytest.mark.parametrize("point", _POINTS)
async def test_killed_at(tmp_path: Path, point: str) -> None:
    code, told = run_driver(driver.run, str(tmp_path / "data"), point)
    assert code == KILLED, f"{point} was never hit"
    await check_promises(tmp_path / "data", told)

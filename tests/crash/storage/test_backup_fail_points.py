"""A backup killed at every step: the source loses nothing, and what is there of the backup is whole or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket
from fluss.storage.backup import files
from fluss.storage.backup.restore import check, restore
from fluss.storage.failpoints import NAMES
from fluss.storage.store import Storage
from tests.crash.storage import backup_crash_driver as driver
from tests.crash.storage.driven import KILLED, run_driver
from tests.kit.storage.kv_tables import Table
from tests.kit.storage.logs import texts

_POINTS = [
    *(name for name in NAMES if name.startswith("backup.")),
    *(f"backup.hold.{step}:9" for step in ("after_create", "before_remove")),
    *(f"backup.copy.{step}:5" for step in ("after_create", "before_write", "torn_write", "after_sync")),
    # The first file is the format version, the second is what makes it a backup.
    *(f"backup.finish.{step}:2" for step in ("torn_write", "before_rename", "after_rename", "after_sync_directory")),
]


async def check_data(root: Path) -> None:
    storage = await Storage.open(driver.options(root))
    try:
        assert not storage.held_path.exists()
        log = storage.bucket(TableBucket(storage.catalog.table(driver.LOG).table_id, 0))
        assert texts(log) == [str(number) for number in range(driver.BATCHES)]
        assert log.last_sequence(7) == driver.BATCHES - 1
        assert [row["id"] for row in await Table(storage, driver.ROWS).all_rows()] == list(range(driver.BATCHES))
    finally:
        await storage.close()


async def check_backup(target: Path, *, is_done: bool) -> None:
    if not (target / files.NAME).exists():
        assert not is_done
        with pytest.raises(FlussError, match="not a finished backup"):
            files.read(target)
        return
    manifest = files.read(target)
    check(target, manifest)
    restored = target.with_name("restored")
    restore(target, manifest, restored)
    await check_data(restored)


async def test_without_a_fail_point_the_driver_ends_well(tmp_path: Path) -> None:
    code, told = run_driver(driver.run, str(tmp_path / "data"), str(tmp_path / "deep" / "backup"), None)
    assert (code, told) == (0, [["written"], ["backup"], ["failed"], ["done"]])
    await check_data(tmp_path / "data")
    await check_backup(tmp_path / "deep" / "backup", is_done=True)
    assert not (tmp_path / "deep" / "backup.failed").exists()


@pytest.mark.parametrize("point", _POINTS)
async def test_killed_at(tmp_path: Path, point: str) -> None:
    root, target = tmp_path / "data", tmp_path / "deep" / "backup"
    code, told = run_driver(driver.run, str(root), str(target), point)
    assert code == KILLED, f"{point} was never hit"
    await check_data(root)
    await check_backup(target, is_done=["backup"] in told)

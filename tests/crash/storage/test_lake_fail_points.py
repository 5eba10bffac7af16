"""Tiering killed at every step: what was registered stays, and what was prepared last can still be registered."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss.model.paths import TableBucket
from fluss.storage.failpoints import NAMES
from fluss.storage.lake_snapshots import offsets_of
from fluss.storage.store import Storage
from tests.crash.storage import lake_crash_driver as driver
from tests.crash.storage.driven import KILLED, run_driver

_POINTS = [
    *(name for name in NAMES if name.startswith("lake.")),
    *(f"lake.replace.{step}:3" for step in ("torn_write", "before_sync", "before_rename", "after_rename")),
    "lake.remove.before_remove:3",
    # The schema, the database and the table come first; then each round has one.
    *(f"catalog.commit.{step}:{count}" for step in ("before_commit", "after_commit") for count in (4, 5, 6)),
]


async def check_promises(root: Path, told: list[list[str]]) -> None:
    storage = await Storage.open(driver.options(root))
    try:
        if not storage.catalog.table_exists(driver.TABLE):
            assert not told
            return
        table = storage.catalog.table(driver.TABLE)
        bucket = TableBucket(table.table_id, 0)
        latest = storage.lake.latest(table.table_id)
        registered = [words for words in told if words[0] == "registered"]
        if registered:
            assert latest is not None
            assert latest.snapshot_id >= int(registered[-1][1])
        prepared = [words for words in told if words[0] == "prepared"]
        if prepared:
            # The lake may have a snapshot with this path, whether or not it was registered.
            _, number, end, path = prepared[-1]
            await storage.lake.commit(table.table_id, int(number), path, readable=True, earliest_to_keep=None)
            latest = storage.lake.latest(table.table_id)
            assert latest is not None
            assert (latest.snapshot_id, offsets_of(latest)) == (int(number), {bucket: int(end)})
        if latest is not None:
            assert storage.lake.log_kept_from(bucket) <= storage.bucket(bucket).high_watermark
        directory = storage.lake_offsets_path(table.table_id)
        assert not list(directory.glob("*.tmp"))
        for entry in storage.catalog.lake_snapshots(table.table_id):
            assert (directory / entry.file_name).exists()
    finally:
        await storage.close()


async def test_without_a_fail_point_the_driver_ends_well(tmp_path: Path) -> None:
    code, told = run_driver(driver.run, str(tmp_path / "data"), None)
    assert code == 0
    assert told[-1] == ["done"]
    await check_promises(tmp_path / "data", told)
    assert len(list(tmp_path.glob("data/tables/*/lake-offsets/*"))) == 1


@pytest.mark.parametrize("point", _POINTS)
async def test_killed_at(tmp_path: Path, point: str) -> None:
    root = str(tmp_path / "data")
    code, told = run_driver(driver.run, root, point)
    assert code == KILLED, f"{point} was never hit"
    await check_promises(tmp_path / "data", told)
    code, told = run_driver(driver.run, root, None)
    assert code == 0
    assert told[-1] == ["done"]
    await check_promises(tmp_path / "data", told)

"""A simulated disk: what is synced survives a power loss, what is not may be gone, torn or out of order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from fluss.doors import replaced
from fluss.storage import files
from fluss.storage.failpoints import Site
from fluss.testing.sim.disk import SimDisk
from fluss.testing.sim.scheduler import Scheduler, SimProcess, Trace

SITE = Site.SEGMENT_APPEND
SEEDS = range(60)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SimDisk]:
    scheduler = Scheduler(1, Trace())
    scheduler.adopt(SimProcess("test", "here"))
    made = SimDisk(tmp_path / "disk", scheduler, lambda: 10**18 + scheduler.now_ns)
    with replaced(files, os=made):
        yield made


def written(disk: SimDisk, name: str, data: bytes, *, synced: bool) -> Path:
    path = disk.root / name
    fd = files.create(path, SITE)
    files.write_at(fd, data, 0, SITE)
    if synced:
        files.sync(fd, SITE)
    files.close(fd)
    return path


def test_what_is_synced_with_its_name_stays(disk: SimDisk) -> None:
    path = written(disk, "file", b"safe", synced=True)
    files.sync_directory(disk.root, SITE)
    for seed in SEEDS:
        disk.lose_power(Random(seed))
        assert path.read_bytes() == b"safe"


def test_a_name_that_is_not_synced_may_be_lost(disk: SimDisk) -> None:
    found = set()
    for seed in SEEDS:
        path = written(disk, f"file{seed}", b"safe", synced=True)
        disk.lose_power(Random(seed))
        found.add(path.exists())
    assert found == {True, False}


def test_bytes_that_are_not_synced_may_be_anything_of_what_was_written(disk: SimDisk) -> None:
    found = set()
    for seed in SEEDS:
        path = written(disk, f"file{seed}", b"old", synced=True)
        files.sync_directory(disk.root, SITE)
        fd = files.open_existing(path, writable=True)
        files.write_at(fd, b"newer", 0, SITE)
        files.close(fd)
        disk.lose_power(Random(seed))
        found.add(path.read_bytes())
    assert {b"old", b"newer"} < found


def test_a_kill_loses_nothing(disk: SimDisk) -> None:
    path = written(disk, "file", b"written", synced=False)
    disk.reopen()
    assert path.read_bytes() == b"written"
    fd = files.open_existing(path, writable=True)
    files.sync(fd, SITE)
    files.sync_directory(disk.root, SITE)
    disk.lose_power(Random(1))
    assert path.read_bytes() == b"written"


def test_what_a_sync_failed_for_is_not_brought_by_the_next(disk: SimDisk) -> None:
    found = set()
    for seed in SEEDS:
        path = written(disk, f"file{seed}", b"", synced=True)
        files.sync_directory(disk.root, SITE)
        fd = files.open_existing(path, writable=True)
        files.write_at(fd, b"data", 0, SITE)
        disk.faults.sync_error_share = 1.0
        with pytest.raises(OSError, match="Input/output"):
            files.sync(fd, SITE)
        disk.faults.sync_error_share = 0.0
        files.sync(fd, SITE)
        files.close(fd)
        disk.lose_power(Random(seed))
        found.add(path.read_bytes())
    assert b"" in found
    assert b"data" in found


def test_a_full_disk_takes_nothing(disk: SimDisk) -> None:
    disk.faults.full_until_s = 60.0
    with pytest.raises(OSError, match="No space"):
        files.create(disk.root / "file", SITE)
    assert os.listdir(disk.root) == []

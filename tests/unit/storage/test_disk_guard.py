"""Before the disk is full writes are refused, reads go on, and writing goes on by itself when there is room again."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluss.doors import clock as machine_clock
from fluss.doors import replaced
from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TableBucket, TablePath
from fluss.storage import failpoints
from fluss.storage.directory import CHECK_INTERVAL_S, DiskGuard, disk_free_bytes, free_bytes_limit
from fluss.storage.store import Storage, StorageOptions
from tests.kit.storage.logs import append, texts

from . import full_disk_driver

MIB = 1 << 20
T = TablePath("fluss", "t")


class Disk:
    """Free space as a test wants it, and how often it was looked at."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        self.looks = 0

    def __call__(self, _: Path) -> int:
        self.looks += 1
        return self.free_bytes


@pytest.fixture(autouse=True)
def _disarm() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.fixture
def clock() -> Iterator[list[float]]:
    """Seconds, to be changed by the test."""
    now_s = [1_000.0]
    with replaced(machine_clock, monotonic=lambda: now_s[0]):
        yield now_s


def test_default_limit() -> None:
    assert free_bytes_limit(None, 256 * MIB) == 1_024 * MIB
    assert free_bytes_limit(None, 1_024 * MIB) == 2_048 * MIB
    assert free_bytes_limit(5, 256 * MIB) == 5


def test_refuses_below_the_limit_and_goes_on_at_twice_that(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk(100)
    guard = DiskGuard(Path("data"), 100, disk)
    guard.admit()
    disk.free_bytes = 99
    clock[0] += CHECK_INTERVAL_S
    for _ in range(3):
        with pytest.raises(FlussError, match="nearly full") as raised:
            guard.admit()
        assert raised.value.error_code == ErrorCode.LOG_STORAGE_EXCEPTION
        assert raised.value.is_retriable
    assert "data has 99 bytes free" in caplog.text
    assert guard.refused == 3
    for free_bytes in (100, 199):
        disk.free_bytes = free_bytes
        clock[0] += CHECK_INTERVAL_S
        with pytest.raises(FlussError):
            guard.admit()
    disk.free_bytes = 200
    clock[0] += CHECK_INTERVAL_S
    guard.admit()
    assert not guard.is_low


def test_looks_seldom_but_never_after_too_many_bytes(clock: list[float]) -> None:
    disk = Disk(1_000 * MIB)
    guard = DiskGuard(Path("data"), 80 * MIB, disk)
    for _ in range(1_000):
        guard.admit(1)
    assert disk.looks == 1
    guard.admit(10 * MIB)
    assert disk.looks == 2
    disk.free_bytes = 0
    with pytest.raises(FlussError):
        guard.admit(10 * MIB)
    # Refused writes are not written, so however large they are they give no reason to look.
    for _ in range(100):
        with pytest.raises(FlussError):
            guard.admit(10 * MIB)
    assert disk.looks == 3


def test_switched_off() -> None:
    disk = Disk(0)
    DiskGuard(Path("data"), 0, disk).admit(1)
    assert disk.looks == 0


def test_real_free_space(tmp_path: Path) -> None:
    free_bytes = disk_free_bytes(tmp_path)
    assert 0 < free_bytes <= shutil.disk_usage(tmp_path).total


async def test_a_log_refuses_appends_and_serves_reads_and_repeats(tmp_path: Path, clock: list[float]) -> None:
    storage = await Storage.open(StorageOptions(tmp_path / "data"))
    try:
        table = await storage.catalog.create_table(T, "{}", "{}", 1)
        log = storage.bucket(TableBucket(table.table_id, 0))
        first = append(log, "one", writer_id=1, sequence=0)
        await first.durable
        disk = storage.disk_guard._free_bytes = Disk(0)
        clock[0] += CHECK_INTERVAL_S
        with pytest.raises(FlussError, match="nearly full"):
            append(log, "two", writer_id=1, sequence=1)
        assert texts(log) == ["one"]
        # The client that missed the first answer still gets it.
        assert append(log, "one", writer_id=1, sequence=0).base_offset == first.base_offset
        disk.free_bytes = 10**15
        clock[0] += CHECK_INTERVAL_S
        await append(log, "two", writer_id=1, sequence=1).durable
        assert texts(log) == ["one", "two"]
    finally:
        await storage.close()


_WRITES = [
    name
    for name in failpoints.NAMES
    if name.startswith(("segment.append", "segment.create", "bucket.directory", "index.", "writers."))
    and "sync" not in name
]


@pytest.mark.parametrize("name", _WRITES)
async def test_no_space_at_any_write_leaves_nothing_half_done(tmp_path: Path, name: str) -> None:
    options = StorageOptions(tmp_path / "data", segment_size_bytes=300)
    storage = await Storage.open(options)
    table = await storage.catalog.create_table(T, "{}", "{}", 1)
    bucket = TableBucket(table.table_id, 0)
    stored: list[str] = []
    failpoints.arm(f"{name}:1:enospc")
    for number in range(12):
        text = f"row {number}".ljust(60)
        try:
            await append(storage.bucket(bucket), text, writer_id=1, sequence=len(stored)).durable
        except FlussError as error:
            if error.error_code != ErrorCode.LOG_STORAGE_EXCEPTION:
                raise
            assert texts(storage.bucket(bucket)) == stored
            continue
        stored.append(text)
    assert len(stored) >= 11
    assert texts(storage.bucket(bucket)) == stored
    await storage.close()
    storage = await Storage.open(options)
    assert texts(storage.bucket(bucket)) == stored
    await storage.close()


def _small_file_system(directory: Path) -> list[str]:
    """The start of a command that sees a file system of 16 MiB there; empty where that can't be had."""
    mount = f'mount -t tmpfs -o size=16m tmpfs "{directory}" && exec "$@"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if shutil.which("unshare") is None:
        return []
    return command if subprocess.run([*command, "true"], check=False, capture_output=True).returncode == 0 else []


def _limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (full_disk_driver.FILE_BYTES_MAX,) * 2)


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    directory = tmp_path / "small"
    directory.mkdir()
    small = _small_file_system(directory)
    command = [*small, sys.executable, "-m", full_disk_driver.__name__, str(directory), "disk" if small else "file"]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[3],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=None if small else _limit_file_size,
    )
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout

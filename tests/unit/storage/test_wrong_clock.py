"""A wrong clock removes nothing and stamps nothing that does not pass, with the clock in the test's hand."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fluss.model.clock import SETTLE_MS, Clock
from fluss.model.paths import TableBucket, TablePath
from fluss.storage.directory import CLOCK_NAME, read_note
from fluss.storage.kv.snapshots import LEASE_MS_MAX, KvLeases
from fluss.storage.log.retention import Retention
from fluss.storage.store import Storage, StorageOptions
from tests.kit.storage.logs import NOW_MS, append, read_all, texts, trusted
from tests.kit.storage.staging import LOG, create_log, log_batch, stage, staged_files

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
YEARS_MS = 50 * 365 * DAY_MS
JUMPS = (8 * DAY_MS, -8 * DAY_MS, YEARS_MS, -YEARS_MS)
SEGMENT_BYTES = 300  # two batches


class World:
    def __init__(self) -> None:
        self.wall_ms = NOW_MS
        self.elapsed_ms = 0
        self.clock = Clock(SETTLE_MS, wall_ms=lambda: self.wall_ms, elapsed_ms=lambda: self.elapsed_ms)

    def pass_by(self, span_ms: int) -> None:
        self.wall_ms += span_ms
        self.elapsed_ms += span_ms


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def storage(tmp_path: Path, world: World) -> AsyncIterator[Storage]:
    opened = await open_storage(tmp_path, world.clock)
    try:
        yield opened
    finally:
        await opened.close()


async def open_storage(root: Path, clock: Clock) -> Storage:
    return await Storage.open(StorageOptions(root, segment_size_bytes=SEGMENT_BYTES, clock=clock))


async def make(storage: Storage, name: str = "t", ttl: str = "1 h", **custom: str) -> TableBucket:
    table_json = json.dumps({"properties": {"table.log.ttl": ttl}, "custom_properties": custom})
    table = await storage.catalog.create_table(TablePath("fluss", name), table_json, "{}", 1)
    return TableBucket(table.table_id, 0)


async def write(storage: Storage, bucket: TableBucket, count: int = 1) -> None:
    """Batches of one row, two to a segment, stamped by the storage's clock; files have the same times."""
    log = storage.bucket(bucket)
    for _ in range(count):
        now_ms = storage.clock.now_ms()
        await append(log, f"row {log.log_end_offset}".ljust(80), records=1, now_ms=now_ms).durable
        path = max(storage.bucket_path(bucket).glob("*.log"))
        os.utime(path, ns=(now_ms * 1_000_000, now_ms * 1_000_000))


def stamps(storage: Storage, bucket: TableBucket) -> list[int]:
    return [header.commit_timestamp_ms for header, _ in read_all(storage.bucket(bucket))]


# --- what is removed by its age


@pytest.mark.parametrize("jump_ms", JUMPS)
async def test_a_jump_removes_no_row(world: World, storage: Storage, jump_ms: int) -> None:
    bucket = await make(storage)
    by_size = await make(storage, "by_size", ttl="0 s", **{"log.retention.size-bytes": "1"})
    for one in (bucket, by_size):
        await write(storage, one, 6)
    world.pass_by(SETTLE_MS)
    passes = Retention(storage)
    world.wall_ms += jump_ms
    for _ in range(3):
        await passes.run_once()
        await write(storage, bucket)
        world.pass_by(1_000)
    assert storage.bucket(bucket).log_start_offset == 0
    assert len(texts(storage.bucket(bucket))) == 9
    # What goes by its size does not depend on the clock, and a disk must not fill up.
    assert storage.bucket(by_size).log_start_offset == 4
    world.wall_ms -= jump_ms
    await passes.run_once()
    assert storage.bucket(bucket).log_start_offset == 6
    assert len(texts(storage.bucket(bucket))) == 3


async def test_a_clock_that_is_ahead_at_a_start_removes_no_row(tmp_path: Path, world: World) -> None:
    storage = await open_storage(tmp_path, world.clock)
    bucket = await make(storage)
    await write(storage, bucket, 6)
    await storage.close()
    later = World()
    later.wall_ms += 8 * DAY_MS
    storage = await open_storage(tmp_path, Clock(wall_ms=lambda: later.wall_ms, elapsed_ms=lambda: later.elapsed_ms))
    await Retention(storage).run_once()
    assert storage.bucket(bucket).log_start_offset == 0
    # It was right: idle tables expire, an hour later.
    later.pass_by(SETTLE_MS)
    await Retention(storage).run_once()
    assert storage.bucket(bucket).log_start_offset == 6
    await storage.close()


@pytest.mark.parametrize("jump_ms", JUMPS)
async def test_a_jump_removes_no_staged_rows(world: World, storage: Storage, jump_ms: int) -> None:
    entry = await create_log(storage)
    await stage(storage, entry.table_id, [(TableBucket(entry.table_id, 0), log_batch("a"))])
    world.pass_by(SETTLE_MS)
    await storage.staging.run_once()
    world.wall_ms += jump_ms
    await storage.staging.run_once()
    assert len(staged_files(storage)) == 1
    world.wall_ms -= jump_ms
    world.pass_by(DAY_MS)
    await storage.staging.run_once()
    assert not staged_files(storage)


async def test_staged_rows_of_the_future_are_as_old_as_the_first_look_at_them(tmp_path: Path) -> None:
    storage = await open_storage(tmp_path, trusted(lambda: NOW_MS))
    entry = await create_log(storage, LOG)
    await stage(storage, entry.table_id, [(TableBucket(entry.table_id, 0), log_batch("a"))])
    for path in storage.staging_path(entry.table_id).iterdir():
        os.utime(path, ((NOW_MS + YEARS_MS) / 1_000,) * 2)
    await storage.close()
    now_ms = NOW_MS + HOUR_MS
    storage = await open_storage(tmp_path, trusted(lambda: now_ms))
    await storage.staging.run_once()
    assert len(staged_files(storage)) == 1
    now_ms += DAY_MS + 1
    await storage.staging.run_once()
    assert not staged_files(storage)
    await storage.close()


@pytest.mark.parametrize("jump_ms", JUMPS)
async def test_a_jump_ends_no_lease(world: World, storage: Storage, jump_ms: int) -> None:
    bucket = await make(storage)
    leases = KvLeases(storage.catalog, storage.clock)
    world.pass_by(SETTLE_MS)
    await leases.put("reader", HOUR_MS, {bucket: 3})
    world.wall_ms += jump_ms
    world.pass_by(1_000)
    assert leases.leased() == {bucket: {3}}
    await leases.put("another", HOUR_MS, {})
    assert set(storage.catalog.leases()) == {"reader", "another"}
    world.wall_ms -= jump_ms
    assert leases.leased() == {bucket: {3}}
    world.pass_by(HOUR_MS)
    assert not leases.leased()


async def test_a_lease_of_a_clock_that_was_ahead_ends_at_last(storage: Storage) -> None:
    bucket = await make(storage)
    await KvLeases(storage.catalog, trusted(lambda: NOW_MS + YEARS_MS)).put("reader", HOUR_MS, {bucket: 3})
    leases = KvLeases(storage.catalog, trusted(lambda: NOW_MS))
    await leases.put("another", 1, {})
    assert storage.catalog.leases()["reader"].expires_ms == NOW_MS + LEASE_MS_MAX


@pytest.mark.parametrize("modified_ms", [0, NOW_MS - 30 * DAY_MS])
async def test_the_time_of_a_file_removes_nothing(world: World, storage: Storage, modified_ms: int) -> None:
    """The system stamps files with the wall clock, which may have been wrong; an index may be lost."""
    bucket = await make(storage)
    world.pass_by(SETTLE_MS)
    await write(storage, bucket, 6)
    for path in storage.bucket_path(bucket).iterdir():
        if path.suffix == ".index":
            path.unlink()
        else:
            os.utime(path, (modified_ms / 1_000, modified_ms / 1_000))
    await Retention(storage).run_once()
    assert storage.bucket(bucket).log_start_offset == 0
    world.pass_by(HOUR_MS + 1)
    await Retention(storage).run_once()
    assert storage.bucket(bucket).log_start_offset == 6


# --- commit times


@pytest.mark.parametrize("jump_ms", JUMPS)
async def test_one_write_at_a_wrong_time_does_not_stamp_later_rows(
    world: World, storage: Storage, jump_ms: int
) -> None:
    bucket = await make(storage)
    expected = []
    for at_ms in (0, jump_ms, jump_ms, 0):
        world.wall_ms = NOW_MS + world.elapsed_ms + at_ms
        await write(storage, bucket)
        expected.append(NOW_MS + world.elapsed_ms)
        world.pass_by(1_000)
    assert stamps(storage, bucket) == expected
    log = storage.bucket(bucket)
    assert [log.offset_for_timestamp(at_ms, storage.clock.now_ms()) for at_ms in expected] == [0, 1, 2, 3]


async def test_a_clock_that_was_set_back_keeps_the_order(world: World, storage: Storage) -> None:
    bucket = await make(storage)
    world.pass_by(SETTLE_MS)
    await write(storage, bucket, 2)
    last_ms = world.wall_ms
    world.wall_ms -= 2 * HOUR_MS
    world.clock.confirm()
    await write(storage, bucket, 3)
    assert stamps(storage, bucket) == [last_ms] * 5
    world.pass_by(2 * HOUR_MS + 5)
    await write(storage, bucket)
    assert stamps(storage, bucket)[-1] == last_ms + 5


async def make_poisoned(root: Path) -> TableBucket:
    """Two rows of the right time, three of a clock that was fifty years ahead all the time."""
    now_ms = NOW_MS
    storage = await open_storage(root, trusted(lambda: now_ms))
    bucket = await make(storage)
    await write(storage, bucket, 1)
    now_ms += YEARS_MS
    await write(storage, bucket, 4)
    await storage.close()
    return bucket


async def test_rows_of_the_future_on_disk_do_not_stamp_later_ones(tmp_path: Path) -> None:
    bucket = await make_poisoned(tmp_path)
    now_ms = NOW_MS + HOUR_MS
    storage = await open_storage(tmp_path, trusted(lambda: now_ms))
    expected = []
    for _ in range(4):
        await write(storage, bucket)
        expected.append(now_ms)
        now_ms += 1_000
    assert stamps(storage, bucket)[5:] == expected
    # Those of a wrong time count as committed together with the first one of a right time.
    for _ in range(2):
        log = storage.bucket(bucket)
        assert [log.offset_for_timestamp(at_ms, now_ms) for at_ms in expected] == [1, 6, 7, 8]
        assert log.offset_for_timestamp(NOW_MS, now_ms) == 0
        assert log.offset_for_timestamp(now_ms, now_ms) == 9
        assert log.offset_for_timestamp(NOW_MS + 1, now_ms) == 1
        await storage.close()
        storage = await open_storage(tmp_path, trusted(lambda: now_ms))
    await storage.close()


async def test_rows_of_the_future_go_with_those_behind_them(tmp_path: Path) -> None:
    bucket = await make_poisoned(tmp_path)
    now_ms = NOW_MS + 5 * HOUR_MS
    storage = await open_storage(tmp_path, trusted(lambda: now_ms))
    await Retention(storage).run_once()
    # When they were committed is not known: what came after them is not there yet.
    assert stamps(storage, bucket)[-1] == NOW_MS + YEARS_MS
    await write(storage, bucket, 3)
    await Retention(storage).run_once()
    assert storage.bucket(bucket).log_start_offset <= 2
    now_ms += HOUR_MS + 1
    await Retention(storage).run_once()
    assert storage.bucket(bucket).log_start_offset == 8
    await storage.close()


# --- what one run tells the next


async def test_the_note(tmp_path: Path, world: World) -> None:
    storage = await open_storage(tmp_path, world.clock)
    before = read_note(tmp_path)
    assert before is not None
    assert not before.is_settled
    world.pass_by(SETTLE_MS)
    storage.clock.now_ms()
    await storage.close()
    after = read_note(tmp_path)
    assert after is not None
    assert (after.is_settled, after.time_ms) == (True, world.wall_ms)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"[" * 4_000, b"\xff", b'{"version": 1, "note": []}'])
async def test_a_note_that_is_damaged_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CLOCK_NAME).write_bytes(content)
    assert read_note(tmp_path) is None


async def test_one_flipped_digit_of_a_note_is_noticed(tmp_path: Path, world: World) -> None:
    await (await open_storage(tmp_path, world.clock)).close()
    path = tmp_path / CLOCK_NAME
    path.write_bytes(path.read_bytes().replace(str(NOW_MS).encode(), str(NOW_MS + 1).encode()))
    assert read_note(tmp_path) is None

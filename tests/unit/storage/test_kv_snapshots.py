"""Snapshots of buckets: when they are made, which stay, what a crash leaves, and how far the log may be cut."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket, TablePath
from fluss.storage import failpoints
from fluss.storage.failpoints import STEPS, Site, Step
from fluss.storage.kv import snapshot_files as on_disk
from fluss.storage.kv.rocks import RocksStore, open_store
from fluss.storage.kv.rocks_settings import Resources
from fluss.storage.kv.snapshots import LEASE_MS_MAX, KvLeases, KvSnapshots
from fluss.storage.kv.store import MEMORY_BYTES_MIN, KvState
from fluss.storage.log.retention import Retention
from fluss.storage.store import Storage, StorageOptions
from tests.kit.storage.logs import NOW_MS, append, trusted

T = TablePath("fluss", "t")
SEGMENT_BYTES = 300  # two batches
_PROCESSES = multiprocessing.get_context("forkserver")
_POINTS = [f"{site}.{step}" for site in (Site.KV_CHECKPOINT, Site.KV_CHECKPOINT_REMOVE) for step in STEPS[site]]


class Rows:
    """The rows of buckets in stores of their own, written beside the log."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._resources = Resources(MEMORY_BYTES_MIN)
        self._stores: dict[TableBucket, RocksStore] = {}

    def __call__(self, bucket: TableBucket) -> _BucketRows:
        return _BucketRows(self.store(bucket))

    def store(self, bucket: TableBucket) -> RocksStore:
        if bucket not in self._stores:
            self._stores[bucket] = open_store(self._storage.bucket_path(bucket) / "kv", self._resources)
        return self._stores[bucket]

    async def put(self, bucket: TableBucket, count: int = 1) -> None:
        """Rows in the log and in the store; a row has the offset of its batch as its key."""
        log = self._storage.bucket(bucket)
        for _ in range(count):
            offset = log.log_end_offset
            await append(log, f"row {offset}".ljust(80), records=1).durable
            self.store(bucket).write([b"%06d" % offset], [b"value"], [], KvState(offset + 1, offset + 1))

    def close(self) -> None:
        for store in self._stores.values():
            store.close()
        self._stores.clear()


class _BucketRows:
    def __init__(self, store: RocksStore) -> None:
        self._store = store

    async def checkpoint(self, directory: Path) -> KvState:
        return await asyncio.get_running_loop().run_in_executor(None, self._store.checkpoint, directory)


class World:
    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.rows = Rows(storage)
        self.now_ms = NOW_MS
        leases = KvLeases(storage.catalog, trusted(lambda: self.now_ms))
        self.snapshots = KvSnapshots(storage, self.rows, leases=leases, on_demand_gap_ms=0)

    async def make_table(self, properties: Mapping[str, str] | None = None, buckets: int = 1) -> TableBucket:
        given = dict(properties or {})
        table_json = {"schema": {"primary_key": ["id"]}, "properties": given, "custom_properties": given}
        table = await self.storage.catalog.create_table(T, json.dumps(table_json), "{}", buckets)
        return TableBucket(table.table_id, 0)

    def names(self, bucket: TableBucket) -> list[str]:
        directory = self.storage.bucket_path(bucket) / "snapshots"
        return sorted(os.listdir(directory)) if directory.exists() else []

    async def close(self) -> None:
        self.rows.close()
        await self.storage.close()


async def open_world(root: Path) -> World:
    return World(await Storage.open(StorageOptions(root, segment_size_bytes=SEGMENT_BYTES)))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    opened = await open_world(tmp_path / "data")
    try:
        yield opened
    finally:
        failpoints.disarm()
        await opened.close()


def rows_in(directory: Path, scratch: Path) -> int:
    """How many rows a snapshot has: it is opened as a copy, for opening a store writes to it."""
    shutil.copytree(directory, scratch)
    store = open_store(scratch, Resources(MEMORY_BYTES_MIN))
    try:
        assert len(store.scan().keys) == store.state.row_count
        return store.state.row_count
    finally:
        store.close()
        shutil.rmtree(scratch)


async def test_buckets_that_changed_get_one_and_two_stay(world: World, tmp_path: Path) -> None:
    first = await world.make_table(buckets=2)
    second = TableBucket(first.table_id, 1)
    await world.snapshots.run_once()
    assert world.names(first) == []
    await world.rows.put(first, 3)
    await world.snapshots.run_once()
    assert (world.names(first), world.names(second)) == (["0-3"], [])
    await world.rows.put(second, 2)
    await world.snapshots.run_once()
    assert (world.names(first), world.names(second)) == (["0-3"], ["0-2"])
    for _ in range(3):
        await world.rows.put(first)
        await world.snapshots.run_once()
    assert (world.names(first), world.names(second)) == (["2-5", "3-6"], ["0-2"])
    path = world.storage.bucket_path(first) / "snapshots"
    assert [rows_in(path / name, tmp_path / "copy") for name in ("2-5", "3-6")] == [5, 6]


async def test_ids_go_on_after_a_restart_and_nothing_is_made_anew(tmp_path: Path) -> None:
    world = await open_world(tmp_path / "data")
    bucket = await world.make_table()
    for _ in range(3):
        await world.rows.put(bucket)
        await world.snapshots.run_once()
    await world.close()
    world = await open_world(tmp_path / "data")
    await world.snapshots.run_once()
    assert world.names(bucket) == ["1-2", "2-3"]
    assert world.storage.open_logs == 0
    await world.rows.put(bucket)
    await world.snapshots.run_once()
    assert world.names(bucket) == ["2-3", "3-4"]
    await world.close()


async def test_a_log_table_gets_none(world: World) -> None:
    table = await world.storage.catalog.create_table(T, "{}", "{}", 1)
    bucket = TableBucket(table.table_id, 0)
    await append(world.storage.bucket(bucket), "row").durable
    await world.snapshots.run_once()
    assert world.names(bucket) == []


async def test_rows_that_were_not_covered_are_seen_the_next_time(world: World) -> None:
    bucket = await world.make_table()
    await world.rows.put(bucket, 2)
    # In the log, but not in the store yet.
    await append(world.storage.bucket(bucket), "late", records=1).durable
    await world.snapshots.run_once()
    assert world.names(bucket) == ["0-2"]
    world.rows.store(bucket).write([b"late"], [b"value"], [], KvState(3, 3))
    await world.snapshots.run_once()
    assert world.names(bucket) == ["0-2", "1-3"]
    await world.snapshots.run_once()
    assert world.names(bucket) == ["0-2", "1-3"]


async def test_a_failed_one_does_not_stop_the_others(world: World, caplog: pytest.LogCaptureFixture) -> None:
    first = await world.make_table(buckets=2)
    second = TableBucket(first.table_id, 1)
    for bucket in (first, second):
        await world.rows.put(bucket)
    failpoints.arm(f"{Site.KV_CHECKPOINT}.{Step.BEFORE_RENAME}:1:eio")
    await world.snapshots.run_once()
    assert "no snapshot could be made" in caplog.text
    assert (on_disk.list_snapshots(world.storage.bucket_path(first)), world.names(second)) == ([], ["0-1"])
    await world.snapshots.run_once()
    assert (world.names(first), world.names(second)) == (["0-1"], ["0-1"])


def work_until_killed(root: str, fail_point: str) -> None:
    async def work() -> None:
        world = await open_world(Path(root))
        bucket = await world.make_table()
        await world.rows.put(bucket)
        failpoints.arm(fail_point)
        while True:
            await world.snapshots.run_once()
            await world.rows.put(bucket)

    asyncio.run(work())


@pytest.mark.parametrize("point", [*_POINTS, *(f"{point}:4" for point in _POINTS if "create" not in point)])
async def test_killed_at_any_step_each_snapshot_is_whole(tmp_path: Path, point: str) -> None:
    process = _PROCESSES.Process(target=work_until_killed, args=(str(tmp_path / "data"), point))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    world = await open_world(tmp_path / "data")
    try:
        bucket = TableBucket(world.storage.catalog.table(T).table_id, 0)
        found = on_disk.list_snapshots(world.storage.bucket_path(bucket))
        for snapshot in found:
            assert rows_in(snapshot.path, tmp_path / "copy") == snapshot.log_offset
        await world.snapshots.run_once()
        assert all(name.replace("-", "").isdigit() for name in world.names(bucket))
        assert 1 <= len(world.names(bucket)) <= 2
        newest = on_disk.list_snapshots(world.storage.bucket_path(bucket))[0]
        assert newest.snapshot_id >= max((snapshot.snapshot_id for snapshot in found), default=0)
        await world.snapshots.make(bucket, even_if_unchanged=True)
        assert on_disk.list_snapshots(world.storage.bucket_path(bucket))[0].snapshot_id == newest.snapshot_id + 1
    finally:
        await world.close()


# --- leases


async def test_a_leased_snapshot_stays_until_the_lease_ends(tmp_path: Path) -> None:
    world = await open_world(tmp_path / "data")
    bucket = await world.make_table()
    await world.rows.put(bucket)
    await world.snapshots.run_once()
    assert await world.snapshots.lease("job", 1_000, {bucket: 0}) == {}
    for _ in range(3):
        await world.rows.put(bucket)
        await world.snapshots.run_once()
    assert world.names(bucket) == ["0-1", "2-3", "3-4"]
    await world.close()
    world = await open_world(tmp_path / "data")
    await world.snapshots.run_once()
    assert world.names(bucket) == ["0-1", "2-3", "3-4"]
    # Renewed, it lasts on from now.
    world.now_ms += 999
    assert await world.snapshots.lease("job", 1_000, {}) == {}
    world.now_ms += 999
    await world.snapshots.run_once()
    assert world.names(bucket) == ["0-1", "2-3", "3-4"]
    world.now_ms += 1
    await world.snapshots.run_once()
    assert world.names(bucket) == ["2-3", "3-4"]
    await world.close()


async def test_leases_are_released_and_dropped(world: World) -> None:
    bucket = await world.make_table(buckets=2)
    other = TableBucket(bucket.table_id, 1)
    for each in (bucket, other):
        await world.rows.put(each)
    await world.snapshots.run_once()
    leases = world.snapshots.leases
    assert await world.snapshots.lease("a", 1_000, {bucket: 0, other: 0}) == {}
    assert await world.snapshots.lease("b", 1_000, {bucket: 0}) == {}
    await leases.release("a", [bucket])
    assert leases.leased() == {bucket: {0}, other: {0}}
    await leases.drop("b")
    await leases.drop("never there")
    await leases.release("never there", [bucket])
    assert leases.leased() == {other: {0}}
    await leases.release("a", [other])
    assert not world.storage.catalog.leases()


async def test_what_is_not_there_can_not_be_leased(world: World) -> None:
    bucket = await world.make_table()
    await world.rows.put(bucket)
    await world.snapshots.run_once()
    unknown = TableBucket(77, 0, 5)
    assert await world.snapshots.lease("a", 1_000, {bucket: 1, unknown: 0}) == {bucket: 1, unknown: 0}
    assert world.snapshots.leases.leased() == {}


@pytest.mark.parametrize(
    ("lease_id", "duration_ms"), [("", 1), ("x" * 257, 1), ("a", 0), ("a", -1), ("a", LEASE_MS_MAX + 1)]
)
async def test_a_lease_out_of_bounds_is_refused(world: World, lease_id: str, duration_ms: int) -> None:
    with pytest.raises(FlussError, match="lease"):
        await world.snapshots.lease(lease_id, duration_ms, {})
    assert not world.storage.catalog.leases()


async def test_leases_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.storage.kv.snapshots.LEASES_MAX", 2)
    for lease_id in "aab":
        await world.snapshots.lease(lease_id, 1_000, {})
    with pytest.raises(FlussError, match="2 leases"):
        await world.snapshots.lease("c", 1_000, {})
    world.now_ms += 1_000
    await world.snapshots.lease("c", 1_000, {})
    assert list(world.storage.catalog.leases()) == ["c"]


# --- damage


async def test_one_that_is_not_good_is_set_aside_until_two_better_ones_are_there(world: World) -> None:
    bucket = await world.make_table()
    for _ in range(3):
        await world.rows.put(bucket)
        await world.snapshots.run_once()
    path = world.storage.bucket_path(bucket)
    candidates = on_disk.recovery_candidates(path, log_end=3)
    assert next(candidates).name == "2-3"
    assert next(candidates).name == "1-2"
    assert world.names(bucket) == ["1-2", "2-3.damaged"]
    assert [snapshot.snapshot_id for snapshot in on_disk.list_snapshots(path)] == [1]
    await world.snapshots.run_once()
    assert world.names(bucket) == ["1-2", "3-3"]


async def test_one_that_the_log_does_not_reach_is_no_candidate(world: World) -> None:
    bucket = await world.make_table()
    for _ in range(2):
        await world.rows.put(bucket)
        await world.snapshots.run_once()
    assert [path.name for path in on_disk.recovery_candidates(world.storage.bucket_path(bucket), log_end=1)] == ["0-1"]
    assert on_disk.list_snapshots(world.storage.bucket_path(bucket)) == []


# --- the log


async def cut(world: World, later_ms: int = 0) -> None:
    """One pass of retention, so long after the rows were written."""
    await Retention(world.storage, kv_snapshots=world.snapshots, clock=trusted(lambda: NOW_MS + later_ms)).run_once()


def age(world: World, bucket: TableBucket) -> None:
    for path in world.storage.bucket_path(bucket).glob("*.log"):
        os.utime(path, (NOW_MS / 1_000, NOW_MS / 1_000))


async def test_the_log_is_cut_behind_the_older_of_two(world: World) -> None:
    bucket = await world.make_table({"log.retention.size-bytes": "1"})
    await world.rows.put(bucket, 10)
    # No snapshot: the first pass makes one, which is not enough.
    await cut(world)
    assert (world.storage.bucket(bucket).log_start_offset, world.names(bucket)) == (0, ["0-10"])
    await world.rows.put(bucket, 10)
    await cut(world)
    assert world.names(bucket) == ["0-10", "1-20"]
    assert world.storage.bucket(bucket).log_start_offset == 10
    # Far enough for now, by a snapshot that is there: none is made.
    await world.rows.put(bucket, 1)
    await world.snapshots.run_once()
    await cut(world)
    assert world.names(bucket) == ["1-20", "2-21"]
    assert world.storage.bucket(bucket).log_start_offset == 20


async def test_an_idle_bucket_gets_them_too(world: World) -> None:
    bucket = await world.make_table({"table.log.ttl": "1 h"})
    await world.rows.put(bucket, 5)
    age(world, bucket)
    await cut(world, 10**9)
    age(world, bucket)
    await cut(world, 10**9)
    assert world.names(bucket) == ["0-5", "1-5"]
    log = world.storage.bucket(bucket)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    await cut(world, 10**9)
    await world.snapshots.run_once()
    assert world.names(bucket) == ["0-5", "1-5"]


async def test_those_for_the_log_are_not_made_all_the_time(world: World) -> None:
    bucket = await world.make_table({"log.retention.size-bytes": "1"})
    slow = KvSnapshots(world.storage, world.rows)
    for _ in range(3):
        await world.rows.put(bucket, 5)
        assert await slow.log_kept_from(bucket, 5) == 0
    assert world.names(bucket) == ["0-5"]


async def test_a_lease_holds_the_log(world: World) -> None:
    bucket = await world.make_table({"log.retention.size-bytes": "1"})
    await world.rows.put(bucket, 4)
    await world.snapshots.run_once()
    await world.snapshots.lease("reader", 1_000, {bucket: 0})
    for _ in range(3):
        await world.rows.put(bucket, 4)
        await cut(world)
    assert world.names(bucket) == ["0-4", "2-12", "3-16"]
    assert world.storage.bucket(bucket).log_start_offset == 4
    await world.snapshots.leases.drop("reader")
    await cut(world)
    assert world.storage.bucket(bucket).log_start_offset == 14  # all but the last segment


async def test_without_snapshots_the_log_of_a_primary_key_table_stays(world: World) -> None:
    bucket = await world.make_table({"log.retention.size-bytes": "1"})
    await world.rows.put(bucket, 10)
    await Retention(world.storage, clock=trusted(lambda: NOW_MS + 10**9)).run_once()
    assert world.storage.bucket(bucket).log_start_offset == 0


async def test_who_is_cancelled_leaves_when_the_snapshot_is_done(world: World) -> None:
    bucket = await world.make_table()
    await world.rows.put(bucket, 3)
    for turns in range(0, 40, 4):
        making = asyncio.create_task(world.snapshots.make(bucket, even_if_unchanged=True))
        for _ in range(turns):
            await asyncio.sleep(0)
        making.cancel()
        await asyncio.wait([making])
        # Nothing goes on behind our back: all is as it will be.
        names = world.names(bucket)
        assert all(name.replace("-", "").isdigit() for name in names)
        world.rows.close()
        assert world.names(bucket) == names

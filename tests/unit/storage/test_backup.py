"""A backup is the data directory as of one moment, and what is restored from it serves the same rows."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import re
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluss.model.errors import CorruptDataError, FlussError
from fluss.model.paths import TableBucket, TablePath
from fluss.model.staging import StagedTask
from fluss.storage import failpoints
from fluss.storage.backup import files
from fluss.storage.backup.backup import Backup
from fluss.storage.backup.files import NAME, BackupManifest
from fluss.storage.backup.restore import check, restore
from fluss.storage.catalog.db import StagedDecision, StagedQuery
from fluss.storage.kv.snapshots import KvSnapshots
from fluss.storage.lake_snapshots import offsets_of
from fluss.storage.log.retention import Retention
from fluss.storage.store import Storage
from tests.kit.storage import kv_tables
from tests.kit.storage.kv_tables import Table, fold, row
from tests.kit.storage.logs import NOW_MS, append, read_all, texts
from tests.kit.storage.staging import QUERY, log_batch, stage

LOG = TablePath("fluss", "log")
SEGMENT_BYTES = 300
WRITER = 7


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


@asynccontextmanager
async def opened(root: Path, **options: Any) -> AsyncIterator[Storage]:
    async with kv_tables.opened(root, segment_size_bytes=SEGMENT_BYTES, **options) as storage:
        yield storage


def snapshots_of(storage: Storage) -> KvSnapshots:
    return KvSnapshots(storage, lambda bucket: storage.kv.bucket(bucket), on_demand_gap_ms=0)


async def backup(storage: Storage, target: Path, snapshots: KvSnapshots | None = None) -> BackupManifest:
    await Backup(storage, snapshots or snapshots_of(storage), target).run()
    assert not storage.held_path.exists()
    return files.read(target)


def restored(target: Path) -> Path:
    manifest = files.read(target)
    check(target, manifest)
    root = target.with_name(target.name + ".restored")
    restore(target, manifest, root)
    return root


async def create_log(storage: Storage, buckets: int = 1, **custom: str) -> list[TableBucket]:
    text = json.dumps({"custom_properties": custom})
    table = await storage.catalog.create_table(LOG, text, "{}", buckets)
    return [TableBucket(table.table_id, number) for number in range(buckets)]


async def fill(storage: Storage, bucket: TableBucket, count: int, first: int = 0) -> None:
    log = await storage.opened(bucket)
    for number in range(first, first + count):
        await append(log, f"row {number}", records=1, writer_id=WRITER, sequence=number).durable


async def test_all_of_a_directory(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        buckets = await create_log(storage, 3)
        await fill(storage, buckets[0], 9)
        await fill(storage, buckets[2], 1)
        table = await Table.create(storage, name="rows")
        await table.kv().put(table.batch([row(1, "a", 1), row(2, "b", 2)])).applied
        await table.kv().put(table.batch([row(1, "c", 3)], [2])).applied
        manifest = await backup(storage, tmp_path / "backup")
    ends = {found.bucket: (found.start_offset, found.end_offset) for found in manifest.buckets}
    assert ends == {buckets[0]: (0, 9), buckets[2]: (0, 1), table.bucket(): (0, 5)}
    async with opened(restored(tmp_path / "backup")) as storage:
        assert texts(storage.bucket(buckets[0])) == [f"row {number}" for number in range(9)]
        assert texts(storage.bucket(buckets[1])) == []
        assert storage.bucket(buckets[0]).last_sequence(WRITER) == 8
        table = Table(storage, table.path)
        assert await table.all_rows() == [row(1, "c", 3)]
        await fill(storage, buckets[0], 5, first=9)
        await table.kv().put(table.batch([row(9, "z", 9)])).applied
        assert await table.all_rows() == [row(1, "c", 3), row(9, "z", 9)]


async def test_sealed_segments_are_shared_and_the_last_is_not(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        (bucket,) = await create_log(storage)
        await fill(storage, bucket, 7)
        await backup(storage, tmp_path / "backup")
        await fill(storage, bucket, 1, first=7)
        directory = storage.bucket_path(bucket)
        *sealed, last = sorted(directory.glob("*.log"))
        copies = tmp_path / "backup" / directory.relative_to(storage.root)
        for path in sealed:
            assert path.samefile(copies / path.name)
        assert not last.samefile(copies / last.name)
        assert (copies / last.name).stat().st_size < last.stat().st_size
    check(tmp_path / "backup", files.read(tmp_path / "backup"))


async def test_on_another_file_system_all_is_copied(tmp_path: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    with tempfile.TemporaryDirectory(dir=memory) as other:
        async with opened(tmp_path / "data") as storage:
            (bucket,) = await create_log(storage)
            await fill(storage, bucket, 7)
            await backup(storage, Path(other) / "backup")
        async with opened(restored(Path(other) / "backup")) as storage:
            assert len(texts(storage.bucket(bucket))) == 7


async def test_logs_that_are_closed_count_too(tmp_path: Path) -> None:
    async with opened(tmp_path / "data", open_logs_max=2) as storage:
        buckets = await create_log(storage, 12)
        for number, bucket in enumerate(buckets):
            await fill(storage, bucket, number)
        assert storage.open_logs < len(buckets)
        manifest = await backup(storage, tmp_path / "backup")
        assert {found.bucket.bucket_id: found.end_offset for found in manifest.buckets} == {
            number: number for number in range(1, 12)
        }
    async with opened(restored(tmp_path / "backup")) as storage:
        for number, bucket in enumerate(buckets):
            assert len(texts(await storage.opened(bucket))) == number


async def test_writers_go_on_and_every_bucket_is_a_prefix(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    acked: dict[TableBucket, int] = {}
    stop = asyncio.Event()

    async def write(storage: Storage, bucket: TableBucket) -> None:
        number = 0
        while not stop.is_set():
            log = await storage.opened(bucket)
            await append(log, f"row {number}", records=1).durable
            number += 1
            acked[bucket] = number
            if chance.random() < 0.2:
                await asyncio.sleep(0)

    async with opened(tmp_path / "data", open_logs_max=3) as storage:
        buckets = await create_log(storage, 6)
        writers = [asyncio.create_task(write(storage, bucket)) for bucket in buckets]
        moments = []
        for number in range(3):
            while not all(acked.get(bucket, 0) > 20 * (number + 1) for bucket in buckets):
                await asyncio.sleep(0.001)
            before = dict(acked)
            manifest = await backup(storage, tmp_path / f"backup{number}")
            moments.append((before, {found.bucket: found.end_offset for found in manifest.buckets}))
        stop.set()
        await asyncio.gather(*writers)
    for number, (before, ends) in enumerate(moments):
        async with opened(restored(tmp_path / f"backup{number}")) as storage:
            for bucket in buckets:
                assert ends[bucket] >= before[bucket]
                assert texts(await storage.opened(bucket)) == [f"row {at}" for at in range(ends[bucket])]


async def test_rows_of_a_log_that_was_cut_come_from_its_snapshot(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        snapshots = snapshots_of(storage)
        table = await Table.create(storage, custom_properties={"log.retention.size-bytes": "1"})
        for number in range(20):
            await table.kv().put(table.batch([row(number % 8, str(number), number)])).applied
            if number in (10, 15):
                await snapshots.make(table.bucket())
        retention = Retention(storage, kv_snapshots=snapshots)
        await retention.run_once()
        start = storage.bucket(table.bucket()).log_start_offset
        assert start > 0
        rows = await table.all_rows()
        await backup(storage, tmp_path / "backup", snapshots)
        # What the backup links to may go now.
        for number in range(20, 30):
            await table.kv().put(table.batch([row(number, str(number), number)])).applied
        await snapshots.make(table.bucket())
        await snapshots.make(table.bucket(), even_if_unchanged=True)
        await retention.run_once()
        assert storage.bucket(table.bucket()).log_start_offset > start
    async with opened(restored(tmp_path / "backup")) as storage:
        table = Table(storage, table.path)
        assert storage.bucket(table.bucket()).log_start_offset == start
        assert await table.all_rows() == rows


async def test_lookups_agree_with_the_changelog(tmp_path: Path) -> None:
    stop = asyncio.Event()

    async def write(table: Table) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            puts = [table.kv().put(table.batch([row(key, str(number), number)])) for key in range(number % 5)]
            puts.append(table.kv().put(table.batch([], [number % 4])))
            for put in puts:
                await put.applied

    async with opened(tmp_path / "data") as storage:
        snapshots = snapshots_of(storage)
        table = await Table.create(storage)
        writer = asyncio.create_task(write(table))
        while storage.bucket(table.bucket()).log_end_offset < 100:
            await asyncio.sleep(0.001)
        await snapshots.make(table.bucket())
        manifest = await backup(storage, tmp_path / "backup", snapshots)
        stop.set()
        await writer
    async with opened(restored(tmp_path / "backup")) as storage:
        table = Table(storage, table.path)
        rows = await table.all_rows()
        assert storage.bucket(table.bucket()).high_watermark == manifest.buckets[0].end_offset
        assert rows == sorted(fold(table.changelog()).values(), key=lambda found: found["id"])


async def test_writers_are_known_again_though_their_batches_were_removed(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        (bucket,) = await create_log(storage, **{"log.retention.size-bytes": "1"})
        await fill(storage, bucket, 4)
        log = storage.bucket(bucket)
        for number in range(12):
            await append(log, f"other {number}", records=1).durable
        await Retention(storage).run_once()
        assert log.log_start_offset > 4
        await append(log, "last", records=1).durable
        await backup(storage, tmp_path / "backup")
    async with opened(restored(tmp_path / "backup")) as storage:
        log = storage.bucket(bucket)
        assert log.last_sequence(WRITER) == 3
        assert append(log, "again", records=1, writer_id=WRITER, sequence=3).duplicate


async def test_an_index_that_is_ahead_of_the_moment(tmp_path: Path) -> None:
    """The last segment's checkpoint may be written between the moment and the copy."""
    async with opened(tmp_path / "data") as storage:
        (bucket,) = await create_log(storage)
        await fill(storage, bucket, 1)
        holding = Backup(storage, snapshots_of(storage), tmp_path / "backup")
        run = asyncio.create_task(holding.run())
        while not holding.bytes_total and not run.done():
            await fill_one(storage, bucket)
        await run
        manifest = files.read(tmp_path / "backup")
    async with opened(restored(tmp_path / "backup")) as storage:
        found = read_all(storage.bucket(bucket))
        assert len(found) == manifest.buckets[0].end_offset


async def fill_one(storage: Storage, bucket: TableBucket) -> None:
    await append(storage.bucket(bucket), "more", records=1).durable
    await asyncio.sleep(0)


async def test_a_commit_that_was_decided_is_carried_out_from_the_backup(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        (bucket,) = await create_log(storage)
        await stage(storage, bucket.table_id, [(bucket, log_batch("staged"))])
        await stage(storage, bucket.table_id, [(bucket, log_batch("of nobody"))], batch_id=1)
        decided = StagedDecision(0, storage.catalog.next_writer_id(), (StagedTask(0, 0, 1),))
        await storage.catalog.put_staged_query(StagedQuery(bucket.table_id, QUERY, -1, NOW_MS, decided))
        await backup(storage, tmp_path / "backup")
        await storage.staging.recover()
        assert texts(storage.bucket(bucket)) == ["staged"]
    async with opened(restored(tmp_path / "backup")) as storage:
        await storage.staging.recover()
        assert texts(storage.bucket(bucket)) == ["staged"]
        assert storage.catalog.staged_queries()[bucket.table_id, QUERY].committed == 0


async def test_lake_snapshots_are_in_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        text = '{"properties":{"table.datalake.enabled":"true"}}'
        table = await storage.catalog.create_table(LOG, text, "{}", 1)
        bucket = TableBucket(table.table_id, 0)
        await fill(storage, bucket, 5)
        path = await storage.lake.prepare(table, {bucket: 3}, merge=True)
        await storage.lake.commit(table.table_id, 11, path, readable=True, earliest_to_keep=None)
        prepared = await storage.lake.prepare(table, {bucket: 5}, merge=True)
        await backup(storage, tmp_path / "backup")
    async with opened(restored(tmp_path / "backup")) as storage:
        latest = storage.lake.latest(table.table_id)
        assert latest is not None
        assert (latest.snapshot_id, offsets_of(latest)) == (11, {bucket: 3})
        # The lake may have a snapshot that names it.
        await storage.lake.commit(table.table_id, 12, prepared, readable=True, earliest_to_keep=None)


async def test_a_table_dropped_after_the_moment_is_in_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        (bucket,) = await create_log(storage)
        await fill(storage, bucket, 9)
        making = Backup(storage, snapshots_of(storage), tmp_path / "backup")
        run = asyncio.create_task(making.run())
        while not making.bucket_count and not run.done():
            await asyncio.sleep(0)
        await storage.catalog.drop_table(LOG)
        await run
        assert not storage.catalog.table_exists(LOG)
    async with opened(restored(tmp_path / "backup")) as storage:
        assert len(texts(storage.bucket(bucket))) == 9


# --- what is refused


async def test_targets_that_are_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "file").write_text("mine")
        (tmp_path / "file").write_text("mine")
        for target, text in (
            (tmp_path / "full", "not an empty directory"),
            (tmp_path / "file", "not an empty directory"),
            (tmp_path / "data" / "inside", "lie in each other"),
            (tmp_path, "lie in each other"),
            (Path("relative"), "not a whole path"),
            (tmp_path / "file" / "below", "Not a directory"),
        ):
            with pytest.raises(FlussError, match=text):
                await Backup(storage, None, target).run()
        assert (tmp_path / "full" / "file").read_text() == "mine"
        (tmp_path / "empty").mkdir()
        await backup(storage, tmp_path / "empty")


@pytest.mark.parametrize(
    "point", ["backup.hold.after_create:4", "backup.copy.before_write:2", "backup.finish.before_sync"]
)
async def test_a_failure_leaves_nothing(tmp_path: Path, point: str) -> None:
    async with opened(tmp_path / "data") as storage:
        (bucket,) = await create_log(storage)
        await fill(storage, bucket, 7)
        failpoints.arm(f"{point}:1:enospc" if ":" not in point else f"{point}:enospc")
        with pytest.raises(FlussError, match=os.strerror(errno.ENOSPC)):
            await backup(storage, tmp_path / "backup")
        assert not (tmp_path / "backup").exists()
        assert not storage.held_path.exists()
        await fill(storage, bucket, 1, first=7)
        await storage.catalog.create_database("after", "{}")
        await backup(storage, tmp_path / "backup")
    async with opened(restored(tmp_path / "backup")) as storage:
        assert len(texts(storage.bucket(bucket))) == 8


async def test_what_a_killed_backup_has_held_goes_at_the_next_start(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        storage.held_path.mkdir()
        (storage.held_path / "0").write_text("a link")
    async with opened(tmp_path / "data") as storage:
        assert not storage.held_path.exists()


async def test_damaged_and_unfinished_backups_are_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        (bucket,) = await create_log(storage)
        await fill(storage, bucket, 7)
        manifest = await backup(storage, tmp_path / "backup")
    target = tmp_path / "backup"
    logs = sorted(target.rglob("*.log"))
    damages: list[tuple[Path, Any, str]] = [
        (logs[0], lambda data: data[:50] + b"?" + data[51:], "corrupt batch at byte 0"),
        (logs[-1], lambda data: data[:-1], "bytes and should have"),
        (target / "catalog.db", lambda data: b"?" * len(data), "catalog.db"),
    ]
    for path, damaged, text in damages:
        data = path.read_bytes()
        path.unlink()  # A link: the source stays as it is.
        path.write_bytes(damaged(data))
        with pytest.raises(CorruptDataError, match=text):
            check(target, manifest)
        path.write_bytes(data)
    check(target, manifest)
    content = (target / NAME).read_text()
    for text, message in (
        (content[:-9], "damaged"),
        ("[]", "damaged"),
        (content.replace('"version": 1', '"version": 99'), "Upgrade flussbett"),
        (content.replace('"catalog.db"', '"../catalog.db"'), "damaged"),
    ):
        (target / NAME).write_text(text)
        with pytest.raises(FlussError, match=message):
            files.read(target)
    (target / NAME).unlink()
    with pytest.raises(FlussError, match="not a finished backup"):
        files.read(target)


async def test_one_changed_byte_of_a_backup_is_found(tmp_path: Path) -> None:
    """Of the catalog, which has no checksums of its own, and of snapshots, without which old rows are lost."""
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage, name="rows")
        await table.kv().put(table.batch([row(number, "a", 1) for number in range(100)])).applied
        snapshots = KvSnapshots(storage, storage.kv.bucket)
        await snapshots.make(table.bucket())
        manifest = await backup(storage, tmp_path / "backup", snapshots)
    target = tmp_path / "backup"
    check(target, manifest)
    assert next(target.rglob("*.sst"))
    for path in (target / "catalog.db", *target.rglob("*.sst"), *target.rglob("MANIFEST*")):
        data = path.read_bytes()
        for position in range(0, len(data), 37):
            path.unlink()
            path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
            with pytest.raises(CorruptDataError, match=re.escape(path.name)):
                check(target, manifest)
        path.write_bytes(data)
    check(target, replace(manifest, catalog_crc=None))  # as earlier versions have made it


async def test_restore_never_overwrites(tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as storage:
        manifest = await backup(storage, tmp_path / "backup")
    for place in (tmp_path / "data", tmp_path / "backup" / "inside", tmp_path):
        with pytest.raises(FlussError, match=r"not an empty directory|lie in each other"):
            restore(tmp_path / "backup", manifest, place)
    failpoints.arm("backup.finish.before_rename:1:eio")
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        restore(tmp_path / "backup", manifest, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


async def test_the_catalog_is_not_open_to_changes_during_the_copy(tmp_path: Path) -> None:
    """Tables that are made all the time are in it whole or not at all."""
    stop = asyncio.Event()

    async def create(storage: Storage) -> None:
        number = 0
        while not stop.is_set():
            await storage.catalog.create_table(TablePath("fluss", f"t{number}"), "{}", "{}", 1)
            number += 1

    async with opened(tmp_path / "data") as storage:
        creating = asyncio.create_task(create(storage))
        while len(storage.catalog.all_tables()) < 5:
            await asyncio.sleep(0.001)
        making = Backup(storage, None, tmp_path / "backup")
        await making.run()
        stop.set()
        await creating
    with closing(sqlite3.connect(tmp_path / "backup" / "catalog.db")) as database:
        (tables,) = database.execute("SELECT count(*) FROM tables").fetchone()
        (counter,) = database.execute("SELECT next FROM counters WHERE name = 'table_id'").fetchone()
    assert tables == counter == making.table_count

"""The whole store: which buckets there are, how many stay open, and what a drop removes."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TableBucket, TablePath
from fluss.storage.directory import DataDirectoryError
from fluss.storage.store import Storage, StorageOptions
from tests.kit.storage.logs import append, texts

T = TablePath("fluss", "t")


@asynccontextmanager
async def storage(root: Path, **options: Any) -> AsyncIterator[Storage]:
    opened = await Storage.open(StorageOptions(root, **options))
    try:
        yield opened
    finally:
        await opened.close()


async def test_rows_survive_a_restart(tmp_path: Path) -> None:
    async with storage(tmp_path / "data") as s:
        table = await s.catalog.create_table(T, "{}", "{}", 2)
        for bucket in range(2):
            await append(s.bucket(TableBucket(table.table_id, bucket)), f"in {bucket}").durable
    async with storage(tmp_path / "data") as s:
        for bucket in range(2):
            assert texts(s.bucket(TableBucket(table.table_id, bucket))) == [f"in {bucket}"]


async def test_unknown_buckets(tmp_path: Path) -> None:
    async with storage(tmp_path / "data") as s:
        table = await s.catalog.create_table(T, "{}", "{}", 2)
        for bucket in (
            TableBucket(table.table_id, 2),
            TableBucket(table.table_id, -1),
            TableBucket(table.table_id + 1, 0),
            TableBucket(table.table_id, 0, partition_id=1),
        ):
            with pytest.raises(FlussError) as caught:
                s.bucket(bucket)
            assert caught.value.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


async def test_unknown_buckets_of_partitions(tmp_path: Path) -> None:
    async with storage(tmp_path / "data") as s:
        table = await s.catalog.create_table(T, "{}", "{}", 2, partition_keys=["p"], partitions=["a"])
        other = await s.catalog.create_table(TablePath("fluss", "other"), "{}", "{}", 2, partition_keys=["p"])
        assert s.bucket(TableBucket(table.table_id, 1, 0)).log_end_offset == 0
        for bucket in (
            TableBucket(table.table_id, 0),
            TableBucket(table.table_id, 2, 0),
            TableBucket(table.table_id, 0, 1),
            TableBucket(other.table_id, 0, 0),
        ):
            with pytest.raises(FlussError) as caught:
                s.bucket(bucket)
            assert caught.value.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_idle_logs_are_closed_and_opened_again(tmp_path: Path, durability: str) -> None:
    async with storage(tmp_path / "data", open_logs_max=3, durability=durability) as s:
        table = await s.catalog.create_table(T, "{}", "{}", 10)
        buckets = [TableBucket(table.table_id, number) for number in range(10)]
        for turn in range(3):
            for bucket in buckets:
                log = s.bucket(bucket)
                assert s.bucket(bucket) is log
                await append(log, f"turn {turn}").durable
                await asyncio.sleep(0)
                await log.flush()
        assert len(s._logs) <= 4
        for bucket in buckets:
            assert texts(s.bucket(bucket)) == ["turn 0", "turn 1", "turn 2"]


async def test_a_log_in_use_is_not_closed(tmp_path: Path) -> None:
    async with storage(tmp_path / "data", open_logs_max=1) as s:
        table = await s.catalog.create_table(T, "{}", "{}", 10)
        buckets = [TableBucket(table.table_id, number) for number in range(10)]
        awaited, unsynced = s.bucket(buckets[0]), s.bucket(buckets[1])
        stop = awaited.on_advance(lambda: None)
        appended = append(unsynced, "not yet")
        for bucket in buckets[2:]:
            held = s.bucket(bucket)
        await asyncio.sleep(0)
        assert s.bucket(buckets[0]) is awaited
        assert s.bucket(buckets[1]) is unsynced
        assert s.bucket(buckets[-1]) is not held
        await appended.durable
        stop()
        await append(awaited, "still open").durable


async def test_logs_asked_for_in_one_turn_stay_open_together(tmp_path: Path) -> None:
    async with storage(tmp_path / "data", open_logs_max=1) as s:
        table = await s.catalog.create_table(T, "{}", "{}", 10)
        logs = [s.bucket(TableBucket(table.table_id, number)) for number in range(10)]
        await asyncio.gather(*(append(log, "x").durable for log in logs))


async def test_a_bucket_that_cannot_be_opened_disturbs_no_other(tmp_path: Path) -> None:
    async with storage(tmp_path / "data") as s:
        table = await s.catalog.create_table(T, "{}", "{}", 2)
        for bucket in range(2):
            await append(s.bucket(TableBucket(table.table_id, bucket)), f"in {bucket}").durable
    directory = tmp_path / "data" / "tables" / "0" / "0"
    shutil.rmtree(directory)
    directory.write_text("a file where a directory should be")
    async with storage(tmp_path / "data") as s:
        for _ in range(2):
            with pytest.raises(FlussError, match="can't be opened") as caught:
                s.bucket(TableBucket(0, 0))
            assert caught.value.error_code == ErrorCode.LOG_STORAGE_EXCEPTION
        assert texts(s.bucket(TableBucket(0, 1))) == ["in 1"]


async def test_a_log_whose_mark_cannot_be_written_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with storage(tmp_path / "data") as s:
        table = await s.catalog.create_table(T, "{}", "{}", 1)
        bucket = TableBucket(table.table_id, 0)
        await append(s.bucket(bucket), "row").durable
    async with storage(tmp_path / "data") as s:
        s.marks.forget(bucket)

        def refuse(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(s.marks, "_put", refuse)
            used = len(os.listdir("/proc/self/fd"))
            for _ in range(3):
                with pytest.raises(FlussError, match="No space left"):
                    await s.opened(bucket)
            assert len(os.listdir("/proc/self/fd")) == used
        assert texts(await s.opened(bucket)) == ["row"]


async def test_a_dropped_table_tells_its_waiters_and_leaves_no_files(tmp_path: Path) -> None:
    async with storage(tmp_path / "data") as s:
        table = await s.catalog.create_table(T, "{}", "{}", 2)
        log = s.bucket(TableBucket(table.table_id, 0))
        await append(log, "durable").durable
        woken: list[bool] = []
        log.on_advance(lambda: woken.append(True))
        await s.catalog.drop_table(T)
        await asyncio.sleep(0)
        assert woken
        for call in (lambda: append(log, "late"), lambda: log.read(0, 10), lambda: s.bucket(TableBucket(0, 0))):
            with pytest.raises(FlussError) as caught:
                call()
            assert caught.value.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        again = await s.catalog.create_table(T, "{}", "{}", 2)
        assert s.bucket(TableBucket(again.table_id, 0)).log_end_offset == 0
    assert not (tmp_path / "data" / "tables" / "0").exists()


async def test_a_dropped_partition_tells_its_waiters_and_leaves_no_files(tmp_path: Path) -> None:
    async with storage(tmp_path / "data") as s:
        table = await s.catalog.create_table(T, "{}", "{}", 1, partition_keys=["p"], partitions=["a", "b"])
        logs = [s.bucket(TableBucket(table.table_id, 0, partition)) for partition in range(2)]
        woken: list[int] = []
        for number, log in enumerate(logs):
            await append(log, f"in {number}").durable
            log.on_advance(lambda number=number: woken.append(number))  # type: ignore[misc]
        await s.catalog.drop_partitions(table.table_id, ["a"])
        await asyncio.sleep(0)
        assert woken == [0]
        for call in (lambda: append(logs[0], "late"), lambda: s.bucket(TableBucket(table.table_id, 0, 0))):
            with pytest.raises(FlussError) as caught:
                call()
            assert caught.value.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        assert texts(logs[1]) == ["in 1"]
    assert [path.name for path in (tmp_path / "data" / "tables" / "0").iterdir()] == ["p1"]


async def test_a_table_dropped_while_its_partitions_go_leaves_no_files(tmp_path: Path) -> None:
    async with storage(tmp_path / "data") as s:
        names = [f"p{number}" for number in range(20)]
        table = await s.catalog.create_table(T, "{}", "{}", 1, partition_keys=["p"], partitions=names)
        for partition in range(20):
            append(s.bucket(TableBucket(table.table_id, 0, partition)), "not durable yet")
        dropping = [asyncio.create_task(s.catalog.drop_partitions(table.table_id, [name])) for name in names[:10]]
        await asyncio.gather(*dropping, s.catalog.drop_table(T))
        assert s._removals
    assert list((tmp_path / "data" / "tables").iterdir()) == []


async def test_a_batch_under_way_while_its_table_is_dropped_is_answered(tmp_path: Path) -> None:
    async with storage(tmp_path / "data") as s:
        table = await s.catalog.create_table(T, "{}", "{}", 1)
        log = s.bucket(TableBucket(table.table_id, 0))
        dropping = asyncio.create_task(s.catalog.drop_table(T))
        refused = 0
        while not refused:
            try:
                await append(log, "x").durable
            except FlussError as error:
                refused = error.error_code
        assert refused == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
        await dropping
    assert not (tmp_path / "data" / "tables" / "0").exists()


async def test_what_a_crash_left_of_a_dropped_table_goes_at_the_next_start(tmp_path: Path) -> None:
    async with storage(tmp_path / "data") as s:
        for name in ("kept", "dropped"):
            table = await s.catalog.create_table(TablePath("fluss", name), "{}", "{}", 1)
            await append(s.bucket(TableBucket(table.table_id, 0)), name).durable
        shutil.copytree(tmp_path / "data" / "tables" / "1", tmp_path / "left")
        await s.catalog.drop_table(TablePath("fluss", "dropped"))
    shutil.copytree(tmp_path / "left", tmp_path / "data" / "tables" / "1")
    (tmp_path / "data" / "tables" / "notes").mkdir()
    async with storage(tmp_path / "data") as s:
        assert texts(s.bucket(TableBucket(0, 0))) == ["kept"]
        assert sorted(path.name for path in (tmp_path / "data" / "tables").iterdir()) == ["0", "notes"]


async def test_what_a_crash_left_of_a_dropped_partition_goes_at_the_next_start(tmp_path: Path) -> None:
    table_path = tmp_path / "data" / "tables" / "0"
    async with storage(tmp_path / "data") as s:
        table = await s.catalog.create_table(T, "{}", "{}", 1, partition_keys=["p"], partitions=["kept", "dropped"])
        for number, name in enumerate(("kept", "dropped")):
            await append(s.bucket(TableBucket(table.table_id, 0, number)), name).durable
        shutil.copytree(table_path / "p1", tmp_path / "left")
        await s.catalog.drop_partitions(table.table_id, ["dropped"])
    shutil.copytree(tmp_path / "left", table_path / "p1")
    (table_path / "notes").mkdir()
    async with storage(tmp_path / "data") as s:
        assert texts(s.bucket(TableBucket(0, 0, 0))) == ["kept"]
        assert sorted(path.name for path in table_path.iterdir()) == ["notes", "p0"]
    (table_path / "p2").mkdir()
    with pytest.raises(DataDirectoryError, match="the catalog is older than the data"):
        await Storage.open(StorageOptions(tmp_path / "data"))


async def test_data_without_its_catalog_is_never_taken_for_dropped(tmp_path: Path) -> None:
    async with storage(tmp_path / "data") as s:
        table = await s.catalog.create_table(T, "{}", "{}", 1)
        await append(s.bucket(TableBucket(table.table_id, 0)), "precious").durable
    shutil.move(tmp_path / "data" / "catalog.db", tmp_path / "backup.db")
    with pytest.raises(DataDirectoryError, match=r"catalog\.db is missing"):
        await Storage.open(StorageOptions(tmp_path / "data"))
    async with storage(tmp_path / "other"):
        pass
    shutil.copy(tmp_path / "other" / "catalog.db", tmp_path / "data" / "catalog.db")
    with pytest.raises(DataDirectoryError, match=r"catalog\.db: .* has other bytes than 'marks' says"):
        await Storage.open(StorageOptions(tmp_path / "data"))
    shutil.copy(tmp_path / "backup.db", tmp_path / "data" / "catalog.db")
    async with storage(tmp_path / "data") as s:
        assert texts(s.bucket(TableBucket(0, 0))) == ["precious"]


async def test_a_second_store_on_the_directory_is_refused(tmp_path: Path) -> None:
    async with storage(tmp_path / "data"):
        with pytest.raises(DataDirectoryError, match="in use"):
            await Storage.open(StorageOptions(tmp_path / "data"))
    async with storage(tmp_path / "data"):
        pass


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="durability"):
        StorageOptions("x", durability="maybe")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="segment_size_bytes"):
        StorageOptions("x", segment_size_bytes=0)

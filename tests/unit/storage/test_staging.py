"""Staged writes: seen by nobody until they are committed, stored once however often that is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from fluss.model.clock import wall_clock_ms
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError, InvalidRequestError
from fluss.model.paths import TableBucket, TablePath
from fluss.model.staging import StagedTask
from fluss.storage import failpoints
from fluss.storage.catalog.catalog import TableEntry
from fluss.storage.log import writer_state
from fluss.storage.staging import staging
from fluss.storage.staging import staging as staged_index
from fluss.storage.store import Storage
from tests.kit.storage.kv_tables import opened
from tests.kit.storage.logs import append, crash_image, read_all, texts
from tests.kit.storage.staging import (
    BATCHES_PER_BUCKET,
    BUCKETS,
    LOG,
    QUERY,
    REQUESTS,
    ROWS,
    SUMS,
    TASKS,
    check,
    create_all,
    create_log,
    log_batch,
    request_of,
    stage,
    staged_files,
    texts_of,
    write,
)

DAY_MS = 24 * 60 * 60 * 1_000
PATHS = pytest.mark.parametrize("path", [LOG, ROWS, SUMS], ids=lambda path: path.table)


def bucket_of(entry: TableEntry, bucket: int = 0) -> TableBucket:
    return TableBucket(entry.table_id, bucket)


async def stage_one(storage: Storage, entry: TableEntry, content: str, **where: int) -> None:
    await stage(storage, entry.table_id, [(bucket_of(entry), log_batch(content))], **where)  # type: ignore[arg-type]


async def commit_one(storage: Storage, entry: TableEntry, batch_id: int = 0, attempt: int = 0, count: int = 1) -> bool:
    return await storage.staging.commit(entry.table_id, QUERY, batch_id, [StagedTask(0, attempt, count)])


def contents(storage: Storage, entry: TableEntry, bucket: int = 0) -> list[str]:
    return texts(storage.bucket(bucket_of(entry, bucket)))


# --- what is stored


@PATHS
@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_each_batch_is_stored_once(tmp_path: Path, path: TablePath, durability: str) -> None:
    async with opened(tmp_path, durability=durability) as storage:
        await create_all(storage)
        for batch_id in range(3):
            assert not await write(storage, path, batch_id, attempt=5)
            assert await write(storage, path, batch_id, attempt=9)
            await check(storage, path, batch_id + 1)
        assert staged_files(storage) == []
        assert storage.staging.size_bytes == 0
    async with opened(tmp_path) as storage:
        assert await write(storage, path, 2, attempt=11)
        assert not await write(storage, path, 3, attempt=11)
        await check(storage, path, 4)


async def test_nothing_is_seen_before_the_commit(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        await stage_one(storage, entry, "a")
        assert contents(storage, entry) == []
        assert storage.bucket(bucket_of(entry)).log_end_offset == 0
        assert len(staged_files(storage)) == 1


async def test_batches_come_in_the_order_of_tasks_and_requests(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        for task, sequence in ((10, 1), (2, 0), (10, 0), (2, 10), (2, 2), (2, 1), *((2, n) for n in range(3, 10))):
            await stage_one(storage, entry, f"{task}/{sequence}", task=task, sequence=sequence)
        tasks = [StagedTask(10, 0, 2), StagedTask(2, 0, 11)]
        await storage.staging.commit(entry.table_id, QUERY, 0, tasks)
        assert contents(storage, entry) == [*(f"2/{n}" for n in range(11)), "10/0", "10/1"]


async def test_a_request_staged_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        for content in ("first, and longer", "second"):
            await stage_one(storage, entry, content)
        (name,) = staged_files(storage)
        assert storage.staging.size_bytes == (tmp_path / name).stat().st_size
        await commit_one(storage, entry)
        assert contents(storage, entry) == ["second"]


async def test_queries_and_tables_do_not_mix(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        one, two = await create_log(storage), await create_log(storage, TablePath("fluss", "other"))
        for entry in (one, two):
            for query in ("a", "b", "A"):
                records = [(bucket_of(entry), log_batch(f"{entry.table_id}{query}"))]
                await stage(storage, entry.table_id, records, query=query)
        for entry in (one, two):
            for query in ("b", "A"):
                assert not await storage.staging.commit(entry.table_id, query, 0, [StagedTask(0, 0, 1)])
            assert contents(storage, entry) == [f"{entry.table_id}b", f"{entry.table_id}A"]
        assert len(staged_files(storage)) == 2


async def test_a_commit_without_rows_counts_as_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        assert not await storage.staging.commit(entry.table_id, QUERY, 3, [])
        assert await storage.staging.commit(entry.table_id, QUERY, 3, [])
        await stage_one(storage, entry, "late", batch_id=3)
        assert await commit_one(storage, entry, batch_id=3)
        assert contents(storage, entry) == []
        assert staged_files(storage) == []


async def test_a_later_batch_clears_what_earlier_ones_left(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        for batch_id in (0, 1, 2):
            await stage_one(storage, entry, str(batch_id), batch_id=batch_id)
        await commit_one(storage, entry, batch_id=1)
        assert contents(storage, entry) == ["1"]
        assert len(staged_files(storage)) == 1
        await commit_one(storage, entry, batch_id=2)
        assert contents(storage, entry) == ["1", "2"]


# --- what is refused


@pytest.mark.parametrize(
    ("tasks", "text"),
    [
        ([StagedTask(0, 1, 1)], "attempt 1 of task 0, 0 of 1"),
        ([StagedTask(0, 0, 3)], "2 of 3 requests"),
        ([StagedTask(0, 0, 2), StagedTask(1, 0, 1)], "task 1, 0 of 1"),
        ([StagedTask(0, 0, 2), StagedTask(0, 0, 2)], "no task twice"),
    ],
)
async def test_an_incomplete_commit_leaves_nothing(tmp_path: Path, tasks: list[StagedTask], text: str) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        await stage_one(storage, entry, "a")
        await stage_one(storage, entry, "b", sequence=1)
        with pytest.raises(InvalidRequestError, match=text):
            await storage.staging.commit(entry.table_id, QUERY, 0, tasks)
        assert not storage.catalog.staged_queries()
        assert contents(storage, entry) == []
        assert not await commit_one(storage, entry, count=2)
        assert contents(storage, entry) == ["a", "b"]


async def test_a_query_id_has_a_limit(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        batches = [(bucket_of(entry), log_batch("a"))]
        for query in ("", "x" * 256, "ü" * 128):
            with pytest.raises(InvalidRequestError, match="1 to 255 bytes"):
                await stage(storage, entry.table_id, batches, query=query)
            with pytest.raises(InvalidRequestError, match="1 to 255 bytes"):
                await storage.staging.commit(entry.table_id, query, 0, [])
        for query in ("../../../x", "/etc/passwd", "a\0b", "ü" * 127, ".", "\n", "CON"):
            await stage(storage, entry.table_id, batches, query=query)
            await storage.staging.commit(entry.table_id, query, 0, [StagedTask(0, 0, 1)])
        assert contents(storage, entry) == ["a"] * 7
        assert {path.name for path in tmp_path.iterdir()} <= {
            *(
                "catalog.db",
                "catalog.db-wal",
                "catalog.db-shm",
                "format_version",
                "marks",
                "server.clock",
                "server.lock",
                "server.pid",
                "tables",
            )
        }


async def test_bytes_have_a_limit(tmp_path: Path) -> None:
    async with opened(tmp_path, staging_bytes_max=1_000) as storage:
        entry = await create_log(storage)
        await stage_one(storage, entry, "a" * 500)
        with pytest.raises(InvalidRequestError, match=r"staging\.bytes-max") as raised:
            await stage_one(storage, entry, "b" * 500, sequence=1)
        assert raised.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert not raised.value.is_retriable
        await storage.staging.drop(entry.table_id, QUERY, 0)
        assert (storage.staging.size_bytes, staged_files(storage)) == (0, [])
        await stage_one(storage, entry, "b" * 500)
    async with opened(tmp_path, staging_bytes_max=10) as storage:
        assert not await commit_one(storage, storage.catalog.table(LOG))
        assert contents(storage, entry) == ["b" * 500]


async def test_requests_and_queries_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_index, "REQUESTS_MAX", 2)
    monkeypatch.setattr(staging, "QUERIES_MAX", 1)
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        for sequence in (0, 1):
            await stage_one(storage, entry, "a", sequence=sequence)
        with pytest.raises(InvalidRequestError, match="may be 2 requests"):
            await stage_one(storage, entry, "a", sequence=2)
        await commit_one(storage, entry)
        with pytest.raises(InvalidRequestError, match="1 queries"):
            await storage.staging.commit(entry.table_id, "another", 0, [])
        assert not await storage.staging.commit(entry.table_id, QUERY, 1, [])


async def test_a_failed_write_leaves_nothing_staged(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        for action in ("eio", "enospc"):
            failpoints.arm(f"staging.replace.before_write:1:{action}")
            with pytest.raises(FlussError, match="can't be staged") as raised:
                await stage_one(storage, entry, "a")
            assert raised.value.is_retriable
            assert str(tmp_path) not in raised.value.message
        assert storage.staging.size_bytes == 0
        with pytest.raises(InvalidRequestError, match="0 of 1"):
            await commit_one(storage, entry)
        await stage_one(storage, entry, "a")
        await commit_one(storage, entry)
        assert contents(storage, entry) == ["a"]


# --- commits that are interrupted


@PATHS
@pytest.mark.parametrize("count", [1, 2, 4, 14, 2 * BATCHES_PER_BUCKET])
async def test_a_commit_that_failed_goes_on_where_it_stopped(tmp_path: Path, path: TablePath, count: int) -> None:
    async with opened(tmp_path) as storage:
        await create_all(storage)
        await write(storage, path, 0, 0)
        failpoints.arm(f"segment.append.before_write:{count}:enospc")
        with pytest.raises(FlussError):
            await write(storage, path, 1, 0)
        table_id = storage.catalog.table(path).table_id
        assert storage.catalog.staged_queries()[table_id, QUERY].decided is not None
        # It is decided: an abort does nothing, nor does another attempt.
        await storage.staging.drop(table_id, QUERY, 1)
        assert await write(storage, path, 1, 5)
        await check(storage, path, 2)
        assert not await write(storage, path, 2, 0)
        await check(storage, path, 3)
        assert staged_files(storage) == []


async def test_a_later_commit_carries_out_the_one_before(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await create_all(storage)
        failpoints.arm("segment.append.before_write:3:eio")
        with pytest.raises(FlussError):
            await write(storage, LOG, 0, 0)
        assert not await write(storage, LOG, 1, 0)
        await check(storage, LOG, 2)


@PATHS
async def test_a_decided_commit_survives_a_crash_and_any_expiry(tmp_path: Path, path: TablePath) -> None:
    async with opened(tmp_path / "data") as storage:
        await create_all(storage)
        failpoints.arm("segment.append.before_write:3:eio")
        with pytest.raises(FlussError):
            await write(storage, path, 0, 0)
        for bucket in range(BUCKETS):
            # Files must not change while they are copied.
            await storage.bucket(bucket_of(storage.catalog.table(path), bucket)).flush()
        image = crash_image(tmp_path / "data", "image")
    async with opened(image) as storage:
        await storage.staging.sweep(_later(29 * DAY_MS))
        await storage.staging.recover()
        await check(storage, path, 1)
        await storage.staging.recover()
        assert await write(storage, path, 0, 3)
        await check(storage, path, 1)


async def test_one_that_cant_be_carried_out_does_not_keep_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as storage:
        await create_all(storage)
        for path in (LOG, ROWS):
            failpoints.arm("segment.append.before_write:1:eio")
            with pytest.raises(FlussError):
                await write(storage, path, 0, 0)
    damaged = sorted((tmp_path / "tables" / "0" / "staging").iterdir())[0]
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    async with opened(tmp_path) as storage:
        await storage.staging.recover()
        assert "are damaged" in caplog.text
        await check(storage, ROWS, 1)
        with pytest.raises(CorruptDataError, match="damaged") as raised:
            await write(storage, LOG, 0, 0)
        assert not raised.value.is_retriable
        # A new query is not touched by it.
        entry = storage.catalog.table(LOG)
        await stage(storage, entry.table_id, [(bucket_of(entry, 1), log_batch("new"))], query="new")
        await storage.staging.commit(entry.table_id, "new", 0, [StagedTask(0, 0, 1)])
        assert contents(storage, entry, 1)[-1] == "new"


async def test_commits_of_one_batch_at_the_same_time_are_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await create_all(storage)
        entry = storage.catalog.table(SUMS)
        for task in range(TASKS):
            for number in range(REQUESTS):
                batches = request_of(storage, SUMS, 0, task, number)
                await stage(storage, entry.table_id, batches, task=task, sequence=number)
        tasks = [StagedTask(task, 0, REQUESTS) for task in range(TASKS)]
        commits = (storage.staging.commit(entry.table_id, QUERY, 0, tasks) for _ in range(5))
        assert sorted(await asyncio.gather(*commits)) == [False, True, True, True, True]
        await check(storage, SUMS, 1)


async def test_a_caller_that_goes_away_does_not_stop_its_commit(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        await create_all(storage)
        entry = storage.catalog.table(LOG)
        await stage_one(storage, entry, "a")
        task = asyncio.ensure_future(commit_one(storage, entry))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await commit_one(storage, entry)
        assert contents(storage, entry) == ["a"]


async def test_a_writer_that_commits_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many others write meanwhile, and however long it takes."""
    monkeypatch.setattr(writer_state, "WRITERS_MAX", 3)
    async with opened(tmp_path / "data", writer_expiry_ms=1) as storage:
        await create_all(storage)
        entry = storage.catalog.table(LOG)
        failpoints.arm("segment.append.before_write:14:eio")
        with pytest.raises(FlussError):
            await write(storage, LOG, 0, 0)
        for writer_id in range(5_000, 5_010):
            for bucket in range(BUCKETS):
                log = storage.bucket(bucket_of(entry, bucket))
                await append(log, "other", writer_id=writer_id, sequence=0, now_ms=_later(DAY_MS)).durable
        image = crash_image(tmp_path / "data", "image")
        await storage.staging.recover()
        _check_with_others(storage, entry)
    async with opened(image, writer_expiry_ms=1) as storage:
        await storage.staging.recover()
        _check_with_others(storage, entry)


def _check_with_others(storage: Storage, entry: TableEntry) -> None:
    for bucket in range(BUCKETS):
        found = contents(storage, entry, bucket)
        assert [content for content in found if content != "other"] == texts_of(0, bucket)
        assert found.count("other") == 10


async def test_a_finished_commit_leaves_no_writer_behind(tmp_path: Path) -> None:
    """A stream has a commit every second: their writers must not push others out."""
    async with opened(tmp_path) as storage:
        await create_all(storage)
        entry = storage.catalog.table(LOG)
        for batch_id in range(3):
            await write(storage, LOG, batch_id, 0)
        log = storage.bucket(bucket_of(entry))
        assert {header.batch_sequence for header, _ in read_all(log)} == set(range(BATCHES_PER_BUCKET))
        assert len({header.writer_id for header, _ in read_all(log)}) == 3
        assert [log.last_sequence(header.writer_id) for header, _ in read_all(log)] == [None] * 3 * BATCHES_PER_BUCKET


# --- what goes


def _later(delay_ms: int) -> int:
    return wall_clock_ms() + delay_ms


async def test_what_nobody_commits_expires(tmp_path: Path) -> None:
    async with opened(tmp_path, staging_expire_ms=5_000) as storage:
        entry = await create_log(storage)
        await stage_one(storage, entry, "a")
        await storage.staging.sweep(_later(4_000))
        assert len(staged_files(storage)) == 1
        await storage.staging.sweep(_later(6_000))
        assert (staged_files(storage), storage.staging.size_bytes) == ([], 0)
        with pytest.raises(InvalidRequestError, match="expired"):
            await commit_one(storage, entry)
        await stage_one(storage, entry, "b")
    async with opened(tmp_path, staging_expire_ms=5_000) as storage:
        assert storage.staging.size_bytes > 0
        await storage.staging.sweep(_later(6_000))
        assert (staged_files(storage), storage.staging.size_bytes) == ([], 0)


async def test_idle_queries_are_forgotten(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        await stage_one(storage, entry, "a")
        await commit_one(storage, entry)
        await storage.staging.sweep(_later(29 * DAY_MS))
        assert len(storage.catalog.staged_queries()) == 1
        await storage.staging.sweep(_later(31 * DAY_MS))
        assert not storage.catalog.staged_queries()


@pytest.mark.parametrize("drop", ["drop_table", "drop_database"])
async def test_a_dropped_table_takes_all_along(tmp_path: Path, drop: str) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        await stage_one(storage, entry, "a")
        await commit_one(storage, entry)
        await stage_one(storage, entry, "b", batch_id=1)
        if drop == "drop_table":
            await storage.catalog.drop_table(LOG)
        else:
            await storage.catalog.drop_database("fluss", cascade=True)
        assert storage.staging.size_bytes == 0
        assert not storage.catalog.staged_queries()
        for call in (stage_one(storage, entry, "c", batch_id=2), commit_one(storage, entry, batch_id=2)):
            with pytest.raises(FlussError, match="no table with id") as raised:
                await call
            assert raised.value.error_code == ErrorCode.TABLE_NOT_EXIST
    async with opened(tmp_path) as storage:
        assert list((tmp_path / "tables").iterdir()) == []
        assert not storage.catalog.staged_queries()


async def test_a_table_dropped_in_the_middle(tmp_path: Path) -> None:
    """Requests under way end with an error or not at all too late; the files go in any case."""
    async with opened(tmp_path) as storage:
        await create_all(storage)
        entry = storage.catalog.table(LOG)
        await stage_one(storage, entry, "a")
        calls = [stage_one(storage, entry, "b", sequence=n) for n in range(1, 20)]
        under_way = asyncio.gather(*calls, commit_one(storage, entry), return_exceptions=True)
        await asyncio.sleep(0)
        await storage.catalog.drop_table(LOG)
        for result in await under_way:
            assert not result or isinstance(result, FlussError), result
        assert storage.staging.size_bytes == 0
    assert not (tmp_path / "tables" / str(entry.table_id)).exists()


async def test_what_is_for_a_dropped_partition_is_left_out(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage, TablePath("fluss", "days"), ["monday", "tuesday"])
        ids = {partition.name: partition.partition_id for partition in storage.catalog.partitions(entry)}
        batches = [
            (TableBucket(entry.table_id, bucket, ids[name]), log_batch(f"{name}/{bucket}"))
            for name in ("monday", "tuesday")
            for bucket in range(BUCKETS)
        ]
        for sequence in range(2):
            await stage(storage, entry.table_id, batches, sequence=sequence)
        await storage.catalog.drop_partitions(entry.table_id, ["monday"])
        assert not await commit_one(storage, entry, count=2)
        for bucket in range(BUCKETS):
            log = storage.bucket(TableBucket(entry.table_id, bucket, ids["tuesday"]))
            assert texts(log) == [f"tuesday/{bucket}"] * 2
        assert staged_files(storage) == []


async def test_strange_files_are_left_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        await stage_one(storage, entry, "a")
    directory = tmp_path / "tables" / str(entry.table_id) / "staging"
    (name,) = [path.name for path in directory.iterdir()]
    (directory / "notes.txt").write_text("mine")
    (directory / f"{name}.tmp").write_text("half")
    async with opened(tmp_path) as storage:
        await commit_one(storage, entry)
        assert contents(storage, entry) == ["a"]
    assert [path.name for path in directory.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("spoil", [lambda data: data[:20], lambda data: b"", lambda data: data + b"x"])
async def test_a_damaged_file_is_not_appended(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    async with opened(tmp_path) as storage:
        entry = await create_log(storage)
        await stage_one(storage, entry, "a")
        path = tmp_path / staged_files(storage)[0]
        path.write_bytes(spoil(path.read_bytes()))
        with pytest.raises(CorruptDataError, match="damaged"):
            await commit_one(storage, entry)
        assert contents(storage, entry) == []

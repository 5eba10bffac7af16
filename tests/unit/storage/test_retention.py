"""Old and surplus segments go, whole, from the beginning; nothing else does."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TableBucket, TablePath
from fluss.model.tables.options import duration_ms
from fluss.storage import failpoints
from fluss.storage.log import retention
from fluss.storage.log.retention import Policy, Retention, policy_of
from fluss.storage.store import Storage, StorageOptions
from tests.kit.storage.logs import NOW_MS, append, read_all, texts, trusted

T = TablePath("fluss", "t")
SEGMENT_BYTES = 300  # two batches
HOUR_MS = 3_600_000


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    opened = await Storage.open(StorageOptions(tmp_path / "data", segment_size_bytes=SEGMENT_BYTES))
    try:
        yield opened
    finally:
        failpoints.disarm()
        await opened.close()


def table_json(**custom: str) -> str:
    ttl = custom.pop("ttl", None)
    properties = {} if ttl is None else {"table.log.ttl": ttl}
    return json.dumps({"properties": properties, "custom_properties": custom})


async def make(storage: Storage, path: TablePath = T, buckets: int = 1, **custom: str) -> TableBucket:
    table = await storage.catalog.create_table(path, table_json(**custom), "{}", buckets)
    return TableBucket(table.table_id, 0)


async def fill(storage: Storage, bucket: TableBucket, count: int, *, now_ms: int = NOW_MS, **fields: int) -> None:
    """Batches of one row, about two to a segment; the files look as old as the rows."""
    log = storage.bucket(bucket)
    for _ in range(count):
        text = f"row {log.log_end_offset}".ljust(80)
        await append(log, text, records=1, now_ms=now_ms, **fields).durable
        if "sequence" in fields:
            fields["sequence"] += 1
    for path in storage.bucket_path(bucket).glob("*.log"):
        if path.stat().st_mtime * 1_000 > now_ms + HOUR_MS:
            os.utime(path, (now_ms / 1_000, now_ms / 1_000))


def log_names(storage: Storage, bucket: TableBucket) -> list[int]:
    return sorted(int(path.stem) for path in storage.bucket_path(bucket).glob("*.log"))


async def test_expired_segments_go_and_the_start_moves(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    bucket = await make(storage, ttl="2 h")
    await fill(storage, bucket, 6)
    await fill(storage, bucket, 3, now_ms=NOW_MS + HOUR_MS)
    passes = Retention(storage, clock=trusted(clock))
    clock.now_ms = NOW_MS + 2 * HOUR_MS
    await passes.run_once()
    assert storage.bucket(bucket).log_start_offset == 0
    clock.now_ms += 1
    await passes.run_once()
    log = storage.bucket(bucket)
    assert log.log_start_offset == log_names(storage, bucket)[0] == 6
    assert [text.strip() for text in texts(log)] == ["row 6", "row 7", "row 8"]
    assert "offsets 0 to 5 were removed" in caplog.text
    with pytest.raises(FlussError) as raised:
        log.read(5, 1_000)
    assert raised.value.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
    assert log.offset_for_timestamp(0, clock.now_ms) == 6
    # No file of what is gone is left.
    assert all(int(path.name[:20]) >= 6 for path in storage.bucket_path(bucket).iterdir())


async def test_a_segment_with_one_young_batch_stays(storage: Storage) -> None:
    clock = Clock()
    bucket = await make(storage, ttl="1 h")
    await fill(storage, bucket, 1)
    await fill(storage, bucket, 4, now_ms=NOW_MS + 1)
    clock.now_ms = NOW_MS + HOUR_MS + 1
    await Retention(storage, clock=trusted(clock)).run_once()
    assert storage.bucket(bucket).log_start_offset == 0


async def test_when_all_is_old_the_active_segment_goes_too_and_offsets_go_on(storage: Storage) -> None:
    clock = Clock()
    bucket = await make(storage, ttl="1 h")
    await fill(storage, bucket, 5, writer_id=7, sequence=0)
    clock.now_ms += 2 * HOUR_MS
    passes = Retention(storage, clock=trusted(clock))
    await passes.run_once()
    log = storage.bucket(bucket)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    assert log_names(storage, bucket) == [5]
    await passes.run_once()
    assert log_names(storage, bucket) == [5]
    # The writer is still known, though nothing of it is left.
    with pytest.raises(FlussError, match="5 is expected"):
        append(log, "again", writer_id=7, sequence=9)
    assert append(log, "next", writer_id=7, sequence=5, records=1).base_offset == 5


async def test_writers_and_offsets_survive_a_restart_after_everything_was_removed(tmp_path: Path) -> None:
    options = StorageOptions(tmp_path / "data", segment_size_bytes=SEGMENT_BYTES)
    storage = await Storage.open(options)
    bucket = await make(storage, ttl="1 h")
    await fill(storage, bucket, 5, writer_id=7, sequence=0)
    await Retention(storage, clock=trusted(lambda: NOW_MS + 2 * HOUR_MS)).run_once()
    await storage.close()
    storage = await Storage.open(options)
    try:
        log = storage.bucket(bucket)
        assert (log.log_start_offset, log.log_end_offset) == (5, 5)
        assert append(log, "next", writer_id=7, sequence=5, records=1).base_offset == 5
    finally:
        await storage.close()


@pytest.mark.parametrize("ttl", ["0 s", "-1 ms"])
async def test_no_ttl_keeps_everything(storage: Storage, ttl: str) -> None:
    bucket = await make(storage, ttl=ttl)
    await fill(storage, bucket, 6)
    await Retention(storage, clock=trusted(lambda: 2 * NOW_MS)).run_once()
    assert storage.bucket(bucket).log_start_offset == 0


async def test_the_default_is_seven_days(storage: Storage) -> None:
    clock = Clock()
    bucket = await make(storage)
    await fill(storage, bucket, 6)
    clock.now_ms += 7 * 24 * HOUR_MS
    await Retention(storage, clock=trusted(clock)).run_once()
    assert storage.bucket(bucket).log_start_offset == 0
    clock.now_ms += 1
    await Retention(storage, clock=trusted(clock)).run_once()
    assert storage.bucket(bucket).log_start_offset == 6


async def test_surplus_segments_go(storage: Storage) -> None:
    kept = await make(storage)
    limited = await make(storage, TablePath("fluss", "limited"), **{"log.retention.size-bytes": "400"})
    for bucket in (kept, limited):
        await fill(storage, bucket, 9)
    await Retention(storage, clock=trusted(Clock())).run_once()
    assert storage.bucket(kept).log_start_offset == 0
    sizes = [path.stat().st_size for path in sorted(storage.bucket_path(limited).glob("*.log"))]
    assert sum(sizes) >= 400 > sum(sizes[1:])
    assert len(read_all(storage.bucket(limited))) == 9 - storage.bucket(limited).log_start_offset
    # A limit for all tables counts where the table has none of its own.
    await Retention(storage, size_bytes=700, clock=trusted(Clock())).run_once()
    assert 0 < storage.bucket(kept).log_start_offset < storage.bucket(limited).log_start_offset


async def test_idle_logs_with_nothing_to_lose_are_not_opened(tmp_path: Path) -> None:
    options = StorageOptions(tmp_path / "data", segment_size_bytes=SEGMENT_BYTES)
    storage = await Storage.open(options)
    bucket = await make(storage, ttl="1 h", buckets=3)
    for bucket_id in range(3):
        await fill(storage, TableBucket(bucket.table_id, bucket_id), 4, now_ms=NOW_MS + bucket_id * HOUR_MS)
    await storage.close()
    storage = await Storage.open(options)
    try:
        await Retention(storage, clock=trusted(lambda: NOW_MS + HOUR_MS + 1)).run_once()
        assert [bucket.bucket_id for bucket in storage._logs] == [0]
    finally:
        await storage.close()


async def test_partitions_each_lose_what_is_old(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, gone = TablePath("fluss", "kept"), TablePath("fluss", "gone")
    buckets: dict[TablePath, list[TableBucket]] = {}
    for path in (kept, gone):
        table = await storage.catalog.create_table(path, table_json(ttl="1 h"), "{}", 1, partition_keys=("day",))
        await storage.catalog.create_partitions(table.table_id, ["monday", "tuesday"])
        buckets[path] = list(storage.buckets(storage.catalog.table(path)))
        for number, bucket in enumerate(buckets[path]):
            await fill(storage, bucket, 5, now_ms=NOW_MS + number * 2 * HOUR_MS)
    survey = storage.run_blocking

    async def drop_the_next(work: Any) -> Any:
        if storage.catalog.table_exists(gone):
            await storage.catalog.drop_table(gone)
        return await survey(work)

    monkeypatch.setattr(storage, "run_blocking", drop_the_next)
    await Retention(storage, clock=trusted(lambda: NOW_MS + 2 * HOUR_MS)).run_once()
    assert [storage.bucket(bucket).log_start_offset for bucket in buckets[kept]] == [5, 0]


@pytest.mark.parametrize("damage", ["missing", "damaged"])
async def test_without_its_index_a_segment_is_as_old_as_its_file(storage: Storage, damage: str) -> None:
    bucket = await make(storage, ttl="1 h")
    await fill(storage, bucket, 4)
    await fill(storage, bucket, 2, now_ms=NOW_MS + HOUR_MS)
    for path in storage.bucket_path(bucket).glob("*.index"):
        path.unlink() if damage == "missing" else path.write_bytes(b"nonsense")
    await Retention(storage, clock=trusted(lambda: NOW_MS + HOUR_MS + 1)).run_once()
    assert storage.bucket(bucket).log_start_offset == 4


async def test_a_dropped_table_does_not_stop_a_pass(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = await make(storage, ttl="1 h")
    other = await make(storage, TablePath("fluss", "other"), ttl="1 h")
    for bucket in (dropped, other):
        await fill(storage, bucket, 5)
    survey = storage.run_blocking

    async def drop_behind_its_back(work: Any) -> Any:
        found = await survey(work)
        if storage.catalog.table_exists(T):
            await storage.catalog.drop_table(T)
        return found

    monkeypatch.setattr(storage, "run_blocking", drop_behind_its_back)
    await Retention(storage, clock=trusted(lambda: NOW_MS + 2 * HOUR_MS)).run_once()
    assert storage.bucket(other).log_start_offset == 5


async def test_appends_and_reads_go_on_during_a_removal(storage: Storage) -> None:
    bucket = await make(storage, **{"log.retention.size-bytes": "1"})
    await fill(storage, bucket, 40)
    running = asyncio.ensure_future(Retention(storage, clock=trusted(Clock())).run_once())
    seen: set[int] = set()
    while not running.done():
        log = storage.bucket(bucket)
        await append(log, f"row {log.log_end_offset}".ljust(80), records=1).durable
        start = log.log_start_offset
        for header, text in read_all(log):
            assert text.strip() == f"row {header.base_offset}"
        seen.add(start)
    await running
    assert storage.bucket(bucket).log_start_offset > 30
    for header, text in read_all(storage.bucket(bucket)):
        assert text.strip() == f"row {header.base_offset}"


@pytest.mark.parametrize("step", failpoints.STEPS[failpoints.Site.SEGMENT_REMOVE])
async def test_a_failed_removal_is_done_by_the_next_pass(storage: Storage, step: str) -> None:
    bucket = await make(storage, **{"log.retention.size-bytes": "1"})
    await fill(storage, bucket, 9)
    failpoints.arm(f"segment.remove.{step}:1:eio")
    passes = Retention(storage, clock=trusted(Clock()))
    await passes.run_once()
    for header, text in read_all(storage.bucket(bucket)):
        assert text.strip() == f"row {header.base_offset}"
    await passes.run_once()
    assert len(log_names(storage, bucket)) == 1
    await fill(storage, bucket, 1)


async def test_passes_come_by_themselves_and_survive_a_failure(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    passes = Retention(storage, clock=trusted(Clock()))
    counted = asyncio.Semaphore(0)

    async def fail() -> None:
        counted.release()
        raise RuntimeError("nonsense")

    monkeypatch.setattr(passes, "run_once", fail)
    running = asyncio.ensure_future(passes.run(1))
    for _ in range(3):
        await asyncio.wait_for(counted.acquire(), 10)
    running.cancel()
    assert "a retention pass failed" in caplog.text


@pytest.mark.parametrize(
    ("table", "policy"),
    [
        ({}, Policy(7 * 24 * HOUR_MS, 5)),
        ({"properties": {"table.log.ttl": "1 d"}}, Policy(24 * HOUR_MS, 5)),
        ({"properties": {"table.log.ttl": "nonsense"}}, Policy(7 * 24 * HOUR_MS, 5)),
        ({"custom_properties": {retention.SIZE_KEY: "9"}}, Policy(7 * 24 * HOUR_MS, 9)),
        ({"custom_properties": {retention.SIZE_KEY: "0"}}, Policy(7 * 24 * HOUR_MS, 0)),
        ({"custom_properties": {retention.SIZE_KEY: "-9x"}}, Policy(7 * 24 * HOUR_MS, 5)),
    ],
)
def test_policies(table: dict[str, Any], policy: Policy) -> None:
    assert policy_of(json.dumps(table).encode(), 5) == policy


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("7 d", 604_800_000),
        ("7days", 604_800_000),
        ("12H", 12 * HOUR_MS),
        ("5 min", 300_000),
        ("5m", 300_000),
        (" 30 sec ", 30_000),
        ("500 ms", 500),
        ("500", 500),
        ("1500 micros", 1),
        ("2000000ns", 2),
        ("-1 s", -1_000),
        ("", None),
        ("d", None),
        ("1 week", None),
        ("1.5 h", None),
        ("1" * 30 + " d", None),
    ],
)
def test_durations(text: str, expected_ms: int | None) -> None:
    assert duration_ms(text) == expected_ms

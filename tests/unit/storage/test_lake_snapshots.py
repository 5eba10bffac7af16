"""Offsets files and their leavings, limits on snapshots, and what retention leaves for the lake."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from fluss.formats.batches.log_batch import crc32c
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError
from fluss.model.paths import TableBucket, TablePath
from fluss.storage import failpoints, lake_offsets, lake_snapshots
from fluss.storage.catalog.catalog import TableEntry
from fluss.storage.lake_offsets import UNUSED_KEPT_MS, decode, encode
from fluss.storage.log.retention import Retention
from fluss.storage.store import Storage, StorageOptions
from tests.kit.storage.logs import NOW_MS, append, trusted

T = TablePath("fluss", "t")
LAKE = {"table.datalake.enabled": "true"}
NAME = "0123.offsets"
HOUR_MS = 3_600_000
SEGMENT_BYTES = 300  # two batches


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    opened = await Storage.open(StorageOptions(tmp_path / "data", segment_size_bytes=SEGMENT_BYTES))
    try:
        yield opened
    finally:
        failpoints.disarm()
        await opened.close()


async def make(storage: Storage, path: TablePath = T, rows: int = 10, **properties: str) -> TableEntry:
    text = json.dumps({"properties": {**LAKE, **properties}, "custom_properties": {}})
    table = await storage.catalog.create_table(path, text, "{}", 1)
    log = storage.bucket(TableBucket(table.table_id, 0))
    for number in range(rows):
        await append(log, f"row {number}".ljust(80), records=1, now_ms=NOW_MS).durable
    return table


async def prepare(storage: Storage, table: TableEntry, end: int) -> str:
    return await storage.lake.prepare(table, {TableBucket(table.table_id, 0): end}, merge=True)


async def tier(storage: Storage, table: TableEntry, snapshot_id: int, end: int, keep: int | None = None) -> str:
    path = await prepare(storage, table, end)
    await storage.lake.commit(table.table_id, snapshot_id, path, readable=True, earliest_to_keep=keep)
    return path


def names(storage: Storage, table: TableEntry) -> set[str]:
    return {path.name for path in storage.lake_offsets_path(table.table_id).iterdir()}


# --- the file


@pytest.mark.parametrize(
    ("offsets", "content"),
    [
        ({}, {}),
        ({TableBucket(4, 0): 10, TableBucket(4, 1): 0}, {"bucket_offsets": [10, 0]}),
        ({TableBucket(4, 2): 2**63 - 1}, {"bucket_offsets": [-1, -1, 2**63 - 1]}),
        (
            {TableBucket(4, 1, 8): 5, TableBucket(4, 0, 3): 6},
            {
                "partition_offsets": [
                    {"partition_id": 3, "bucket_offsets": [6]},
                    {"partition_id": 8, "bucket_offsets": [-1, 5]},
                ]
            },
        ),
    ],
)
def test_offsets_as_a_file_has_them(offsets: dict[TableBucket, int], content: dict[str, object]) -> None:
    data = encode(4, offsets)
    found = json.loads(data)
    assert found.pop("crc32c") == crc32c(json.dumps(found, separators=(",", ":")).encode())
    assert found == {"version": 1, "table_id": 4, **content}
    assert decode(data, 4, NAME) == offsets


def test_no_flipped_bit_of_a_file_changes_an_offset() -> None:
    offsets = {TableBucket(4, 0): 17, TableBucket(4, 2): 100}
    data = encode(4, offsets)
    for at in range(8 * len(data)):
        rotten = bytearray(data)
        rotten[at // 8] ^= 1 << at % 8
        with suppress(CorruptDataError):
            assert decode(bytes(rotten), 4, NAME) == offsets


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        "{}",
        '{"version":1}',
        '{"version":2,"table_id":4}',
        '{"version":1,"table_id":5}',
        '{"version":1,"table_id":4,"bucket_offsets":7}',
        '{"version":1,"table_id":4,"bucket_offsets":[-2]}',
        '{"version":1,"table_id":4,"bucket_offsets":[true]}',
        '{"version":1,"table_id":4,"bucket_offsets":[1.5]}',
        '{"version":1,"table_id":4,"bucket_offsets":[9223372036854775808]}',
        '{"version":1,"table_id":4,"bucket_offsets":"12"}',
        '{"version":1,"table_id":4,"partition_offsets":[3]}',
        '{"version":1,"table_id":4,"partition_offsets":[{"partition_id":"3","bucket_offsets":[]}]}',
        '{"version":1,"table_id":4,"partition_offsets":[{"bucket_offsets":[]}]}',
        "[" * 100_000,
    ],
)
def test_a_damaged_file(text: str) -> None:
    with pytest.raises(FlussError, match="damaged"):
        decode(text.encode(), 4, NAME)


async def test_a_disk_that_fails_leaves_nothing_half_done(storage: Storage) -> None:
    table = await make(storage)
    await tier(storage, table, 1, 3)
    before = names(storage, table)
    for point in ("lake.replace.before_write:1:enospc", "lake.replace.before_sync:1:eio"):
        failpoints.arm(point)
        with pytest.raises(FlussError, match="can't be used") as raised:
            await prepare(storage, table, 5)
        assert raised.value.error_code == ErrorCode.STORAGE_EXCEPTION
    assert {name for name in names(storage, table) if not name.endswith(".tmp")} == before
    path = await prepare(storage, table, 5)
    failpoints.arm("catalog.commit.before_commit:1:eio")
    with pytest.raises(FlussError, match="catalog could not be changed"):
        await storage.lake.commit(table.table_id, 2, path, readable=True, earliest_to_keep=None)
    latest = storage.lake.latest(table.table_id)
    assert latest is not None
    assert latest.snapshot_id == 1
    failpoints.arm("lake.remove.before_remove:1:eio")
    await storage.lake.commit(table.table_id, 2, path, readable=True, earliest_to_keep=None)
    latest = storage.lake.latest(table.table_id)
    assert latest is not None
    assert latest.snapshot_id == 2


# --- what is left over


async def test_prepared_files_of_failed_jobs_do_not_pile_up(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_offsets, "PREPARED_FILES_MAX", 3)
    table = await make(storage)
    used = Path(await tier(storage, table, 1, 1))
    paths = []
    for number in range(8):
        paths.append(Path(await prepare(storage, table, 5)))
        os.utime(paths[-1], (NOW_MS / 1_000 + number, NOW_MS / 1_000 + number))
    assert names(storage, table) == {used.name, *(path.name for path in paths[-3:])}


async def test_a_start_removes_what_can_not_be_needed_any_more(tmp_path: Path) -> None:
    long_ago_s = time.time() - UNUSED_KEPT_MS / 1_000
    storage = await Storage.open(StorageOptions(tmp_path))
    table, waiting = await make(storage), await make(storage, TablePath("fluss", "waiting"))
    overtaken, recent = Path(await prepare(storage, table, 2)), Path(await prepare(storage, table, 2))
    used = Path(await tier(storage, table, 1, 3))
    later, only = Path(await prepare(storage, table, 4)), Path(await prepare(storage, waiting, 4))
    for path, age_s in ((overtaken, 300), (used, 200), (later, 100), (only, 1_000)):
        os.utime(path, (long_ago_s - age_s, long_ago_s - age_s))
    cut = used.with_name("half.offsets.tmp")
    cut.write_bytes(b"{")
    await storage.close()
    storage = await Storage.open(StorageOptions(tmp_path))
    try:
        retention = Retention(storage)
        await retention.run_once()
        # Whether the clock is right is not known yet.
        assert names(storage, table) == {overtaken.name, recent.name, used.name, later.name}
        storage.clock.confirm()
        await retention.run_once()
        # A later one may belong to a snapshot that the lake has, however old it is.
        assert names(storage, table) == {recent.name, used.name, later.name}
        assert names(storage, waiting) == {only.name}
        await storage.lake.commit(waiting.table_id, 1, str(only), readable=True, earliest_to_keep=None)
    finally:
        await storage.close()


async def test_files_go_with_their_table_even_while_they_are_written(tmp_path: Path) -> None:
    storage = await Storage.open(StorageOptions(tmp_path))
    table = await make(storage)
    await tier(storage, table, 1, 3)
    writing = asyncio.ensure_future(prepare(storage, table, 5))
    await storage.catalog.drop_table(T)
    (result,) = await asyncio.gather(writing, return_exceptions=True)
    assert isinstance(result, str | FlussError)
    assert storage.lake.latest(table.table_id) is None
    await storage.close()
    assert not storage.lake_offsets_path(table.table_id).exists()


async def test_only_so_many_snapshots_are_kept(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    table = await make(storage)

    def kept() -> list[int]:
        return [entry.snapshot_id for entry in storage.catalog.lake_snapshots(table.table_id)]

    monkeypatch.setattr(lake_snapshots, "SNAPSHOTS_MAX", 3)
    for number in range(1, 6):
        await tier(storage, table, number, number, keep=-1)
    assert kept() == [3, 4, 5]
    assert len(names(storage, table)) == 3
    monkeypatch.setattr(lake_snapshots, "OFFSETS_BYTES_MAX", 1)
    await tier(storage, table, 6, 6, keep=-1)
    assert kept() == [6]


# --- retention


async def expire(storage: Storage, table: TableEntry) -> int:
    """A pass a day later: where the log begins then."""
    for path in storage.bucket_path(TableBucket(table.table_id, 0)).glob("*.log"):
        os.utime(path, (NOW_MS / 1_000, NOW_MS / 1_000))
    await Retention(storage, clock=trusted(lambda: NOW_MS + 24 * HOUR_MS)).run_once()
    return storage.bucket(TableBucket(table.table_id, 0)).log_start_offset


async def test_retention_stops_where_the_lake_ends(storage: Storage) -> None:
    table = await make(storage, **{"table.log.ttl": "1 h"})
    assert await expire(storage, table) == 0
    starts = []
    for snapshot_id, end in enumerate((1, 5, 10)):
        await tier(storage, table, snapshot_id, end)
        starts.append(await expire(storage, table))
        assert starts[-1] <= end
    assert starts[0] <= 1 < starts[1] <= 5
    assert starts[2] == 10


async def test_retention_is_free_again_when_tiering_is_off(storage: Storage) -> None:
    table = await make(storage, **{"table.log.ttl": "1 h", "table.datalake.enabled": "false"})
    assert await expire(storage, table) == 10


async def test_retention_by_size_stops_where_the_lake_ends(storage: Storage) -> None:
    table = await make(storage, rows=20)
    retention = Retention(storage, size_bytes=1)
    log = storage.bucket(TableBucket(table.table_id, 0))
    await retention.run_once()
    assert log.log_start_offset == 0
    await tier(storage, table, 1, 7)
    await retention.run_once()
    assert 4 <= log.log_start_offset <= 7

"""The log of a primary-key table is cut, and the table stays whole: restarted, storeless, or from the older one."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from fluss.formats.batches import kv_batch
from fluss.formats.rows.codecs import CompactedFormat
from fluss.formats.rows.keys import KeyEncoder
from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket, TablePath
from fluss.model.schema import Schema
from fluss.storage.kv.rocks import open_store
from fluss.storage.kv.rocks_settings import Resources
from fluss.storage.kv.snapshots import KvSnapshots
from fluss.storage.kv.store import MEMORY_BYTES_MIN
from fluss.storage.log.retention import Retention
from fluss.storage.store import Storage, StorageOptions

T = TablePath("fluss", "t")
SCHEMA = Schema(pa.schema([pa.field("id", pa.int32(), nullable=False), ("name", pa.string())]), primary_keys=["id"])
TABLE_PROPERTIES = {"table.log.arrow.compression.type": "NONE"}
TABLE_JSON = {
    "version": 1,
    "schema": SCHEMA.to_json(),
    "partition_key": [],
    "bucket_key": ["id"],
    "bucket_count": 1,
    "custom_properties": {"log.retention.size-bytes": "1"},
}
SEGMENT_BYTES = 1_000
SCHEMA_ID_BYTES = 2
ROWS, KEYS = CompactedFormat(SCHEMA.columns), KeyEncoder(SCHEMA.columns[:1])


class Table:
    """A table of one bucket, and what should be in it."""

    def __init__(self, root: Path, seed: int, **properties: str) -> None:
        self._root = root
        self._json = {**TABLE_JSON, "properties": {**TABLE_PROPERTIES, **properties}}
        self._random = random.Random(seed)
        self.expected: dict[int, str] = {}
        self.history: dict[int, dict[int, str]] = {}  # by the offset that follows
        self.storage: Storage

    async def open(self) -> None:
        self.storage = await Storage.open(StorageOptions(self._root, segment_size_bytes=SEGMENT_BYTES))
        self.snapshots = KvSnapshots(self.storage, lambda bucket: self.storage.kv.bucket(bucket), on_demand_gap_ms=0)
        if not self.storage.catalog.table_exists(T):
            await self.storage.catalog.create_table(T, json.dumps(self._json), json.dumps(SCHEMA.to_json()), 1)
        self.bucket = TableBucket(self.storage.catalog.table(T).table_id, 0)
        self.path = self.storage.bucket_path(self.bucket)

    async def reopen(self) -> None:
        await self.storage.close()
        await self.open()

    @property
    def log_start(self) -> int:
        return self.storage.bucket(self.bucket).log_start_offset

    async def put(self, batches: int = 20) -> None:
        for _ in range(batches):
            rows: dict[int, str | None] = {
                self._random.randrange(50): self._random.choice([None, f"name {self._random.random()}"])
                for _ in range(8)
            }
            keys = KEYS.encode(pa.record_batch({"id": pa.array(list(rows), pa.int32())}))
            values = [None if name is None else ROWS.encode_row([key, name]) for key, name in rows.items()]
            records = kv_batch.encode_records(keys, pa.array(values, pa.binary()))
            batch = kv_batch.encode_header(records, schema_id=1, record_count=len(rows)) + records
            end_offset = await self.storage.kv.bucket(self.bucket).put(memoryview(batch)).applied
            self.expected = {key: name for key, name in (self.expected | rows).items() if name is not None}
            self.history[end_offset] = self.expected

    async def cut(self) -> None:
        await Retention(self.storage, kv_snapshots=self.snapshots).run_once()

    async def check(self) -> None:
        keys = KEYS.encode(pa.record_batch({"id": pa.array(range(50), pa.int32())})).to_pylist()
        values = await self.storage.kv.bucket(self.bucket).get_many(keys)
        assert decoded([value for value in values if value is not None]) == self.expected


def decoded(values: list[bytes]) -> dict[int, str]:
    rows = ROWS.decode([value[SCHEMA_ID_BYTES:] for value in values])
    return dict(zip(*(column.to_pylist() for column in rows.columns), strict=True))


@pytest.fixture
async def table(tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    opened = Table(tmp_path / "data", seed)
    await opened.open()
    return opened


async def cut_twice(table: Table) -> None:
    """Two snapshots, the log cut behind the first, and more in the log than the second has."""
    for _ in range(2):
        await table.put()
        await table.cut()
    await table.put(5)
    assert table.log_start > 0
    assert [name.partition("-")[0] for name in sorted(os.listdir(table.path / "snapshots"))] == ["0", "1"]


async def test_a_restart_finds_the_table_whole(table: Table) -> None:
    await cut_twice(table)
    await table.reopen()
    await table.check()
    await table.put()
    await table.check()
    await table.storage.close()


async def test_a_lost_store_is_rebuilt_from_the_newest_snapshot(table: Table) -> None:
    await cut_twice(table)
    await table.storage.close()
    shutil.rmtree(table.path / "kv")
    await table.open()
    await table.check()
    await table.put()
    await table.reopen()
    await table.check()
    await table.storage.close()


def lose_manifest(snapshot: Path) -> None:
    for path in snapshot.glob("MANIFEST-*"):
        path.unlink()


def cut_current(snapshot: Path) -> None:
    (snapshot / "CURRENT").write_bytes(b"")


def lose_rows(snapshot: Path) -> None:
    for path in snapshot.glob("*.sst"):
        path.unlink()


@pytest.mark.parametrize("damage", [lose_manifest, cut_current, lose_rows])
async def test_with_the_newer_one_damaged_the_older_is_enough(table: Table, damage: object) -> None:
    await cut_twice(table)
    await table.storage.close()
    shutil.rmtree(table.path / "kv")
    (newest,) = table.path.glob("snapshots/1-*")
    damage(newest)  # type: ignore[operator]
    await table.open()
    await table.check()
    assert sorted(path.suffix for path in (table.path / "snapshots").iterdir()) == ["", ".damaged"]
    # The damaged one does not count: the log stays behind the other until two good ones are there.
    start = table.log_start
    await table.cut()
    assert table.log_start <= start + SEGMENT_BYTES
    await table.put()
    await table.cut()
    assert table.log_start > start
    assert all(not path.suffix for path in (table.path / "snapshots").iterdir())
    await table.reopen()
    await table.check()
    await table.storage.close()


async def test_with_both_damaged_the_bucket_says_so_and_keeps_its_files(table: Table) -> None:
    await cut_twice(table)
    await table.storage.close()
    shutil.rmtree(table.path / "kv")
    for snapshot in (table.path / "snapshots").iterdir():
        lose_manifest(snapshot)
    await table.open()
    with pytest.raises(FlussError, match="can't be rebuilt"):
        await table.check()
    assert len(list((table.path / "snapshots").iterdir())) == 2
    await table.storage.close()


async def test_a_closed_bucket_is_opened_to_cut_its_log(table: Table) -> None:
    await table.put(40)
    await table.reopen()
    for _ in range(2):
        await table.cut()
    assert table.log_start > 0
    await table.reopen()
    shutil.rmtree(table.path / "kv")
    await table.check()
    await table.storage.close()


async def test_a_snapshot_has_the_rows_of_its_offset_while_puts_go_on(table: Table, tmp_path: Path) -> None:
    putting = asyncio.create_task(table.put(300))
    copies: dict[int, Path] = {}
    while not putting.done():
        await table.snapshots.make(table.bucket)
        for snapshot in await table.snapshots.snapshots_of(table.bucket):
            if snapshot.snapshot_id not in copies:
                copies[snapshot.snapshot_id] = tmp_path / "copies" / snapshot.path.name
                shutil.copytree(snapshot.path, copies[snapshot.snapshot_id])
    await putting
    await table.storage.close()
    assert len(copies) > 3
    for copy in copies.values():
        store = open_store(copy, Resources(MEMORY_BYTES_MIN))
        assert store.state.covered_offset == int(copy.name.partition("-")[2])
        assert decoded(store.scan().values) == table.history[store.state.covered_offset]
        store.close()


async def test_snapshots_and_the_lake_both_keep_the_log(tmp_path: Path) -> None:
    table = Table(tmp_path / "data", 7, **{"table.datalake.enabled": "true"})
    await table.open()
    lake, entry = table.storage.lake, table.storage.catalog.table(T)
    for _ in range(3):
        await table.put()
        await table.cut()
    assert table.log_start == 0, "nothing was tiered yet"
    tiered = sorted(table.history)[len(table.history) // 2]
    path = await lake.prepare(entry, {table.bucket: tiered}, merge=True)
    await lake.commit(entry.table_id, 1, path, readable=True, earliest_to_keep=None)
    for _ in range(2):
        await table.cut()
    assert 0 < table.log_start <= tiered
    end = table.storage.bucket(table.bucket).high_watermark
    path = await lake.prepare(entry, {table.bucket: end}, merge=True)
    await lake.commit(entry.table_id, 2, path, readable=True, earliest_to_keep=None)
    await Retention(table.storage).run_once()
    assert table.log_start <= tiered, "without KV snapshots the log stays, whatever the lake has"
    for _ in range(2):
        await table.cut()
    assert tiered < table.log_start <= end
    await table.reopen()
    await table.check()
    await table.storage.close()

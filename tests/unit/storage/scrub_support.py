"""A data directory with every kind of file that is scrubbed, and damage to them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fluss.formats.batches.log_batch import encode_batch
from fluss.model.paths import TableBucket, TablePath
from fluss.storage.damage.scrub import Scrubber
from fluss.storage.kv.snapshot_files import list_snapshots
from fluss.storage.kv.snapshots import KvSnapshots
from fluss.storage.staging.commit import StagedKey, StagedRequest, query_name
from fluss.storage.store import Storage
from tests.kit.storage import kv_tables
from tests.kit.storage.kv_tables import Table, row
from tests.kit.storage.logs import NOW_MS, append

LOG = TablePath("fluss", "events")
LOG_JSON = json.dumps({"properties": {"table.datalake.enabled": "true"}, "custom_properties": {}})
SEGMENT_BYTES = 1_000
ROWS = 400
FAST = 1 << 40  # bytes per second


class World:
    """A log table of many segments with staged writes and a lake snapshot, and a primary-key table with snapshots."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.snapshots = KvSnapshots(storage, lambda bucket: storage.kv.bucket(bucket), on_demand_gap_ms=0)
        self.rows: Table

    @property
    def log_bucket(self) -> TableBucket:
        return TableBucket(self.storage.catalog.table(LOG).table_id, 0)

    @property
    def log_path(self) -> Path:
        return self.storage.bucket_path(self.log_bucket)

    @property
    def rows_path(self) -> Path:
        return self.storage.bucket_path(self.rows.bucket())

    @property
    def segments(self) -> list[Path]:
        return sorted(self.log_path.glob("*.log"))

    @property
    def store_tables(self) -> list[Path]:
        return sorted((self.rows_path / "kv").glob("*.sst"))

    @property
    def snapshot_paths(self) -> list[Path]:
        return [snapshot.path for snapshot in list_snapshots(self.rows_path)]

    def scrubber(self, **how: Any) -> Scrubber:
        return Scrubber(self.storage, self.snapshots, **{"bytes_per_second": FAST, **how})

    async def fill(self) -> None:
        entry = await self.storage.catalog.create_table(LOG, LOG_JSON, "{}", 1)
        await self.append(80)
        self.rows = await Table.create(self.storage, name="rows")
        for number in range(2):
            await self.put(number)
            await self.snapshots.make(self.rows.bucket())
        batch = memoryview(encode_batch(b"staged", schema_id=1, record_count=1))
        key = StagedKey(entry.table_id, query_name("query"), 7, 0, 0, 0)
        await self.storage.staging.stage(key, "query", StagedRequest([(self.log_bucket, batch)]))
        await self.storage.lake.prepare(entry, {self.log_bucket: 10}, merge=False)

    async def append(self, batches: int) -> None:
        log = await self.storage.opened(self.log_bucket)
        stay = log.on_advance(lambda: None)
        for number in range(batches):
            await append(log, f"row {number}".ljust(80), records=1, now_ms=NOW_MS).durable
        stay()

    async def put(self, score: int) -> None:
        batch = self.rows.batch([row(key, f"name {key}".ljust(40), score) for key in range(ROWS)])
        await self.rows.kv().put(batch).applied


@asynccontextmanager
async def opened(root: Path, **options: Any) -> AsyncIterator[World]:
    """A filled directory, or what is in one that was filled before."""
    async with kv_tables.opened(root, **{"segment_size_bytes": SEGMENT_BYTES, **options}) as storage:
        world = World(storage)
        if storage.catalog.table_exists(LOG):
            world.rows = Table(storage, TablePath("fluss", "rows"))
        else:
            await world.fill()
        yield world


def flip(path: Path, position: int) -> None:
    """Change one bit; a negative position counts from the end."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    with path.open("r+b") as file:
        file.write(data)

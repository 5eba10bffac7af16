"""A table whose store stands still keeps no other table from its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fluss.doors import clock
from fluss.storage.kv.engine import READS_SLOW_TIMES
from fluss.storage.kv.rocks import RocksStore
from tests.kit.storage.kv_tables import Table, opened, row

BUCKETS = 8
PATIENCE_S = 30.0


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch, method: str, table: Table) -> Iterator[None]:
    """Calls of a method for stores of a table do not return until the block ends."""
    call: Callable[..., Any] = getattr(RocksStore, method)
    gate = threading.Event()

    def wait_and_call(store: RocksStore, *arguments: Any, **named: Any) -> Any:
        if f"tables/{table.table_id}/" in str(store.path):
            gate.wait()
        return call(store, *arguments, **named)

    monkeypatch.setattr(RocksStore, method, wait_and_call)
    try:
        yield
    finally:
        gate.set()


@pytest.mark.parametrize(
    ("method", "open_stores_max"),
    [("write", 64), ("get_many", 64), ("scan", 64), ("checkpoint", 64), ("close", 2), ("write", 2)],
    ids=["put", "lookup", "scan", "snapshot", "closing", "opening"],
)
async def test_a_store_that_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, open_stores_max: int
) -> None:
    async with opened(tmp_path / "data", open_stores_max=open_stores_max) as storage:
        slow, other = [await Table.create(storage, name=name, bucket_count=BUCKETS) for name in ("slow", "other")]
        for bucket_id in range(BUCKETS):
            await put(slow, bucket_id)
        with held(monkeypatch, method, slow):
            waiting = [asyncio.ensure_future(use(slow, bucket_id, tmp_path)) for bucket_id in range(BUCKETS)]
            await asyncio.sleep(0.2)  # Not needed to pass: so that all that can stand still does.
            try:
                for bucket_id in range(BUCKETS):
                    await asyncio.wait_for(use(other, bucket_id, tmp_path), PATIENCE_S)
            finally:
                stood_still = [task for task in waiting if not task.done()]
        assert stood_still
        await asyncio.gather(*waiting)


async def test_reads_that_wait_for_the_disk_get_a_part_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, read_s = 0.0, 2.0

    def read(store: RocksStore, keys: list[bytes]) -> list[bytes | None]:
        nonlocal now_s
        now_s += read_s
        return [None] * len(keys)

    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        await put(table, 0)
        monkeypatch.setattr(RocksStore, "get_many", read)
        monkeypatch.setattr(clock, "monotonic", lambda: now_s)
        kv, bucket = storage.kv, table.bucket()
        assert kv.get_few(bucket, [b"key"]) == [None]
        now_s += READS_SLOW_TIMES * read_s - 1
        assert kv.get_few(bucket, [b"key"]) is None
        now_s += 1
        assert kv.get_few(bucket, [b"key"]) == [None]


async def put(table: Table, bucket_id: int) -> None:
    await table.kv(bucket_id).put(table.batch([row(bucket_id)])).applied


async def use(table: Table, bucket_id: int, folder: Path) -> None:
    bucket = table.kv(bucket_id)
    await put(table, bucket_id)
    assert await bucket.get_many([table.key(bucket_id)]) != [None]
    assert len(await bucket.first_values(10, 1 << 20)) == 1
    await bucket.checkpoint(folder / f"{table.table_id}-{bucket_id}")

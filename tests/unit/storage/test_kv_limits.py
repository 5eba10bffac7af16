"""What puts may take of memory: few bytes that become many, large ones, and many stores at once."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.storage import allocator
from fluss.storage.kv import bucket as kv_bucket
from fluss.storage.kv import engine
from fluss.storage.kv import put as kv_put
from fluss.storage.kv.rocks import RocksStore
from fluss.storage.kv.rocks_settings import Resources
from fluss.storage.kv.store import MEMORY_BYTES_MIN
from fluss.storage.kv.table import KvTable
from tests.kit.storage.kv_tables import Table, opened, row

TEXT = "x" * 1_000


async def test_rows_that_wait_for_the_store_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates of a column carry a few bytes and make large rows."""
    monkeypatch.setattr(kv_bucket, "UNAPPLIED_BYTES_MAX", 3 * len(TEXT))
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        kv = table.kv()
        await kv.put(table.batch([row(1, TEXT)])).applied
        most_bytes = 0
        puts = [kv.put(table.batch([row(1, None, number)]), [0, 2]) for number in range(50)]
        while not puts[-1].applied.done():
            most_bytes = max(most_bytes, kv._unapplied_bytes)
            await asyncio.sleep(0)
        assert len(TEXT) <= most_bytes < 5 * len(TEXT)
        assert [await put.applied for put in puts] == [3 + 2 * number for number in range(50)]
        assert await table.all_rows() == [row(1, TEXT, 49)]
        assert kv._unapplied_bytes == 0


async def test_puts_that_wait_for_the_store_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_bucket, "UNAPPLIED_PUTS_MAX", 3)
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        kv = table.kv()
        puts = [kv.put(table.batch([row(number)])) for number in range(50)]
        most = 0
        while not puts[-1].applied.done():
            most = max(most, len(kv._unapplied))
            await asyncio.sleep(0)
        assert 1 <= most <= 3
        assert await table.all_rows() == [row(number) for number in range(50)]


class Counting(RocksStore):
    """Knows how many puts the last one looked into."""

    puts = 0

    def recent(self, keys: list[bytes], newer: list[kv_put.Rows]) -> tuple[kv_put.Rows, list[bytes]]:
        self.puts = len(newer)
        return super().recent(keys, newer)


def test_rows_of_a_large_put_are_not_looked_for_in_every_small_one(tmp_path: Path) -> None:
    """A thousand puts, a hundred thousand rows: two seconds without another thread."""
    store = Counting(tmp_path / "kv", Resources(MEMORY_BYTES_MIN))
    small: list[kv_put.Rows] = [{b"%d" % (number % 90): b"put %d" % number} for number in range(100)]
    assert kv_put._stored([b"5"], small, store) == {b"5": b"put 95"}
    assert store.puts == 100
    old = kv_put._stored([b"%d" % number for number in range(1_000)], small, store)
    assert store.puts == 1
    assert list(map(old.get, (b"5", b"50", b"500"))) == [b"put 95", b"put 50", None]
    store.close()


async def test_puts_that_wait_are_told_when_their_table_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_bucket, "UNAPPLIED_BYTES_MAX", 1)
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage)
        puts = [table.kv().put(table.batch([row(number, TEXT)])) for number in range(500)]
        await puts[0].appended
        await storage.catalog.drop_table(table.path)
        outcomes = await asyncio.gather(*(put.applied for put in puts), return_exceptions=True)
        gone = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert {getattr(error, "error_code", error) for error in gone} == {ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION}


async def test_a_log_batch_fits_into_one_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old and the new row of an update are in it, so it may be larger than the batch that was put."""
    monkeypatch.setattr(kv_put, "LOG_BATCH_BYTES_MAX", 3_000)
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage, properties={"table.log.arrow.compression.type": "NONE"})
        await table.kv().put(table.batch([row(1, 2 * TEXT)])).applied
        with pytest.raises(InvalidRequestError, match="bytes in the log, and 3000 are allowed") as caught:
            await table.kv().put(table.batch([row(1, 2 * TEXT)])).applied
        assert caught.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        assert len(table.changelog()) == 1
        await table.kv().put(table.batch([row(1, "short")])).applied
        assert await table.all_rows() == [row(1, "short")]


async def test_large_puts_are_worked_on_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_bucket, "LARGE_PUT_BYTES", len(TEXT))
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage, bucket_count=3)
        async with storage.kv.large_puts:
            large = [table.kv(bucket).put(table.batch([row(1, 2 * TEXT)])) for bucket in range(3)]
            small = [table.kv(bucket).put(table.batch([row(2, "x")])) for bucket in range(3)]
            other = await Table.create(storage, name="other")
            await other.kv().put(other.batch([row(1, "x")])).applied
            # In one bucket puts keep their order, so the small ones wait, too.
            assert not any(put.appended.done() for put in (*large, *small))
        await asyncio.gather(*(put.applied for put in (*large, *small)))
        for bucket in range(3):
            assert await table.all_rows(bucket) == [row(1, 2 * TEXT), row(2, "x")]


async def test_writes_wait_while_unflushed_rows_take_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "data") as storage:
        table = await Table.create(storage, bucket_count=8)
        resources = storage.kv._resources
        limit_bytes = resources._full_bytes
        most_bytes = 0
        puts = [
            table.kv(bucket).put(table.batch([row(number, TEXT * 300) for number in range(4)])) for bucket in range(8)
        ]
        for _ in range(4):
            await asyncio.gather(*(put.applied for put in puts))
            most_bytes = max(most_bytes, resources.memtables_bytes)
            puts = [
                table.kv(bucket).put(table.batch([row(number, TEXT * 300) for number in range(4)]))
                for bucket in range(8)
            ]
        await asyncio.gather(*(put.applied for put in puts))
        # The last write may pass it by its own size.
        assert most_bytes < limit_bytes + 4 * 300 * len(TEXT) + (1 << 20)
        for bucket in range(8):
            assert len(await table.all_rows(bucket)) == 4


async def test_a_dropped_table_leaves_no_formats_behind(tmp_path: Path) -> None:
    """Counted as objects: a server on which tables come and go for hours must not keep what was made for them."""

    def formats() -> set[KvTable]:
        gc.collect()
        return {found for found in gc.get_objects() if isinstance(found, KvTable)}

    others = formats()  # of tests before this one
    async with opened(tmp_path / "data") as storage:
        for _ in range(5):
            table = await Table.create(storage)
            await table.kv().put(table.batch([row(1, "a")])).applied
            await storage.catalog.drop_table(table.path)
        del table
        async with asyncio.timeout(10):  # a thread may be closing the last store still
            while formats() - others:
                await asyncio.sleep(0.01)


async def test_memory_is_given_back_after_many_writes_and_when_a_table_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = 0

    def give_back() -> None:
        nonlocal times
        times += 1

    monkeypatch.setattr(allocator, "give_back", give_back)
    monkeypatch.setattr(engine, "GIVE_BACK_BYTES", 5 * len(TEXT))
    async with opened(tmp_path / "data") as storage:
        table, unused = await Table.create(storage), await Table.create(storage, name="unused")
        for number in range(10):
            await table.kv().put(table.batch([row(number, TEXT)])).applied
        await storage.catalog.drop_table(table.path)
        await storage.catalog.drop_table(unused.path)
    assert times == 3  # after each five, and at the drop of what was open

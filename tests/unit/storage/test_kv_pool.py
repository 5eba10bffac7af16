"""The pool that keeps some stores open."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from fluss.model.paths import TableBucket
from fluss.storage.kv.pool import CLOSINGS_MAX, OPENINGS_MAX, KvPool
from fluss.storage.kv.rocks import open_store
from fluss.storage.kv.rocks_settings import Resources
from fluss.storage.kv.store import (
    EMPTY,
    MEMORY_BYTES_MIN,
    DamagedKvStoreError,
    KvState,
    KvStore,
    KvStoreError,
)

T = TypeVar("T")


class Stores:
    """A pool of two over stores in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.resources = Resources(MEMORY_BYTES_MIN)
        self.opened: list[TableBucket] = []
        self.pool = KvPool(self.open, self.run_closing, lambda: True, open_max=2)

    def path(self, bucket: TableBucket) -> Path:
        return self.directory / f"{bucket.table_id}-{bucket.bucket_id}" / "kv"

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)

    async def run_closing(self, table_id: int, work: Callable[[], T]) -> T:
        return await self.run(work)

    async def open(self, bucket: TableBucket) -> KvStore:
        self.opened.append(bucket)
        self.path(bucket).parent.mkdir(exist_ok=True)
        return await self.run(lambda: open_store(self.path(bucket), self.resources))

    def is_open(self, bucket: TableBucket) -> bool:
        try:
            open_store(self.path(bucket), self.resources).close()
        except KvStoreError:
            return True
        return False

    async def settled(self) -> None:
        """Return when no store is being closed."""
        while self.pool._closings:
            await asyncio.wait(self.pool._closings)


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[Stores]:
    directory = tmp_path / "tables"
    directory.mkdir()
    made = Stores(directory)
    yield made
    await made.pool.close()
    assert len(made.pool) == 0


BUCKETS = [TableBucket(1, number) for number in range(5)]


def put(store: KvStore, rows: dict[bytes, bytes], offset: int = 1) -> None:
    store.write(list(rows), list(rows.values()), [], KvState(offset, len(rows)))


async def test_the_longest_unused_is_closed(stores: Stores) -> None:
    for bucket in (*BUCKETS[:2], BUCKETS[0], BUCKETS[2]):
        async with stores.pool.use(bucket) as store:
            put(store, {b"name": str(bucket).encode()})
    await stores.settled()
    assert len(stores.pool) == 2
    assert [stores.is_open(bucket) for bucket in BUCKETS[:3]] == [True, False, True]
    for bucket in BUCKETS[:3]:
        async with stores.pool.use(bucket) as store:
            assert store.get_many([b"name"]) == [str(bucket).encode()]


async def test_none_in_use_is_closed(stores: Stores) -> None:
    async with stores.pool.use(BUCKETS[0]) as first:
        for bucket in BUCKETS[1:]:
            async with stores.pool.use(bucket):
                pass
        await stores.settled()
        put(first, {b"a": b"1"})
        async with stores.pool.use(BUCKETS[0]) as same:
            assert same is first
    assert stores.opened == BUCKETS


async def test_a_table_with_many_closes_its_own(stores: Stores) -> None:
    bystander = TableBucket(2, 0)
    for bucket in (bystander, *BUCKETS):
        async with stores.pool.use(bucket):
            pass
    await stores.settled()
    assert stores.pool.opened(bystander) is not None
    assert stores.pool.opened(BUCKETS[-1]) is not None
    assert len(stores.pool) == 2


async def test_a_table_within_its_share_keeps_its_store_while_another_uses_many(stores: Stores) -> None:
    bystander = TableBucket(2, 0)
    async with stores.pool.use(bystander):
        pass
    async with stores.pool.use(BUCKETS[0]), stores.pool.use(BUCKETS[1]):
        await stores.settled()
        assert stores.pool.opened(bystander) is not None
    await stores.settled()
    assert stores.pool.opened(bystander) is not None
    assert len(stores.pool) == 2


async def test_more_tables_than_places_close_the_longest_unused(stores: Stores) -> None:
    buckets = [TableBucket(table_id, 0) for table_id in range(1, 5)]
    for bucket in buckets:
        async with stores.pool.use(bucket):
            pass
    await stores.settled()
    assert [stores.pool.is_open(bucket) for bucket in buckets] == [False, False, True, True]


async def test_a_store_is_opened_while_many_of_another_table_wait(stores: Stores) -> None:
    """The openings of the other table never end, so nobody gets past them who has to."""
    held = asyncio.Event()
    open_store = stores.pool._open_store

    async def open_later(bucket: TableBucket) -> KvStore:
        if bucket.table_id == 1:
            await held.wait()
        return await open_store(bucket)

    async def ask(bucket: TableBucket) -> None:
        async with stores.pool.use(bucket):
            pass

    stores.pool._open_store = open_later
    asking = [asyncio.ensure_future(ask(TableBucket(1, number))) for number in range(20)]
    await asyncio.sleep(0)
    await asyncio.wait_for(ask(TableBucket(2, 0)), timeout=30)
    assert stores.opened == [TableBucket(2, 0)]
    held.set()
    await asyncio.gather(*asking)


async def test_a_store_is_opened_while_many_of_another_table_are_being_closed(stores: Stores) -> None:
    """The closings of the other table do not end, so nobody gets past them who has to."""
    held = asyncio.Event()
    run_closing = stores.pool._run_closing

    async def close_later(table_id: int, work: Callable[[], T]) -> T:
        if table_id == 1:
            await held.wait()
        return await run_closing(table_id, work)

    async def ask(bucket: TableBucket) -> None:
        async with stores.pool.use(bucket):
            pass

    stores.pool._run_closing = close_later
    for number in range(2 + CLOSINGS_MAX):
        await ask(TableBucket(1, number))
    waiting = asyncio.ensure_future(ask(TableBucket(1, 99)))
    try:
        await asyncio.wait_for(ask(TableBucket(2, 0)), timeout=30)
        assert not waiting.done()
    finally:
        held.set()
    await waiting


async def test_a_discarded_store_is_closed_by_its_last_user_and_opened_again(stores: Stores) -> None:
    async with stores.pool.use(BUCKETS[0]) as first:
        put(first, {b"a": b"1"})
        closed = stores.pool.discard(BUCKETS[0])
        assert stores.pool.discard(BUCKETS[0]) is closed

        async def later() -> KvStore:
            async with stores.pool.use(BUCKETS[0]) as store:
                return store

        waiting = [asyncio.ensure_future(later()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        assert first.get_many([b"a"]) == [b"1"]
        assert not closed.done()
    await closed
    second, third = [await task for task in waiting[1:]]
    assert second is third is not first
    assert second.get_many([b"a"]) == [b"1"]
    assert waiting[0].cancelled()
    await stores.pool.discard(BUCKETS[1])


async def test_one_opening_for_all_who_ask(stores: Stores) -> None:
    async def ask() -> KvStore:
        async with stores.pool.use(BUCKETS[0]) as store:
            return store

    asking = [asyncio.ensure_future(ask()) for _ in range(4)]
    await asyncio.sleep(0)
    asking[1].cancel()
    done = await asyncio.gather(*asking, return_exceptions=True)
    assert len({store for store in done if not isinstance(store, BaseException)}) == 1
    assert stores.opened == BUCKETS[:1]


async def test_many_that_are_asked_for_at_once_are_opened_once_each(stores: Stores) -> None:
    buckets = [TableBucket(1, number) for number in range(20)]
    most_open = 0

    async def ask(bucket: TableBucket) -> None:
        nonlocal most_open
        async with stores.pool.use(bucket) as store:
            # Given back before the loop goes on: stores in use are not counted, there may be any number of them.
            put(store, {b"a": b"1"})
            most_open = max(most_open, len(stores.pool))

    await asyncio.gather(*map(ask, buckets))
    assert sorted(bucket.bucket_id for bucket in stores.opened) == list(range(20))
    # Those that may be, are being opened, and are being closed.
    assert most_open <= 2 + 2 * OPENINGS_MAX


async def test_idle_stores_are_flushed_when_memory_is_short(stores: Stores) -> None:
    async with stores.pool.use(BUCKETS[0]) as store:
        put(store, {b"%d" % number: b"value" for number in range(10)})
        stores.pool.relieve()
        assert stores.pool._relieving is not None
        await stores.pool._relieving
        assert store.size_bytes() == 0
    stores.pool.relieve()
    await stores.pool._relieving
    assert store.size_bytes() > 0
    size_bytes = store.size_bytes()
    stores.pool.relieve()
    await stores.pool._relieving
    assert store.size_bytes() == size_bytes


async def test_a_store_that_does_not_open_is_forgotten(stores: Stores) -> None:
    path = stores.path(BUCKETS[0])
    path.mkdir(parents=True)
    (path / "stray").touch()
    for _ in range(2):
        with pytest.raises(DamagedKvStoreError):
            async with stores.pool.use(BUCKETS[0]):
                pass
    assert len(stores.pool) == 0
    (path / "stray").unlink()
    async with stores.pool.use(BUCKETS[0]) as store:
        assert store.state == EMPTY


async def test_closing_some_waits_for_their_users(stores: Stores) -> None:
    async with stores.pool.use(BUCKETS[0]), stores.pool.use(BUCKETS[1]):
        closing = asyncio.ensure_future(stores.pool.close(lambda bucket: bucket == BUCKETS[0]))
        done, _ = await asyncio.wait([closing], timeout=0.05)
        assert not done
    await closing
    assert len(stores.pool) == 1
    assert not stores.is_open(BUCKETS[0])


async def test_more_stores_than_may_be_open(stores: Stores) -> None:
    """No write is lost, whoever closes what, and some are discarded while others use them."""

    async def work(number: int) -> None:
        chance = random.Random(number)
        for turn in range(30):
            bucket = chance.choice(BUCKETS)
            async with stores.pool.use(bucket) as store:
                await stores.run(partial(put, store, {b"%d/%d" % (number, turn): b""}))
                if chance.random() < 0.1:
                    stores.pool.discard(bucket)

    await asyncio.gather(*(work(number) for number in range(8)))
    found: list[bytes] = []
    for bucket in BUCKETS:
        async with stores.pool.use(bucket) as store:
            found += store.scan().keys
    assert sorted(found) == sorted(b"%d/%d" % (number, turn) for number in range(8) for turn in range(30))
    await stores.settled()
    assert len(stores.pool) <= 2

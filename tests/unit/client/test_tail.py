"""Scans that fetch on the event loop of a reader who waits for rows as they come."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.client.scan.scanner import LogScannerCore
from fluss.client.write.writer import AppendWriterCore
from fluss.model.errors import FlussError
from tests.kit.client_tables import make_table

POLL_MS = 2_000
ROWS = 20


class Reader:
    """Appends single rows and reads each of them on the running loop."""

    def __init__(self, client: ClientCore, **table: Any) -> None:
        self.table = make_table(client, **table)
        self.writer: AppendWriterCore = self.table.append_writer()
        self.scanner: LogScannerCore = self.table.log_scanner(None)
        run(self.scanner.subscribe({(None, bucket): 0 for bucket in range(self.table.info.num_buckets)}))
        self.written = 0
        self.seen: list[int] = []

    @property
    def is_on_own_loop(self) -> bool:
        return self.scanner._session._prefetcher.own_loop is not None

    async def append(self, count: int = 1) -> None:
        ids = range(self.written, self.written + count)
        self.writer.write_batch(pa.record_batch({"id": list(ids), "name": [f"n{number}" for number in ids]}))
        self.written += count
        await self.writer.flush()

    async def read(self) -> None:
        """Everything written."""
        deadline = time.monotonic() + 10
        while len(self.seen) < self.written:
            assert time.monotonic() < deadline
            self.take(await self.scanner.poll_batches_here(POLL_MS))

    def take(self, batches: list[Any]) -> None:
        self.seen += [number for fetched in batches for number in fetched.batch.column("id").to_pylist()]

    async def follow(self, count: int = ROWS) -> None:
        for _ in range(count):
            reading = asyncio.ensure_future(self.read_one())
            await asyncio.sleep(0.005)
            await self.append()
            await reading

    async def read_one(self, timeout_ms: int = POLL_MS) -> None:
        ready = self.scanner.ready_batches(timeout_ms)
        self.take(ready or await self.scanner.poll_batches_here(timeout_ms))

    def check(self) -> None:
        assert self.seen == list(range(self.written))


@pytest.fixture
def reader(client: ClientCore) -> Reader:
    return Reader(client)


def test_who_waits_for_rows_gets_them_on_his_own_loop(reader: Reader) -> None:
    asyncio.run(reader.follow())
    assert reader.is_on_own_loop
    reader.check()


def test_an_empty_poll_ends_at_its_timeout(reader: Reader) -> None:
    async def follow() -> None:
        await reader.follow()
        for timeout_ms in (0, 100, 700):
            began = time.monotonic()
            assert await reader.scanner.poll_batches_here(timeout_ms) == []
            assert timeout_ms / 1_000 - 0.01 < time.monotonic() - began < timeout_ms / 1_000 + 1
        await reader.follow(3)

    asyncio.run(follow())
    assert reader.is_on_own_loop
    reader.check()


def test_rows_that_came_while_nobody_waited_are_there_at_once(reader: Reader) -> None:
    async def follow() -> None:
        await reader.follow()
        await reader.append()
        await asyncio.sleep(0.1)
        assert reader.is_on_own_loop
        began = time.monotonic()
        await reader.read()
        assert time.monotonic() - began < POLL_MS / 2_000

    asyncio.run(follow())
    reader.check()


def test_many_rows_go_back_to_the_io_loop_and_single_ones_come_again(reader: Reader) -> None:
    async def follow() -> None:
        for count in (1, 50_000, 1, 3, 50_000):
            await reader.follow(5)
            assert reader.is_on_own_loop
            await reader.append(count)
            await reader.read()
            assert reader.is_on_own_loop is (count < 10)

    asyncio.run(follow())
    reader.check()


def test_a_bad_batch_is_told(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    async def follow() -> None:
        await reader.follow()
        assert reader.is_on_own_loop

        def broken(*_: Any) -> Any:
            raise FlussError("broken")

        monkeypatch.setattr(reader.scanner._reader, "_decode", broken)
        await reader.append()
        with pytest.raises(FlussError, match="broken"):
            await reader.read()

    asyncio.run(follow())


def test_rows_before_a_bad_batch_are_read(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = reader.scanner._reader._decode

    def broken(part: Any) -> Any:
        if part.header.base_offset == ROWS + 2:
            raise FlussError("broken")
        return decode(part)

    async def follow() -> None:
        await reader.follow()
        for _ in range(3):  # the first answers the fetch that waits, the others share an answer
            await reader.append()
            await asyncio.sleep(0.05)
        assert reader.is_on_own_loop
        monkeypatch.setattr(reader.scanner._reader, "_decode", broken)
        with pytest.raises(FlussError, match="broken"):
            await reader.read()

    asyncio.run(follow())
    assert reader.seen == list(range(ROWS + 2))


@pytest.mark.parametrize("is_on_own_loop", [False, True])
def test_a_cancelled_poll_takes_no_rows(reader: Reader, is_on_own_loop: bool) -> None:
    async def cancel() -> None:
        if is_on_own_loop:
            await reader.follow()
        waiting = asyncio.ensure_future(reader.scanner.poll_batches_here(POLL_MS))
        await asyncio.sleep(0.05)
        run(reader.append())
        run(asyncio.sleep(0.05))  # rows arrive for this loop, which can't deal with them before the cancel
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await reader.read()

    asyncio.run(cancel())
    reader.check()


def test_a_loop_whose_poll_is_over_fetches_nothing(reader: Reader) -> None:
    async def follow() -> None:
        await reader.follow()
        await asyncio.to_thread(_poll_in_thread, reader)  # takes it back
        assert await reader.scanner.poll_batches_here(50) == []
        waiting = asyncio.ensure_future(asyncio.to_thread(_poll_in_thread, reader))
        await asyncio.sleep(0.02)
        await reader.append()
        await waiting
        assert not reader.is_on_own_loop
        await reader.read()

    asyncio.run(follow())
    reader.check()


def test_a_fetch_that_can_not_be_sent_goes_back_to_the_io_loop(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise FlussError("too many requests")

    async def follow() -> None:
        await reader.follow()
        own_loop = reader.scanner._session._prefetcher.own_loop
        assert own_loop is not None
        waiting = asyncio.ensure_future(reader.scanner.poll_batches_here(POLL_MS))
        await asyncio.sleep(0.05)
        monkeypatch.setattr(own_loop._connection, "submit", full)
        await asyncio.sleep(0.6)  # the server has answered that there is nothing
        monkeypatch.undo()
        await reader.append()
        reader.take(await waiting)

    asyncio.run(follow())
    reader.check()


def _poll_in_thread(reader: Reader) -> None:
    reader.take(run(reader.scanner.poll_batches(100)))


def _poll_on_another_loop(reader: Reader) -> None:
    asyncio.run(reader.scanner.poll_batches_here(100))


def _subscribe(reader: Reader) -> None:
    run(reader.scanner.subscribe({(None, 0): reader.written}))


def _lose_connection(reader: Reader) -> None:
    own_loop = reader.scanner._session._prefetcher.own_loop
    assert own_loop is not None
    own_loop.loop.call_soon_threadsafe(own_loop._connection.close)


@pytest.mark.parametrize("disturb", [_poll_in_thread, _poll_on_another_loop, _subscribe, _lose_connection])
def test_whoever_else_comes_takes_it_back(reader: Reader, disturb: Callable[[Reader], None]) -> None:
    async def follow() -> None:
        for _ in range(3):
            await reader.follow()
            assert reader.is_on_own_loop
            waiting = asyncio.ensure_future(reader.scanner.poll_batches_here(POLL_MS))
            await asyncio.sleep(0.01)
            await asyncio.to_thread(disturb, reader)
            await reader.append()
            reader.take(await waiting)
            await reader.read()

    asyncio.run(follow())
    reader.check()


def test_readers_of_loops_and_threads_share_the_rows(reader: Reader) -> None:
    done = threading.Event()
    elsewhere: list[int] = []

    def in_thread() -> None:
        while not done.is_set():
            for fetched in run(reader.scanner.poll_batches(10)):
                elsewhere.extend(fetched.batch.column("id").to_pylist())
            time.sleep(0.02)

    async def follow() -> None:
        for _ in range(300):
            await reader.append()
            reader.take(await reader.scanner.poll_batches_here(2))
        while len(reader.seen) + len(elsewhere) < reader.written:
            reader.take(await reader.scanner.poll_batches_here(10))

    thread = threading.Thread(target=in_thread)
    thread.start()
    asyncio.run(asyncio.wait_for(follow(), 30))
    done.set()
    thread.join()
    assert sorted(reader.seen + elsewhere) == list(range(reader.written))
    assert reader.seen == sorted(reader.seen)
    assert elsewhere == sorted(elsewhere)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_each_row_is_read_once_and_in_order(reader: Reader, seed: int) -> None:
    chance = random.Random(seed)
    here = reader.scanner.poll_batches_here

    async def write() -> None:
        for _ in range(150):
            await reader.append(chance.choice([1, 1, 1, 2, 3]) if chance.random() < 0.97 else 50_000)
            await asyncio.sleep(chance.random() * 0.006)

    async def cancelled() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(chance.random() * 0.005):
                reader.take(await here(POLL_MS))

    async def limited() -> None:
        reader.take(await here(chance.randrange(30), chance.choice([None, 1, 2, 100])))

    async def in_thread() -> None:
        await asyncio.to_thread(_poll_in_thread, reader)

    async def on_another_loop() -> None:
        reader.take(await asyncio.to_thread(asyncio.run, here(5)))

    async def from_position() -> None:
        offsets = {(bucket.partition_id, bucket.bucket): at for bucket, at in reader.scanner.positions().items()}
        await asyncio.to_thread(run, reader.scanner.subscribe(offsets))

    async def after_a_loss() -> None:
        own_loop = reader.scanner._session._prefetcher.own_loop
        if own_loop is not None and own_loop.loop is asyncio.get_running_loop():
            own_loop._connection.close()

    async def read() -> None:
        writing = asyncio.ensure_future(write())
        events = [cancelled] * 8 + [limited] * 6 + [in_thread, on_another_loop, from_position, after_a_loss]
        while not writing.done() or len(reader.seen) < reader.written:
            await chance.choice(events)()
            await reader.read_one(10)
        await writing

    asyncio.run(asyncio.wait_for(read(), 30))
    reader.check()


def test_another_loop_goes_on(reader: Reader) -> None:
    for _ in range(3):
        asyncio.run(reader.follow())
        assert reader.is_on_own_loop
    reader.check()


def test_a_poll_can_be_cancelled_and_a_scanner_closed(reader: Reader) -> None:
    async def follow() -> None:
        await reader.follow()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.scanner.poll_batches_here(POLL_MS), 0.05)
        await reader.follow(3)
        reader.check()
        waiting = asyncio.ensure_future(reader.scanner.poll_batches_here(60_000))
        await asyncio.sleep(0.05)
        reader.scanner.close()
        assert await asyncio.wait_for(waiting, 5) == []

    asyncio.run(follow())

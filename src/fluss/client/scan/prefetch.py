"""Fetches kept under way for a reader: one per leader, on the I/O loop or on that of a waiting reader.

A reader who waits for rows as they come can fetch on its own loop, which saves two changes of threads. The I/O loop
hands a scan over after an answer that is small, and takes it back as soon as there is more to do: an answer that is
large or says that something is wrong, a reader elsewhere, another subscription. What was asked on the reader's loop and
not dealt with is then asked again, so no request changes hands.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from fluss.client import runtime
from fluss.client.cluster.cluster import BucketKey
from fluss.client.cluster.metadata import Metadata, address_of
from fluss.client.cluster.retry import Failures
from fluss.client.net.connection import Connection
from fluss.client.scan.batches import Cursor, RawBatch, ScanStep
from fluss.client.scan.fetcher import Fetch, Fetcher, FetchRequest
from fluss.client.scan.remote import RemoteLog
from fluss.doors import clock, threads
from fluss.model.errors import ConnectError, ErrorCode, FlussError, NotFoundError
from fluss.model.infos import ServerNode
from fluss.model.paths import TableBucket, TablePath
from fluss.protocol import api_keys

# A scanner that nobody polls stops asking, so that a forgotten one costs nothing.
IDLE_S_MAX = 10.0


def _complete(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def partition_gone(path: TablePath, bucket: TableBucket) -> NotFoundError:
    """The partition of a bucket does not exist any more, or never has."""
    return NotFoundError(
        f"Table {path} has no partition with id {bucket.partition_id}; unsubscribe from it.",
        ErrorCode.PARTITION_NOT_EXISTS,
    )


class Prefetcher:
    """Keeps something ready while somebody polls. Runs on the I/O loop; `cursors` may be changed from any thread.

    What is ready may be taken in any thread, by one that holds `lock`.
    """

    def __init__(
        self,
        metadata: Metadata,
        path: TablePath,
        fetcher: Fetcher,
        remote_log: RemoteLog,
        cursors: dict[BucketKey, Cursor],
        buffer_bytes_max: int,
        min_bytes: int,
    ) -> None:
        self._metadata = metadata
        self._path = path
        self._fetcher = fetcher
        self._remote_log = remote_log
        self._cursors = cursors
        self._buffer_bytes_max = buffer_bytes_max
        self._min_bytes = min_bytes
        self.lock = threads.lock()
        self._buffered_bytes = 0
        self._polled_at = 0.0
        self._ready: deque[ScanStep] = deque()
        self._loops: dict[int, asyncio.Task[None]] = {}
        self._remote_reads: dict[Cursor, asyncio.Task[None]] = {}
        self._healing: asyncio.Task[None] | None = None
        self._failures = Failures()
        self._changed: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._arrived: asyncio.Future[None] | None = None
        self._waiting = 0
        self._own_loop: OwnLoopFetch | None = None
        self._offered: Connection | None = None
        self.closed = False

    # ---- for the scanner ----

    def start(self) -> None:
        """Somebody polls: have a fetch under way at every leader, once they are known where one has failed."""
        self._polled_at = clock.monotonic()
        if self.closed or self._own_loop is not None or self._healing is not None:
            return
        for cursor in list(self._cursors.values()):
            if not cursor.wanted:
                continue
            leader = self._metadata.leader(self._path, *cursor.key)
            if leader is None and self._is_gone(cursor):
                cursor.error = partition_gone(self._path, cursor.bucket)
                self._notify()
            elif leader is None:
                self._heal()
            elif leader.id not in self._loops:
                task = asyncio.ensure_future(self._fetch_from(leader))
                self._loops[leader.id] = task
                task.add_done_callback(functools.partial(self._loop_ended, leader.id))

    def _is_gone(self, cursor: Cursor) -> bool:
        partition_id = cursor.bucket.partition_id
        return partition_id is not None and self._metadata.is_gone(self._path, partition_id)

    def changed(self) -> None:
        """The subscription changed: do not wait for the answers under way."""
        self.take_back()
        _complete(self._changed)

    @property
    def own_loop(self) -> OwnLoopFetch | None:
        """The caller's loop that fetches for this scan, or None. Thread-safe."""
        own_loop = self._own_loop
        return own_loop if own_loop is not None and own_loop.is_active else None

    def take_back(self) -> None:
        """Fetch on the I/O loop again: the subscription changed, or another reader polls."""
        with self.lock:
            own_loop, self._own_loop = self._own_loop, None
            if own_loop is not None:
                own_loop.end()
        if own_loop is not None:
            runtime.call_on(own_loop.loop, own_loop.release)

    def _hand_over(self, node: ServerNode, cursors: list[Cursor]) -> bool:
        """Let a loop that offered it fetch alone, if there is nothing but fetching from one leader to do."""
        connection = self._offered
        if connection is None or connection.closed or connection.address != address_of(node) or self._waiting != 1:
            return False
        if len(cursors) != len(self._cursors) or len(self._loops) != 1:
            return False
        if self._remote_reads or self._healing is not None:
            return False
        self._own_loop = OwnLoopFetch(connection, self._fetcher, self._cursors, self._min_bytes, self.lock, self._put)
        return True

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    async def wait(self, timeout_s: float, offered: Connection | None = None) -> None:
        """Wait until something is ready or has failed. Who waits could fetch by himself on the connection `offered`."""
        if self._arrived is None or self._arrived.done():
            self._arrived = asyncio.get_running_loop().create_future()
        self._waiting += 1
        self._offered = offered
        try:
            await asyncio.wait([self._arrived], timeout=timeout_s)
        finally:
            self._waiting -= 1
            self._offered = None

    def take(self) -> ScanStep | None:
        """The next thing for the reader, who polls by that."""
        self._polled_at = clock.monotonic()
        while self._ready:
            step = self._ready.popleft()
            self._buffered_bytes -= step.size_bytes
            room = self._room
            if room is not None and self._has_room():
                self._room = None
                room.get_loop().call_soon_threadsafe(_complete, room)
            if self._cursors.get(step.cursor.key) is step.cursor:
                return step
        return None

    def put_back(self, step: ScanStep) -> None:
        """A part that the reader did not take."""
        self._ready.appendleft(step)
        self._buffered_bytes += step.size_bytes

    def close(self) -> None:
        """Stop all fetches."""
        self.closed = True
        self.take_back()
        for task in [*self._loops.values(), *self._remote_reads.values(), *([self._healing] if self._healing else [])]:
            task.cancel()
        self._ready.clear()
        self._notify()

    # ---- fetching ----

    def _loop_ended(self, node_id: int, task: asyncio.Task[None]) -> None:
        self._loops.pop(node_id, None)
        if not task.cancelled() and (problem := task.exception()) is not None:
            # A mistake of ours must end as an error of the scan, not as rows passed over in silence.
            for cursor in self._cursors_of(node_id):
                cursor.error = FlussError(f"Reading table {self._path} failed unexpectedly: {problem!r}")
            self._notify()
        self._go_on()

    def _go_on(self) -> None:
        """Start again what ended, as long as somebody polls."""
        polled_at = self._polled_at
        if not self._is_idle:
            self.start()
            self._polled_at = polled_at  # only a reader's poll counts

    @property
    def _is_idle(self) -> bool:
        return not self._waiting and clock.monotonic() - self._polled_at > IDLE_S_MAX

    async def _wait_for_room(self) -> None:
        with self.lock:
            if self._has_room():
                return
            room = self._room = self._room or asyncio.get_running_loop().create_future()
        await asyncio.wait([room], timeout=IDLE_S_MAX)

    def _has_room(self) -> bool:
        return 2 * self._buffered_bytes <= self._buffer_bytes_max

    def _notify(self) -> None:
        _complete(self._arrived)

    def _cursors_of(self, node_id: int) -> list[Cursor]:
        result = []
        for cursor in list(self._cursors.values()):
            leader = self._metadata.leader(self._path, *cursor.key)
            if leader is not None and leader.id == node_id and cursor.wanted:
                result.append(cursor)
        return result

    async def _fetch_from(self, node: ServerNode) -> None:
        """Fetch from one leader until it leads nothing wanted, nobody polls, or it fails."""
        delivering: asyncio.Task[None] | None = None
        try:
            while cursors := self._cursors_of(node.id):
                if self._is_idle:
                    return
                if self._buffered_bytes >= self._buffer_bytes_max:
                    await self._wait_for_room()
                    continue
                self._go_on()  # other servers may lead buckets by now
                fetch = await self._ask(node, cursors)
                if fetch is None:
                    continue
                items = self._fetcher.receive(fetch.answer.result(), fetch.request, node.address, cursors)
                if delivering is not None:
                    await delivering
                delivering = self._begin_delivery(items)
                for cursor in cursors:
                    if cursor.remote is not None:
                        self._start_remote(cursor, delivering)
                if any(cursor.trouble is not None and cursor.remote is None for cursor in cursors):
                    self._heal()
                    return
                self._failures.clear()
                if delivering is None and items and self._hand_over(node, cursors):
                    return
        except FlussError as error:
            self._all_failed(node, error)
        finally:
            if delivering is not None:
                await delivering

    async def _ask(self, node: ServerNode, cursors: list[Cursor]) -> Fetch | None:
        """One fetch; None when the subscription changed meanwhile and the answer is not waited for."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        changed = self._changed
        fetch = await self._fetcher.send(node, cursors, self._min_bytes)
        for cursor in cursors:
            if isinstance(cursor.trouble, ConnectError):
                cursor.trouble = None  # it is there again; another loss of the connection is a new trouble
        try:
            waiting: list[asyncio.Future[Any]] = [fetch.answer, changed]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not fetch.answer.done():
                fetch.answer.cancel()
        if fetch.answer.cancelled():
            return None
        fetch.answer.result()  # raises here what went wrong
        return fetch

    def _begin_delivery(self, items: Sequence[RawBatch | ScanStep]) -> asyncio.Task[None] | None:
        """A few rows are there for the reader before the leader is asked again; more are decoded meanwhile."""
        decoded = self._fetcher.decode_small(items)
        if decoded is None:
            return asyncio.ensure_future(self._deliver(items))
        with self.lock:
            self._put(decoded)
        self._notify()
        return None

    async def _deliver(self, items: Sequence[RawBatch | ScanStep]) -> None:
        decoded = await self._fetcher.decode(items)
        with self.lock:
            self._put(decoded)
        self._notify()

    def _put(self, steps: Sequence[ScanStep]) -> None:
        """Queue a result, with the lock held."""
        self._ready.extend(steps)
        self._buffered_bytes += sum([step.size_bytes for step in steps])

    def _all_failed(self, node: ServerNode, error: FlussError) -> None:
        for cursor in self._cursors_of(node.id):
            cursor.failed(error, clock.monotonic())
        self._notify()
        self._heal()

    # ---- remote segments ----

    def _start_remote(self, cursor: Cursor, after: asyncio.Task[None] | None) -> None:
        if cursor not in self._remote_reads:
            task = asyncio.ensure_future(self._read_remote(cursor, after))
            self._remote_reads[cursor] = task
            task.add_done_callback(functools.partial(self._remote_ended, cursor))

    async def _read_remote(self, cursor: Cursor, after: asyncio.Task[None] | None) -> None:
        """Deliver what lies in remote files, behind what was fetched before; then the leader is asked again."""
        if after is not None:
            await asyncio.wait([after])
        if cursor.remote is None:
            return
        try:
            async with aclosing(self._remote_log.read(cursor, cursor.remote)) as batches:
                async for items in batches:
                    await self._deliver(items)
                    cursor.trouble = None
                    cursor.remote_failures.clear()
                    while self._buffered_bytes >= self._buffer_bytes_max and self._is_read(cursor):
                        await self._wait_for_room()
                    if cursor.error is not None or not self._is_read(cursor):
                        return
        except FlussError as error:
            cursor.failed(self._fetcher.named(cursor, error), clock.monotonic())
            self._notify()
            await cursor.remote_failures.pause()

    def _is_read(self, cursor: Cursor) -> bool:
        return self._cursors.get(cursor.key) is cursor and not self._is_idle

    def _remote_ended(self, cursor: Cursor, task: asyncio.Task[None]) -> None:
        self._remote_reads.pop(cursor, None)
        cursor.remote = None
        if not task.cancelled() and (problem := task.exception()) is not None:
            cursor.error = FlussError(f"Reading table {self._path} failed unexpectedly: {problem!r}")
        self._notify()
        self.changed()
        self._go_on()

    def _heal(self) -> None:
        """Look for the leaders anew, after a pause that grows with every failure in a row."""
        if self._healing is None and not self.closed:
            self._healing = asyncio.ensure_future(self._look())
            self._healing.add_done_callback(self._healed)

    async def _look(self) -> None:
        await self._failures.pause()
        try:
            await self._metadata.refresh(self._path)
        except FlussError as error:
            for cursor in list(self._cursors.values()):
                cursor.failed(error, clock.monotonic())
            self._notify()

    def _healed(self, task: asyncio.Task[None]) -> None:
        self._healing = None
        self._go_on()


class OwnLoopFetch:
    """A scan that the loop of a connection fetches for. All but `end` and `is_active` is for that loop."""

    def __init__(
        self,
        connection: Connection,
        fetcher: Fetcher,
        cursors: dict[BucketKey, Cursor],
        min_bytes: int,
        lock: threading.Lock,
        put: Callable[[list[ScanStep]], None],
    ) -> None:
        self.is_active = True
        self.loop = connection.loop
        self._connection = connection
        self._fetcher = fetcher
        self._cursors = cursors
        self._min_bytes = min_bytes
        self._lock = lock
        self._put = put
        self._is_asked = False
        self._waiters: dict[asyncio.Future[None], None] = {}

    def end(self) -> None:
        """Back to the I/O loop; with the lock held, so no answer is being dealt with."""
        self.is_active = False

    async def wait(self, timeout_s: float) -> None:
        """Wait until there may be rows, or the I/O loop fetches again."""
        self._ask()
        if not self._is_asked:
            return
        waiter = self.loop.create_future()
        self._waiters[waiter] = None
        timer = self.loop.call_later(timeout_s, _release, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)

    def release(self) -> None:
        """Wakes all pollers."""
        for waiter in self._waiters:
            _release(waiter)

    def _ask(self) -> None:
        if self._is_asked or not self.is_active:
            return
        try:
            cursors = [cursor for cursor in list(self._cursors.values()) if cursor.wanted]
            if not cursors:
                self.end()
                return
            request = self._fetcher.request(cursors, self._min_bytes)
            answered = partial(self._answered, cursors, request)
            self._connection.submit(api_keys.FETCH_LOG, request.parts, self._fetcher.timeout_s, answered)
            self._is_asked = True
        except FlussError:
            self.end()

    def _answered(self, cursors: list[Cursor], request: FetchRequest, answer: memoryview | FlussError) -> None:
        self._is_asked = False
        with self._lock:
            is_empty = self.is_active and self._receive(cursors, request, answer)
        if not self._waiters:
            return
        if is_empty:
            self._ask()
        if not self._is_asked:
            self.release()
            self.loop.call_soon(self._ask)  # behind those who wait

    def _receive(self, cursors: list[Cursor], request: FetchRequest, answer: memoryview | FlussError) -> bool:
        """Take an answer, with the lock held; returns whether it is fine but has nothing."""
        decoded = None
        if not isinstance(answer, FlussError):
            decoded = self._fetcher.receive_small(answer, request, self._connection.address, cursors)
        if decoded is None:
            self.end()
            return False
        self._put(decoded)
        return not decoded


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

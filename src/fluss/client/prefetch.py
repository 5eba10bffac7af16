"""Keeps fetches under way for a scanner: one per leader, the next while the reader handles the last."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from typing import Any, NamedTuple

from fluss.client.batch_reader import Part
from fluss.client.cursor import Cursor
from fluss.client.fetched import FetchedBatch
from fluss.client.fetcher import Fetcher
from fluss.client.metadata import Metadata
from fluss.client.offsets import BucketKey
from fluss.client.retry import pause_s
from fluss.model.errors import ConnectError, FlussError
from fluss.model.infos import ServerNode
from fluss.model.paths import TablePath

# A scanner that nobody polls stops asking, so that a forgotten one costs nothing.
IDLE_S_MAX = 10.0


class Ready(NamedTuple):
    """Something for the reader: rows, or just an offset to move on to."""

    cursor: Cursor
    fetched: FetchedBatch | None
    next_offset: int
    size_bytes: int


class Prefetcher:
    """Fills `ready` while somebody polls. Runs on the I/O loop; `cursors` may be changed from any thread."""

    def __init__(
        self,
        metadata: Metadata,
        path: TablePath,
        fetcher: Fetcher,
        cursors: dict[BucketKey, Cursor],
        buffer_bytes_max: int,
    ) -> None:
        self._metadata = metadata
        self._path = path
        self._fetcher = fetcher
        self._cursors = cursors
        self._buffer_bytes_max = buffer_bytes_max
        self._buffered_bytes = 0
        self._polled_at = 0.0
        self._ready: deque[Ready] = deque()
        self._loops: dict[int, asyncio.Task[None]] = {}
        self._healing: asyncio.Task[None] | None = None
        self._failures = 0
        self._changed: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._arrived: asyncio.Future[None] | None = None
        self.closed = False

    # ---- for the scanner ----

    def start(self) -> None:
        """Somebody polls: have a fetch under way at every leader."""
        self._polled_at = time.monotonic()
        if self.closed:
            return
        for cursor in list(self._cursors.values()):
            if cursor.error is not None:
                continue
            leader = self._metadata.leader(self._path, *cursor.key)
            if leader is None:
                self._heal()
            elif leader.id not in self._loops:
                task = asyncio.ensure_future(self._fetch_from(leader))
                self._loops[leader.id] = task
                task.add_done_callback(functools.partial(self._loop_ended, leader.id))

    def changed(self) -> None:
        """The subscription changed: do not wait for the answers under way."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Wait until something is ready or has failed."""
        if self._arrived is None or self._arrived.done():
            self._arrived = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._arrived], timeout=timeout_s)

    def take(self) -> Ready | None:
        """The next thing for the reader."""
        while self._ready:
            item = self._ready.popleft()
            self._buffered_bytes -= item.size_bytes
            if self._room is not None and 2 * self._buffered_bytes <= self._buffer_bytes_max and not self._room.done():
                self._room.set_result(None)
            if self._cursors.get(item.cursor.key) is item.cursor:
                return item
        return None

    def put_back(self, item: Ready) -> None:
        """A part that the reader did not take."""
        self._ready.appendleft(item)
        self._buffered_bytes += item.size_bytes

    def close(self) -> None:
        """Stop all fetches."""
        self.closed = True
        for task in [*self._loops.values(), *([self._healing] if self._healing else [])]:
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
        if self._healing is None:
            self._go_on()

    def _go_on(self) -> None:
        """Start again what ended, as long as somebody polls."""
        polled_at = self._polled_at
        if not self.closed and time.monotonic() - polled_at <= IDLE_S_MAX:
            self.start()
            self._polled_at = polled_at  # only a reader's poll counts

    async def _wait_for_room(self) -> None:
        if self._room is None or self._room.done():
            self._room = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._room], timeout=IDLE_S_MAX)

    def _notify(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def _cursors_of(self, node_id: int) -> list[Cursor]:
        result = []
        for cursor in list(self._cursors.values()):
            leader = self._metadata.leader(self._path, *cursor.key)
            if leader is not None and leader.id == node_id and cursor.error is None:
                result.append(cursor)
        return result

    async def _fetch_from(self, node: ServerNode) -> None:
        """Fetch from one leader until it leads nothing wanted, nobody polls, or it fails."""
        delivering: asyncio.Task[None] | None = None
        try:
            while cursors := self._cursors_of(node.id):
                if time.monotonic() - self._polled_at > IDLE_S_MAX:
                    return
                if self._buffered_bytes >= self._buffer_bytes_max:
                    await self._wait_for_room()
                    continue
                body = await self._ask(node, cursors)
                if body is None:
                    continue
                parts, _ = self._fetcher.receive(body, node, cursors)
                if delivering is not None:
                    await delivering
                delivering = asyncio.ensure_future(self._deliver(parts))
                if any(cursor.trouble is not None for cursor in cursors):
                    self._heal()
                    return
                self._failures = 0
        except FlussError as error:
            self._all_failed(node, error)
        finally:
            if delivering is not None:
                await delivering

    async def _ask(self, node: ServerNode, cursors: list[Cursor]) -> memoryview | None:
        """One fetch; None when the subscription changed meanwhile and the answer is not waited for."""
        if self._changed is None or self._changed.done():
            self._changed = asyncio.get_running_loop().create_future()
        changed = self._changed
        answer = await self._fetcher.send(node, cursors, wait=True)
        for cursor in cursors:
            if isinstance(cursor.trouble, ConnectError):
                cursor.trouble = None  # it is there again; another loss of the connection is a new trouble
        try:
            waiting: list[asyncio.Future[Any]] = [answer, changed]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not answer.done():
                answer.cancel()
        return None if answer.cancelled() else answer.result()

    async def _deliver(self, parts: list[Part]) -> None:
        for part, fetched in await self._fetcher.decode(parts):
            size_bytes = fetched.batch.nbytes if fetched is not None else 0
            self._ready.append(Ready(part.cursor, fetched, part.header.next_offset, size_bytes))
            self._buffered_bytes += size_bytes
        self._notify()

    def _all_failed(self, node: ServerNode, error: FlussError) -> None:
        now = time.monotonic()
        for cursor in self._cursors_of(node.id):
            if error.is_retriable:
                cursor.in_trouble(error, now)
            else:
                cursor.error = error
        self._notify()
        self._heal()

    def _heal(self) -> None:
        """Look for the leaders anew, after a pause that grows with every failure in a row."""
        if self._healing is None and not self.closed:
            self._healing = asyncio.ensure_future(self._look())
            self._healing.add_done_callback(self._healed)

    async def _look(self) -> None:
        self._failures += 1
        await asyncio.sleep(pause_s(self._failures))
        try:
            await self._metadata.refresh(self._path)
        except FlussError as error:
            now = time.monotonic()
            for cursor in list(self._cursors.values()):
                if error.is_retriable:
                    cursor.in_trouble(error, now)
                else:
                    cursor.error = error
            self._notify()

    def _healed(self, task: asyncio.Task[None]) -> None:
        self._healing = None
        self._go_on()

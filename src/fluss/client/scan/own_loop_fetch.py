"""Fetches on the event loop of a reader who waits for rows as they come, which saves two changes of threads.

The I/O loop hands a scan over after an answer that is small, and takes it back as soon as there is more to do: an
answer that is large or says that something is wrong, a reader elsewhere, another subscription. What was asked here and
not dealt with is then asked again, so no request changes hands.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fluss.client.net.connection import Connection
from fluss.client.scan.cursor import Cursor
from fluss.client.scan.decode import ScanStep
from fluss.client.scan.fetcher import Fetcher, FetchRequest
from fluss.model.errors import FlussError
from fluss.protocol import api_keys

if TYPE_CHECKING:
    from fluss.client.cluster.ask import BucketKey


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
        self._waiters: set[asyncio.Future[None]] = set()

    def end(self) -> None:
        """Back to the I/O loop; with the lock held, so no answer is being dealt with."""
        self.is_active = False

    async def wait(self, timeout_s: float) -> None:
        """Wait until there may be rows, or the I/O loop fetches again."""
        self._ask()
        if not self._is_asked:
            return
        waiter = self.loop.create_future()
        self._waiters.add(waiter)
        timer = self.loop.call_later(timeout_s, _release, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)

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
        """With the lock held; whether the answer is fine but has nothing."""
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

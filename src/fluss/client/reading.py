"""Rows of some buckets, in the order of each bucket's log, as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fluss.client import runtime
from fluss.client.connection import Connection
from fluss.client.cursor import Cursor
from fluss.client.fetched import FetchedBatch
from fluss.client.fetcher import Fetcher
from fluss.client.offsets import BucketKey
from fluss.client.prefetch import Prefetcher, Ready
from fluss.client.remote_log import RemoteLog
from fluss.client.views import address_of
from fluss.model.errors import TimeoutError
from fluss.model.infos import ServerType
from fluss.model.paths import TablePath

if TYPE_CHECKING:
    from fluss.client.core import ClientCore

BUFFERED_FETCHES_MAX = 2


class Reading:
    """Cursors and what keeps them filled. Runs on the I/O loop; `cursors` may be changed from any thread."""

    def __init__(
        self,
        client: ClientCore,
        path: TablePath,
        fetcher: Fetcher,
        remote_log: RemoteLog,
        cursors: Iterable[Cursor] = (),
        *,
        min_bytes: int,
    ) -> None:
        self._path = path
        self._fetcher = fetcher
        self._timeout_s = client.metadata.patience_s(client.request_timeout_s)
        self._metadata = client.metadata
        self._loop_pools = client.loop_pools
        self.cursors: dict[BucketKey, Cursor] = {cursor.key: cursor for cursor in cursors}
        buffer_bytes_max = BUFFERED_FETCHES_MAX * client.config.scanner_log_fetch_max_bytes
        self._prefetcher = Prefetcher(
            client.metadata, path, fetcher, remote_log, self.cursors, buffer_bytes_max, min_bytes
        )

    def changed(self) -> None:
        """Cursors came or went: do not wait for the answers under way."""
        self._prefetcher.changed()

    def close(self) -> None:
        """Stop reading."""
        self._prefetcher.close()

    async def poll(self, timeout_s: float, max_records: int | None = None) -> list[FetchedBatch]:
        """The next rows, at most `max_records`; waits for the first one up to the limit, then returns none."""
        deadline = time.monotonic() + timeout_s
        while True:
            await self._wait(deadline)
            batches = self.take(max_records)
            if batches or time.monotonic() >= deadline or self._is_over:
                return batches

    async def poll_here(self, timeout_s: float, max_records: int | None = None) -> list[FetchedBatch]:
        """The same on the caller's own loop, which may fetch by itself: see `Tail`.

        Rows are taken on that loop: on their way from another one they would be lost to a caller that is cancelled.
        """
        deadline = time.monotonic() + timeout_s
        loop = asyncio.get_running_loop()
        while True:
            tail = self._prefetcher.tail
            if tail is not None and tail.loop is loop:
                if not self._prefetcher.has_ready:
                    await tail.wait(deadline - time.monotonic())
            else:
                await runtime.bridge(self._wait(deadline, self._connection_here()))
            batches = self.take(max_records)
            if batches or time.monotonic() >= deadline or self._is_over:
                return batches

    @property
    def _is_over(self) -> bool:
        """Whether no more rows will come."""
        is_finished = bool(self.cursors) and all(cursor.finished for cursor in self.cursors.values())
        return self._prefetcher.closed or is_finished

    async def _wait(self, deadline: float, offered: Connection | None = None) -> None:
        """Wait until there is something to take, or the loop of the connection `offered` may fetch by itself."""
        self._prefetcher.take_back()
        while True:
            self._prefetcher.start()
            if self._prefetcher.has_ready or self._is_over:
                return
            await self._raise_trouble()
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or self._prefetcher.tail is not None:
                return
            await self._prefetcher.wait(remaining_s, offered)

    def _connection_here(self) -> Connection | None:
        """The caller's own connection to the leader, if all buckets have the same and the connection is there."""
        leaders = {self._metadata.leader(self._path, *key) for key in list(self.cursors)}
        leader = leaders.pop() if len(leaders) == 1 else None
        if leader is None or runtime.on_io_thread():
            return None
        return self._loop_pools.here().want(address_of(leader), ServerType.TABLET_SERVER)

    def take(self, max_records: int | None) -> list[FetchedBatch]:
        """The next rows that are there already, at most `max_records`; in any thread."""
        batches: list[FetchedBatch] = []
        room = max_records
        with self._prefetcher.lock:
            while room is None or room > 0:
                item = self._prefetcher.take()
                if item is None:
                    break
                if item.fetched is None:
                    item.cursor.position = item.next_offset
                    continue
                fetched, rest = item.fetched, None
                if room is not None and fetched.row_count > room:
                    fetched, rest = fetched.slice(0, room), fetched.slice(room, fetched.row_count - room)
                    rest_bytes = item.size_bytes * rest.row_count // item.fetched.row_count
                    self._prefetcher.put_back(Ready(item.cursor, rest, item.next_offset, rest_bytes))
                item.cursor.position = item.next_offset if rest is None else rest.base_offset
                batches.append(fetched)
                room = None if room is None else room - fetched.row_count
        return batches

    async def _raise_trouble(self) -> None:
        """What can't be read, at every poll; what may pass, once in a while."""
        now = time.monotonic()
        for cursor in list(self.cursors.values()):
            if cursor.error is not None:
                raise await self._fetcher.explained(cursor, cursor.error)
            if cursor.trouble is not None and now - cursor.trouble_since > self._timeout_s:
                trouble, cursor.trouble = cursor.trouble, None
                raise trouble


class BoundedReading(Reading):
    """Reads up to the cursors' stop offsets, once. Ends with an error when nothing has come for a request's time."""

    async def next(self) -> list[FetchedBatch]:
        """The next rows; none at the end."""
        progress_at = time.monotonic()
        while not all(cursor.finished for cursor in self.cursors.values()):
            before = [cursor.position for cursor in self.cursors.values()]
            batches = await self.poll(min(1.0, self._timeout_s))
            if batches or self._prefetcher.closed:
                return batches
            if before != [cursor.position for cursor in self.cursors.values()]:
                progress_at = time.monotonic()
            elif time.monotonic() - progress_at > self._timeout_s:
                raise next(
                    (cursor.trouble for cursor in self.cursors.values() if cursor.trouble is not None),
                    TimeoutError(f"Reading table {self._path} made no progress for {self._timeout_s:g} s."),
                )
        return []

"""A poll session: rows of some buckets, in the order of each bucket's log, as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from fluss.client import runtime
from fluss.client.cluster.ask import BucketKey
from fluss.client.cluster.cluster import Cluster
from fluss.client.net.connection import Connection
from fluss.client.scan.cursor import Cursor
from fluss.client.scan.decode import FetchedBatch, ScanStep
from fluss.client.scan.fetcher import Fetcher
from fluss.client.scan.prefetch import Prefetcher
from fluss.client.scan.remote import RemoteLog
from fluss.doors import clock
from fluss.model.errors import TimeoutError
from fluss.model.paths import TablePath

BUFFERED_FETCHES_MAX = 2


class PollSession:
    """Cursors and what keeps them filled. Runs on the I/O loop; `cursors` may be changed from any thread."""

    def __init__(
        self,
        cluster: Cluster,
        path: TablePath,
        fetcher: Fetcher,
        remote_log: RemoteLog,
        cursors: Iterable[Cursor] = (),
        *,
        min_bytes: int,
    ) -> None:
        self._path = path
        self._fetcher = fetcher
        self._timeout_s = cluster.request_timeout_s + cluster.metadata.absence_s
        self._metadata = cluster.metadata
        self._own_loops = cluster.own_loops
        self.cursors: dict[BucketKey, Cursor] = {cursor.key: cursor for cursor in cursors}
        buffer_bytes_max = BUFFERED_FETCHES_MAX * cluster.config.scanner_log_fetch_max_bytes
        self._prefetcher = Prefetcher(
            cluster.metadata, path, fetcher, remote_log, self.cursors, buffer_bytes_max, min_bytes
        )

    def changed(self) -> None:
        """Cursors came or went: do not wait for the answers under way."""
        self._prefetcher.changed()

    def close(self) -> None:
        """Stop reading."""
        self._prefetcher.close()

    async def poll(self, timeout_s: float, max_records: int | None = None) -> list[FetchedBatch]:
        """The next rows, at most `max_records`; waits for the first one up to the limit, then returns none."""
        deadline = clock.monotonic() + timeout_s
        while True:
            await self._wait(deadline)
            batches = self.take(max_records)
            if batches or clock.monotonic() >= deadline or self._is_over:
                return batches

    async def poll_here(self, timeout_s: float, max_records: int | None = None) -> list[FetchedBatch]:
        """The same on the caller's own loop, which may fetch by itself: see `OwnLoopFetch`.

        Rows are taken on that loop: on their way from another one they would be lost to a caller that is cancelled.
        """
        deadline = clock.monotonic() + timeout_s
        loop = asyncio.get_running_loop()
        while True:
            own_loop = self._prefetcher.own_loop
            if own_loop is not None and own_loop.loop is loop:
                if not self._prefetcher.has_ready:
                    await own_loop.wait(deadline - clock.monotonic())
            else:
                await runtime.bridge(self._wait(deadline, self._connection_here()))
            batches = self.take(max_records)
            if batches or clock.monotonic() >= deadline or self._is_over:
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
            remaining_s = deadline - clock.monotonic()
            if remaining_s <= 0 or self._prefetcher.own_loop is not None:
                return
            await self._prefetcher.wait(remaining_s, offered)

    def _connection_here(self) -> Connection | None:
        """The caller's own connection to the leader, if all buckets have the same and the connection is there."""
        leaders = {self._metadata.leader(self._path, *key) for key in list(self.cursors)}
        leader = leaders.pop() if len(leaders) == 1 else None
        return None if leader is None else self._own_loops.to_leader(leader)

    def take(self, max_records: int | None) -> list[FetchedBatch]:
        """The next rows that are there already, at most `max_records`; in any thread."""
        batches: list[FetchedBatch] = []
        room = max_records
        with self._prefetcher.lock:
            while room is None or room > 0:
                step = self._prefetcher.take()
                if step is None:
                    break
                if step.fetched is None:
                    step.cursor.position = step.next_offset
                    continue
                fetched, rest = step.fetched, None
                if room is not None and fetched.row_count > room:
                    fetched, rest = fetched.slice(0, room), fetched.slice(room, fetched.row_count - room)
                    rest_bytes = step.size_bytes * rest.row_count // step.fetched.row_count
                    self._prefetcher.put_back(ScanStep(step.cursor, step.next_offset, rest, rest_bytes))
                step.cursor.position = step.next_offset if rest is None else rest.base_offset
                batches.append(fetched)
                room = None if room is None else room - fetched.row_count
        return batches

    async def _raise_trouble(self) -> None:
        """What can't be read, at every poll; what may pass, once in a while."""
        now = clock.monotonic()
        for cursor in list(self.cursors.values()):
            if cursor.error is not None:
                raise await self._fetcher.explained(cursor, cursor.error)
            if cursor.trouble is not None and now - cursor.trouble_since > self._timeout_s:
                trouble, cursor.trouble = cursor.trouble, None
                raise trouble


class BoundedSession(PollSession):
    """Reads up to the cursors' stop offsets, once. Ends with an error when nothing has come for a request's time."""

    async def next(self) -> list[FetchedBatch]:
        """The next rows; none at the end."""
        progress_at = clock.monotonic()
        while not all(cursor.finished for cursor in self.cursors.values()):
            before = [cursor.position for cursor in self.cursors.values()]
            batches = await self.poll(min(1.0, self._timeout_s))
            if batches or self._prefetcher.closed:
                return batches
            if before != [cursor.position for cursor in self.cursors.values()]:
                progress_at = clock.monotonic()
            elif clock.monotonic() - progress_at > self._timeout_s:
                raise next(
                    (cursor.trouble for cursor in self.cursors.values() if cursor.trouble is not None),
                    TimeoutError(f"Reading table {self._path} made no progress for {self._timeout_s:g} s."),
                )
        return []

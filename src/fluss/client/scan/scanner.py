"""Scanners of a table's log, and their poll sessions: rows in the order of each bucket's log, as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from fluss.client import runtime
from fluss.client.admin import AdminCore
from fluss.client.cluster.cluster import BucketKey, Cluster, check_buckets, list_offsets
from fluss.client.net.connection import Connection
from fluss.client.scan.batches import BatchReader, Cursor, FetchedBatch, ScanStep
from fluss.client.scan.fetcher import Fetcher
from fluss.client.scan.filter import ScanFilter
from fluss.client.scan.prefetch import Prefetcher, partition_gone
from fluss.client.scan.remote import RemoteLog
from fluss.doors import clock
from fluss.model.errors import FlussError, InvalidRequestError, TimeoutError
from fluss.model.infos import TableInfo
from fluss.model.offsets import EARLIEST_OFFSET, LATEST_OFFSET, OffsetSpec
from fluss.model.paths import TableBucket, TablePath

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


class SoleReader:
    """Batches of a scanner that is lent to whoever reads them, as pyfluss does: until then nobody else changes it."""

    def __init__(self, scanner: LogScannerCore, batches: Iterator[pa.RecordBatch]) -> None:
        self._scanner = scanner
        self._batches = batches

    def __iter__(self) -> SoleReader:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            return next(self._batches)
        except StopIteration:
            self._scanner.give_back(self, keep=True)
            raise

    def __del__(self) -> None:
        self._scanner.give_back(self, keep=False)


__all__ = ["FetchedBatch", "LogScannerCore"]


class LogScannerCore:
    """Coroutines are for the I/O loop, all else for any thread."""

    def __init__(
        self,
        cluster: Cluster,
        info: TableInfo,
        projection: Sequence[int] | None = None,
        scan_filter: ScanFilter | None = None,
        *,
        fixed_schema: bool = True,
        changelog: bool = False,
        records: bool = False,
    ) -> None:
        self._cluster = cluster
        self._info = info
        self._pid = runtime.process_id
        self._reader = BatchReader(
            AdminCore(cluster),
            info,
            projection,
            scan_filter,
            fixed_schema=fixed_schema,
            changelog=changelog,
            records=records,
        )
        self._fetcher = Fetcher(cluster, info, self._reader, scan_filter)
        self._remote_log = RemoteLog(cluster)
        self._session = PollSession(
            cluster,
            info.table_path,
            self._fetcher,
            self._remote_log,
            min_bytes=cluster.config.scanner_log_fetch_min_bytes,
        )
        self._closed = False
        self._has_subscribed = False
        self._lent_to: int | None = None
        """The id of the reader that has this scanner for itself"""

    @property
    def info(self) -> TableInfo:
        return self._info

    @property
    def table_path(self) -> TablePath:
        return self._info.table_path

    @property
    def arrow_schema(self) -> pa.Schema:
        return self._reader.schema

    @property
    def max_poll_records(self) -> int:
        limit: int = self._cluster.config.scanner_log_max_poll_records
        return limit

    async def subscribe(self, offsets: Mapping[BucketKey, int]) -> None:
        """Read buckets from offsets on; a bucket subscribed before starts anew."""
        self._check_usable()
        self._check_not_lent()
        check_buckets(self._info, offsets)
        for offset in offsets.values():
            if offset < EARLIEST_OFFSET:
                raise InvalidRequestError(
                    f"{offset} is not an offset; use 0 or more, EARLIEST_OFFSET or LATEST_OFFSET."
                )
        await self._watch(offsets)
        latest = await self._latest([key for key, offset in offsets.items() if offset == LATEST_OFFSET])
        for key, offset in offsets.items():
            self._session.cursors[key] = Cursor(self._bucket(key), latest.get(key, offset))
        self._has_subscribed = True
        self._session.changed()

    async def _watch(self, keys: Iterable[BucketKey]) -> None:
        """Know the leaders of these buckets from now on, if they have partitions."""
        partitions = {partition_id for partition_id, _ in keys if partition_id is not None}
        if partitions:
            self._cluster.metadata.watch_partitions(self.table_path, partitions)
            await self._cluster.metadata.refresh(self.table_path)
            for key in keys:
                if key[0] is not None and self._cluster.metadata.is_gone(self.table_path, key[0]):
                    raise partition_gone(self.table_path, self._bucket(key))

    async def subscribe_positions(self, positions: Mapping[TableBucket, int]) -> None:
        """Go on from positions that a scanner of this table had."""
        for bucket in positions:
            if bucket.table_id != self._info.table_id:
                raise InvalidRequestError(
                    f"The positions are of the table with id {bucket.table_id}, but {self.table_path} has id "
                    f"{self._info.table_id}: it is another table, or was dropped and created again."
                )
        await self.subscribe({(bucket.partition_id, bucket.bucket): offset for bucket, offset in positions.items()})

    async def _latest(self, keys: list[BucketKey]) -> dict[BucketKey, int]:
        if not keys:
            return {}
        return await list_offsets(self._cluster, self._info, keys, OffsetSpec.latest())

    def _bucket(self, key: BucketKey) -> TableBucket:
        return TableBucket(self._info.table_id, key[1], key[0])

    def unsubscribe(self, partition_id: int | None, bucket: int) -> None:
        """Stop reading a bucket; rows read ahead are dropped."""
        self._check_not_lent()
        check_buckets(self._info, [(partition_id, bucket)])
        self._session.cursors.pop((partition_id, bucket), None)

    def positions(self) -> dict[TableBucket, int]:
        """The offset each bucket is read from next."""
        return {cursor.bucket: cursor.position for cursor in list(self._session.cursors.values())}

    async def poll_batches(self, timeout_ms: int, max_records: int | None = None) -> list[FetchedBatch]:
        """The next rows, at most `max_records`; waits for the first one up to the limit, then returns none."""
        self._check_poll(timeout_ms)
        return await self._session.poll(timeout_ms / 1000, max_records)

    async def poll_batches_here(self, timeout_ms: int, max_records: int | None = None) -> list[FetchedBatch]:
        """The same for any event loop."""
        self._check_poll(timeout_ms)
        return await self._session.poll_here(timeout_ms / 1000, max_records)

    def ready_batches(self, timeout_ms: int, max_records: int | None = None) -> list[FetchedBatch]:
        """What `poll_batches` would return without waiting; spares its caller two changes of threads."""
        self._check_poll(timeout_ms)
        return self._session.take(max_records)

    def _check_poll(self, timeout_ms: int) -> None:
        # Who has unsubscribed all buckets gets no rows, and goes on with others.
        if not self._has_subscribed:
            self._check_subscribed()
        self._check_usable()
        if timeout_ms < 0:
            raise InvalidRequestError(f"timeout_ms must be 0 or more, not {timeout_ms}.")

    async def read_to_latest(self) -> list[FetchedBatch]:
        """All rows from the subscribed offsets to the latest, bucket by bucket; does not move the position of polls."""
        return (await self.read_to_latest_with_offsets())[0]

    async def read_to_latest_with_offsets(self) -> tuple[list[FetchedBatch], dict[TableBucket, int]]:
        """The rows that `read_to_latest` reads, and where each bucket's next row will be."""
        session = await self._bounded()
        stops = {cursor.bucket: cursor.stop_offset or 0 for cursor in session.cursors.values()}
        by_bucket: dict[TableBucket, list[FetchedBatch]] = {bucket: [] for bucket in stops}
        try:
            while batches := await self._next(session):
                for fetched in batches:
                    by_bucket[fetched.bucket].append(fetched)
        finally:
            session.close()
        return [fetched for batches in by_bucket.values() for fetched in batches], stops

    def batches_to_latest(self) -> Iterator[pa.RecordBatch]:
        """The rows that `read_to_latest` reads, one batch after the other as they come; blocks its caller."""
        if not self._reader.fixed_schema:
            raise InvalidRequestError(
                "An Arrow reader has one schema for all its batches: leave out with_fixed_schema(False)."
            )
        return self._iterate(runtime.run(self._bounded()))

    def batches_to_latest_alone(self) -> Iterator[pa.RecordBatch]:
        """The same for a reader that has the scanner for itself until it is read to its end, or dropped."""
        self._check_not_lent()
        reader = SoleReader(self, self.batches_to_latest())
        self._lent_to = id(reader)
        return reader

    def give_back(self, reader: SoleReader, *, keep: bool) -> None:
        """A sole reader has ended; without `keep` its subscriptions end, too. Thread-safe, and may come twice."""
        if self._lent_to == id(reader):
            self._lent_to = None
            if not keep:
                self._session.cursors.clear()

    def _check_not_lent(self) -> None:
        if self._lent_to is not None:
            raise InvalidRequestError(
                f"The subscriptions of the scanner of table {self.table_path} can't be changed: a RecordBatchLogReader "
                "is active. Read it to its end or drop it first."
            )

    def batches_between(self, bucket: TableBucket, start_offset: int, end_offset: int) -> Iterator[pa.RecordBatch]:
        """The rows of a bucket between two offsets, one batch after the other as they come; blocks its caller."""
        self._check_usable()
        key = (bucket.partition_id, bucket.bucket)
        check_buckets(self._info, [key])
        runtime.run(self._watch([key]))
        return self._iterate(self.between([Cursor(bucket, start_offset, end_offset)]))

    def _iterate(self, session: BoundedSession) -> Iterator[pa.RecordBatch]:
        try:
            while batches := runtime.run(self._next(session)):
                for fetched in batches:
                    yield fetched.batch
        finally:
            if self._pid == runtime.process_id:
                runtime.call_soon(session.close)

    async def _bounded(self) -> BoundedSession:
        self._check_subscribed()
        subscribed = list(self._session.cursors.values())
        latest = await self._latest([cursor.key for cursor in subscribed])
        return self.between([Cursor(cursor.bucket, cursor.start_offset, latest[cursor.key]) for cursor in subscribed])

    def between(self, cursors: Iterable[Cursor]) -> BoundedSession:
        """A session of its own, from start to stop offsets; does not touch the position of polls."""
        return BoundedSession(self._cluster, self.table_path, self._fetcher, self._remote_log, cursors, min_bytes=1)

    async def _next(self, session: BoundedSession) -> list[FetchedBatch]:
        self._check_usable()
        return await session.next()

    def close(self) -> None:
        """Stop reading; callable from any thread."""
        if not self._closed and self._pid == runtime.process_id:
            self._closed = True
            runtime.call_soon(self._session.close)
            runtime.call_soon(self._remote_log.close)

    def _check_subscribed(self) -> None:
        self._check_usable()
        if not self._session.cursors:
            raise InvalidRequestError(
                f"No buckets subscribed by the scanner of table {self.table_path}; call subscribe first."
            )

    def _check_usable(self) -> None:
        runtime.check_process(self._pid, "scanner")
        self._cluster.check_usable()
        if self._closed:
            raise FlussError(f"The scanner of table {self.table_path} is closed.")

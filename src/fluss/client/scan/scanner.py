"""Scanners of a table's log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from fluss.client import runtime
from fluss.client.admin import AdminCore
from fluss.client.cluster.ask import BucketKey, check_buckets, list_offsets
from fluss.client.cluster.cluster import Cluster
from fluss.client.scan.batch_reader import BatchReader
from fluss.client.scan.cursor import Cursor
from fluss.client.scan.decode import FetchedBatch
from fluss.client.scan.fetcher import Fetcher
from fluss.client.scan.filter import ScanFilter
from fluss.client.scan.poll_session import BoundedSession, PollSession
from fluss.client.scan.prefetch import partition_gone
from fluss.client.scan.remote import RemoteLog
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.offsets import EARLIEST_OFFSET, LATEST_OFFSET, OffsetSpec
from fluss.model.paths import TableBucket, TablePath

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
        check_buckets(self._info, offsets)
        for offset in offsets.values():
            if offset < EARLIEST_OFFSET:
                raise InvalidRequestError(f"{offset} is no offset; use 0 or more, EARLIEST_OFFSET or LATEST_OFFSET.")
        await self._watch(offsets)
        latest = await self._latest([key for key, offset in offsets.items() if offset == LATEST_OFFSET])
        for key, offset in offsets.items():
            self._session.cursors[key] = Cursor(self._bucket(key), latest.get(key, offset))
        self._session.changed()

    async def _watch(self, keys: Iterable[BucketKey]) -> None:
        """From now on the leaders of these buckets are known, if they have partitions."""
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
        self._check_subscribed()
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
            raise InvalidRequestError(f"The scanner of table {self.table_path} has no bucket; call subscribe first.")

    def _check_usable(self) -> None:
        runtime.check_process(self._pid, "scanner")
        self._cluster.check_usable()
        if self._closed:
            raise FlussError(f"The scanner of table {self.table_path} is closed.")

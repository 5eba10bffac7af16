"""Reading a table's log."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from fluss.client import runtime
from fluss.client.batch_reader import BatchReader
from fluss.client.bounded_read import BoundedRead
from fluss.client.cursor import Cursor
from fluss.client.fetched import FetchedBatch
from fluss.client.fetcher import Fetcher
from fluss.client.offsets import BucketKey, check_buckets, list_offsets
from fluss.client.prefetch import Prefetcher, Ready
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.offsets import EARLIEST_OFFSET, LATEST_OFFSET, OffsetSpec
from fluss.model.paths import TableBucket, TablePath

if TYPE_CHECKING:
    from fluss.client.core import ClientCore

__all__ = ["FetchedBatch", "LogScannerCore"]

BUFFERED_FETCHES_MAX = 2


class LogScannerCore:
    """Coroutines are for the I/O loop; `unsubscribe`, `positions` and `close` for any thread."""

    def __init__(self, client: ClientCore, info: TableInfo, projection: list[int] | None) -> None:
        self._client = client
        self._info = info
        self._pid = runtime.process_id
        self._reader = BatchReader(client.admin, info, projection)
        self._fetcher = Fetcher(client, info, self._reader)
        self._cursors: dict[BucketKey, Cursor] = {}
        self._closed = False
        self._prefetcher = Prefetcher(
            client.metadata,
            info.table_path,
            self._fetcher,
            self._cursors,
            BUFFERED_FETCHES_MAX * client.config.scanner_log_fetch_max_bytes,
        )

    @property
    def table_path(self) -> TablePath:
        return self._info.table_path

    @property
    def arrow_schema(self) -> pa.Schema:
        return self._reader.schema

    @property
    def max_poll_records(self) -> int:
        limit: int = self._client.config.scanner_log_max_poll_records
        return limit

    async def subscribe(self, offsets: Mapping[BucketKey, int]) -> None:
        """Read buckets from offsets on; a bucket subscribed before starts anew."""
        self._check_usable()
        check_buckets(self._info, offsets)
        for offset in offsets.values():
            if offset < EARLIEST_OFFSET:
                raise InvalidRequestError(f"{offset} is no offset; use 0 or more, EARLIEST_OFFSET or LATEST_OFFSET.")
        partitions = {partition_id for partition_id, _ in offsets if partition_id is not None}
        if partitions:
            self._client.metadata.watch_partitions(self.table_path, partitions)
            await self._client.metadata.refresh(self.table_path)
        latest = await self._latest([key for key, offset in offsets.items() if offset == LATEST_OFFSET])
        for key, offset in offsets.items():
            self._cursors[key] = Cursor(self._bucket(key), latest.get(key, offset))
        self._prefetcher.changed()

    async def _latest(self, keys: list[BucketKey]) -> dict[BucketKey, int]:
        if not keys:
            return {}
        timeout_s = self._client.request_timeout_s
        return await list_offsets(self._client.metadata, self._info, keys, OffsetSpec.latest(), timeout_s)

    def _bucket(self, key: BucketKey) -> TableBucket:
        return TableBucket(self._info.table_id, key[1], key[0])

    def unsubscribe(self, partition_id: int | None, bucket: int) -> None:
        """Stop reading a bucket; rows read ahead are dropped."""
        self._cursors.pop((partition_id, bucket), None)

    def positions(self) -> dict[TableBucket, int]:
        """The offset each bucket is read from next."""
        return {cursor.bucket: cursor.position for cursor in list(self._cursors.values())}

    async def poll_batches(self, timeout_ms: int, max_records: int | None = None) -> list[FetchedBatch]:
        """The next rows, at most `max_records`; waits for the first one up to the limit, then returns none."""
        self._check_usable()
        if not self._cursors:
            raise InvalidRequestError(f"The scanner of table {self.table_path} has no bucket; call subscribe first.")
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            self._prefetcher.start()
            batches = self._take(max_records)
            if batches:
                return batches
            await self._raise_trouble()
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return []
            await self._prefetcher.wait(remaining_s)
            if self._closed:
                return []

    def _take(self, max_records: int | None) -> list[FetchedBatch]:
        batches: list[FetchedBatch] = []
        room = max_records
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
                self._prefetcher.put_back(Ready(item.cursor, rest, item.next_offset, rest.batch.nbytes))
            item.cursor.position = item.next_offset if rest is None else rest.base_offset
            batches.append(fetched)
            room = None if room is None else room - fetched.row_count
        return batches

    async def _raise_trouble(self) -> None:
        """What can't be read, at every poll; what may pass, once in a while."""
        now = time.monotonic()
        for cursor in list(self._cursors.values()):
            if cursor.error is not None:
                raise await self._fetcher.explained(cursor, cursor.error)
            if cursor.trouble is not None and now - cursor.trouble_since > self._client.request_timeout_s:
                trouble, cursor.trouble = cursor.trouble, None
                raise trouble

    async def read_to_latest(self) -> list[FetchedBatch]:
        """All rows from the subscribed offsets to the latest; does not move the position of polls."""
        self._check_usable()
        if not self._cursors:
            raise InvalidRequestError(f"The scanner of table {self.table_path} has no bucket; call subscribe first.")
        subscribed = list(self._cursors.values())
        latest = await self._latest([cursor.key for cursor in subscribed])
        cursors = [Cursor(cursor.bucket, cursor.start_offset, latest[cursor.key]) for cursor in subscribed]
        read = BoundedRead(
            self._client.metadata, self.table_path, self._fetcher, cursors, self._client.request_timeout_s
        )
        return await read.run()

    def close(self) -> None:
        """Stop reading; callable from any thread."""
        if not self._closed and self._pid == runtime.process_id:
            self._closed = True
            runtime.call_soon(self._prefetcher.close)

    def _check_usable(self) -> None:
        runtime.check_process(self._pid, "scanner")
        self._client.check_usable()
        if self._closed:
            raise FlussError(f"The scanner of table {self.table_path} is closed.")

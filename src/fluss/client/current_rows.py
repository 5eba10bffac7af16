"""Current rows of primary-key tables, bucket by bucket, from whatever the cluster has to offer."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from fluss.client.answers import STALE_METADATA_CODES
from fluss.client.connection import Connection
from fluss.client.kv_scan import KvScan
from fluss.client.kv_snapshot_read import SnapshotRows
from fluss.client.lookup_values import ValueReader
from fluss.client.retry import Backoff
from fluss.formats.keys import primary_key_encoder
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError, NotFoundError, TimeoutError
from fluss.model.infos import TableInfo
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys

if TYPE_CHECKING:
    from fluss.client.core import ClientCore

_LOST_CODES = STALE_METADATA_CODES | {
    ErrorCode.SCANNER_EXPIRED,
    ErrorCode.UNKNOWN_SCANNER_ID,
    ErrorCode.TOO_MANY_SCANNERS,
    ErrorCode.KV_SNAPSHOT_NOT_EXIST,  # a newer one has taken its place
}


class BucketRows(Protocol):
    """Rows of one bucket in the order of their keys, all as of one offset of its changelog."""

    log_offset: int
    last_key: bytes | None
    """The rows with keys up to here were given, or are not wanted."""

    async def next(self) -> pa.RecordBatch | None:
        """Further rows, with all columns; None at the end."""

    def close(self) -> None:
        """Let go of what is held, here and on the server."""


class CurrentRows:
    """Opens buckets of one table for reading. Runs on the I/O loop."""

    def __init__(self, client: ClientCore, info: TableInfo) -> None:
        self._client = client
        self._info = info
        self._values = ValueReader(client.admin, info)
        self.keys = primary_key_encoder(info.descriptor)

    async def open(self, bucket: TableBucket, partition_name: str | None, after_key: bytes | None = None) -> BucketRows:
        """The rows of a bucket, or those with keys after one."""
        connection = await self._leader(bucket)
        if api_keys.SCAN_KV.key in connection.versions:
            scan = KvScan(self._client, connection, self._values, self.keys, after_key)
            await _opened(scan, scan.open(bucket))
            return scan
        snapshot = SnapshotRows(self._client, self._info, self._values, self.keys, after_key)
        await _opened(snapshot, snapshot.open(bucket, partition_name))
        return snapshot

    async def _leader(self, bucket: TableBucket) -> Connection:
        metadata, path = self._client.metadata, self._info.table_path
        backoff = self.backoff()
        while True:
            leader = metadata.leader(path, bucket.partition_id, bucket.bucket)
            if leader is not None:
                return await metadata.tablet(leader, backoff.capped_s(self._client.request_timeout_s))
            if bucket.partition_id is not None and metadata.is_gone(path, bucket.partition_id):
                raise NotFoundError(
                    f"The partition {bucket.partition_id} of table {path} was dropped.", ErrorCode.PARTITION_NOT_EXISTS
                )
            if not await backoff.pause():
                raise TimeoutError(f"Bucket {bucket.bucket} of table {path} has no leader.")
            await metadata.refresh(path)

    def backoff(self) -> Backoff:
        """For `recover`: how long it may go on without a row."""
        return self._client.metadata.backoff(self._client.request_timeout_s)

    async def recover(self, error: FlussError, backoff: Backoff) -> None:
        """A bucket's rows were lost on the way: return when opening them again may help, raise where it does not."""
        lost = error.is_retriable or error.error_code in _LOST_CODES
        if not lost or isinstance(error, CorruptDataError) or not await backoff.pause():
            raise error
        try:
            await self._client.metadata.refresh(self._info.table_path)
        except FlussError as problem:
            if not problem.is_retriable:
                raise


async def _opened(rows: BucketRows, opening: Coroutine[Any, Any, None]) -> None:
    try:
        await opening
    except BaseException:
        rows.close()
        raise

"""Current rows of primary-key tables, bucket by bucket, from whatever the cluster has to offer."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

import pyarrow as pa

from fluss.client.admin import AdminCore
from fluss.client.cluster.ask import leader_of
from fluss.client.cluster.cluster import Cluster
from fluss.client.cluster.retry import Tries, never, repeat
from fluss.client.current.kv_scan import KvScan
from fluss.client.current.kv_snapshot_read import SnapshotRows
from fluss.client.lookup.values import ValueReader
from fluss.client.net.answers import STALE_METADATA_CODES
from fluss.client.net.connection import Connection
from fluss.formats.rows.keys import primary_key_encoder
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError
from fluss.model.infos import TableInfo
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys

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

    def __init__(self, cluster: Cluster, info: TableInfo) -> None:
        self._cluster = cluster
        self._info = info
        self._values = ValueReader(AdminCore(cluster), info)
        self.keys = primary_key_encoder(info.descriptor)

    async def open(self, bucket: TableBucket, partition_name: str | None, after_key: bytes | None = None) -> BucketRows:
        """The rows of a bucket, or those with keys after one."""
        connection = await self._leader(bucket)
        if api_keys.SCAN_KV.key in connection.versions:
            scan = KvScan(self._cluster, connection, self._values, self.keys, after_key)
            await _opened(scan, scan.open(bucket))
            return scan
        snapshot = SnapshotRows(self._cluster, self._info, self._values, self.keys, after_key)
        await _opened(snapshot, snapshot.open(bucket, partition_name))
        return snapshot

    async def _leader(self, bucket: TableBucket) -> Connection:
        metadata, path = self._cluster.metadata, self._info.table_path
        tries = self._cluster.tries(never, lambda: metadata.refresh(path))
        return await repeat(tries, lambda tries: leader_of(metadata, path, bucket, tries))

    def tries(self) -> Tries:
        """For rows that are lost on the way: how long it may go on without one, and when opening again may help."""
        path = self._info.table_path
        return self._cluster.tries(_may_be_opened, lambda: self._cluster.metadata.try_refresh(path))


def _may_be_opened(error: FlussError) -> bool:
    lost = error.is_retriable or error.error_code in _LOST_CODES
    return lost and not isinstance(error, CorruptDataError)


async def _opened(rows: BucketRows, opening: Coroutine[Any, Any, None]) -> None:
    try:
        await opening
    except BaseException:
        rows.close()
        raise

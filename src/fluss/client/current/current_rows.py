"""Current rows of primary-key tables, bucket by bucket: from the server's store, or from snapshot and changelog.

Apache Fluss 0.9 does not scan its store for clients. There the newest snapshot of the store is copied from the
cluster's remote storage and opened here, and the changes since then are folded on top; without a snapshot the changes
are folded from the first one on.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Coroutine
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from fluss.client import runtime
from fluss.client.admin import AdminCore
from fluss.client.cluster.cluster import Cluster, ask_once, leader_of, list_offsets
from fluss.client.cluster.metadata import set_path
from fluss.client.cluster.retry import Tries, never, repeat
from fluss.client.lookup.pending import ValueReader
from fluss.client.net.connection import STALE_METADATA_CODES, Connection, server_error
from fluss.client.scan.batches import ChangelogFold, Cursor, Folded
from fluss.client.scan.remote import RemoteFiles
from fluss.client.scan.scanner import LogScannerCore
from fluss.formats.rows.keys import PrimaryKeyEncoder, primary_key_encoder
from fluss.formats.rows.values import decode_value_batch
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError, InvalidRequestError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.infos import TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import parse_answer

# What one answer may take, and what is read ahead of the reader.
ANSWER_SIZE_BYTES_MAX = 4 << 20


class KvScan:
    """Rows in the order of their keys, all as of `log_offset`. Coroutines are for the I/O loop."""

    def __init__(
        self,
        cluster: Cluster,
        connection: Connection,
        values: ValueReader,
        keys: PrimaryKeyEncoder,
        after_key: bytes | None,
    ) -> None:
        self._timeout_s = cluster.request_timeout_s
        self._connection = connection
        self._values = values
        self._keys = keys
        self._after_key = after_key
        self._scanner_id: bytes | None = None
        self._calls = 0
        self._answer: asyncio.Future[memoryview] | None = None
        self._first: pb.ScanKvResponse | None = None
        """The answer that brought the offset, until its rows are asked for."""
        self.log_offset = 0
        self.last_key = after_key
        """The rows up to here were given."""

    async def open(self, bucket: TableBucket) -> None:
        """Fix the rows that are read."""
        request = pb.ScanKvRequest()
        target = request.bucket_scan_req
        target.table_id, target.bucket_id = bucket.table_id, bucket.bucket
        if bucket.partition_id is not None:
            target.partition_id = bucket.partition_id
        self._ask(request)
        self._first = await self._received()
        self.log_offset = self._first.log_offset

    async def next(self) -> pa.RecordBatch | None:
        """Further rows; None at the end."""
        while True:
            if self._first is not None:
                answer, self._first = self._first, None
            elif self._answer is not None:
                answer = await self._received()
            else:
                return None
            values = decode_value_batch(answer.records) if answer.records else []
            if not values:
                continue
            rows = self._behind(await self._values.decode(values))
            if rows.num_rows:
                return rows

    def _behind(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows after `last_key`, which moves behind them."""
        ends = self._keys.encode(pa.concat_batches([rows.slice(0, 1), rows.slice(rows.num_rows - 1)])).to_pylist()
        first_key, final_key = ends[0], ends[-1]
        if self.last_key is not None and first_key <= self.last_key:
            if self.last_key != self._after_key:
                raise CorruptDataError("the server's scan is not in the order of keys")
            rows = rows.filter(pc.greater(self._keys.encode(rows), pa.scalar(self.last_key)))
        if rows.num_rows:
            self.last_key = final_key
        return rows

    async def _received(self) -> pb.ScanKvResponse:
        """An answer; the next one is asked for at once."""
        assert self._answer is not None
        pending, self._answer = self._answer, None
        answer = parse_answer(pb.ScanKvResponse, await pending, self._connection.address)
        if answer.error_code:
            self._scanner_id = None
            raise server_error(answer.error_code, answer.error_message)
        self._scanner_id = answer.scanner_id if answer.has_more_results else None
        if self._scanner_id is not None:
            self._ask(pb.ScanKvRequest(scanner_id=self._scanner_id))
        return answer

    def _ask(self, request: pb.ScanKvRequest) -> None:
        request.call_seq_id, request.batch_size_bytes = self._calls, ANSWER_SIZE_BYTES_MAX
        self._calls += 1
        self._answer = self._connection.send(api_keys.SCAN_KV, (request.SerializeToString(),), self._timeout_s)

    def close(self) -> None:
        """Tell the server that no more is wanted; what becomes of that does not matter."""
        if self._answer is not None:
            self._answer.cancel()
        if self._scanner_id is not None:
            request = pb.ScanKvRequest(scanner_id=self._scanner_id, close_scanner=True)
            try:
                farewell = self._connection.send(api_keys.SCAN_KV, (request.SerializeToString(),), self._timeout_s)
                farewell.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
            except FlussError:
                pass
            self._scanner_id = None


CHUNK_ROWS_MAX = 50_000
CHUNK_SIZE_BYTES_MAX = 4 << 20
COPY_SIZE_BYTES = 4 << 20
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,200}")


class _Chunk(NamedTuple):
    keys: list[bytes]
    values: list[bytes]
    is_last: bool


class SnapshotRows:
    """Rows in the order of their keys, all as of `log_offset`. Coroutines are for the I/O loop."""

    def __init__(
        self,
        cluster: Cluster,
        info: TableInfo,
        values: ValueReader,
        keys: PrimaryKeyEncoder,
        after_key: bytes | None,
    ) -> None:
        self._cluster = cluster
        self._info = info
        self._values = values
        self._keys = keys
        self._store: _SnapshotStore | None = None
        self._tail: Folded | None = None
        self._tail_place = 0
        self.log_offset = 0
        self.last_key = after_key
        """The rows up to here were given."""

    async def open(self, bucket: TableBucket, partition_name: str | None) -> None:
        """Fix the rows that are read: copy the snapshot and fold what came after it."""
        key = (bucket.partition_id, bucket.bucket)
        snapshot = await self._latest_snapshot(bucket, partition_name)
        # Asked for after the snapshot, so that this is not before it.
        self.log_offset = (await self._offsets(key, OffsetSpec.latest()))[key]
        earliest_offset = (await self._offsets(key, OffsetSpec.earliest()))[key]
        start_offset = 0
        if snapshot is not None:
            self._store = await self._copied(bucket, snapshot.snapshot_id, needed=earliest_offset > 0)
            start_offset = 0 if self._store is None else snapshot.log_offset
        if start_offset < earliest_offset:
            raise InvalidRequestError(
                f"Bucket {bucket.bucket} of table {self._info.table_path} can't be read whole: its changes before "
                f"offset {earliest_offset} are kept neither in its log nor in a snapshot."
            )
        self._tail = await self._fold(bucket, start_offset)
        if self.last_key is not None:
            self._tail_place = self._tail.place_after(self.last_key)

    async def _offsets(self, key: tuple[int | None, int], spec: OffsetSpec) -> dict[tuple[int | None, int], int]:
        return await list_offsets(self._cluster, self._info, [key], spec)

    async def _latest_snapshot(self, bucket: TableBucket, partition_name: str | None) -> pb.PbKvSnapshot | None:
        request = pb.GetLatestKvSnapshotsRequest(partition_name=partition_name)
        set_path(request.table_path, self._info.table_path)
        answer = await ask_once(self._cluster, api_keys.GET_LATEST_KV_SNAPSHOTS, request)
        for snapshot in answer.latest_snapshots:
            if snapshot.bucket_id == bucket.bucket and snapshot.HasField("snapshot_id"):
                return snapshot
        return None

    async def _copied(self, bucket: TableBucket, snapshot_id: int, *, needed: bool) -> _SnapshotStore | None:
        """The snapshot, opened here; None when this machine can't reach it and the log will do."""
        request = pb.GetKvSnapshotMetadataRequest(
            table_id=bucket.table_id,
            partition_id=bucket.partition_id,
            bucket_id=bucket.bucket,
            snapshot_id=snapshot_id,
        )
        answer = await ask_once(self._cluster, api_keys.GET_KV_SNAPSHOT_METADATA, request)
        files = RemoteFiles(self._cluster)
        try:
            for directory in {item.remote_path.rsplit("/", 1)[0] for item in answer.snapshot_files}:
                await files.check_directory(directory, bucket.table_id)
        except FlussError:
            files.close()
            if needed:
                raise
            return None
        store = _SnapshotStore(self.last_key)
        try:
            for item in answer.snapshot_files:
                # A name and nothing else: a file must not be written anywhere else.
                if not _FILE_NAME.fullmatch(item.local_file_name):
                    raise FlussError(f"The server names a file {item.local_file_name[:100]!r} of a KV snapshot.")
                await _copy(files, item.remote_path, store.directory / item.local_file_name)
            await runtime.in_worker(store.open)
        except BaseException:
            store.close()
            raise
        finally:
            files.close()
        return store

    async def _fold(self, bucket: TableBucket, start_offset: int) -> Folded:
        fold = ChangelogFold(self._keys, arrow_schema(self._info.schema))
        scanner = LogScannerCore(self._cluster, self._info)
        session = scanner.between([Cursor(bucket, start_offset, self.log_offset)])
        try:
            while batches := await session.next():
                await runtime.in_worker(fold.add, batches)
        finally:
            session.close()
            scanner.close()
        return await runtime.in_worker(fold.result)

    async def next(self) -> pa.RecordBatch | None:
        """Further rows; None at the end."""
        assert self._tail is not None
        while self._store is not None:
            chunk = await runtime.in_worker(self._store.read)
            if chunk.is_last:
                self._close_store()
            if chunk.keys:
                rows = await self._merged(chunk, self._tail)
                self.last_key = chunk.keys[-1]
                if rows.num_rows:
                    return rows
        while self._tail_place < len(self._tail):
            end = min(self._tail_place + CHUNK_ROWS_MAX, len(self._tail))
            batches, self._tail_place = self._tail.rows(self._tail_place, end), end
            self.last_key = self._tail.keys[end - 1].as_py()
            if batches:
                return pa.concat_batches(batches)
        return None

    async def _merged(self, chunk: _Chunk, tail: Folded) -> pa.RecordBatch:
        """The chunk's rows that have not changed since, and the newer ones of keys up to its last."""
        start, end = self._tail_place, tail.place_after(chunk.keys[-1])
        values = chunk.values
        if end > start:
            changed = pc.is_in(pa.array(chunk.keys, pa.binary()), value_set=tail.keys.slice(start, end - start))
            values = list(compress(values, pc.invert(changed).to_pylist()))
        self._tail_place = end
        return pa.concat_batches([await self._values.decode(values), *tail.rows(start, end)])

    def close(self) -> None:
        """Remove the copy of the snapshot."""
        self._close_store()

    def _close_store(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


class _SnapshotStore:
    """A RocksDB database in a temporary directory, read once in the order of keys; for one thread at a time."""

    def __init__(self, after_key: bytes | None) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="fluss-kv-snapshot-", ignore_cleanup_errors=True)
        self._after_key = after_key
        self._database: Any = None
        self._rows: Any = None
        self.directory = Path(self._scratch.name)

    def open(self) -> None:
        """Open what was copied."""
        # Loaded here: programs that never read such a snapshot need no RocksDB.
        try:
            from rocksdict import AccessType, Options, Rdict
        except ImportError as error:
            raise FlussError("rocksdict is not installed; reading a KV snapshot of the cluster needs it.") from error
        try:
            self._database = Rdict(str(self.directory), Options(raw_mode=True), access_type=AccessType.read_only())
        except Exception as error:  # rocksdict raises bare ones
            raise FlussError(f"Can't open a KV snapshot of the cluster: {error}") from error
        self._rows = self._database.iter()
        if self._after_key is None:
            self._rows.seek_to_first()
        else:
            self._rows.seek(self._after_key)
            if self._rows.valid() and self._rows.key() == self._after_key:
                self._rows.next()

    def read(self) -> _Chunk:
        """The next keys and values."""
        rows, size_bytes = self._rows, 0
        keys: list[bytes] = []
        values: list[bytes] = []
        while len(keys) < CHUNK_ROWS_MAX and size_bytes < CHUNK_SIZE_BYTES_MAX and rows.valid():
            value = rows.value()
            keys.append(rows.key())
            values.append(value)
            size_bytes += len(value)
            rows.next()
        try:
            rows.status()  # a damaged block looks like the end otherwise
        except Exception as error:
            raise FlussError(f"Can't read a KV snapshot of the cluster: {error}") from error
        return _Chunk(keys, values, is_last=not rows.valid())

    def close(self) -> None:
        """Remove the files."""
        self._rows = None
        if self._database is not None:
            self._database.close()
            self._database = None
        self._scratch.cleanup()


async def _copy(files: RemoteFiles, uri: str, target: Path) -> None:
    source = await files.open(uri)
    try:
        size_bytes = await files.size_bytes(source, uri)
        with target.open("wb") as file:
            for position in range(0, size_bytes, COPY_SIZE_BYTES):
                data = await files.read(source, uri, position, min(COPY_SIZE_BYTES, size_bytes - position))
                await runtime.in_worker(file.write, data)
    finally:
        source.close()


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
        """Tries for rows that are lost on the way: how long to go on without success, and when to open them again."""
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

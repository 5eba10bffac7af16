"""Current rows of one bucket where the server does not scan its store for clients (Apache Fluss 0.9).

The newest snapshot of the store is copied from the cluster's remote storage and opened here, and the changes since then
are folded on top; without a snapshot the changes are folded from the first one on.
"""

from __future__ import annotations

import re
import tempfile
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fluss.client import runtime
from fluss.client.cluster.ask import ask_once
from fluss.client.cluster.cluster import Cluster
from fluss.client.cluster.offsets import list_offsets
from fluss.client.cluster.views import set_path
from fluss.client.current.changelog_fold import ChangelogFold, Folded
from fluss.client.lookup.values import ValueReader
from fluss.client.scan.cursor import Cursor
from fluss.client.scan.remote import RemoteFiles
from fluss.client.scan.scanner import LogScannerCore
from fluss.formats.rows.keys import PrimaryKeyEncoder
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.infos import TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb

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

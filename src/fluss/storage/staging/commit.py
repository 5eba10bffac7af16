"""Staged requests on disk, and commits: which batches come again, and carrying out a decided commit.

    tables/<table id>/staging/<query>.<batch id>.<task>.<attempt>.<sequence>

A file of a staged request appears by rename when it is whole and synced. Query ids are whatever clients choose, so a
name has a digest. Functions that touch files block.

A stream repeats its last batch when it was stopped before it had noted that the batch is stored. Such a repetition is
done if it has the same rows. Any other repetition comes from a stream that was put back, and to take it for done would
drop its rows: it is refused until somebody says what is right, by `fluss staged accept` or `fluss staged reset`.

The chosen batches of a decided commit are appended in order, under a writer id that nobody else has. Batches of a
bucket are numbered from 0, so what the log knows of the writer says how many of them it has. However often it is
interrupted, by an error or a crash, the next run goes on behind the last batch that is in the log.
"""

from __future__ import annotations

import asyncio
import logging
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from fluss.formats.batches import log_batch
from fluss.formats.batches.log_batch import crc32c
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError, InvalidRequestError
from fluss.model.paths import TableBucket, TablePath
from fluss.model.staging import StagedRows, StagedTask
from fluss.storage import files
from fluss.storage.catalog.db import StagedDecision, StagedQuery
from fluss.storage.catalog.view import has_primary_key
from fluss.storage.directory import STAGING_NAME
from fluss.storage.failpoints import Site
from fluss.storage.log.recovery import lineage, make_lineage

if TYPE_CHECKING:
    from fluss.storage.kv.put import Put
    from fluss.storage.store import Storage


_log = logging.getLogger(__name__)

_MAGIC: Final = b"FLST"
_VERSION: Final = 1
_CRC: Final = struct.Struct("<I")  # of all that follows; it comes first
_HEADER: Final = struct.Struct("<4sHBBii")  # magic, version, overwrite, 0, target columns, batches
_TARGET: Final = struct.Struct("<i")
_BATCH: Final = struct.Struct("<qii")  # partition id or -1, bucket id, size; all batches lie behind the last of these
_NO_PARTITION: Final = -1
_CHECK_BYTES: Final = 1 << 20

_DIGEST_CHARACTERS: Final = 40
_NAME: Final = re.compile(rf"([0-9a-f]{{{_DIGEST_CHARACTERS}}})\.(\d+)\.(\d+)\.(\d+)\.(\d+)", re.ASCII)
_QUERIES_CACHED: Final = 1_024


class StagedKey(NamedTuple):
    """Which request it is."""

    table_id: int
    query: str  # as files have it
    batch_id: int
    task: int
    attempt: int
    sequence: int

    @property
    def file_name(self) -> str:
        return ".".join(map(str, self[1:]))


class StagedRequest(NamedTuple):
    """Batches of one request, in order."""

    batches: Sequence[tuple[TableBucket, memoryview]]
    target_columns: Sequence[int] = ()
    overwrite: bool = False


class StagedFile(NamedTuple):
    key: StagedKey
    size_bytes: int
    staged_ms: int


@lru_cache(_QUERIES_CACHED)
def query_name(query_id: str) -> str:
    """A query id as files have it."""
    # Here, as in other places of the server: OpenSSL's digests take memory that an idle server does without.
    import hashlib

    return hashlib.sha256(query_id.encode()).hexdigest()[:_DIGEST_CHARACTERS]


def make_directory(directory: Path, root: Path) -> None:
    """Return when the directory is there, and every name that leads to it is on disk."""
    make_lineage(directory, root, Site.STAGING_DIRECTORY)
    for path in lineage(directory, root)[1:]:
        # Also of those that were there: whoever made them may not have synced them yet.
        files.sync_directory(path, Site.STAGING_DIRECTORY)


def write(directory: Path, name: str, request: StagedRequest) -> int:
    """Return when the file is on disk: its size."""
    parts = _encode(request)
    files.replace_parts(directory / name, parts, Site.STAGING_REPLACE, durable=True)
    return sum(map(len, parts))


def _encode(request: StagedRequest) -> list[bytes | memoryview]:
    batches, targets = request.batches, request.target_columns
    head = [_HEADER.pack(_MAGIC, _VERSION, request.overwrite, 0, len(targets), len(batches))]
    head += map(_TARGET.pack, targets)
    for bucket, records in batches:
        partition_id = _NO_PARTITION if bucket.partition_id is None else bucket.partition_id
        head.append(_BATCH.pack(partition_id, bucket.bucket_id, len(records)))
    content = b"".join(head)
    crc = crc32c(content)
    for _, records in batches:
        crc = crc32c(records, crc)
    return [_CRC.pack(crc) + content, *(records for _, records in batches)]


def names_of(table_id: int, query_id: str, batch_id: int, tasks: Sequence[StagedTask]) -> list[str]:
    """The files of a commit."""
    return [
        StagedKey(table_id, query_name(query_id), batch_id, task.task, task.attempt, sequence).file_name
        for task in tasks
        for sequence in range(task.request_count)
    ]


def check(directory: Path, names: Sequence[str]) -> None:
    """Raise for a file that is not what was written."""
    for name in names:
        path = directory / name
        try:
            with path.open("rb", buffering=0) as file:
                head = file.read(_CRC.size)
                crc = 0
                while data := file.read(_CHECK_BYTES):
                    crc = crc32c(data, crc)
        except OSError as error:
            raise _damaged(path, files.reason(error)) from error
        if len(head) < _CRC.size or _CRC.unpack(head)[0] != crc:
            raise _damaged(path)


def read(directory: Path, key: StagedKey) -> StagedRequest:
    """The request as it was staged; its batches may be written to. Raises for a file that is not what was written."""
    path = directory / key.file_name
    data = bytearray(path.stat().st_size)
    with path.open("rb", buffering=0) as file:
        file.readinto(data)
    view = memoryview(data)
    if len(data) < _CRC.size + _HEADER.size or _CRC.unpack_from(data)[0] != crc32c(view[_CRC.size :]):
        raise _damaged(path)
    magic, version, overwrite, _, target_count, batch_count = _HEADER.unpack_from(data, _CRC.size)
    if (magic, version) != (_MAGIC, _VERSION):
        raise _damaged(path)
    at = _CRC.size + _HEADER.size
    targets = [number for (number,) in _TARGET.iter_unpack(view[at : at + target_count * _TARGET.size])]
    at += target_count * _TARGET.size
    places = list(_BATCH.iter_unpack(view[at : at + batch_count * _BATCH.size]))
    at += batch_count * _BATCH.size
    batches = []
    for partition_id, bucket_id, size_bytes in places:
        bucket = TableBucket(key.table_id, bucket_id, None if partition_id == _NO_PARTITION else partition_id)
        batches.append((bucket, view[at : at + size_bytes]))
        at += size_bytes
    return StagedRequest(batches, targets, bool(overwrite))


def _damaged(path: Path, reason: str = "their checksum is wrong") -> CorruptDataError:
    # Not the code of a bad checksum, which clients answer by trying again.
    text = (
        f"{files.shown(path)}: the staged rows are damaged ({reason}), their batch can't be committed; write it anew."
    )
    return CorruptDataError(text, ErrorCode.UNKNOWN_SERVER_ERROR)


def remove(directory: Path, names: Sequence[str]) -> None:
    """Those that are there."""
    for name in names:
        files.remove(directory / name, Site.STAGING_REMOVE)


def find(tables_path: Path) -> list[StagedFile]:
    """All files of all tables; what interrupted writes have left is removed."""
    return [file for directory in tables_path.glob(f"*/{STAGING_NAME}") for file in _find(directory)]


def _find(directory: Path) -> Iterator[StagedFile]:
    for path in directory.glob(f"*{files.TEMPORARY_SUFFIX}"):
        files.remove(path, Site.STAGING_REMOVE)
    yield from listed(directory)


def listed(directory: Path) -> Iterator[StagedFile]:
    """All files of a table."""
    for path in directory.iterdir():
        match, table = _NAME.fullmatch(path.name), directory.parent.name
        if match is None or not table.isdigit():
            if not path.name.endswith(files.TEMPORARY_SUFFIX):
                _log.warning("%s is not a file of ours and is left alone", path)
            continue
        query, *numbers = match.groups()
        status = path.stat()
        key = StagedKey(int(table), query, *map(int, numbers))
        yield StagedFile(key, status.st_size, status.st_mtime_ns // 1_000_000)


# First, because the commands that follow would store rows twice then.
_TWICE = "Does another program run this query, from the same checkpoint? Then stop one of them, and that is all."


def is_done(query: StagedQuery, path: TablePath, batch_id: int, rows: StagedRows | None) -> bool:
    """Whether the batch is committed; raises for one that comes again and may not."""
    if batch_id > query.committed:
        return False
    if batch_id <= query.accepted:
        return True
    check_order(query, path, batch_id)
    if rows is None or query.rows is None:
        who = "the client does not tell" if rows is None else "an older version did not note"
        text = "batch %d of query %r to %s came again and is taken for done, not compared with the first: %s which rows"
        _log.warning(text, batch_id, query.query_id, path, who)
    elif rows != query.rows:
        raise _refused(query, path, batch_id, _difference(rows, query.rows))
    return True


def check_order(query: StagedQuery, path: TablePath, batch_id: int) -> None:
    """Raise for a batch before the last one, unless it was accepted."""
    if query.accepted < batch_id < _last(query):
        raise _refused(query, path, batch_id, f". {_TWICE} Or was it put back to an earlier checkpoint?")


def _last(query: StagedQuery) -> int:
    """The last batch that is committed, or surely will be."""
    return query.committed if query.decided is None else query.decided.batch_id


def _difference(rows: StagedRows, committed: StagedRows) -> str:
    counts = f"{rows.row_count} rows now, {committed.row_count} then"
    guesses = f"{_TWICE} Or was it put back to an earlier checkpoint, or is it not deterministic?"
    return f", with other rows ({counts}). {guesses}"


def _refused(query: StagedQuery, path: TablePath, batch_id: int, reason: str) -> InvalidRequestError:
    last = _last(query)
    import shlex  # only for the text of an error

    name = f"{path} {shlex.quote(query.query_id)}"
    back = f" --to {batch_id - 1}" if batch_id else ""
    return InvalidRequestError(
        f"Batch {batch_id} of query {query.query_id!r} is refused: batch {last} is the last one committed to table "
        f"{path}{reason} If the table has the rows of all batches up to {last}: `fluss staged accept {name} {last}`. "
        "If the rows from this batch on are to be stored, those that are there a second time: "
        f"`fluss staged reset {name}{back}`.",
        ErrorCode.INVALID_TABLE_EXCEPTION,
    )


class StagedCommit:
    """One run. When it fails it can be run again, as another object."""

    def __init__(self, storage: Storage, query: StagedQuery, decided: StagedDecision) -> None:
        entry = storage.catalog.table_by_id(query.table_id)
        self._storage = storage
        self._query = query
        self._decided = decided
        self._has_primary_key = entry is not None and has_primary_key(entry.table_json)
        self._stored: dict[TableBucket, int] = {}  # the last sequence that was in the log before; -1: none
        self._sequences: dict[TableBucket, int] = {}  # of the next batch
        self._puts: list[tuple[TableBucket, Put]] = []

    @property
    def buckets(self) -> list[TableBucket]:
        """Those that have batches."""
        return list(self._stored)

    async def run(self) -> None:
        """Return when all is appended, durable, and visible to readers; if it fails, nothing is left under way."""
        try:
            await self._store()
        except Exception:
            # Puts of other buckets go on, and the next run must know how far they came.
            if self._puts:
                await asyncio.wait([put.applied for _, put in self._puts])
            raise

    async def _store(self) -> None:
        for task in sorted(self._decided.tasks):
            for sequence in range(task.request_count):
                request = await self._read(task.task, task.attempt, sequence)
                for bucket, records in request.batches:
                    with self._unless_dropped(bucket):
                        await self._write(bucket, records, request)
        for bucket, put in self._puts:
            with self._unless_dropped(bucket):
                await put.applied
        await self._make_durable()

    async def _read(self, task: int, attempt: int, sequence: int) -> StagedRequest:
        query = query_name(self._query.query_id)
        key = StagedKey(self._query.table_id, query, self._decided.batch_id, task, attempt, sequence)
        directory = self._storage.staging_path(key.table_id)
        try:
            return await self._storage.run_blocking(partial(read, directory, key))
        except OSError as error:
            text = f"{files.shown(directory / key.file_name)}: the staged rows can't be read: {files.reason(error)}"
            raise FlussError(text, ErrorCode.LOG_STORAGE_EXCEPTION) from error

    @contextmanager
    def _unless_dropped(self, bucket: TableBucket) -> Iterator[None]:
        """What is for a dropped partition is left out."""
        try:
            yield
        except FlussError:
            if self._storage.exists(bucket):
                raise

    async def _write(self, bucket: TableBucket, records: memoryview, request: StagedRequest) -> None:
        writer_id = self._decided.writer_id
        if bucket not in self._stored:
            last = (await self._storage.opened(bucket)).last_sequence(writer_id)
            self._stored[bucket] = -1 if last is None else last
        sequence = self._sequences.get(bucket, 0)
        self._sequences[bucket] = sequence + 1
        if sequence <= self._stored[bucket]:
            return
        if self._has_primary_key:
            await self._put(bucket, records, sequence, request)
            return
        log_batch.set_writer(records, writer_id, sequence)
        log = await self._storage.opened(bucket)
        log.append(records, log_batch.parse_header(records), self._storage.clock.now_ms())

    async def _put(self, bucket: TableBucket, records: memoryview, sequence: int, request: StagedRequest) -> None:
        from fluss.formats.batches import kv_batch  # A server of log tables does without pyarrow.

        kv_batch.set_writer(records, self._decided.writer_id, sequence, b"")
        kv = self._storage.kv.bucket(bucket)
        await kv.room()
        self._puts.append((bucket, kv.put(records, request.target_columns, overwrite=request.overwrite)))

    async def _make_durable(self) -> None:
        """Sync what was stored, in all modes: the staged rows, which are durable, are about to go."""
        for bucket in self._stored:
            with self._unless_dropped(bucket):
                (await self._storage.opened(bucket)).request_sync()
        for bucket in self._stored:
            with self._unless_dropped(bucket):
                log = await self._storage.opened(bucket)
                await log.flush()
                log.last_sequence(self._decided.writer_id)  # raises if the log has failed meanwhile

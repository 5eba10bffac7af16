"""Staged requests on disk: one file each, with the batches that a commit will append.

    tables/<table id>/staging/<query>.<batch id>.<task>.<attempt>.<sequence>

A file appears by rename when it is whole and synced. Query ids are whatever clients choose, so a name has a digest.
All functions block.
"""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from fluss.formats.batches.checksum import crc32c
from fluss.model.errors import CorruptDataError, ErrorCode
from fluss.model.paths import TableBucket
from fluss.model.staging import StagedTask
from fluss.storage import files
from fluss.storage.directory import STAGING_NAME
from fluss.storage.failpoints import Site
from fluss.storage.log.recovery import lineage, make_lineage

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
                _log.warning("%s is no file of ours and is left alone", path)
            continue
        query, *numbers = match.groups()
        status = path.stat()
        key = StagedKey(int(table), query, *map(int, numbers))
        yield StagedFile(key, status.st_size, status.st_mtime_ns // 1_000_000)

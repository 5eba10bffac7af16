"""The offsets file of a snapshot in the lake, `<uuid>.offsets`: how far the snapshot reaches, in Apache Fluss's JSON.

The lake's snapshot names the file, so whoever finds a snapshot that was not registered can still do that. A file is
therefore never removed because it is old, but when it can't be needed any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from fluss.doors import randomness
from fluss.formats.batches.log_batch import crc32c
from fluss.model.errors import CorruptDataError, ErrorCode, InvalidRequestError, NotFoundError
from fluss.model.paths import TableBucket
from fluss.storage import files
from fluss.storage.directory import LAKE_OFFSETS_NAME
from fluss.storage.failpoints import Site
from fluss.storage.log.recovery import lineage, make_lineage

VERSION: Final = 1
UNKNOWN: Final = -1
OFFSETS_BYTES_MAX: Final = 16 << 20
# Of one table, not registered; each job that fails leaves one.
PREPARED_FILES_MAX: Final = 100
UNUSED_KEPT_MS: Final = 24 * 60 * 60 * 1_000
SUFFIX: Final = ".offsets"
_PATH: Final = re.compile(rf"/(\d+)/{LAKE_OFFSETS_NAME}/([0-9a-f]{{32}}\{SUFFIX})\Z", re.ASCII)
_OFFSET_MAX: Final = 2**63 - 1
_CHECKSUM: Final = re.compile(rb',"crc32c":(\d+)\}\Z')


class _Found(NamedTuple):
    modified_ns: int
    path: Path


def encode(table_id: int, offsets: Mapping[TableBucket, int]) -> bytes:
    """A list with a place for each bucket up to the last known one, for the table or for each partition."""
    by_partition: dict[int | None, dict[int, int]] = {}
    for bucket, offset in offsets.items():
        by_partition.setdefault(bucket.partition_id, {})[bucket.bucket_id] = offset
    content: dict[str, Any] = {"version": VERSION, "table_id": table_id}
    if None in by_partition:
        content["bucket_offsets"] = _places(by_partition[None])
    elif by_partition:
        content["partition_offsets"] = [
            {"partition_id": partition_id, "bucket_offsets": _places(known)}
            for partition_id, known in sorted((key, value) for key, value in by_partition.items() if key is not None)
        ]
    data = _with_checksum(json.dumps(content, separators=(",", ":")).encode())
    if len(data) > OFFSETS_BYTES_MAX:
        raise InvalidRequestError(
            f"The offsets of table {table_id} take {len(data)} bytes, {OFFSETS_BYTES_MAX} are allowed; drop partitions "
            "that are not needed.",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )
    return data


def _places(known: Mapping[int, int]) -> list[int]:
    return [known.get(bucket_id, UNKNOWN) for bucket_id in range(max(known) + 1)]


def _with_checksum(data: bytes) -> bytes:
    """The document with a checksum as its last member, which other readers of the format pass over."""
    return data[:-1] + b',"crc32c":%d}' % crc32c(data)


def _check_checksum(data: bytes) -> None:
    """Files of earlier versions have none."""
    match = _CHECKSUM.search(data)
    if match is not None and int(match[1]) != crc32c(data[: match.start()] + b"}"):
        raise ValueError("its checksum does not fit")


def decode(data: bytes, table_id: int, file_name: str) -> dict[TableBucket, int]:
    """The offsets that are known; raises for anything that `encode` does not write for this table."""
    try:
        _check_checksum(data)
        content = json.loads(data)
        if (content["version"], content["table_id"]) != (VERSION, table_id):
            raise ValueError("another version or table")
        offsets = dict(_buckets(table_id, None, content.get("bucket_offsets", [])))
        for partition in content.get("partition_offsets", []):
            offsets.update(_buckets(table_id, _number(partition["partition_id"]), partition["bucket_offsets"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # Not the code of a bad checksum, which clients answer by trying again.
        raise CorruptDataError(
            f"tables/{table_id}/{LAKE_OFFSETS_NAME}/{file_name}: the offsets of a lake snapshot are damaged ({error}); "
            "tier the table anew.",
            ErrorCode.UNKNOWN_SERVER_ERROR,
        ) from None
    return offsets


def _buckets(table_id: int, partition_id: int | None, places: Any) -> Iterator[tuple[TableBucket, int]]:
    for bucket_id, offset in enumerate(places):
        if offset != UNKNOWN:
            yield TableBucket(table_id, bucket_id, partition_id), _number(offset)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _OFFSET_MAX:
        raise ValueError(f"{value!r} is not a number")
    return value


def name_in(path: str, table_id: int) -> str:
    """The name of an offsets file of this table; a path is never followed, so it can't lead elsewhere."""
    match = _PATH.search(path) if isinstance(path, str) else None  # a text that is not UTF-8 comes as bytes
    if match is None or int(match[1]) != table_id:
        raise InvalidRequestError(
            f"{path[-200:]!r} is not an offsets file of table {table_id}; name the one that PrepareLakeTableSnapshot "
            "gave.",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )
    return match[2]


def write(directory: Path, root: Path, data: bytes, used: Collection[str]) -> Path:
    """Return when a new file is on disk: its path. Of those that nobody uses, the oldest go if there are too many."""
    unused = [file.path.name for file in _files(directory) if file.path.name not in used]
    remove(directory, unused[: max(0, len(unused) + 1 - PREPARED_FILES_MAX)])
    make_lineage(directory, root, Site.LAKE_DIRECTORY)
    for path in lineage(directory, root)[1:]:
        # Also of those that were there: whoever made them may not have synced them yet.
        files.sync_directory(path, Site.LAKE_DIRECTORY)
    path = directory / f"{randomness.new_uuid().hex}{SUFFIX}"
    files.replace(path, data, Site.LAKE_REPLACE, durable=True)
    return path


def read(directory: Path, name: str) -> bytes:
    """The content of a file; code 53 if it is not there."""
    try:
        with (directory / name).open("rb") as file:
            return file.read(OFFSETS_BYTES_MAX)
    except FileNotFoundError:
        raise NotFoundError(
            f"The offsets file {name} is not there: a later lake snapshot has taken its place, or nobody prepared it; "
            "begin a new round.",
            ErrorCode.LAKE_SNAPSHOT_NOT_EXIST,
        ) from None


def remove(directory: Path, names: Collection[str]) -> None:
    """Those that are there."""
    for name in names:
        files.remove(directory / name, Site.LAKE_REMOVE)


def remove_temporary(directory: Path) -> None:
    """Remove what interrupted writes have left."""
    remove(directory, [path.name for path in directory.glob(f"*{files.TEMPORARY_SUFFIX}")])


def remove_unused(directory: Path, used: Collection[str], latest: str, now_ms: int) -> None:
    """Remove files that no lake snapshot can name any more.

    Those are as old as a day, and older than the one of the latest registered snapshot: a job that wrote an earlier one
    has lost against it.
    """
    found = _files(directory)
    kept_from_ns = next((file.modified_ns for file in found if file.path.name == latest), 0)
    kept_from_ns = min(kept_from_ns, (now_ms - UNUSED_KEPT_MS) * 1_000_000)
    remove(
        directory, [file.path.name for file in found if file.path.name not in used and file.modified_ns < kept_from_ns]
    )


def _files(directory: Path) -> list[_Found]:
    """The oldest first."""
    return sorted(_Found(path.stat().st_mtime_ns, path) for path in directory.glob(f"*{SUFFIX}"))

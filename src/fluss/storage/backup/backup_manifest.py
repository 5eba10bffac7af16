"""`backup.json`: what a backup has. It is written last, so a directory without it is no backup, or not a whole one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket
from fluss.storage import files
from fluss.storage.directory import FORMAT_VERSION
from fluss.storage.failpoints import Site

NAME: Final = "backup.json"
VERSION: Final = 1


class BackupRange(NamedTuple):
    """The offsets that a bucket has: from the first up to, and without, the last."""

    bucket: TableBucket
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class BackupManifest:
    format_version: int
    time_ms: int
    buckets: Sequence[BackupRange]
    files: Mapping[str, int]  # sizes by path, with slashes

    @property
    def size_bytes(self) -> int:
        return sum(self.files.values())


def write(directory: Path, manifest: BackupManifest) -> None:
    """Return when the file is on disk."""
    content = {
        "version": VERSION,
        "format_version": manifest.format_version,
        "time_ms": manifest.time_ms,
        "buckets": [
            {
                "table_id": bucket.table_id,
                "partition_id": bucket.partition_id,
                "bucket_id": bucket.bucket_id,
                "start_offset": start_offset,
                "end_offset": end_offset,
            }
            for bucket, start_offset, end_offset in manifest.buckets
        ],
        "files": manifest.files,
    }
    files.replace(directory / NAME, json.dumps(content).encode(), Site.BACKUP_FINISH, durable=True)


def read(directory: Path) -> BackupManifest:
    """What the backup in a directory has; raises when there is none, or one of a later program."""
    path = directory / NAME
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise FlussError(
            f"{directory} is no finished backup: it has no {NAME}, which is written last. Name another one, or make it "
            "anew with 'fluss backup'."
        ) from None
    except OSError as error:
        raise FlussError(f"{path} can't be read: {files.reason(error)}.") from error
    except ValueError as error:
        raise FlussError(f"{path} is damaged ({error}); use another backup.") from None
    try:
        return _parse(path, content)
    except (KeyError, TypeError, ValueError) as error:
        raise FlussError(f"{path} is damaged ({error!r}); use another backup.") from None


def _parse(path: Path, content: Any) -> BackupManifest:
    version, format_version = int(content["version"]), int(content["format_version"])
    if version > VERSION or format_version > FORMAT_VERSION:
        raise FlussError(
            f"{path} is of version {version} with data of format {format_version}; this program knows {VERSION} and "
            f"{FORMAT_VERSION}. Upgrade flussbett."
        )
    buckets = [
        BackupRange(
            TableBucket(item["table_id"], item["bucket_id"], item["partition_id"]),
            int(item["start_offset"]),
            int(item["end_offset"]),
        )
        for item in content["buckets"]
    ]
    sizes = {str(name): int(size_bytes) for name, size_bytes in content["files"].items()}
    for name in sizes:
        if name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"a file {name!r}")
    return BackupManifest(format_version, int(content["time_ms"]), buckets, sizes)

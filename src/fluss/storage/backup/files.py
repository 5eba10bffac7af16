"""The files of a backup, and `backup.json`, which says what a backup has.

Files are held by links while the data directory goes on, then linked or copied to where they belong. Links are made
quickly and need no room, so nothing has to wait long: what is removed or replaced afterwards is still there under its
second name. Files that nobody changes any more are linked into the backup too where it is on the same file system; the
last segment of each log and the small files of RocksDB are copied.

`backup.json` is written last, so a directory without it is no backup, or not a whole one.

All functions block and are called in threads.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.storage import files
from fluss.storage.directory import FORMAT_VERSION
from fluss.storage.failpoints import Site
from fluss.storage.kv.snapshot_files import files_of, list_snapshots
from fluss.storage.log.index import Checkpoint, CorruptBatchError, OffsetIndex, scan
from fluss.storage.log.log import LogCut
from fluss.storage.log.segment import INDEX_SUFFIX, LOG_SUFFIX, WRITERS_SUFFIX, segment_path

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
    catalog_crc: int | None = None  # SQLite has no checksums; None: of an earlier version

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
        "catalog_crc": manifest.catalog_crc,
    }
    files.replace(directory / NAME, json.dumps(content).encode(), Site.BACKUP_FINISH, durable=True)


def read(directory: Path) -> BackupManifest:
    """What the backup in a directory has; raises when there is none, or one of a later program."""
    path = directory / NAME
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise FlussError(
            f"{directory} is not a finished backup: it has no {NAME}, which is written last. Name another one, or make "
            "it anew with 'fluss backup'."
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
    crc = content.get("catalog_crc")
    return BackupManifest(format_version, int(content["time_ms"]), buckets, sizes, None if crc is None else int(crc))


_SST_SUFFIX: Final = ".sst"
_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP})


class HeldFile(NamedTuple):
    path: Path  # of the link
    name: str  # below the data directory, and below the backup
    size_bytes: int
    is_final: bool  # nobody writes to it any more


class HeldLog(NamedTuple):
    """The last segment of a log, which is written to while the backup is made."""

    log: HeldFile
    index_path: Path | None
    base_offset: int
    cut: LogCut


class Holder:
    """Makes the links, under numbers for names."""

    def __init__(self, root: Path, directory: Path) -> None:
        self._root = root
        self._directory = directory
        self._numbers = count()
        self.files: list[HeldFile] = []
        self.logs: list[HeldLog] = []

    def begin(self) -> None:
        """Make the directory, without what a killed server may have left there."""
        if self._directory.exists():
            files.remove_tree(self._directory, Site.BACKUP_HOLD)
        files.make_directory(self._directory, Site.BACKUP_HOLD)

    def log(self, directory: Path, cut: LogCut) -> None:
        """Hold a log as it was cut."""
        *sealed, last = cut.base_offsets
        for base_offset in sealed:
            self._hold(segment_path(directory, base_offset, LOG_SUFFIX))
            for suffix in (INDEX_SUFFIX, WRITERS_SUFFIX):
                self.hold_if_there(segment_path(directory, base_offset, suffix))
        active = self._link(segment_path(directory, last, LOG_SUFFIX), is_final=False)
        index = self._link_if_there(segment_path(directory, last, INDEX_SUFFIX))
        held = HeldLog(active._replace(size_bytes=cut.size_bytes), index and index.path, last, cut)
        self.logs.append(held)
        if cut.writers is None:
            self.hold_if_there(segment_path(directory, last, WRITERS_SUFFIX))

    def snapshots(self, bucket_path: Path, end_offset: int) -> None:
        """Hold the snapshots from which the rows of a bucket can be rebuilt."""
        for snapshot in list_snapshots(bucket_path):
            if snapshot.log_offset <= end_offset:
                for path in files_of(snapshot):
                    self.files.append(self._link(path, is_final=path.suffix == _SST_SUFFIX))

    def hold_all(self, paths: Iterable[Path]) -> None:
        for path in paths:
            self._hold(path)

    def hold_if_there(self, path: Path) -> None:
        if (held := self._link_if_there(path)) is not None:
            self.files.append(held)

    def _hold(self, path: Path) -> None:
        self.files.append(self._link(path))

    def _link_if_there(self, path: Path) -> HeldFile | None:
        try:
            return self._link(path)
        except FileNotFoundError:
            return None

    def _link(self, path: Path, *, is_final: bool = True) -> HeldFile:
        link = self._directory / str(next(self._numbers))
        files.link(path, link, Site.BACKUP_HOLD)
        name = path.relative_to(self._root).as_posix()
        return HeldFile(link, name, link.stat().st_size, is_final)

    def release(self) -> None:
        files.remove_tree(self._directory, Site.BACKUP_HOLD)


class Placer:
    """Puts files where they belong; remembers which there are, and the directories that are to be synced."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._directories: dict[Path, None] = {root: None}
        self.sizes: dict[str, int] = {}

    def place(self, file: HeldFile) -> None:
        """Put a file in its place, by a link if that is possible."""
        target = self._target(file.name)
        if not (file.is_final and _linked(file.path, target)):
            files.copy(file.path, target, file.size_bytes, Site.BACKUP_COPY)
        self.sizes[file.name] = file.size_bytes

    def place_log(self, held: HeldLog) -> None:
        """The last segment up to where it was cut, and what tells the next start that nothing is missing."""
        self.place(held.log)
        path = self._root / held.log.name
        self.write(str(Path(held.log.name).with_suffix(INDEX_SUFFIX)), _index(path, held))
        if held.cut.writers is not None:
            self.write(str(Path(held.log.name).with_suffix(WRITERS_SUFFIX)), held.cut.writers)

    def write(self, name: str, data: bytes) -> None:
        fd = files.create(self._target(name), Site.BACKUP_COPY)
        try:
            files.write_at(fd, data, 0, Site.BACKUP_COPY)
            files.sync(fd, Site.BACKUP_COPY)
        finally:
            files.close(fd)
        self.sizes[name] = len(data)

    def note(self, name: str) -> None:
        """Somebody else has placed it."""
        self.sizes[name] = (self._root / name).stat().st_size

    def sync_directories(self) -> None:
        for directory in self._directories:
            files.sync_directory(directory, Site.BACKUP_COPY)

    def _target(self, name: str) -> Path:
        target = self._root / name
        missing = []
        for parent in target.parents:
            if parent in self._directories:
                break
            missing.append(parent)
        for parent in reversed(missing):
            files.make_directory(parent, Site.BACKUP_COPY)
            self._directories[parent] = None
        return target


def _linked(path: Path, target: Path) -> bool:
    try:
        files.link(path, target, Site.BACKUP_COPY)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    fd = files.open_existing(target, writable=False)
    try:
        # With durability "os" it may not be on disk yet.
        files.sync(fd, Site.BACKUP_COPY)
    finally:
        files.close(fd)
    return True


def _index(path: Path, held: HeldLog) -> bytes:
    """An index that speaks for the whole segment, made of one that may end before or behind the cut."""
    cut = held.cut
    index, position, offset = OffsetIndex(held.base_offset), 0, held.base_offset
    loaded = OffsetIndex.decode(held.index_path.read_bytes(), held.base_offset) if held.index_path is not None else None
    if loaded is not None and loaded[0] is not None:
        index, checkpoint = loaded[0], loaded[1]
        position, offset = checkpoint.size_bytes, checkpoint.end_offset
        if position > cut.size_bytes:
            offset, position = index.rewind(cut.size_bytes)
    fd = files.open_existing(path, writable=False)
    try:
        for at, header in scan(fd, path, position, cut.size_bytes, offset, verify=True):
            index.add(header, header.base_offset, at, header.commit_timestamp_ms)
            offset = header.next_offset
    finally:
        files.close(fd)
    if offset != cut.end_offset:
        raise CorruptBatchError(path, cut.size_bytes, f"the log ends at offset {offset}, not at {cut.end_offset}")
    return index.encode(Checkpoint(cut.size_bytes, cut.end_offset, cut.timestamp_ms_max, index.heads_checksum))


def check_target(path: Path) -> None:
    """Raise unless a directory is empty, or not there."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidRequestError(
            f"{path} exists and is not an empty directory; name another one, nothing is overwritten.",
            ErrorCode.INVALID_CONFIG_EXCEPTION,
        )


def make_target(path: Path) -> bool:
    """Make a directory and all that lead to it, unless there is an empty one; whether it was made."""
    check_target(path)
    if path.exists():
        return False
    for missing in reversed([path, *(parent for parent in path.parents if not parent.exists())]):
        files.make_directory(missing, Site.BACKUP_COPY)
        files.sync_directory(missing.parent, Site.BACKUP_COPY)
    return True


def remove_target(path: Path, *, was_made: bool) -> None:
    """Leave things as they were."""
    files.remove_tree(path, Site.BACKUP_REMOVE)
    if not was_made:
        files.make_directory(path, Site.BACKUP_COPY)


def copied_bytes(held: Iterable[HeldFile], source: Path, target: Path) -> int:
    """How much room the files need."""
    has_links = os.stat(source).st_dev == os.stat(target).st_dev
    return sum(file.size_bytes for file in held if not (has_links and file.is_final))

"""The data directory: its format version, its lock, its notes, its paths, and the room on its disk.

A directory belongs to us when it has a `format_version` file. A newer version is refused, for an old program would read
new files wrongly; an older one is raised before anything new is written, so the old program stays away from then on. A
directory with foreign files is refused, for we would mix ours with them.

The lock is a flock: the kernel frees it when its holder dies. The holder's pid lies in a file of its own, because older
versions empty the lock file when they open it.

Notes are for the server's next start, and disposable. Without the note of the clock, `server.clock`, the next start
trusts the clock after an hour, as a first one does. A table's note of its numbers, `numbers`, lies with its data: it
says what a catalog that is older than the data does not.

To look how much room is left costs a system call, so it is done after a second, or after so many bytes that they could
matter; in between a write costs a comparison. Below the limit writes are refused with a code that all clients answer by
trying again; at twice the limit they go on.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from fluss.doors import clock
from fluss.model.clock import Clock, ClockNote
from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TableBucket
from fluss.storage import files
from fluss.storage.failpoints import Site


def try_lock(path: Path) -> FileIO | None:
    """Lock a file, made if it is not there, until the answer is closed; None when another has it locked."""
    file = FileIO(path, "a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if isinstance(error, BlockingIOError):
            return None
        raise
    return file


# 1: log tables. 2: partitions, several schemas of a table, batches with statistics, rows in the INDEXED format.
# 3: marks, generations of the catalog, writer ids that are random.
FORMAT_VERSION: Final = 3
VERSION_NAME: Final = "format_version"
LOCK_NAME: Final = "server.lock"
PID_NAME: Final = "server.pid"
ADDRESS_NAME: Final = "server.address"
CATALOG_NAME: Final = "catalog.db"
MARKS_NAME: Final = "marks"
TABLES_NAME: Final = "tables"
PARTITION_PREFIX: Final = "p"
STAGING_NAME: Final = "staging"
LAKE_OFFSETS_NAME: Final = "lake-offsets"
NUMBERS_NAME: Final = "numbers"
STORE_NAME: Final = "kv"
HELD_NAME: Final = "server.backup"
SCRUB_NAME: Final = "server.scrub"
# How the scrubber reads, if nothing else is said; it is not loaded before there is a table.
SCRUB_BYTES_PER_SECOND: Final = 4 << 20
SCRUB_OFF: Final = 0
SCRUB_INTERVAL_MS: Final = 7 * 24 * 60 * 60 * 1_000
CLOCK_NAME: Final = "server.clock"
LOST_NAME: Final = "lost"  # what repairs have taken out of the way

# Files of the server process may be there before the format is: its lock, its log, its endpoint file.
_OWN_PREFIX: Final = "server."
_IGNORED_NAMES: Final = frozenset({"lost+found", VERSION_NAME + files.TEMPORARY_SUFFIX})
_VERSION_LINE_BYTES_MAX: Final = 64


class DataDirectoryError(FlussError):
    """The data directory can't be used; the message says why and what to do."""

    def __init__(self, message: str, error_code: int = ErrorCode.STORAGE_EXCEPTION) -> None:
        super().__init__(message, error_code)


class DataDirectory:
    """A data directory of the current format, locked if there is a lock."""

    def __init__(self, root: Path, lock: FileIO | None = None) -> None:
        self.root = root
        self._lock = lock

    @classmethod
    def open(cls, root: Path) -> DataDirectory:
        """Make the directory if needed, take its lock, check or write its format version."""
        root = root.absolute()
        try:
            _make(root)
            # Before the lock file is made: a refused directory stays as it was.
            version = _version(root)
            lock = _lock(root)
        except OSError as error:
            raise DataDirectoryError(f"Data directory {root} can't be used: {error}.") from error
        directory = cls(root, lock)
        try:
            files.overwrite(root / PID_NAME, f"{os.getpid()}\n".encode(), Site.LOCK_PID)
            if version != FORMAT_VERSION:
                files.replace(root / VERSION_NAME, f"{FORMAT_VERSION}\n".encode(), Site.FORMAT_REPLACE, durable=True)
        except BaseException:
            directory.close()
            raise
        return directory

    @classmethod
    def unlocked(cls, root: Path) -> DataDirectory:
        """The paths of a directory that is only read, and may be another server's."""
        return cls(root)

    @property
    def catalog_path(self) -> Path:
        return self.root / CATALOG_NAME

    @property
    def marks_path(self) -> Path:
        return self.root / MARKS_NAME

    @property
    def held_path(self) -> Path:
        return self.root / HELD_NAME

    @property
    def tables_path(self) -> Path:
        return self.root / TABLES_NAME

    def table_path(self, table_id: int) -> Path:
        return self.tables_path / str(table_id)

    def partition_path(self, table_id: int, partition_id: int) -> Path:
        return self.table_path(table_id) / f"{PARTITION_PREFIX}{partition_id}"

    def bucket_path(self, bucket: TableBucket) -> Path:
        if bucket.partition_id is None:
            return self.table_path(bucket.table_id) / str(bucket.bucket_id)
        return self.partition_path(bucket.table_id, bucket.partition_id) / str(bucket.bucket_id)

    def staging_path(self, table_id: int) -> Path:
        return self.table_path(table_id) / STAGING_NAME

    def lake_offsets_path(self, table_id: int) -> Path:
        return self.table_path(table_id) / LAKE_OFFSETS_NAME

    def numbers_path(self, table_id: int) -> Path:
        return self.table_path(table_id) / NUMBERS_NAME

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()


def prepare(root: Path) -> None:
    """Make the directory if needed; raise for one that must not be touched."""
    try:
        _make(root)
        _version(root)
    except OSError as error:
        raise DataDirectoryError(f"Data directory {root} can't be used: {error}.") from error


def read_version(root: Path) -> int | None:
    """The format version of a directory, None if it is empty or not there; raises for one that is not ours."""
    return _version(root) if root.exists() else None


def _make(root: Path) -> None:
    missing = [path for path in (root, *root.parents) if not path.exists()]
    for path in reversed(missing):
        files.make_directory(path, Site.DIRECTORY_CREATE)
        files.sync_directory(path.parent, Site.DIRECTORY_CREATE)
    if not root.is_dir():
        raise DataDirectoryError(
            f"Data directory {root} is a file. Name a directory, or a path that does not exist yet."
        )


def _version(root: Path) -> int | None:
    """The directory's format version, None for a fresh directory; raises for one we must not touch."""
    path = root / VERSION_NAME
    if not path.exists():
        foreign = sorted(
            entry.name
            for entry in root.iterdir()
            if not entry.name.startswith(_OWN_PREFIX) and entry.name not in _IGNORED_NAMES
        )
        if foreign:
            raise DataDirectoryError(
                f"Data directory {root} has files (such as {foreign[0]!r}) but no '{VERSION_NAME}' file, so it was not "
                "made by this program. Name an empty directory, or one that a server has used before."
            )
        return None
    with path.open("rb") as file:
        line = file.read(_VERSION_LINE_BYTES_MAX).decode("ascii", "replace").strip()
    if not line.isdigit():
        raise DataDirectoryError(f"{path} should hold a version number but holds {line!r}. Restore it from a backup.")
    version = int(line)
    if version > FORMAT_VERSION:
        raise DataDirectoryError(
            f"{path} says format version {version}; this program knows versions up to {FORMAT_VERSION}. "
            "Upgrade flussbett, or name another directory."
        )
    return version


def _lock(root: Path) -> FileIO:
    lock = try_lock(root / LOCK_NAME)
    if lock is None:
        raise DataDirectoryError(
            f"Data directory {root} is in use by another server{_holder(root)}. Stop it, or name another directory."
        )
    return lock


def _holder(root: Path) -> str:
    """Who has the directory, and its address if it noted one."""
    try:
        pid = int((root / PID_NAME).read_text())
    except (OSError, ValueError):
        return ""
    try:
        noted, address = (root / ADDRESS_NAME).read_text().split()
    except (OSError, ValueError):
        return f" (process {pid})"
    return f" (process {pid}): connect to {address}" if noted == str(pid) else f" (process {pid})"


_log = logging.getLogger(__name__)

_VERSION: Final = 1
_SIZE_BYTES_MAX: Final = 4_096


def open_clock(root: Path, settle_ms: int) -> Clock:
    """The clock of a server on this directory."""
    return Clock(settle_ms, boot=files.boot_id().decode("ascii", "replace"), note=read_note(root))


def read_note(root: Path) -> ClockNote | None:
    """What the last run has noted; None where there is nothing that can be used."""
    fields = _read_fields(root / CLOCK_NAME)
    try:
        boot, ahead_ms, since_ms, is_settled, time_ms = fields
        return ClockNote(str(boot), int(ahead_ms), int(since_ms), bool(is_settled), int(time_ms))
    except (ValueError, TypeError):
        return None


def write_note(root: Path, note: ClockNote) -> None:
    """Put a note in place; without it the next start waits longer."""
    _write_fields(root / CLOCK_NAME, list(note), Site.CLOCK_NOTE)


def read_numbers(path: Path) -> int | None:
    """Up to where the numbers of a table were reserved, by its note; None where that says nothing."""
    fields = _read_fields(path)
    return fields[0] if len(fields) == 1 and type(fields[0]) is int and fields[0] > 0 else None


def write_numbers(path: Path, bound: int) -> None:
    """Note with a table's data, which is there before its rows are, that its numbers below `bound` may be in use."""
    if path.parent.exists():
        _write_fields(path, [bound], Site.KV_NUMBERS)


def _read_fields(path: Path) -> list[Any]:
    """The fields of a note; none if it can't be used."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(_SIZE_BYTES_MAX))
        fields = content["note"]
        usable = isinstance(fields, list) and (content["version"], content["crc32"]) == (_VERSION, _crc(fields))
        return fields if usable else []
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return []


def _write_fields(path: Path, fields: list[object], site: Site) -> None:
    data = json.dumps({"version": _VERSION, "crc32": _crc(fields), "note": fields}).encode()
    try:
        files.replace(path, data, site, durable=False)
    except OSError as error:
        _log.warning("%s could not be written: %s", path, error)


def _crc(fields: list[object]) -> int:
    return crc32(json.dumps(fields).encode())


FREE_BYTES_MIN: Final = 1 << 30
FREE_SEGMENTS_MIN: Final = 2
CHECK_INTERVAL_S: Final = 1.0
# The part of the limit that may be written between two looks.
_CHECK_SHARE: Final = 8


def free_bytes_limit(setting: int | None, segment_size_bytes: int) -> int:
    """The setting, or by default room for a few more segments."""
    return max(FREE_BYTES_MIN, FREE_SEGMENTS_MIN * segment_size_bytes) if setting is None else setting


def disk_free_bytes(path: Path) -> int:
    """What an ordinary user may still write."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


class DiskGuard:
    """Used on the loop. `free_bytes_min` 0 switches it off."""

    def __init__(self, path: Path, free_bytes_min: int, free_bytes: Callable[[Path], int] = disk_free_bytes) -> None:
        self._path = path
        self._free_bytes = free_bytes
        self.free_bytes_min = free_bytes_min
        self.refused = 0  # writes
        self._is_low = False
        self._unseen_bytes = 0
        self._looked_at_s = float("-inf")

    @property
    def is_low(self) -> bool:
        return self._is_low

    def admit(self, size_bytes: int = 0) -> None:
        """Return when so much may be written; raise code 10 when the disk is too full."""
        if not self.free_bytes_min:
            return
        self._unseen_bytes += size_bytes
        many = self._unseen_bytes * _CHECK_SHARE >= self.free_bytes_min and not self._is_low
        if many or clock.monotonic() - self._looked_at_s >= CHECK_INTERVAL_S:
            self._look()
        if self._is_low:
            self.refused += 1
            raise FlussError(
                f"The server's disk is nearly full: writes need {self.free_bytes_min} free bytes and go on at twice "
                "that. Free some space; reading works meanwhile.",
                ErrorCode.LOG_STORAGE_EXCEPTION,
            )

    def free_bytes(self) -> int:
        """What is free now."""
        return self._free_bytes(self._path)

    def _look(self) -> None:
        self._unseen_bytes = 0
        self._looked_at_s = clock.monotonic()
        free_bytes = self.free_bytes()
        if not self._is_low and free_bytes < self.free_bytes_min:
            self._is_low = True
            _log.error(
                "%s has %d bytes free, less than %d: writes are refused", self._path, free_bytes, self.free_bytes_min
            )
        elif self._is_low and free_bytes >= 2 * self.free_bytes_min:
            self._is_low = False
            _log.warning("%s has %d bytes free again: writes go on", self._path, free_bytes)

"""The only door from storage to the disk: write, sync, rename, remove, truncate, make; and counters of that.

Fault model. A write may be torn at any byte, and until a sync returned its bytes may vanish or reach the disk in any
order. A created, renamed or removed name is lost unless its directory was synced afterwards. A sync that failed says
nothing about what is on disk, and a later sync that succeeds does not repair it. A full disk can refuse any write half
way. What was synced stays, but may rot; so whoever reads, checks.

Each call passes the fail points of its `Site`. SQLite does its own I/O; its commits pass through `around_commit`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

from fluss.storage import failpoints
from fluss.storage.failpoints import Site, Step

SYNC_BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class StorageStats:
    __slots__ = (
        "appended_batches",
        "appended_bytes",
        "appended_rows",
        "removed_segments",
        "sync_counts",
        "sync_failures",
        "sync_seconds",
    )

    def __init__(self) -> None:
        self.appended_batches = 0
        self.appended_bytes = 0
        self.appended_rows = 0
        self.removed_segments = 0
        self.sync_counts = [0] * (len(SYNC_BOUNDS_S) + 1)  # by duration, the last one for all above the bounds
        self.sync_failures = 0
        self.sync_seconds = 0.0

    def appended(self, rows: int, size_bytes: int) -> None:
        self.appended_batches += 1
        self.appended_rows += rows
        self.appended_bytes += size_bytes

    def synced(self, seconds: float, failed: bool) -> None:
        self.sync_counts[bisect_left(SYNC_BOUNDS_S, seconds)] += 1
        self.sync_seconds += seconds
        self.sync_failures += failed


BufferLike: TypeAlias = bytes | bytearray | memoryview

TEMPORARY_SUFFIX: Final = ".tmp"
_FILE_MODE: Final = 0o640
_DIRECTORY_MODE: Final = 0o750
_SHOWN_FROM: Final = "tables"
_COPY_BYTES: Final = 4 << 20
_NO_DESCRIPTOR_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_BOOT_ID_PATH: Final = "/proc/sys/kernel/random/boot_id"


def _full_sync(fd: int) -> None:
    if sys.platform == "darwin":
        # fsync on macOS stops at the drive's cache.
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def _data_sync(fd: int) -> None:
    if sys.platform == "linux":
        # Skips the modification time but not a changed size, so an append needs no second journal write.
        os.fdatasync(fd)
    else:
        _full_sync(fd)


def _pass(site: Site, step: Step) -> None:
    if failpoints.armed is not None:
        failpoints.armed.hit(site, step)


def shown(path: Path) -> str:
    """A path as clients may see it: below the data directory. The log of the server has the whole."""
    parts = path.parts
    below = max((at for at, part in enumerate(parts) if part == _SHOWN_FROM), default=len(parts) - 1)
    return "/".join(parts[below:])


def reason(error: OSError) -> str:
    """What is wrong, without the path that the error may name."""
    return error.strerror or type(error).__name__


def lacks_descriptor(error: BaseException) -> bool:
    """Whether a file could not be opened for want of descriptors, which passes. It says nothing about what is on disk.

    Writes and syncs never fail so: the step was not even begun.
    """
    return isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR_ERRNOS


def boot_id() -> bytes:
    """What tells one run of the system from the next; empty where the system does not say."""
    try:
        with open(_BOOT_ID_PATH, "rb") as file:
            return file.read().strip()
    except OSError:
        return b""


def open_existing(path: Path, *, writable: bool) -> int:
    return os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)


def close(fd: int) -> None:
    os.close(fd)


def read_at(fd: int, size_bytes: int, position: int) -> bytes:
    """Up to `size_bytes` bytes; fewer only at the end of the file."""
    data = os.pread(fd, size_bytes, position)
    if len(data) == size_bytes or not data:
        return data
    parts = [data]
    missing = size_bytes - len(data)
    while missing:
        data = os.pread(fd, missing, position + size_bytes - missing)
        if not data:
            break
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def forget_cached(fd: int, position: int, size_bytes: int) -> None:
    """Let the system drop what it has in memory of a file, but for unsynced bytes; size 0 means up to the end."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, position, size_bytes, os.POSIX_FADV_DONTNEED)


def create(path: Path, site: Site) -> int:
    """Make an empty file, or open one that an interrupted attempt left empty; the directory is not synced."""
    _pass(site, Step.BEFORE_CREATE)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
    if os.fstat(fd).st_size:
        os.close(fd)
        raise FileExistsError(f"{path} exists and is not empty")
    _pass(site, Step.AFTER_CREATE)
    return fd


def make_directory(path: Path, site: Site) -> None:
    """Make a directory unless it is there; its parent is not synced."""
    _pass(site, Step.BEFORE_CREATE)
    try:
        os.mkdir(path, _DIRECTORY_MODE)
    except FileExistsError:
        pass
    _pass(site, Step.AFTER_CREATE)


def write_at(fd: int, data: BufferLike, position: int, site: Site) -> None:
    """Write all of `data` at `position`. When this raises, any part of it may have been written."""
    if failpoints.armed is not None:
        failpoints.armed.hit(site, Step.BEFORE_WRITE)
        if failpoints.armed.due(site, Step.TORN_WRITE):
            _write_all(fd, memoryview(data)[: len(data) // 2], position)
            failpoints.armed.fire()
    written = os.pwrite(fd, data, position)
    if written < len(data):
        _write_all(fd, memoryview(data)[written:], position + written)
    if failpoints.armed is not None:
        failpoints.armed.hit(site, Step.AFTER_WRITE)


def _write_all(fd: int, view: memoryview, position: int) -> None:
    while view:
        written = os.pwrite(fd, view, position)
        view = view[written:]
        position += written


def sync(fd: int, site: Site) -> None:
    """Return when the file's bytes are on disk."""
    _pass(site, Step.BEFORE_SYNC)
    _data_sync(fd)
    _pass(site, Step.AFTER_SYNC)


def sync_directory(path: Path, site: Site) -> None:
    """Return when the names in a directory are on disk."""
    _pass(site, Step.BEFORE_SYNC_DIRECTORY)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _full_sync(fd)
    finally:
        os.close(fd)
    _pass(site, Step.AFTER_SYNC_DIRECTORY)


def truncate(fd: int, size_bytes: int, site: Site) -> None:
    """Cut the file and return when the cut is on disk."""
    _pass(site, Step.BEFORE_TRUNCATE)
    os.ftruncate(fd, size_bytes)
    _pass(site, Step.AFTER_TRUNCATE)
    sync(fd, site)


def replace(path: Path, data: BufferLike, site: Site, *, durable: bool) -> None:
    """Put a whole file in place by rename: readers see the old content or the new.

    Without `durable` a power loss may leave any content, so that is for files whose readers check and can do without.
    """
    replace_parts(path, (data,), site, durable=durable)


def replace_parts(path: Path, parts: Iterable[BufferLike], site: Site, *, durable: bool) -> None:
    """Replace a file by content that lies in several places, otherwise as `replace` does."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
    try:
        position = 0
        for part in parts:
            write_at(fd, part, position, site)
            position += len(part)
        if durable:
            sync(fd, site)
    finally:
        os.close(fd)
    _pass(site, Step.BEFORE_RENAME)
    os.replace(temporary, path)
    _pass(site, Step.AFTER_RENAME)
    if durable:
        sync_directory(path.parent, site)


def rename(path: Path, target: Path, site: Site) -> None:
    """Rename within a directory, which is then synced; `target` must not exist."""
    _pass(site, Step.BEFORE_RENAME)
    os.rename(path, target)
    _pass(site, Step.AFTER_RENAME)
    sync_directory(path.parent, site)


def link(path: Path, target: Path, site: Site) -> None:
    """Give a file a second name, which must be free; its directory is not synced."""
    _pass(site, Step.BEFORE_CREATE)
    os.link(path, target, follow_symlinks=False)
    _pass(site, Step.AFTER_CREATE)


def copy(path: Path, target: Path, size_bytes: int, site: Site, *, start: int = 0) -> None:
    """Copy bytes of a file, from `start` on, to a new one; return when they are on disk; its name need not be."""
    source = open_existing(path, writable=False)
    try:
        fd = create(target, site)
        try:
            position = 0
            while position < size_bytes:
                data = read_at(source, min(_COPY_BYTES, size_bytes - position), start + position)
                if not data:
                    raise OSError(errno.EIO, f"{path} has {start + position} bytes, more were to be copied")
                write_at(fd, data, position, site)
                position += len(data)
            sync(fd, site)
        finally:
            close(fd)
    finally:
        close(source)


def set_modified_ns(path: Path, modified_ns: int) -> None:
    """Set the time of modification, which may be lost in a crash."""
    os.utime(path, ns=(modified_ns, modified_ns))


def overwrite(path: Path, data: BufferLike, site: Site) -> None:
    """Write a file in place, for content that nobody relies on."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
    try:
        write_at(fd, data, 0, site)
    finally:
        os.close(fd)


def sync_path(path: Path, site: Site) -> None:
    """Return when a file that was written before, and its name, are on disk."""
    fd = open_existing(path, writable=False)
    try:
        sync(fd, site)
    finally:
        close(fd)
    sync_directory(path.parent, site)


def remove(path: Path, site: Site) -> None:
    """Remove a file, if it is there; the directory is not synced."""
    _remove(path, os.unlink, site)


def remove_tree(path: Path, site: Site) -> None:
    """Remove a directory and all below it; what is gone already does not matter."""
    for parent, directories, names in os.walk(path, topdown=False):
        for name in names:
            _remove(Path(parent, name), os.unlink, site)
        for name in directories:
            _remove(Path(parent, name), os.rmdir, site)
    _remove(path, os.rmdir, site)


def _remove(path: Path, how: Callable[[Path], None], site: Site) -> None:
    _pass(site, Step.BEFORE_REMOVE)
    try:
        how(path)
    except FileNotFoundError:
        return
    _pass(site, Step.AFTER_REMOVE)


@contextmanager
def creating(site: Site) -> Iterator[None]:
    """Let a database make its files between two fail points."""
    _pass(site, Step.BEFORE_CREATE)
    yield
    _pass(site, Step.AFTER_CREATE)


def around_commit(commit: Callable[[], None], site: Site) -> None:
    """Run a database commit between its two fail points."""
    _pass(site, Step.BEFORE_COMMIT)
    commit()
    _pass(site, Step.AFTER_COMMIT)

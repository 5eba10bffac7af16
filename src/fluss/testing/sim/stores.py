"""The KvStore protocol in memory, for simulations: durable as of its last flush, on the simulated disk.

A flush writes all rows to one file and renames it into place, so that after a power loss the store is as of some flush,
never between two; flushes come by themselves, too, as RocksDB's do. `recent` knows some of the rows and not others, by
chance. What these stores do not have is RocksDB's own code.
"""

from __future__ import annotations

import errno
import os
import pickle
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from zlib import crc32

from fluss.doors import threads
from fluss.storage import files
from fluss.storage.damage.scrub_files import FileDamage
from fluss.storage.failpoints import Site
from fluss.storage.kv.store import (
    EMPTY,
    PAGE_ROWS_MAX,
    PAGE_SIZE_BYTES_MAX,
    DamagedKvStoreError,
    KvState,
    KvStoreError,
    Page,
)
from fluss.testing.sim.disk import SimDisk

_NAME: Final = "CURRENT"
_FLUSH_SHARE: Final = 0.05
_RECENT_SHARE: Final = 0.7
_CRC_BYTES: Final = 4


class MemoryUsage:
    """In the place of RocksDB's shared memory: nothing is ever short."""

    is_pressed = is_full = False

    def __init__(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self.cache = self
        self.readers = threads.pool(1, "fluss-kv-get")

    def get_usage(self) -> int:
        return 0


class MemoryStores:
    """Opens stores on a disk; its methods stand in the place of functions of `fluss.storage.kv.engine`."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def open(self, path: Path, resources: object) -> MemoryStore:
        """As `rocks.open_store`."""
        if (path / _NAME).exists():
            return MemoryStore(path, self._disk, *self._read(path))
        if path.exists() and any(path.iterdir()):
            raise DamagedKvStoreError(f"{files.shown(path)}: the store has files but no {_NAME}; rebuild it.")
        with files.creating(Site.KV_CREATE), _translated(path):
            if not path.exists():
                self._disk.mkdir(path)
            store = MemoryStore(path, self._disk, {}, EMPTY)
            store.flush()
        files.sync_directory(path.parent, Site.KV_CREATE)
        return store

    def damages(self, snapshot: Path) -> list[FileDamage]:
        """As `scrub_files.database_damages`."""
        try:
            self._read(snapshot)
        except (DamagedKvStoreError, OSError) as error:
            return [FileDamage(snapshot / _NAME, str(error))]
        return []

    def _read(self, path: Path) -> tuple[dict[bytes, bytes], KvState]:
        data = (path / _NAME).read_bytes()
        if len(data) < _CRC_BYTES or crc32(data[_CRC_BYTES:]) != int.from_bytes(data[:_CRC_BYTES]):
            raise DamagedKvStoreError(f"{files.shown(path)}: {_NAME} has another checksum")
        rows, covered_offset, row_count = pickle.loads(data[_CRC_BYTES:])
        return rows, KvState(covered_offset, row_count)


class MemoryStore:
    """A sorted map."""

    def __init__(self, path: Path, disk: SimDisk, rows: dict[bytes, bytes], state: KvState) -> None:
        self._path = path
        self._disk = disk
        self._rows = rows
        self._state = state
        self._flushed: KvState | None = None
        self._flushing = threads.lock()
        self._is_closed = False

    @property
    def path(self) -> Path:
        return self._path

    @property
    def state(self) -> KvState:
        return self._state

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        self._check()
        return list(map(self._rows.get, keys))

    def scan(
        self,
        prefix: bytes = b"",
        from_key: bytes | None = None,
        rows_max: int = PAGE_ROWS_MAX,
        size_bytes_max: int = PAGE_SIZE_BYTES_MAX,
    ) -> Page:
        self._check()
        keys = sorted(self._rows)
        keys = keys[bisect_left(keys, prefix if from_key is None else max(prefix, from_key)) :]
        return _page([(key, self._rows[key]) for key in keys if key.startswith(prefix)], rows_max, size_bytes_max)

    def recent(
        self, keys: list[bytes], newer: list[dict[bytes, bytes | None]]
    ) -> tuple[dict[bytes, bytes | None], list[bytes]]:
        self._check()
        found: dict[bytes, bytes | None] = {}
        unknown = []
        for key in dict.fromkeys(keys):
            rows = next((rows for rows in reversed(newer) if key in rows), None)
            if rows is not None:
                found[key] = rows[key]
            elif self._disk.faults.chance.random() < _RECENT_SHARE:
                found[key] = self._rows.get(key)
            else:
                found[key] = None
                unknown.append(key)
        return found, unknown

    def write(self, keys: list[bytes], values: list[bytes], deletes: list[bytes], state: KvState) -> None:
        self._check()
        self._rows.update(zip(keys, values, strict=True))
        for key in deletes:
            self._rows.pop(key, None)
        self._state = state
        if self._disk.faults.chance.random() < _FLUSH_SHARE:
            self.flush()

    def snapshot(self) -> MemorySnapshot:
        self._check()
        return MemorySnapshot(sorted(self._rows.items()), self._state)

    def flush(self) -> None:
        self._check()
        with self._flushing, _translated(self._path):
            if self._flushed == self._state:
                return
            state = self._state
            content = pickle.dumps((self._rows, state.covered_offset, state.row_count))
            self._put(crc32(content).to_bytes(_CRC_BYTES) + content)
            self._flushed = state

    def _put(self, data: bytes) -> None:
        """As RocksDB does it, without fail points of ours."""
        disk, temporary = self._disk, self._path / f"{_NAME}.tmp"
        fd = disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640)
        try:
            disk.pwrite(fd, data, 0)
            disk.fdatasync(fd)
        finally:
            disk.close(fd)
        disk.rename(temporary, self._path / _NAME)
        self._sync_directory(self._path)

    def _sync_directory(self, path: Path) -> None:
        fd = self._disk.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)

    def checkpoint(self, directory: Path) -> KvState:
        self.flush()
        with self._flushing, _translated(self._path):
            state = self._flushed
            assert state is not None
            self._disk.mkdir(directory)
            self._disk.link(self._path / _NAME, directory / _NAME)
            self._sync_directory(directory)
        files.sync_directory(directory.parent, Site.KV_CHECKPOINT)
        return state

    def size_bytes(self) -> int:
        return (self._path / _NAME).stat().st_size

    def close(self) -> None:
        try:
            self.flush()
        except KvStoreError:
            pass  # the log has what was not flushed
        self._is_closed = True

    def _check(self) -> None:
        if self._is_closed:
            raise AssertionError(f"{self._path} is used after it was closed")


class MemorySnapshot:
    """Rows as they were."""

    def __init__(self, rows: list[tuple[bytes, bytes]], state: KvState) -> None:
        self._rows: list[tuple[bytes, bytes]] | None = rows
        self.state = state

    def read(self, rows_max: int = PAGE_ROWS_MAX, size_bytes_max: int = PAGE_SIZE_BYTES_MAX) -> Page:
        if self._rows is None:
            raise KvStoreError("the snapshot is closed; begin the scan again.")
        page = _page(self._rows, rows_max, size_bytes_max)
        del self._rows[: len(page.keys)]
        return page

    def close(self) -> None:
        self._rows = None


def _page(rows: list[tuple[bytes, bytes]], rows_max: int, size_bytes_max: int) -> Page:
    keys: list[bytes] = []
    values: list[bytes] = []
    size_bytes = 0
    for key, value in rows:
        if len(keys) >= rows_max or size_bytes >= size_bytes_max:
            return Page(keys, values, key)
        keys.append(key)
        values.append(value)
        size_bytes += len(key) + len(value)
    return Page(keys, values, None)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise DamagedKvStoreError(f"{files.shown(path)}: a file is missing") from error
        raise KvStoreError(f"{files.shown(path)}: {files.reason(error)}") from error

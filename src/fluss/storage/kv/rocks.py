"""A KvStore in RocksDB: rows in the default family, the covered offset and row count in the family `meta`.

RocksDB's write-ahead log is off, and both families are flushed atomically, so after a crash the rows are those of the
covered offset, or a part of the next batch more. `Rdict.flush` would flush the rows alone, and a Checkpoint holds the
GIL while it flushes. Compacting the tiny `meta` family flushes both, atomically and without the GIL: that is our flush,
and comes before each checkpoint and close.

Each flush of new keys makes a file, and files whose keys do not overlap are never merged by RocksDB: it moves them to
the last level as they are. A checkpoint therefore merges small neighbours first.

Meant for worker threads: reads, flushes and closing leave the GIL to others. Writes, openings and checkpoints do not,
but for the syncs of the last two, which take as long as the disk likes (`unlocked_syncs`).
"""

from __future__ import annotations

import logging
import struct
import traceback
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from rocksdict import Checkpoint, Rdict, RdictIter, ReadOptions, WriteBatch

from fluss.doors import clock, threads
from fluss.model.errors import FlussError
from fluss.storage import files
from fluss.storage.failpoints import Site
from fluss.storage.kv.rocks_files import CURRENT_NAME, manifest_problem
from fluss.storage.kv.rocks_settings import (
    META_FAMILY,
    SMALL_FILE_BYTES_MAX,
    SMALL_FILES_MAX,
    Resources,
    merge_options,
    write_options,
)
from fluss.storage.kv.store import (
    EMPTY,
    PAGE_ROWS_MAX,
    PAGE_SIZE_BYTES_MAX,
    DamagedKvStoreError,
    KvState,
    KvStoreBusyError,
    KvStoreError,
    Page,
)
from fluss.storage.kv.unlocked_syncs import unlocked_syncs

_log = logging.getLogger(__name__)

# A write holds the GIL: 1 to 3 ms for so many rows of 100 bytes. Larger batches are written in parts.
WRITE_ROWS_MAX: Final = 1_024
# So many keys are read by two threads.
PARALLEL_KEYS_MIN: Final = 512
# How long a write waits for RocksDB to flush or compact before it gives up, and how often it looks.
STALL_WAIT_S_MAX: Final = 60.0
STALL_POLL_S: Final = 0.005

STATE_KEY: Final = b"state"
_STATE: Final = struct.Struct("<Bqq")  # version, covered offset, row count
_STATE_VERSION: Final = 1
_WRITE_OPTIONS: Final = write_options()
_MERGE_OPTIONS: Final = merge_options()
_STALLED: Final = "Result incomplete"
# How RocksDB's texts begin, or what they have in them, when files are not what they should be.
_DAMAGED: Final = ("Corruption", "Not implemented")
_MISSING: Final = "No such file or directory"
# Passes, whatever else the text says.
_NO_DESCRIPTOR: Final = "Too many open files"


def open_store(path: Path, resources: Resources) -> RocksStore:
    """Open the database in `path`, or make one where there is nothing yet."""
    is_there = (path / CURRENT_NAME).exists()
    if not is_there and path.exists() and any(path.iterdir()):
        # RocksDB would make a new, empty one, and remove the files.
        raise DamagedKvStoreError(f"{files.shown(path)}: the store has files but no {CURRENT_NAME}; rebuild it.")
    if is_there:
        problem = manifest_problem(path)
        if problem is not None:
            raise DamagedKvStoreError(f"{files.shown(path)}: {problem}")
        return RocksStore(path, resources)
    store: RocksStore | None = None
    try:
        with files.creating(Site.KV_CREATE):
            store = RocksStore(path, resources)
        files.sync_directory(path.parent, Site.KV_CREATE)
    except BaseException:
        if store is not None:
            store.close()
        raise
    return store


class RocksStore:
    def __init__(self, path: Path, resources: Resources) -> None:
        self._path = path
        self._recent = resources.recent_rows()
        self._readers = resources.readers
        self._lock = threads.lock()  # pairs what a snapshot or checkpoint holds with its state
        self._snapshots: weakref.WeakSet[RocksSnapshot] = weakref.WeakSet()
        rows, families = resources.families()
        for options in (rows, *families.values()):
            options.create_if_missing(True)
            options.create_missing_column_families(True)
        with _translated(path), unlocked_syncs():
            self._rows = Rdict(str(path), rows, column_families=families)
            self._meta = self._rows.get_column_family(META_FAMILY)
            self._meta_handle = self._rows.get_column_family_handle(META_FAMILY)
        try:
            self._state = self._load_state()
        except BaseException:
            self._release()
            raise

    @property
    def path(self) -> Path:
        return self._path

    @property
    def state(self) -> KvState:
        return self._state

    def _load_state(self) -> KvState:
        with _translated(self._path):
            data: bytes | None = self._meta.get(STATE_KEY)
        if data is None:
            if self.scan(rows_max=1).keys:
                raise DamagedKvStoreError(f"{files.shown(self._path)}: the store has rows but no offset; rebuild it.")
            # Flushed with the first rows, if not before: from then on there are no rows without it.
            self._put([], [], [], EMPTY)
            return EMPTY
        return decode_state(data, self._path)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        if len(keys) < PARALLEL_KEYS_MIN:
            return self._get(keys)
        # A read leaves the GIL to others, so two threads are about twice as fast.
        half = len(keys) // 2
        later = self._readers.submit(self._get, keys[half:])
        try:
            values = self._get(keys[:half])
        finally:
            threads.wait([later])  # whatever comes: the store may be closed next
        return values + threads.result(later)

    def _get(self, keys: list[bytes]) -> list[bytes | None]:
        with _translated(self._path):
            values: list[bytes | None] = self._rows.get(keys)  # type: ignore[arg-type, assignment]
        return values

    def scan(
        self,
        prefix: bytes = b"",
        from_key: bytes | None = None,
        rows_max: int = PAGE_ROWS_MAX,
        size_bytes_max: int = PAGE_SIZE_BYTES_MAX,
    ) -> Page:
        with _translated(self._path):
            return self._scan(prefix, from_key, rows_max, size_bytes_max)

    def _scan(self, prefix: bytes, from_key: bytes | None, rows_max: int, size_bytes_max: int) -> Page:
        options = ReadOptions()
        end = _after_prefix(prefix)
        if end is not None:
            options.set_iterate_upper_bound(end)
        cursor = self._rows.iter(options)
        cursor.seek(prefix if from_key is None else max(prefix, from_key))
        return _take(cursor, rows_max, size_bytes_max)

    def recent(
        self, keys: list[bytes], newer: list[dict[bytes, bytes | None]]
    ) -> tuple[dict[bytes, bytes | None], list[bytes]]:
        return self._recent.find(keys, newer)

    def write(self, keys: list[bytes], values: list[bytes], deletes: list[bytes], state: KvState) -> None:
        with self._lock, _translated(self._path):
            put, deleted = 0, 0
            while len(keys) - put + len(deletes) - deleted > WRITE_ROWS_MAX:
                puts = slice(put, put + WRITE_ROWS_MAX)
                put = min(puts.stop, len(keys))
                removals = slice(deleted, deleted + puts.stop - put)
                deleted = removals.stop
                self._put(keys[puts], values[puts], deletes[removals], None)
                clock.sleep(0)  # Others may have the GIL now.
            self._put(keys[put:], values[put:], deletes[deleted:], state)
            self._state = state

    def _put(self, keys: list[bytes], values: list[bytes], deletes: list[bytes], state: KvState | None) -> None:
        """One batch of RocksDB; waits without the GIL while RocksDB has to catch up."""
        deadline = clock.monotonic() + STALL_WAIT_S_MAX
        while True:
            batch = WriteBatch(raw_mode=True)
            deque(map(batch.put, keys, values), maxlen=0)
            deque(map(batch.delete, deletes), maxlen=0)
            if state is not None:
                record = _STATE.pack(_STATE_VERSION, state.covered_offset, state.row_count)
                batch.put(STATE_KEY, record, self._meta_handle)
            try:
                # The batch is spent, whatever comes of it.
                self._rows.write(batch, _WRITE_OPTIONS)
                self._recent.written(keys, values, deletes)
                return
            except Exception as error:
                if not str(error).startswith(_STALLED):
                    raise
                if clock.monotonic() > deadline:
                    raise KvStoreBusyError(
                        f"{files.shown(self._path)}: the store could not take a batch for {STALL_WAIT_S_MAX:.0f} s, "
                        "for it has to be compacted first; write more slowly."
                    ) from error
            clock.sleep(STALL_POLL_S)

    def snapshot(self) -> RocksSnapshot:
        with self._lock, _translated(self._path):
            snapshot = RocksSnapshot(self._path, self._rows, self._state)
        self._snapshots.add(snapshot)
        return snapshot

    def flush(self) -> None:
        with self._reporting("flushed"):
            self._meta.compact_range(None, None)

    @contextmanager
    def _reporting(self, done: str) -> Iterator[None]:
        """Raise when a flush or compaction failed: RocksDB reports nothing itself."""
        failures = self._failures()
        with _translated(self._path):
            yield
        if self._failures() > failures:
            raise KvStoreError(
                f"{files.shown(self._path)}: the store could not be {done}; see whether the disk is full."
            )

    def _failures(self) -> int:
        """Flushes and compactions that failed since the store was opened."""
        return self._rows.property_int_value("rocksdb.background-errors") or 0

    def checkpoint(self, directory: Path) -> KvState:
        self.flush()
        self._merge_small_files()
        with self._lock:
            # What came meanwhile: little, but the checkpoint would flush it with the GIL held.
            self.flush()
            with _translated(self._path), unlocked_syncs():
                Checkpoint(self._rows).create_checkpoint(str(directory))
            state = self._state
        files.sync_directory(directory.parent, Site.KV_CHECKPOINT)
        return state

    def _merge_small_files(self) -> None:
        with self._reporting("compacted"):
            for first_key, last_key in _small_runs(self._rows.live_files()):
                self._rows.compact_range(first_key, last_key, _MERGE_OPTIONS)

    def size_bytes(self) -> int:
        with _translated(self._path):
            return self._rows.property_int_value("rocksdb.total-sst-files-size") or 0

    def close(self) -> None:
        try:
            self.flush()
        except FlussError as error:
            _log.warning("%s", error)
        self._release()

    def _release(self) -> None:
        for snapshot in list(self._snapshots):
            snapshot.close()
        # Any of these left behind would keep the database, and its lock, open.
        del self._meta_handle, self._meta
        try:
            self._rows.close()
        except Exception as error:
            _log.warning("%s is closed with unflushed rows; the log has them: %s", self._path, error)


def decode_state(data: bytes, path: Path) -> KvState:
    """What is at `STATE_KEY`."""
    if data[0] > _STATE_VERSION:
        raise KvStoreError(
            f"{files.shown(path)}: the store has version {data[0]}; this program knows versions up to "
            f"{_STATE_VERSION}. Upgrade flussbett."
        )
    _, covered_offset, row_count = _STATE.unpack(data)
    return KvState(covered_offset, row_count)


class RocksSnapshot:
    """An iterator, for it sees the rows as they were when it was made. (Iterators of rocksdict's Snapshot do not.)"""

    def __init__(self, path: Path, rows: Rdict, state: KvState) -> None:
        self._path = path
        self._state = state
        # Read once from end to end: it would only push out of the cache what lookups use.
        options = ReadOptions()
        options.fill_cache(False)  # type: ignore[call-arg]
        self._cursor: RdictIter | None = rows.iter(options)
        self._cursor.seek_to_first()

    @property
    def state(self) -> KvState:
        return self._state

    def read(self, rows_max: int = PAGE_ROWS_MAX, size_bytes_max: int = PAGE_SIZE_BYTES_MAX) -> Page:
        if self._cursor is None:
            raise KvStoreError(f"{files.shown(self._path)}: the snapshot is closed; begin the scan again.")
        with _translated(self._path):
            return _take(self._cursor, rows_max, size_bytes_max)

    def close(self) -> None:
        self._cursor = None


def _small_runs(live_files: list[dict[str, Any]]) -> Iterator[tuple[bytes, bytes]]:
    """The first and last keys of small files side by side in a level, where there are too many of them."""
    in_order = sorted(live_files, key=lambda file: (file["level"], file["start_key"]))
    for (_, is_small), run in groupby(in_order, lambda file: (file["level"], file["size"] < SMALL_FILE_BYTES_MAX)):
        keys = [(file["start_key"], file["end_key"]) for file in run]
        if is_small and len(keys) > SMALL_FILES_MAX:
            yield keys[0][0], keys[-1][1]


def _take(cursor: RdictIter, rows_max: int, size_bytes_max: int) -> Page:
    keys: list[bytes] = []
    values: list[bytes] = []
    size_bytes = 0
    while cursor.valid() and len(keys) < rows_max and size_bytes < size_bytes_max:
        key, value = cursor.key(), cursor.value()
        keys.append(key)
        values.append(value)
        size_bytes += len(key) + len(value)
        cursor.next()
    if cursor.valid():
        return Page(keys, values, cursor.key())
    # A damaged block ends an iteration as the last row does.
    cursor.status()
    return Page(keys, values, None)


def _after_prefix(prefix: bytes) -> bytes | None:
    """The least key greater than all with this prefix; None when there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Make errors of ours from RocksDB's, which has one class and a text with paths in it."""
    try:
        yield
    except FlussError:
        raise
    except Exception as error:
        # Whoever keeps the error must not keep a cursor, and with it the database, open.
        traceback.clear_frames(error.__traceback__)
        text = str(error)
        _log.error("%s: %s", path, text)
        message = f"{files.shown(path)}: {text.replace(str(path), files.shown(path)).strip()}"
        is_damaged = (text.startswith(_DAMAGED) or _MISSING in text) and _NO_DESCRIPTOR not in text
        raise (DamagedKvStoreError if is_damaged else KvStoreError)(message) from error

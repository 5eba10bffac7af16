"""RocksDB as we use it: one memory budget for all databases, files that Java's RocksDB 6.20 reads too."""

from __future__ import annotations

import itertools
import threading
from typing import Final

from rocksdict import (
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    ChecksumType,
    CompactOptions,
    DBCompressionType,
    Options,
    WriteBufferManager,
    WriteOptions,
)

from fluss.doors import threads
from fluss.formats import kernel
from fluss.storage.kv.store import MEMORY_BYTES, MEMORY_BYTES_MIN

# Of the budget, for rows that were written last: a put needs the row before it, and RocksDB takes five times as long to
# find it. Lookups do without, and read what was not written lately as quickly as what was.
RECENT_ROWS_SHARE: Final = 0.25
# For memtables and for blocks, indexes and filters of files. What RocksDB takes besides, for compaction and open files,
# was about 100 MiB with ten million rows.
CACHE_SHARE: Final = 0.625
# Of that, for rows that are not flushed yet.
MEMTABLES_SHARE: Final = 0.5
# When so much of that is in use, databases that are not written to any more should be flushed: RocksDB flushes only the
# one that is written to, so the memtables of idle ones would leave it less and less.
MEMTABLES_PRESSED_SHARE: Final = 0.75
# When it is so much more, writers wait: many databases that are each written to a little are flushed more slowly.
MEMTABLES_FULL_SHARE: Final = 2.0
# A larger one takes longer for a row: its rows no longer fit into the processor's cache. Smaller ones are merged more.
MEMTABLE_BYTES_MAX: Final = 16 << 20
# Memtables of one database that may wait for a slow disk before writes have to.
MEMTABLES_MAX: Final = 4
# A memtable reserves memory in blocks of this size; RocksDB's own choice of 1 MiB makes empty databases expensive.
ARENA_BLOCK_BYTES: Final = 64 << 10
# The filter of a memtable is reserved as a whole, also of an empty one: about 12 bits for each row of 100 bytes.
MEMTABLE_FILTER_SHARE: Final = 0.01
FILTER_BITS_PER_KEY: Final = 10
FILE_BYTES_MAX: Final = 64 << 20
# Files below this size are merged when so many of them lie side by side: see `RocksStore.checkpoint`.
SMALL_FILE_BYTES_MAX: Final = 4 << 20
SMALL_FILES_MAX: Final = 16
# The size of the first sorted level, with which RocksDB merges four flushed memtables. With a smaller one, large tables
# would have a level more.
LEVEL_BYTES: Final = 128 << 20
OPEN_FILES_MAX: Final = 64  # of one database
BACKGROUND_JOBS_MAX: Final = 2
# RocksDB's own log: one file, restarted when it is too long.
INFO_LOG_BYTES_MAX: Final = 1 << 20
# Newer ones can't be read by RocksDB 6.20, which is in the Java client.
TABLE_FORMAT_VERSION: Final = 5
META_FAMILY: Final = "meta"
READERS: Final = 2
_META_MEMTABLE_BYTES: Final = 1 << 20
_ANY_CHARGE: Final = 0  # entries of all sizes


class StoreRecentRows:
    """The rows that were written last to one open store; all stores share the memory for it."""

    def __init__(self, rows: kernel.RecentRows, lock: threading.Lock, store: int) -> None:
        self._rows = rows
        self._lock = lock
        self._store = store

    def find(
        self, keys: list[bytes], newer: list[dict[bytes, bytes | None]]
    ) -> tuple[dict[bytes, bytes | None], list[bytes]]:
        with self._lock:
            return self._rows.find(self._store, keys, newer)

    def written(self, keys: list[bytes], values: list[bytes], deletes: list[bytes]) -> None:
        with self._lock:
            self._rows.put(self._store, keys, values)
            self._rows.remove(self._store, deletes)


class Resources:
    """The memory that all open databases share."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        if memory_bytes < MEMORY_BYTES_MIN:
            raise ValueError(f"memory_bytes must be at least {MEMORY_BYTES_MIN}, not {memory_bytes}")
        self.memory_bytes = memory_bytes
        cache_bytes = int(memory_bytes * CACHE_SHARE)
        memtables_bytes = int(cache_bytes * MEMTABLES_SHARE)
        self._memtable_bytes = min(MEMTABLE_BYTES_MAX, memtables_bytes // 2)
        # An LRU cache has 64 shards, of 2.5 MiB by default: what is larger, and small rows in the same block, would be
        # read anew each time.
        self.cache = Cache.new_hyper_clock_cache(cache_bytes, _ANY_CHARGE)
        # Counted in the cache: the more memtables take, the less is left for blocks. It never stalls writers itself.
        self._memtables = WriteBufferManager.new_write_buffer_manager_with_cache(memtables_bytes, False, self.cache)
        self._pressed_bytes = int(memtables_bytes * MEMTABLES_PRESSED_SHARE)
        self._full_bytes = int(memtables_bytes * MEMTABLES_FULL_SHARE)
        self._recent = kernel.RecentRows(int(memory_bytes * RECENT_ROWS_SHARE))
        self._recent_lock = threads.lock()
        self._stores = itertools.count(1)
        self.readers = threads.pool(READERS, "fluss-kv-get")  # of second halves of large reads

    def recent_rows(self) -> StoreRecentRows:
        """The memory of recent rows for a store that is opened: rows of the one that was open before may be others."""
        return StoreRecentRows(self._recent, self._recent_lock, next(self._stores))

    @property
    def memtables_bytes(self) -> int:
        return self._memtables.get_usage()

    @property
    def is_pressed(self) -> bool:
        return self.memtables_bytes > self._pressed_bytes

    @property
    def is_full(self) -> bool:
        return self.memtables_bytes > self._full_bytes

    def families(self) -> tuple[Options, dict[str, Options]]:
        """Options of the default family, which holds the rows, and of the others."""
        rows = self._options(self._memtable_bytes)
        rows.set_memtable_prefix_bloom_ratio(MEMTABLE_FILTER_SHARE)
        rows.set_memtable_whole_key_filtering(True)
        return rows, {META_FAMILY: self._options(_META_MEMTABLE_BYTES)}

    def _options(self, memtable_bytes: int) -> Options:
        options = Options(raw_mode=True)
        options.set_atomic_flush(True)
        options.set_write_buffer_manager(self._memtables)
        options.set_write_buffer_size(memtable_bytes)
        options.set_max_write_buffer_number(MEMTABLES_MAX)
        options.set_arena_block_size(ARENA_BLOCK_BYTES)
        options.set_target_file_size_base(FILE_BYTES_MAX)
        options.set_max_bytes_for_level_base(LEVEL_BYTES)
        options.set_max_open_files(OPEN_FILES_MAX)
        options.set_max_file_opening_threads(1)
        options.set_max_background_jobs(BACKGROUND_JOBS_MAX)
        options.set_keep_log_file_num(1)
        options.set_max_log_file_size(INFO_LOG_BYTES_MAX)
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        options.set_compression_type(DBCompressionType.none())
        options.set_block_based_table_factory(self._tables())
        return options

    def _tables(self) -> BlockBasedOptions:
        tables = BlockBasedOptions()
        tables.set_format_version(TABLE_FORMAT_VERSION)
        tables.set_checksum_type(ChecksumType.crc32c())
        tables.set_bloom_filter(FILTER_BITS_PER_KEY, False)
        tables.set_block_cache(self.cache)
        # Otherwise they lie outside the budget and grow with the data.
        tables.set_cache_index_and_filter_blocks(True)
        tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
        return tables


def write_options() -> WriteOptions:
    """Options of writes: without RocksDB's log, for ours is the truth, and without waits, which hold the GIL."""
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign, assignment]  # an attribute, whatever the stub says
    options.no_slowdown = True
    return options


def merge_options() -> CompactOptions:
    """Merge also what is in the last level already, beside compactions that RocksDB begins by itself."""
    options = CompactOptions()
    options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
    options.set_exclusive_manual_compaction(False)
    return options

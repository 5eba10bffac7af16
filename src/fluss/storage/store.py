"""One data directory, opened: the catalog and the logs of all buckets.

Logs are opened when first asked for and closed again when too many are open, the longest unused first; one that
somebody waits on, that has unsynced batches, or that failed stays. A caller must not keep a log across an await
without a waiter on it: ask `bucket()` again. Files of a dropped table or partition are removed after the drop is
committed; what a crash leaves of them is removed at the next start, and only what the catalog knows it once issued.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from fluss.doors import threads
from fluss.model.clock import SETTLE_MS, Clock
from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TableBucket
from fluss.storage import allocator, files
from fluss.storage.catalog.catalog import Catalog, CatalogLimits, PartitionEntry, TableEntry
from fluss.storage.catalog.view import has_primary_key
from fluss.storage.directory import (
    PARTITION_PREFIX,
    DataDirectory,
    DataDirectoryError,
    DiskGuard,
    free_bytes_limit,
    open_clock,
    write_note,
)
from fluss.storage.failpoints import Site
from fluss.storage.files import StorageStats
from fluss.storage.kv.pool import OPEN_STORES_MAX
from fluss.storage.kv.snapshot_files import newest_log_offset
from fluss.storage.kv.store import MEMORY_BYTES
from fluss.storage.lake_snapshots import LakeSnapshots
from fluss.storage.log.group_commit import THREADS, GroupCommit
from fluss.storage.log.log import SEGMENT_SIZE_BYTES, SEGMENT_SIZE_BYTES_MAX, BucketLog, LogOptions
from fluss.storage.log.marks import LogMark, Mark, Marks
from fluss.storage.log.recovery import Recovered, recover
from fluss.storage.log.writer_state import EXPIRY_MS
from fluss.storage.staging.staging import BYTES_MAX, EXPIRE_MS, Staging
from fluss.storage.table_turns import TableTurns

if TYPE_CHECKING:
    from fluss.storage.kv.engine import KvEngine

_log = logging.getLogger(__name__)

OPEN_LOGS_MAX: Final = 256
OPEN_THREADS: Final = 3  # one table gets two of them
MARKS_SYNC_S: Final = 1.0  # so old the marks may be after a power loss
# Logs opened ahead for one request; small enough that none is closed again before the request gets to it.
OPENINGS_MAX: Final = OPEN_LOGS_MAX // 2
# How many of the longest unused logs are looked at beyond those to be closed; bounds the work of one turn.
_EVICTION_CANDIDATES: Final = 8
_EVICTIONS_MAX: Final = 64  # in one turn

_KV_MODULE: Final = "fluss.storage.kv.engine"

_T = TypeVar("_T")
_Removal: TypeAlias = tuple[Path, Site]


@dataclass(frozen=True, slots=True)
class StorageOptions:
    data_dir: str | Path
    durability: Literal["fsync", "os"] = "fsync"
    segment_size_bytes: int = SEGMENT_SIZE_BYTES
    open_logs_max: int = OPEN_LOGS_MAX
    disk_free_bytes_min: int | None = None  # None: by the size of segments; 0: the disk may fill up
    sync_threads: int = THREADS
    writer_expiry_ms: int = EXPIRY_MS
    catalog_limits: CatalogLimits = field(default_factory=CatalogLimits)
    kv_memory_bytes: int = MEMORY_BYTES  # of all stores of primary-key tables together
    open_stores_max: int = OPEN_STORES_MAX
    staging_expire_ms: int = EXPIRE_MS
    staging_bytes_max: int = BYTES_MAX
    clock_settle_ms: int = SETTLE_MS  # so long the clock must agree with itself before anything goes by its age
    clock: Clock | None = None  # None: the system's

    def __post_init__(self) -> None:
        if self.durability not in ("fsync", "os"):
            raise ValueError(f"durability must be 'fsync' or 'os', not {self.durability!r}")
        if not 0 < self.segment_size_bytes <= SEGMENT_SIZE_BYTES_MAX:
            raise ValueError(f"segment_size_bytes must be between 1 and {SEGMENT_SIZE_BYTES_MAX}")


class Storage:
    def __init__(
        self, options: StorageOptions, directory: DataDirectory, marks: Marks, catalog: Catalog, clock: Clock
    ) -> None:
        self.options = options
        self.catalog = catalog
        self.clock = clock
        clock.on_change = self._start_clock_note
        self.marks = marks
        self._marks_sync: asyncio.TimerHandle | None = None
        self._notes: set[asyncio.Task[None]] = set()  # marks and clock on their way to the disk
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self.stats = StorageStats()
        self._commit = GroupCommit(self._loop, options.sync_threads, self.stats)
        self._logs: OrderedDict[TableBucket, BucketLog] = OrderedDict()
        self._opening: dict[TableBucket, asyncio.Task[None]] = {}
        self._open_turns = TableTurns(OPEN_THREADS)
        self._open_pool = threads.pool(OPEN_THREADS, "fluss-open")
        self._eviction_scheduled = False
        self._keeping_open = asyncio.Lock()
        self._kept_open = False
        self._kv: KvEngine | None = None
        self._removals: dict[int, asyncio.Task[None]] = {}  # the last one of each table
        self.segments_lock = asyncio.Lock()  # held while segments of any log are removed
        self.on_release: Callable[[TableBucket, BucketLog], None] | None = None  # of logs about to be closed
        self.disk_guard = DiskGuard(
            directory.root, free_bytes_limit(options.disk_free_bytes_min, options.segment_size_bytes)
        )
        self.staging = Staging(self, options.staging_expire_ms, options.staging_bytes_max)
        self.lake = LakeSnapshots(self)
        self._log_options = LogOptions(
            fsync=options.durability == "fsync",
            admit=self.disk_guard.admit,
            stats=self.stats,
            segment_size_bytes=options.segment_size_bytes,
            writer_expiry_ms=options.writer_expiry_ms,
            keeps_writer=self.staging.keeps_writer,
        )
        marks.on_dirty = self._schedule_marks_sync
        catalog.on_drop(self._table_dropped)
        catalog.on_drop_partition(self._partition_dropped)

    @classmethod
    async def open(cls, options: StorageOptions) -> Storage:
        """Lock the directory, open the catalog, remove what dropped tables left. Buckets are opened when asked for."""
        directory = DataDirectory.open(Path(options.data_dir))
        marks: Marks | None = None
        try:
            _check_catalog_present(directory)
            marks = _open_marks(directory)
            was_marked = marks.catalog is not None
            clock = options.clock or open_clock(directory.root, options.clock_settle_ms)
            catalog = await Catalog.open(directory.catalog_path, options.catalog_limits, marks, clock)
        except BaseException:
            if marks is not None:
                marks.close()
            directory.close()
            raise
        storage = cls(options, directory, marks, catalog, clock)
        try:
            await storage._note_clock()
            if any(has_primary_key(entry.table_json) for entry in catalog.all_tables()):
                await storage.load_kv()
            if directory.held_path.exists():
                await storage._remove(directory.held_path, Site.BACKUP_HOLD)
            await storage._remove_orphans(sure=was_marked)
            await storage.staging.load()
            await storage.lake.load()
        except BaseException:
            await storage.close()
            raise
        return storage

    def bucket(self, bucket: TableBucket) -> BucketLog:
        """The log of a bucket, opened if need be; code 21 for one that the catalog does not know."""
        log = self._logs.get(bucket)
        if log is not None:
            self._logs.move_to_end(bucket)
            return log
        if not self.exists(bucket):
            raise FlussError(f"{bucket} does not exist.", ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION)
        if bucket in self._opening:
            raise FlussError(f"{bucket} is being opened; try again.", ErrorCode.LOG_STORAGE_EXCEPTION)
        return self._add(bucket, None)

    @property
    def kv(self) -> KvEngine:
        """The rows of primary-key tables."""
        if self._kv is None:
            # pyarrow and RocksDB take memory that a server of log tables does without.
            from fluss.storage.kv.engine import KvEngine

            self._kv = KvEngine(self)
        return self._kv

    async def load_kv(self) -> None:
        """Load what `kv` needs without keeping the loop: it takes most of a second."""
        is_first = _KV_MODULE not in sys.modules
        await self._loop.run_in_executor(self._open_pool, importlib.import_module, _KV_MODULE)
        if is_first:
            allocator.exempt_from_collection()

    async def opened(self, bucket: TableBucket) -> BucketLog:
        """The log of a bucket, opened without keeping the loop; errors as of `bucket`."""
        opening = self.opening([bucket])
        if opening is not None:
            await opening
        while bucket in self._opening:
            # It was closed again in this moment, and another one asked for it.
            await asyncio.wait([self._opening[bucket]])
        return self.bucket(bucket)

    def opening(self, buckets: Collection[TableBucket]) -> Coroutine[Any, Any, None] | None:
        """What opens those that are closed, without keeping the loop; None when all are open.

        Recovery after a crash can take seconds. One that can't be opened is left to `bucket`, which tells why.
        """
        if all(map(self._logs.__contains__, buckets)):
            return None
        closed = [bucket for bucket in buckets if bucket not in self._logs and self.exists(bucket)]
        return self._open_all(closed[:OPENINGS_MAX]) if closed else None

    async def _open_all(self, buckets: list[TableBucket]) -> None:
        for bucket in buckets:
            if bucket not in self._opening and bucket not in self._logs:
                self._opening[bucket] = self._loop.create_task(self._open(bucket))
        tasks = [self._opening[bucket] for bucket in buckets if bucket in self._opening]
        if tasks:
            await asyncio.wait(tasks)

    async def _open(self, bucket: TableBucket) -> None:
        try:
            async with self._open_turns.turn(bucket.table_id):
                recovered = await self._loop.run_in_executor(self._open_pool, self._recovery(bucket))
        except Exception as error:
            _log.error("%s can't be opened: %s", self._directory.bucket_path(bucket), error)
            return
        finally:
            del self._opening[bucket]
        if not self.exists(bucket):
            recovered.release()
            return
        with suppress(FlussError):  # is logged, and met again by `bucket`
            self._add(bucket, recovered)

    def _recovery(self, bucket: TableBucket) -> Callable[[], Recovered]:
        """What opens the files of a bucket, in any thread."""
        # Without fsync a power loss may take from the log what others have of it.
        tiered_offset = self.lake.log_kept_from(bucket) if self._log_options.fsync else None
        path, mark = self._directory.bucket_path(bucket), self.marks.get(bucket)
        return partial(_recover, path, self._directory.root, self._log_options, mark, tiered_offset)

    def _add(self, bucket: TableBucket, recovered: Recovered | None) -> BucketLog:
        path = self._directory.bucket_path(bucket)
        try:
            recovered = recovered or self._recovery(bucket)()
            mark = LogMark(self.marks, bucket)
            log = BucketLog(path, self._directory.root, self._commit, self._loop, self._log_options, recovered, mark)
        except OSError as error:
            if recovered is not None:
                recovered.release()
            _log.error("%s can't be opened: %s", path, error)
            text = f"{files.shown(path)}: the bucket can't be opened: {files.reason(error)}"
            raise FlussError(text, ErrorCode.LOG_STORAGE_EXCEPTION) from error
        self._logs[bucket] = log
        if len(self._logs) > self.options.open_logs_max:
            # Not here: the caller may hold other logs until its turn of the loop ends.
            self._schedule_eviction()
        return log

    def _schedule_eviction(self) -> None:
        if not self._eviction_scheduled:
            self._eviction_scheduled = True
            self._loop.call_soon(self._evict)

    def open_log(self, bucket: TableBucket) -> BucketLog | None:
        """The log of a bucket if it is open; nothing changes by asking."""
        return self._logs.get(bucket)

    @property
    def open_logs(self) -> int:
        return len(self._logs)

    @property
    def open_stores(self) -> int:
        """Number of open RocksDB stores."""
        return len(self._kv.pool) if self._kv is not None else 0

    @property
    def kv_memory_bytes(self) -> int:
        """What RocksDB's memtables and its cache of blocks hold, of all stores together."""
        return self._kv.memory_bytes if self._kv is not None else 0

    def is_store_open(self, bucket: TableBucket) -> bool:
        """Whether the rows of a bucket are, or were lately, used."""
        return self._kv is not None and self._kv.pool.is_open(bucket)

    def is_store_changing(self, bucket: TableBucket) -> bool:
        """Whether the store of a bucket is being opened, and perhaps rebuilt, or closed."""
        return self._kv is not None and self._kv.pool.is_changing(bucket)

    def buckets(self, entry: TableEntry) -> Iterator[TableBucket]:
        """All buckets of a table, whether opened or not."""
        partitions = self.catalog.partitions(entry) if entry.partition_keys else [None]
        for partition in partitions:
            for bucket_id in range(entry.num_buckets):
                yield TableBucket(entry.table_id, bucket_id, partition and partition.partition_id)

    @property
    def root(self) -> Path:
        return self._directory.root

    def bucket_path(self, bucket: TableBucket) -> Path:
        """The directory of a bucket's files, there or not."""
        return self._directory.bucket_path(bucket)

    @property
    def held_path(self) -> Path:
        """The directory in which a backup that is being made has links to files that it still needs."""
        return self._directory.held_path

    @property
    def tables_path(self) -> Path:
        return self._directory.tables_path

    def staging_path(self, table_id: int) -> Path:
        """The directory of a table's staged writes, there or not."""
        return self._directory.staging_path(table_id)

    def lake_offsets_path(self, table_id: int) -> Path:
        """The directory of the offsets files of a table's lake snapshots, there or not."""
        return self._directory.lake_offsets_path(table_id)

    def forget_writer(self, bucket: TableBucket, writer_id: int) -> None:
        """A writer of the bucket will not come back."""
        log = self._logs.get(bucket)
        if log is not None:
            log.forget_writer(writer_id)

    @asynccontextmanager
    async def keeping_open(self) -> AsyncIterator[None]:
        """While the block runs, logs that it opens stay open, however many: for one request that needs very many.

        One block at a time, or many requests together would take all the files there are.
        """
        async with self._keeping_open:
            self._kept_open = True
            try:
                yield
            finally:
                self._kept_open = False
                self._schedule_eviction()

    async def run_blocking(self, work: Callable[[], _T], table_id: int | None = None) -> _T:
        """Run work that reads or writes files in a thread; name the table if much of it comes at a time for one."""
        table = None if table_id is None else self._directory.table_path(table_id)
        return await self._commit.run(work, table)

    def exists(self, bucket: TableBucket) -> bool:
        """Whether the catalog knows a bucket, opened or not."""
        table = self.catalog.table_by_id(bucket.table_id)
        if table is None or not 0 <= bucket.bucket_id < table.num_buckets:
            return False
        if bucket.partition_id is None:
            return not table.partition_keys
        partition = self.catalog.partition_by_id(bucket.partition_id)
        return partition is not None and partition.table_id == bucket.table_id

    async def close(self) -> None:
        """Make everything durable, leave checkpoints, free the directory."""
        try:
            await self.staging.close()
            await self.lake.close()
            if self._kv is not None:
                await self._kv.close()
            while self._opening:
                await asyncio.wait(self._opening.values())
            while self._removals:
                await asyncio.wait(self._removals.values())
            for log in self._logs.values():
                log.request_sync()
            for log in list(self._logs.values()):
                await log.close()
            self._logs.clear()
            self._open_pool.shutdown()
            await self.catalog.close()
            await self._note_clock()
            self.clock.on_change = None
            if self._notes:
                await asyncio.wait(self._notes)
            await self._sync_marks()
            self._commit.close()
        finally:
            if self._marks_sync is not None:
                self._marks_sync.cancel()
            self.marks.close()
            self._directory.close()

    def _schedule_marks_sync(self) -> None:
        if self._marks_sync is None:
            self._marks_sync = self._loop.call_later(MARKS_SYNC_S, self._start_marks_sync)

    def _start_marks_sync(self) -> None:
        self._marks_sync = None
        self._start_note(self._sync_marks())

    def _start_clock_note(self) -> None:
        self._start_note(self._note_clock())

    def _start_note(self, note: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(note)
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _note_clock(self) -> None:
        await self._commit.run(partial(write_note, self.root, self.clock.note))

    async def _sync_marks(self) -> None:
        try:
            await self._commit.run(self.marks.sync)
        except OSError as error:
            _log.error("the marks can't be synced; after a power loss they may be older than they should be: %s", error)
            self._schedule_marks_sync()

    def _evict(self) -> None:
        self._eviction_scheduled = False
        if self._kept_open:
            return
        excess = len(self._logs) - self.options.open_logs_max
        candidates = list(islice(self._logs.items(), min(max(excess, 0), _EVICTIONS_MAX) + _EVICTION_CANDIDATES))
        for bucket, log in candidates:
            if len(self._logs) <= self.options.open_logs_max:
                return
            if log.is_idle:
                if excess > _EVICTIONS_MAX:
                    self._schedule_eviction()
                del self._logs[bucket]
                if self.on_release is not None:
                    self.on_release(bucket, log)
                log.release()
            else:
                # With durability "os" nothing else makes a quiet log durable, and so fit to be closed.
                log.request_sync()

    def _table_dropped(self, table_id: int) -> None:
        removal = (self._directory.table_path(table_id), Site.TABLE_REMOVE)
        at_work = self.staging.end(table_id) | self.lake.end(table_id)
        self._end_and_remove(table_id, lambda bucket: bucket.table_id == table_id, removal, at_work)

    def _partition_dropped(self, entry: PartitionEntry) -> None:
        removal = (self._directory.partition_path(entry.table_id, entry.partition_id), Site.PARTITION_REMOVE)
        self._end_and_remove(entry.table_id, lambda bucket: bucket.partition_id == entry.partition_id, removal)

    def _end_and_remove(
        self,
        table_id: int,
        is_gone: Callable[[TableBucket], bool],
        removal: _Removal,
        at_work: Iterable[asyncio.Task[Any]] = (),
    ) -> None:
        # Wait for those under way, too: they would not find their files.
        earlier = {task for bucket, task in self._opening.items() if is_gone(bucket)}.union(at_work)
        if table_id in self._removals:
            # Of a partition of the same table: its last sync may still write into the directory.
            earlier.add(self._removals[table_id])
        kv_ended = None if self._kv is None else self._kv.end(table_id, is_gone)
        logs = [self._logs.pop(bucket) for bucket in list(self._logs) if is_gone(bucket)]
        for log in logs:
            log.end()
        task = self._loop.create_task(self._discard_and_remove(earlier, kv_ended, logs, removal))
        self._removals[table_id] = task
        task.add_done_callback(partial(self._removal_done, table_id))

    def _removal_done(self, table_id: int, task: asyncio.Task[None]) -> None:
        if self._removals.get(table_id) is task:
            del self._removals[table_id]

    async def _discard_and_remove(
        self,
        earlier: set[asyncio.Task[None]],
        kv_ended: Awaitable[None] | None,
        logs: list[BucketLog],
        removal: _Removal,
    ) -> None:
        if earlier:
            await asyncio.wait(earlier)
        if kv_ended is not None:
            await kv_ended
        for log in logs:
            await log.discard()
        await self._remove(*removal)
        self._forget_marks()

    async def _remove_orphans(self, *, sure: bool) -> None:
        """Remove what dropped tables left; not when the catalog may be older than its data for all that is known."""
        for path, site in list(_orphans(self._directory, self.catalog)):
            if sure:
                await self._remove(path, site)
            else:
                _log.warning("%s is of no table of the catalog; it stays until the next start", path)
        self._forget_marks()

    def _forget_marks(self) -> None:
        for bucket in [bucket for bucket in self.marks.buckets if not self.exists(bucket)]:
            try:
                self.marks.forget(bucket)
            except OSError as error:
                _log.warning("the mark of %s, which is gone, can't be removed: %s", bucket, error)

    async def _remove(self, path: Path, site: Site) -> None:
        try:
            await self._commit.run(partial(files.remove_tree, path, site))
        except OSError as error:
            _log.warning("%s is left over from a drop and can't be removed now: %s", path, error)


def _recover(path: Path, root: Path, options: LogOptions, mark: Mark | None, tiered_offset: int | None) -> Recovered:
    end_offset_min = 0 if tiered_offset is None else max(newest_log_offset(path), tiered_offset)
    return recover(path, root, options.writer_expiry_ms, options.keeps_writer, mark, end_offset_min)


def _open_marks(directory: DataDirectory) -> Marks:
    was_there = directory.marks_path.exists()
    if directory.catalog_path.exists() and not was_there:
        _log.warning("%s is not there and is made: what was safe is known by checkpoints only", directory.marks_path)
    try:
        return Marks.open(directory.marks_path)
    except OSError as error:
        raise DataDirectoryError(f"{directory.marks_path} can't be used: {files.reason(error)}.") from error


def _check_catalog_present(directory: DataDirectory) -> None:
    """Refuse a directory that lost its catalog: every table would look dropped, and be removed."""
    if directory.tables_path.exists() and not directory.catalog_path.exists():
        raise DataDirectoryError(
            f"{directory.catalog_path} is missing but {directory.tables_path} has data. Restore it from a backup."
        )


def _orphans(directory: DataDirectory, catalog: Catalog) -> Iterator[_Removal]:
    """What tables and partitions dropped before the last stop have left behind."""
    for table_id, path in numbered(directory.tables_path, ""):
        _check_issued(path, table_id, catalog.table_id_next, directory)
        table = catalog.table_by_id(table_id)
        if table is None:
            yield path, Site.TABLE_REMOVE
        elif table.partition_keys:
            for partition_id, partition_path in numbered(path, PARTITION_PREFIX):
                _check_issued(partition_path, partition_id, catalog.partition_id_next, directory)
                if catalog.partition_by_id(partition_id) is None:
                    yield partition_path, Site.PARTITION_REMOVE


def numbered(parent: Path, prefix: str) -> Iterator[tuple[int, Path]]:
    """Directories whose names are a prefix and a number."""
    if parent.exists():
        for path in parent.iterdir():
            number = path.name.removeprefix(prefix)
            if path.name.startswith(prefix) and number.isascii() and number.isdigit():
                yield int(number), path


def _check_issued(path: Path, identity: int, id_next: int, directory: DataDirectory) -> None:
    if identity >= id_next:
        raise DataDirectoryError(
            f"{path} belongs to a table that {directory.catalog_path} has never heard of, so the catalog is older "
            "than the data. Restore the matching catalog, or move the directory away."
        )

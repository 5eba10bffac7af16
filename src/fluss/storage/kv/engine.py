"""The buckets of all primary-key tables, over one pool of stores and a few worker threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

from fluss.doors import clock, threads
from fluss.model.clock import Clock
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.storage import allocator
from fluss.storage.catalog.catalog import Catalog
from fluss.storage.catalog.view import has_primary_key
from fluss.storage.directory import STORE_NAME
from fluss.storage.failpoints import Site
from fluss.storage.kv.bucket import KvBucket
from fluss.storage.kv.pool import OPENINGS_MAX, KvPool, RunBlocking
from fluss.storage.kv.put import check
from fluss.storage.kv.recovery import CHUNK_BYTES, Recovery, replay
from fluss.storage.kv.rocks import STALL_POLL_S, STALL_WAIT_S_MAX, open_store
from fluss.storage.kv.rocks_settings import Resources
from fluss.storage.kv.snapshot_files import recovery_candidates
from fluss.storage.kv.store import DamagedKvStoreError, KvStore, as_kv_error, few_by_prefix
from fluss.storage.kv.table import KvTable
from fluss.storage.log.index import CorruptBatchError
from fluss.storage.log.log import BucketLog
from fluss.storage.log.recovery import make_lineage
from fluss.storage.table_turns import TableThreads

if TYPE_CHECKING:
    from fluss.storage.store import Storage

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

# One table gets all but one of each kind.
WRITE_THREADS: Final = 4
READ_THREADS: Final = 3
CLOSE_THREADS: Final = 4
# When so many bytes of rows were written, what that has left free is given back: tens of MB, and it takes some 20 ms.
GIVE_BACK_BYTES: Final = 32 << 20
READ_SLOW_S: Final = 0.003  # of a few keys
READS_SLOW_TIMES: Final = 10  # so much longer than it took, no more are read on the loop then
# Tables whose formats are kept at hand; when there are more, all are made anew.
_TABLES_MAX: Final = 1_024


class KvEngine:
    """What keeps the rows of primary-key tables: their buckets, stores and worker threads. Used on the event loop."""

    def __init__(self, storage: Storage) -> None:
        options = storage.options
        self._storage = storage
        self._loop = asyncio.get_running_loop()
        self._resources = Resources(options.kv_memory_bytes)
        # Who reads does not stand behind puts, who waits for a store not behind either, nor behind stores that are slow
        # to close; and all but openings, which the pool gives out, take turns by table.
        self._writing = TableThreads(WRITE_THREADS, "fluss-kv-write")
        self._reading = TableThreads(READ_THREADS, "fluss-kv-read")
        self._closing = TableThreads(CLOSE_THREADS, "fluss-kv-close")
        self._opening = threads.pool(OPENINGS_MAX, "fluss-kv-open")
        self._buckets: WeakValueDictionary[TableBucket, KvBucket] = WeakValueDictionary()
        self._tables: dict[int, KvTable] = {}
        self._damaged: set[TableBucket] = set()
        self.busy: dict[KvBucket, None] = {}  # with puts under way
        self.large_puts = asyncio.Lock()
        self._short_of_memory = asyncio.Lock()
        self.refusal: FlussError | None = None  # of all calls, once closed
        self._reads_slow_until_s = 0.0
        self._written_bytes = 0  # since memory was given back
        self.pool = KvPool(
            self._open_store, self._closing.run, lambda: self._resources.is_pressed, options.open_stores_max
        )

    @property
    def memory_bytes(self) -> int:
        """What memtables and the cache of blocks hold; the cache counts memtables in."""
        return self._resources.cache.get_usage()

    def bucket(self, bucket: TableBucket) -> KvBucket:
        """A bucket, with its log open or not; code 20 in a log table, 21 for one that the catalog does not know."""
        found = self._buckets.get(bucket)
        if found is None:
            self.table(bucket)
            if not self._storage.exists(bucket):
                raise _unknown(bucket)
            found = self._buckets[bucket] = KvBucket(bucket, self)
        return found

    def get_few(self, bucket: TableBucket, keys: list[bytes]) -> list[bytes | None] | None:
        """The values at a few keys, read here and now; None when that could take long, or for `get_many` to say why."""
        return self._read_few(bucket, lambda store: store.get_many(keys))

    def get_few_by_prefix(self, bucket: TableBucket, prefixes: list[bytes]) -> list[list[bytes]] | None:
        """The values at keys with each of a few prefixes, read here and now; None as above, or when they are many."""
        return self._read_few(bucket, lambda store: few_by_prefix(store, prefixes))

    def _read_few(self, bucket: TableBucket, read: Callable[[KvStore], _T | None]) -> _T | None:
        """Read a few rows without a thread, or not at all.

        It saves two changes of threads, which take longer than a read from memory. A read that has to wait for the
        disk keeps the loop, so after a slow one all go through threads for a while: the slower, the longer.
        """
        started_s = clock.monotonic()
        if started_s < self._reads_slow_until_s or self.refusal is not None:
            return None
        store = self.pool.opened(bucket)
        if store is None:
            return None
        try:
            found = read(store)
        except FlussError:
            return None
        ended_s = clock.monotonic()
        if ended_s - started_s > READ_SLOW_S:
            self._reads_slow_until_s = ended_s + READS_SLOW_TIMES * (ended_s - started_s)
        return found

    async def check(
        self, bucket: TableBucket, batch: memoryview, target_columns: Sequence[int], *, overwrite: bool
    ) -> None:
        """Raise what a put of the batch would, but for what depends on the rows that are there by then."""
        work = partial(check, batch, self.table(bucket), target_columns, overwrite=overwrite)
        await self.run_write(bucket.table_id, work)

    # --- what buckets need

    @property
    def clock(self) -> Clock:
        return self._storage.clock

    @property
    def catalog(self) -> Catalog:
        return self._storage.catalog

    async def log(self, bucket: TableBucket) -> BucketLog:
        """The log of a bucket, opened if need be. Not to be kept across an await."""
        return await self._storage.opened(bucket)

    @asynccontextmanager
    async def held_log(self, bucket: TableBucket) -> AsyncIterator[BucketLog]:
        """The log of a bucket, opened if need be; it stays open until the block ends."""
        log = await self.log(bucket)
        let_go = log.on_advance(lambda: None)  # A log that somebody waits on is not closed.
        try:
            yield log
        finally:
            let_go()

    def table(self, bucket: TableBucket) -> KvTable:
        """The table of a bucket as it is now."""
        entry = self.catalog.table_by_id(bucket.table_id)
        if entry is None:
            raise _unknown(bucket)
        table = self._tables.get(bucket.table_id)
        if table is None or table.entry is not entry:
            if not has_primary_key(entry.table_json):
                raise InvalidRequestError(
                    f"Table {entry.path} has no primary key: its rows are appended and scanned, not put or looked up.",
                    ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
                )
            if len(self._tables) >= _TABLES_MAX:
                self._tables.clear()
            table = self._tables[bucket.table_id] = KvTable(entry, self.catalog)
        return table

    @property
    def run_write(self) -> RunBlocking:
        return self._writing.run

    @property
    def run_read(self) -> RunBlocking:
        return self._reading.run

    def _run_open(self, work: Callable[[], _T]) -> Awaitable[_T]:
        return self._loop.run_in_executor(self._opening, work)

    @asynccontextmanager
    async def memory_for_rows(self) -> AsyncIterator[None]:
        """Wait for memory for the rows of one write. While unflushed rows take much, writes come one by one."""
        async with self._short_of_memory if self._resources.is_pressed else nullcontext():
            deadline_s = clock.monotonic() + STALL_WAIT_S_MAX
            while self._resources.is_full and clock.monotonic() < deadline_s:
                self.pool.relieve()
                await asyncio.sleep(STALL_POLL_S)
            yield

    def written(self, size_bytes: int) -> None:
        """Rows were written to a store."""
        self._written_bytes += size_bytes
        if self._written_bytes >= GIVE_BACK_BYTES:
            self._written_bytes = 0
            self._opening.submit(allocator.give_back)

    def mark_damaged(self, bucket: TableBucket) -> None:
        """Rebuild the bucket's store when it is opened next."""
        self._damaged.add(bucket)

    async def rebuild(self, bucket: TableBucket) -> None:
        """Close a damaged store and make it anew from a snapshot and the log."""
        self.mark_damaged(bucket)
        found = self._buckets.get(bucket)
        if found is not None:
            found.close_scans()
        await asyncio.wait([self.pool.discard(bucket)])
        async with self.pool.use(bucket):
            pass

    # --- stores

    async def _open_store(self, bucket: TableBucket) -> KvStore:
        """Open a store, or make it, and bring it to the end of its log."""
        try:
            return await self._open_and_replay(bucket)
        except OSError as error:
            raise as_kv_error(error) from error
        except CorruptBatchError as error:
            # A reader of the log is told at once; whoever asks for rows would try again and never hear of it.
            text = f"{error.message}. The rows can't be rebuilt from it; 'fluss repair' shows what a repair would lose"
            raise DamagedKvStoreError(text, ErrorCode.UNKNOWN_SERVER_ERROR) from error

    async def _open_and_replay(self, bucket: TableBucket) -> KvStore:
        async with self.held_log(bucket) as log:
            trust_live = bucket not in self._damaged
            work = partial(
                self._recover,
                bucket,
                log.log_start_offset,
                log.high_watermark,
                trust_live=trust_live,
                log_may_lack_rows=log.may_lack_rows,
            )
            store = await self._run_open(work)
            try:
                while store.state.covered_offset < log.high_watermark:
                    data = await log.read_indexed(store.state.covered_offset, CHUNK_BYTES)
                    await self._run_open(partial(replay, store, self.table(bucket), data))
            except BaseException:
                await self._run_open(store.close)
                raise
        self._damaged.discard(bucket)
        return store

    def _recover(
        self, bucket: TableBucket, log_start: int, log_end: int, *, trust_live: bool, log_may_lack_rows: bool
    ) -> KvStore:
        directory = self._storage.bucket_path(bucket)
        # Made durable with the log, without which the store is nothing.
        make_lineage(directory, self._storage.root, Site.KV_CREATE)
        open_path: Callable[[Path], KvStore] = partial(open_store, resources=self._resources)
        recovery = Recovery(directory / STORE_NAME, log_start, log_end, open_path, log_may_lack_rows=log_may_lack_rows)
        return recovery.run(recovery_candidates(directory, log_end), trust_live=trust_live)

    # --- the end

    def end(self, table_id: int, is_gone: Callable[[TableBucket], bool]) -> Awaitable[None]:
        """Buckets of a table are dropped: tell all who wait; the returned is done when their stores are closed."""
        if self.catalog.table_by_id(table_id) is None:
            self._tables.pop(table_id, None)
        error = FlussError("The table or partition was dropped.", ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION)
        buckets = [bucket for key, bucket in list(self._buckets.items()) if is_gone(key)]
        for bucket in buckets:
            bucket.end(error)
            self._buckets.pop(bucket.bucket, None)
        return self._close_stores(buckets, is_gone)

    async def _close_stores(self, buckets: list[KvBucket], is_gone: Callable[[TableBucket], bool]) -> None:
        for bucket in buckets:
            await bucket.settle()
        if await self.pool.close(is_gone):
            await self._storage.run_blocking(allocator.give_back)
        self._damaged = {bucket for bucket in self._damaged if not is_gone(bucket)}

    async def close(self) -> None:
        """Let puts come to their end, flush and close all stores."""
        self.refusal = FlussError("The server is stopping; try again later.", ErrorCode.KV_STORAGE_EXCEPTION)
        while self.busy:
            await next(iter(self.busy)).settle()
        for bucket in list(self._buckets.values()):
            bucket.close_scans()
        await self.pool.close()
        self._writing.shutdown()
        self._reading.shutdown()
        self._opening.shutdown()
        self._closing.shutdown()
        self._resources.readers.shutdown()


def _unknown(bucket: TableBucket) -> FlussError:
    return FlussError(f"{bucket} does not exist.", ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION)

"""One bucket of a primary-key table: its changelog, and a store with the rows that the changelog leaves.

A put goes through two stages. First, one put at a time and in order of arrival: read what is stored, fold the records
into changes, append those to the log. What was put so far and is not in the store yet lies in the overlay, which is
read before the store. Second, once the log has it on disk: all puts that are durable by then go into the store in one
write. So the store is never ahead of the durable log, and readers, who see the store alone, see nothing that a crash
could take back.

When a store can't be written, those who wait are told to try again, and the store is closed: the next use opens it and
replays the log, which has their changes. All calls are made on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, nullcontext
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fluss.doors import threads
from fluss.formats.batches.kv_batch import decode_records, parse_header
from fluss.formats.batches.log_batch import parse_header as parse_log_header
from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket
from fluss.storage.kv.pool import RunBlocking
from fluss.storage.kv.put import Prepared, Put, PutRequest, apply, check_schema, prepare
from fluss.storage.kv.store import (
    NO_ROWS,
    READ_BYTES_MAX,
    BucketScan,
    DamagedKvStoreError,
    KvState,
    KvStoreError,
    ReadableStore,
    as_kv_error,
    first_values,
    values_at,
    values_by_prefix,
)

if TYPE_CHECKING:
    from fluss.storage.kv.engine import KvEngine

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

# Bytes of batches that were put and are not in the store yet; `room` waits for less.
QUEUED_BYTES_MAX: Final = 16 << 20
# Bytes of rows that are in the log and not in the store yet; beyond, no further put is prepared. A put of a few bytes
# can make a large row anew.
UNAPPLIED_BYTES_MAX: Final = 64 << 20
# Puts that are in the log and not in the store yet: the next one looks into each of them.
UNAPPLIED_PUTS_MAX: Final = 1_000
# A put of more, as it came or as Arrow, is worked on while no other such put is: it takes several times its size.
LARGE_PUT_BYTES: Final = 8 << 20
# How long a put waits for the catalog to give it numbers for new rows.
NUMBERS_WAIT_S_MAX: Final = 30.0


class KvBucket:
    """Made by `KvEngine`, which keeps it as long as a put is under way."""

    def __init__(self, bucket: TableBucket, owner: KvEngine) -> None:
        self.bucket = bucket
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Put] = deque()  # to be prepared
        self._unapplied: deque[Put] = deque()  # in the log, by offset
        self._queued_bytes = 0
        self._unapplied_bytes = 0  # of rows
        self._waiting_for_room: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._preparing = self._applying = False
        self._scans: dict[BucketScan, None] = {}
        self._ended: FlussError | None = None

    # --- putting

    def put(self, batch: memoryview, target_columns: Sequence[int] = (), *, overwrite: bool = False) -> Put:
        """Queue a kv batch behind those put before; a refused one fails both of its futures.

        A batch that its writer sent before is not put again: it completes when the first one is applied.
        """
        try:
            header = parse_header(batch)
        except FlussError as error:
            put = Put(None, 0, self._loop)
            put.fail(error)
            return put
        request = PutRequest(
            lambda _: decode_records(batch, header),
            header.record_count,
            len(batch),
            header.schema_id,
            header.writer_id,
            header.batch_sequence,
            tuple(target_columns),
            overwrite,
        )
        return self._enqueue(request)

    async def insert_missing(self, keys: list[bytes]) -> None:
        """Put a row of nothing but its key, and numbered columns, at each of the keys that has none."""
        unique = list(dict.fromkeys(keys))
        partition_id = self.bucket.partition_id
        partition = None if partition_id is None else self._owner.catalog.partition_by_id(partition_id)
        put = self._enqueue(
            PutRequest(
                lambda table: table.key_records(unique, partition and partition.name),
                len(unique),
                sum(map(len, unique)),
                missing_only=True,
            )
        )
        await put.applied

    async def room(self) -> None:
        """Return when few enough bytes are queued for a further put."""
        while self._queued_bytes >= QUEUED_BYTES_MAX:
            waiting = self._loop.create_future()
            self._waiting_for_room.append(waiting)
            await waiting

    def _enqueue(self, request: PutRequest) -> Put:
        put = Put(request, request.size_bytes, self._loop)
        error = self._ended or self._owner.refusal
        if error is not None:
            put.fail(error)
            return put
        self._queued_bytes += put.size_bytes
        self._queue.append(put)
        if not self._preparing:
            self._preparing = True
            self._start(self._prepare_all())
        return put

    async def _prepare_all(self) -> None:
        while self._queue:
            if len(self._unapplied) >= UNAPPLIED_PUTS_MAX or (
                self._unapplied and self._unapplied_bytes > UNAPPLIED_BYTES_MAX
            ):
                await asyncio.wait([self._unapplied[0].applied])
                continue  # The bucket may have ended.
            put = self._queue.popleft()
            try:
                await self._prepare(put)
            except Exception as error:
                self._done([put], as_kv_error(error))
        self._preparing = False

    async def _prepare(self, put: Put) -> None:
        request, put.request = put.request, None
        assert request is not None
        self._check_exists()
        async with self._owner.held_log(self.bucket) as log:
            appended = log.repeated(request.writer_id, request.batch_sequence, self._owner.clock.now_ms())
            if appended is None:
                put.prepared, batch = await self._fold(request)
                self._check_exists()
                if batch is None:
                    self._follow(put, log.log_end_offset)
                    return
                appended = log.append(batch, parse_log_header(batch), self._owner.clock.now_ms())
        put.base_offset, put.end_offset = appended.base_offset, appended.last_offset + 1
        put.durable = appended.durable
        self._unapplied.append(put)
        self._unapplied_bytes += put.prepared.size_bytes
        put.appended.complete(put.end_offset)
        if not self._applying:
            self._applying = True
            self._start(self._apply_all())

    def _follow(self, put: Put, end_offset: int) -> None:
        """A put that changes nothing is applied together with the one before it, which may have made its rows."""
        put.appended.complete(end_offset)
        if not self._unapplied:
            put.end_offset = end_offset
            self._done([put], None)
            return
        last = self._unapplied[-1]
        put.base_offset, put.end_offset, put.durable = last.end_offset, last.end_offset, last.durable
        self._unapplied.append(put)

    async def _fold(self, request: PutRequest) -> tuple[Prepared, bytearray | None]:
        """What a put changes, and the log batch that says so."""
        table = self._owner.table(self.bucket)
        check_schema(request.schema_id, table)
        size_bytes = max(request.size_bytes, request.record_count * table.codec.row_width_bytes)
        alone = self._owner.large_puts if size_bytes > LARGE_PUT_BYTES else nullcontext()
        async with alone, self._owner.pool.use(self.bucket) as store:
            overlay = [put.prepared.rows for put in self._unapplied]
            work = partial(prepare, request, table, overlay, store, self._numbers)
            return await self._on_store(self._owner.run_write, work)

    def _numbers(self, count: int) -> range:
        """Numbers for new rows; called in a thread."""
        ids = self._owner.catalog.reserve_ids(self.bucket.table_id, count)
        first = threads.result(asyncio.run_coroutine_threadsafe(ids, self._loop), NUMBERS_WAIT_S_MAX)
        return range(first, first + count)

    async def _apply_all(self) -> None:
        while self._unapplied:
            durable = self._unapplied[0].durable
            assert durable is not None
            if not durable.done():
                await asyncio.wait([durable])
                continue  # The bucket may have ended.
            failure = durable.exception()
            puts = [self._unapplied[0]] if failure else list(takewhile(_is_durable, self._unapplied))
            if failure is None:
                failure = await self._apply(puts)
                if self._ended is not None:
                    break
            for _ in puts:
                self._unapplied.popleft()
            self._unapplied_bytes = sum(put.prepared.size_bytes for put in self._unapplied)
            self._done(puts, failure)
        self._applying = False

    async def _apply(self, puts: list[Put]) -> Exception | None:
        try:
            async with self._owner.memory_for_rows(), self._owner.pool.use(self.bucket) as store:
                await self._on_store(self._owner.run_write, partial(apply, puts, store))
        except Exception as error:
            self._discard_store()
            return as_kv_error(error)
        self._owner.written(sum(put.prepared.size_bytes for put in puts))
        self._owner.pool.relieve()
        return None

    def _done(self, puts: Iterable[Put], error: BaseException | None) -> None:
        for put in puts:
            self._queued_bytes -= put.size_bytes
            if error is None:
                put.applied.complete(put.end_offset)
            else:
                put.fail(error)
        if self._queued_bytes < QUEUED_BYTES_MAX:
            for waiting in self._waiting_for_room:
                if not waiting.done():
                    waiting.set_result(None)
            self._waiting_for_room.clear()

    # --- reading: what is applied

    async def get_many(self, keys: list[bytes], size_bytes_max: int = READ_BYTES_MAX) -> list[bytes | None]:
        """The values at keys, None where there is none; code 13 if they take more than `size_bytes_max`."""
        return await self._read(lambda store: values_at(store, keys, size_bytes_max))

    async def get_prefixes(self, prefixes: list[bytes], size_bytes_max: int) -> list[list[bytes]]:
        """The values at keys with each of the prefixes, by key; code 13 if they take more than `size_bytes_max`."""
        return await self._read(lambda store: values_by_prefix(store, prefixes, size_bytes_max))

    async def first_values(self, limit: int, size_bytes_max: int) -> list[bytes]:
        """The values at the first keys; code 13 if they take more than `size_bytes_max`."""
        return await self._read(lambda store: first_values(store, b"", limit, size_bytes_max))

    async def row_count(self) -> int | None:
        """How many rows there are; None where it is not kept: in tables without full changes in their log."""
        if not self._owner.table(self.bucket).counts_rows:
            return None
        return await self._read(lambda store: store.state.row_count)

    async def open_scan(self) -> BucketScan:
        """Begin to read all rows as of now."""
        self._check()
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(self._owner.pool.use(self.bucket))
            snapshot = await self._on_store(self._owner.run_read, store.snapshot)
            held = stack.pop_all()
        scan = BucketScan(snapshot, partial(self._on_store, self._owner.run_read), held)
        self._scans[scan] = None
        held.callback(self._scans.pop, scan, None)
        return scan

    async def checkpoint(self, directory: Path) -> KvState:
        """Make `directory`, a durable copy of the store as of the returned state."""
        self._check()
        async with self._owner.pool.use(self.bucket) as store:
            return await self._on_store(self._owner.run_write, lambda: store.checkpoint(directory))

    async def _read(self, work: Callable[[ReadableStore], _T]) -> _T:
        self._check()
        # An open store is read without its log, which may be closed and would wait to be opened behind others.
        if not self._owner.pool.is_open(self.bucket) and not (await self._owner.log(self.bucket)).high_watermark:
            return work(NO_ROWS)  # Nothing was ever written, so there need be no store.
        async with self._owner.pool.use(self.bucket) as store:
            return await self._on_store(self._owner.run_read, partial(work, store))

    async def _on_store(self, run: RunBlocking, work: Callable[[], _T]) -> _T:
        """Do work with the open store, which is rebuilt when that finds damage."""
        try:
            return await run(self.bucket.table_id, work)
        except DamagedKvStoreError:
            self._owner.mark_damaged(self.bucket)
            self._discard_store()
            raise

    # --- the end

    def _check(self) -> None:
        self._check_exists()
        if self._owner.refusal is not None:
            raise self._owner.refusal

    def _check_exists(self) -> None:
        if self._ended is not None:
            raise self._ended

    def _discard_store(self) -> None:
        self.close_scans()
        self._owner.pool.discard(self.bucket)

    def close_scans(self) -> None:
        for scan in list(self._scans):
            scan.close()

    def end(self, error: FlussError) -> None:
        """The table or partition is gone: tell everyone who waits."""
        self._ended = error
        puts = [*self._queue, *self._unapplied]
        self._queue.clear()
        self._unapplied.clear()
        self._done(puts, error)
        self.close_scans()

    async def settle(self) -> None:
        """Return when no put is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._owner.busy[self] = None
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not self._tasks:
            self._owner.busy.pop(self, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("%s: puts have stopped", self.bucket, exc_info=error)
        if task.cancelled() or error is not None:
            # The loop is about to end, or this is a bug: those who wait must not wait for ever.
            self.end(KvStoreError(f"{self.bucket}: puts have stopped; restart the server."))


def _is_durable(put: Put) -> bool:
    return put.durable is not None and put.durable.done() and put.durable.exception() is None

"""Staged writes: batches that nobody sees until a commit appends them, once, however often it is asked for.

A writer stages requests under query, batch, task and attempt. A commit names the attempts that count. It is decided in
the catalog before any row is appended, and from then on carried out: by the call itself, by a repeated one, or after a
restart. When all is durable the query's last committed batch moves, and what is staged up to there goes. What was
committed is never appended again: `commit` says what a batch that comes again is answered with.

What nobody commits expires. All calls are made on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakValueDictionary

from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, error_from_code
from fluss.model.paths import TablePath
from fluss.model.staging import NO_BATCH, StagedQueryInfo, StagedRows, StagedTask
from fluss.storage import files
from fluss.storage.catalog.db import StagedDecision, StagedQuery
from fluss.storage.staging import commit as staged_files
from fluss.storage.staging import commit as staged_repeats
from fluss.storage.staging.commit import StagedCommit, StagedFile, StagedKey, StagedRequest, query_name

if TYPE_CHECKING:
    from fluss.storage.store import Storage

REQUESTS_MAX: Final = 200_000  # staged at once; each takes a file, and some memory


@dataclass(slots=True)
class StagedBatch:
    """Sizes of requests by task, attempt and sequence."""

    since_ms: int
    staged_ms: int = 0
    requests: dict[tuple[int, int, int], int] = field(default_factory=dict)


class StagedIndex:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._batches: dict[tuple[int, str], dict[int, StagedBatch]] = {}  # by table and query, by batch id
        self.size_bytes = 0  # of what is staged or about to be
        self._request_count = 0

    def queries(self) -> list[tuple[int, str]]:
        """Tables and queries with something staged."""
        return list(self._batches)

    def batches(self, table_id: int, query: str) -> dict[int, StagedBatch]:
        """What a query has staged, by batch id."""
        return self._batches.get((table_id, query), {})

    def check_room(self, size_bytes: int) -> None:
        """Code 13 when so much more is too much."""
        if self.size_bytes + size_bytes > self._bytes_max or self._request_count >= REQUESTS_MAX:
            raise InvalidRequestError(
                f"{self.size_bytes} bytes in {self._request_count} requests are staged, {size_bytes} more are too "
                f"many: staging.bytes-max is {self._bytes_max}, and there may be {REQUESTS_MAX} requests. Commit "
                "smaller batches, or raise staging.bytes-max.",
                ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
            )

    def take(self, size_bytes: int) -> None:
        """A request is about to be written, or was."""
        self.size_bytes += size_bytes
        self._request_count += 1

    def release(self, size_bytes: int) -> None:
        """A request is gone, or was counted for a time."""
        self.size_bytes -= size_bytes
        self._request_count -= 1

    def add(self, file: StagedFile) -> None:
        """A file is there, in the place of one with the same key."""
        key, size_bytes, staged_ms = file
        batch = self._batches.setdefault((key.table_id, key.query), {}).setdefault(key.batch_id, StagedBatch(staged_ms))
        request = (key.task, key.attempt, key.sequence)
        if request in batch.requests:
            self.release(batch.requests[request])
        self.take(size_bytes)
        batch.requests[request] = size_bytes
        batch.since_ms = min(batch.since_ms, staged_ms)
        batch.staged_ms = max(batch.staged_ms, staged_ms)

    def pop(self, table_id: int, query: str, batch_id_min: int, batch_id_max: int) -> Iterator[StagedKey]:
        """Forget some batches of a query: the keys of their requests."""
        batches = self.batches(table_id, query)
        for batch_id in [batch_id for batch_id in batches if batch_id_min <= batch_id <= batch_id_max]:
            for request, size_bytes in batches.pop(batch_id).requests.items():
                self.release(size_bytes)
                yield StagedKey(table_id, query, batch_id, *request)
        if not batches:
            self._batches.pop((table_id, query), None)

    def pop_table(self, table_id: int) -> None:
        """Forget all of a table."""
        for key in [key for key in self._batches if key[0] == table_id]:
            for batch in self._batches.pop(key).values():
                for size_bytes in batch.requests.values():
                    self.release(size_bytes)


_log = logging.getLogger(__name__)
_T = TypeVar("_T")

EXPIRE_MS: Final = 24 * 60 * 60 * 1_000
BYTES_MAX: Final = 16 << 30
QUERIES_MAX: Final = 10_000  # remembered
QUERY_IDLE_MS_MAX: Final = 30 * 24 * 60 * 60 * 1_000
QUERY_ID_BYTES_MAX: Final = 255
SWEEP_INTERVAL_MS_MAX: Final = 10 * 60 * 1_000
BATCH_ID_MAX: Final = 2**63 - 1


class Staging:
    def __init__(self, storage: Storage, expire_ms: int = EXPIRE_MS, bytes_max: int = BYTES_MAX) -> None:
        self._storage = storage
        self._expire_ms = expire_ms
        self._index = StagedIndex(bytes_max)
        self._directories: set[int] = set()  # of these tables are there, and durable
        self._locks: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()
        self._tasks: dict[asyncio.Task[Any], int] = {}  # with the table id
        self._committing: frozenset[int] = frozenset()  # writer ids
        self._closed = False

    @property
    def size_bytes(self) -> int:
        """Size of all that is staged."""
        return self._index.size_bytes

    def _now_ms(self) -> int:
        return self._storage.clock.now_ms()

    def keeps_writer(self, writer_id: int) -> bool:
        """Whether a commit that is not done needs to know what this writer has appended."""
        return writer_id in self._committing

    async def load(self) -> None:
        """Find what is staged; before any log is opened."""
        self._note_writers()
        found = await self._storage.run_blocking(partial(staged_files.find, self._storage.tables_path))
        for file in found:
            self._index.add(file)
        for (table_id, query_id), entry in self._queries():
            await self._discard(table_id, query_name(query_id), entry.committed)

    # --- staging

    async def stage(self, key: StagedKey, query_id: str, request: StagedRequest) -> None:
        """Return when the request is on disk, where it replaces an earlier one with the same key.

        One for a batch whose commit was decided is dropped, or refused if it comes before. Code 13 beyond the limits.
        """
        self.check(key.table_id, query_id)
        entry = self._query(key.table_id, query_id)
        if entry is not None:
            staged_repeats.check_order(entry, self._path(key.table_id), key.batch_id)
        if key.batch_id <= self._decided_batch(key.table_id, query_id):
            return
        size_bytes = sum(len(records) for _, records in request.batches)
        self._storage.disk_guard.admit(size_bytes)
        self._index.check_room(size_bytes)
        await self._run(key.table_id, self._stage(key, query_id, request, size_bytes))

    async def _stage(self, key: StagedKey, query_id: str, request: StagedRequest, size_bytes: int) -> None:
        directory = self._storage.staging_path(key.table_id)
        run_blocking = self._storage.run_blocking
        self._index.take(size_bytes)
        try:
            if key.table_id not in self._directories:
                await run_blocking(partial(staged_files.make_directory, directory, self._storage.root), key.table_id)
                self._directories.add(key.table_id)
            work = partial(staged_files.write, directory, key.file_name, request)
            written_bytes = await run_blocking(work, key.table_id)
        except OSError as error:
            text = f"{files.shown(directory)}: rows can't be staged: {files.reason(error)}"
            raise FlussError(text, ErrorCode.LOG_STORAGE_EXCEPTION) from error
        finally:
            self._index.release(size_bytes)
        if self._storage.catalog.table_by_id(key.table_id) is None:
            raise _no_table(key.table_id)
        self._index.add(StagedFile(key, written_bytes, self._now_ms()))
        if key.batch_id <= self._committed_batch(key.table_id, query_id):
            await self._discard(key.table_id, key.query, key.batch_id)

    async def drop(self, table_id: int, query_id: str, batch_id: int) -> None:
        """Forget what is staged of a batch, unless its commit was decided."""
        self.check(table_id, query_id)
        await self._run(table_id, self._drop(table_id, query_id, batch_id))

    async def _drop(self, table_id: int, query_id: str, batch_id: int) -> None:
        async with self._lock(table_id, query_id):
            if batch_id > self._decided_batch(table_id, query_id):
                await self._discard(table_id, query_name(query_id), batch_id, batch_id)

    # --- committing

    async def commit(self, table_id: int, query_id: str, batch_id: int, tasks: Sequence[StagedTask]) -> bool:
        """Append what the tasks have staged, once; True when this batch was committed before, or accepted.

        Code 15 for a batch that was committed with other rows, or comes before the last one that was committed.
        Returns when all is durable and can be read. An error before the decision leaves nothing; after it, the commit
        is carried out by the next call, or after the next start.
        """
        self.check(table_id, query_id)
        return await self._run(table_id, self._commit(table_id, query_id, batch_id, tuple(tasks)))

    async def _commit(self, table_id: int, query_id: str, batch_id: int, tasks: tuple[StagedTask, ...]) -> bool:
        async with self._lock(table_id, query_id):
            await self._finish(table_id, query_id)
            entry, rows = self._query(table_id, query_id), StagedRows.of(tasks)
            if entry is not None and staged_repeats.is_done(entry, self._path(table_id), batch_id, rows):
                return True
            await self._decide(table_id, query_id, batch_id, tasks)
            await self._finish(table_id, query_id)
            return False

    async def _decide(self, table_id: int, query_id: str, batch_id: int, tasks: tuple[StagedTask, ...]) -> None:
        catalog = self._storage.catalog
        entry = self._known_or_new(table_id, query_id)
        self._check_complete(table_id, query_id, batch_id, tasks)
        # Once it is decided, rows that can't be read any more would block the query.
        names = staged_files.names_of(table_id, query_id, batch_id, tasks)
        await self._storage.run_blocking(partial(staged_files.check, self._storage.staging_path(table_id), names))
        decided = StagedDecision(batch_id, catalog.next_writer_id(), tasks)
        await catalog.put_staged_query(entry._replace(used_ms=self._now_ms(), decided=decided))
        self._note_writers()

    def _known_or_new(self, table_id: int, query_id: str) -> StagedQuery:
        entry = self._query(table_id, query_id)
        if entry is None and len(self._storage.catalog.staged_queries()) >= QUERIES_MAX:
            raise _refused(
                f"{QUERIES_MAX} queries with staged writes are remembered, which is the limit; those idle for "
                f"{QUERY_IDLE_MS_MAX // 86_400_000} days are forgotten, and 'fluss staged reset' forgets one."
            )
        return entry or StagedQuery(table_id, query_id, NO_BATCH, self._now_ms())

    def _check_complete(self, table_id: int, query_id: str, batch_id: int, tasks: tuple[StagedTask, ...]) -> None:
        if len({task.task for task in tasks}) < len(tasks):
            raise _refused("A commit names one attempt of each task, and no task twice.")
        batch = self._index.batches(table_id, query_name(query_id)).get(batch_id, StagedBatch(0))
        for task, attempt, count, *_ in tasks:
            there = sum((task, attempt, sequence) in batch.requests for sequence in range(count))
            if there < count:
                raise _refused(
                    f"Batch {batch_id} of query {query_id!r} can't be committed: of attempt {attempt} of task {task}, "
                    f"{there} of {count} requests are staged. They may have expired; write the batch again."
                )

    async def _finish(self, table_id: int, query_id: str) -> None:
        """Carry out what was decided, if anything is left of it."""
        catalog = self._storage.catalog
        entry = catalog.staged_queries().get((table_id, query_id))
        if entry is None or entry.decided is None:
            return
        batch_id, writer_id, tasks = entry.decided
        commit = StagedCommit(self._storage, entry, entry.decided)
        await commit.run()
        await catalog.put_staged_query(
            StagedQuery(table_id, query_id, batch_id, self._now_ms(), rows=StagedRows.of(tasks))
        )
        self._note_writers()
        for bucket in commit.buckets:
            self._storage.forget_writer(bucket, writer_id)
        await self._discard(table_id, query_name(query_id), batch_id)

    # --- what an operator says

    def queries(self) -> list[StagedQueryInfo]:
        """All queries that have committed something or have something staged, by table and query."""
        known = {(table_id, query_name(query_id)): entry for (table_id, query_id), entry in self._queries()}
        places = known.keys() | set(self._index.queries())
        table_by_id = self._storage.catalog.table_by_id
        return [self._info(*place, known.get(place)) for place in sorted(places) if table_by_id(place[0]) is not None]

    def _info(self, table_id: int, query: str, entry: StagedQuery | None) -> StagedQueryInfo:
        path, staged = self._path(table_id), self._index.batches(table_id, query).values()
        size_bytes = sum(size_bytes for batch in staged for size_bytes in batch.requests.values())
        since_ms = min((batch.since_ms for batch in staged), default=None)
        if entry is None:
            return StagedQueryInfo(path, None, query, None, None, None, None, None, size_bytes, since_ms)
        return StagedQueryInfo(
            path,
            entry.query_id,
            query,
            None if entry.committed == NO_BATCH else entry.committed,
            entry.rows and entry.rows.row_count,
            entry.used_ms,
            entry.decided and entry.decided.batch_id,
            None if entry.accepted == NO_BATCH else entry.accepted,
            size_bytes,
            since_ms,
        )

    async def accept(self, table_id: int, query_id: str, batch_id: int) -> None:
        """Take repeated batches up to this one for done, whatever rows they have, until a later one is committed."""
        self.check(table_id, query_id)
        await self._run(table_id, self._accept(table_id, query_id, batch_id))

    async def _accept(self, table_id: int, query_id: str, batch_id: int) -> None:
        async with self._lock(table_id, query_id):
            await self._finish(table_id, query_id)
            entry = self._known(table_id, query_id)
            if batch_id > entry.committed:
                raise _refused(
                    f"Batch {batch_id} of query {query_id!r} can't be accepted: the last one committed to table "
                    f"{self._path(table_id)} is {entry.committed}, and later ones are stored when they come."
                )
            await self._storage.catalog.put_staged_query(entry._replace(used_ms=self._now_ms(), accepted=batch_id))

    async def reset(self, table_id: int, query_id: str, batch_id: int | None, *, gives_up: bool = False) -> None:
        """Forget a query and what it has staged, or let this batch be the last one committed.

        A commit that was decided is carried out first, unless the caller gives it up, with rows that may be missing.
        """
        self.check(table_id, query_id)
        await self._run(table_id, self._reset(table_id, query_id, batch_id, gives_up))

    async def _reset(self, table_id: int, query_id: str, batch_id: int | None, gives_up: bool) -> None:
        async with self._lock(table_id, query_id):
            if not gives_up:
                await self._finish(table_id, query_id)
            if batch_id is None:
                self._known(table_id, query_id)
                await self._storage.catalog.delete_staged_queries([(table_id, query_id)])
            else:
                self._known_or_new(table_id, query_id)
                entry = StagedQuery(table_id, query_id, batch_id, self._now_ms())
                await self._storage.catalog.put_staged_query(entry)
            self._note_writers()
            await self._discard(table_id, query_name(query_id), BATCH_ID_MAX)

    def _known(self, table_id: int, query_id: str) -> StagedQuery:
        entry = self._query(table_id, query_id)
        if entry is None:
            raise _refused(
                f"Query {query_id!r} has committed nothing to table {self._path(table_id)}, or was forgotten; 'fluss "
                "staged list' shows those that are known."
            )
        return entry

    # --- in the background

    async def run(self) -> None:
        """Carry out what a stop has interrupted, then remove what expires, until cancelled."""
        await self.recover()
        while True:
            await self.run_once()
            await asyncio.sleep(min(self._expire_ms, SWEEP_INTERVAL_MS_MAX) / 1_000)

    async def run_once(self) -> None:
        """Remove what expires, unless the clock is in doubt."""
        now_ms = self._storage.clock.expiry_ms()
        if now_ms is not None:
            await self.sweep(now_ms)

    async def recover(self) -> None:
        """Carry out all commits that were decided and are not done; one that can't be stays, and is logged."""
        for (table_id, query_id), entry in self._queries():
            if entry.decided is None:
                continue
            try:
                await self._run(table_id, self._recover(table_id, query_id))
            except FlussError as error:
                _log.error("batch %d of query %r is not committed yet: %s", entry.decided.batch_id, query_id, error)

    async def _recover(self, table_id: int, query_id: str) -> None:
        async with self._lock(table_id, query_id):
            await self._finish(table_id, query_id)

    async def sweep(self, now_ms: int) -> None:
        """Remove what was staged long ago and never committed, and forget queries that are idle."""
        queries = self._storage.catalog.staged_queries()
        for key, entry in self._queries():
            if now_ms - entry.used_ms > QUERY_IDLE_MS_MAX:
                async with self._lock(*key):
                    if queries.get(key) is entry:
                        await self._storage.catalog.delete_staged_queries([key])
                        self._note_writers()
        for place in self._index.queries():
            async with self._locks.setdefault(place, asyncio.Lock()):
                await self._expire(*place, now_ms)

    async def _expire(self, table_id: int, query: str, now_ms: int) -> None:
        decided = {
            entry.decided.batch_id
            for (of_table, query_id), entry in self._queries()
            if entry.decided and (of_table, query_name(query_id)) == (table_id, query)
        }
        for batch_id, batch in list(self._index.batches(table_id, query).items()):
            # A time in the future was stamped by a wrong clock: it counts from now on.
            batch.staged_ms = min(batch.staged_ms, now_ms)
            if now_ms - batch.staged_ms > self._expire_ms and batch_id not in decided:
                _log.info("table %d: staged batch %d of query %s has expired", table_id, batch_id, query)
                await self._discard(table_id, query, batch_id, batch_id)

    # --- the end

    def end(self, table_id: int) -> set[asyncio.Task[Any]]:
        """The table is gone, and its files are about to be: what is still at work on them."""
        self._directories.discard(table_id)
        self._index.pop_table(table_id)
        self._note_writers()
        return {task for task, of_table in self._tasks.items() if of_table == table_id}

    async def close(self) -> None:
        """Commits stop where they are; the next start carries them out."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    # --- what all of them need

    def check(self, table_id: int, query_id: str) -> None:
        """Raise where nothing can be staged: code 7 without the table, 15 for a bad query id."""
        if self._closed:
            raise FlussError("The server is stopping; try again later.", ErrorCode.LOG_STORAGE_EXCEPTION)
        self._path(table_id)
        if not 0 < len(query_id.encode()) <= QUERY_ID_BYTES_MAX:
            raise _refused(f"A query id has 1 to {QUERY_ID_BYTES_MAX} bytes, not {len(query_id.encode())}.")

    def _queries(self) -> list[tuple[tuple[int, str], StagedQuery]]:
        return list(self._storage.catalog.staged_queries().items())

    def _query(self, table_id: int, query_id: str) -> StagedQuery | None:
        return self._storage.catalog.staged_queries().get((table_id, query_id))

    def _path(self, table_id: int) -> TablePath:
        entry = self._storage.catalog.table_by_id(table_id)
        if entry is None:
            raise _no_table(table_id)
        return entry.path

    def _committed_batch(self, table_id: int, query_id: str) -> int:
        entry = self._query(table_id, query_id)
        return NO_BATCH if entry is None else entry.committed

    def _decided_batch(self, table_id: int, query_id: str) -> int:
        entry = self._query(table_id, query_id)
        if entry is None:
            return NO_BATCH
        return entry.committed if entry.decided is None else max(entry.committed, entry.decided.batch_id)

    def _note_writers(self) -> None:
        self._committing = frozenset(entry.decided.writer_id for _, entry in self._queries() if entry.decided)

    def _lock(self, table_id: int, query_id: str) -> asyncio.Lock:
        """One commit of a query at a time."""
        return self._locks.setdefault((table_id, query_name(query_id)), asyncio.Lock())

    async def _run(self, table_id: int, work: Coroutine[Any, Any, _T]) -> _T:
        """Work that goes on to its end even if its caller goes away."""
        task = asyncio.ensure_future(work)
        self._tasks[task] = table_id
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            # The caller may have gone away: mark a failure as seen, or asyncio complains.
            task.exception()

    async def _discard(self, table_id: int, query: str, batch_id_max: int, batch_id_min: int = 0) -> None:
        """Remove what is staged of some batches; what can't be removed is found again at the next start."""
        names = [key.file_name for key in self._index.pop(table_id, query, batch_id_min, batch_id_max)]
        if not names:
            return
        directory = self._storage.staging_path(table_id)
        try:
            await self._storage.run_blocking(partial(staged_files.remove, directory, names), table_id)
        except OSError as error:
            _log.warning("%s: staged rows can't be removed now: %s", directory, error)


def _no_table(table_id: int) -> FlussError:
    return error_from_code(ErrorCode.TABLE_NOT_EXIST, f"There is no table with id {table_id} any more.")


def _refused(text: str) -> InvalidRequestError:
    return InvalidRequestError(text, ErrorCode.INVALID_TABLE_EXCEPTION)

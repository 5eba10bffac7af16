"""Commits of staged writes: which batches come again, and carrying out a decided commit.

A stream repeats its last batch when it was stopped before it had noted that the batch is stored. Such a repetition is
done if it has the same rows. Any other repetition comes from a stream that was put back, and to take it for done would
drop its rows: it is refused until somebody says what is right, by `fluss staged accept` or `fluss staged reset`.

The chosen batches of a decided commit are appended in order, under a writer id that nobody else has. Batches of a
bucket are numbered from 0, so what the log knows of the writer says how many of them it has. However often it is
interrupted, by an error or a crash, the next run goes on behind the last batch that is in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from fluss.formats.batches import log_batch
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.paths import TableBucket, TablePath
from fluss.model.staging import StagedRows
from fluss.storage import files
from fluss.storage.catalog.db import StagedDecision, StagedQuery
from fluss.storage.catalog.view import has_primary_key
from fluss.storage.staging import files as staged_files
from fluss.storage.staging.files import StagedKey, StagedRequest

if TYPE_CHECKING:
    from fluss.storage.kv.put import Put
    from fluss.storage.store import Storage

_log = logging.getLogger(__name__)


def is_done(query: StagedQuery, path: TablePath, batch_id: int, rows: StagedRows | None) -> bool:
    """Whether the batch is committed; raises for one that comes again and may not."""
    if batch_id > query.committed:
        return False
    if batch_id <= query.accepted:
        return True
    check_order(query, path, batch_id)
    if rows is None or query.rows is None:
        who = "the client does not tell" if rows is None else "an older version did not note"
        text = "batch %d of query %r to %s came again and is taken for done, not compared with the first: %s which rows"
        _log.warning(text, batch_id, query.query_id, path, who)
    elif rows != query.rows:
        raise _refused(query, path, batch_id, _difference(rows, query.rows))
    return True


def check_order(query: StagedQuery, path: TablePath, batch_id: int) -> None:
    """Raise for a batch before the last one, unless it was accepted."""
    if query.accepted < batch_id < _last(query):
        raise _refused(query, path, batch_id, ". Was the query put back to an earlier checkpoint?")


def _last(query: StagedQuery) -> int:
    """The last batch that is committed, or surely will be."""
    return query.committed if query.decided is None else query.decided.batch_id


def _difference(rows: StagedRows, committed: StagedRows) -> str:
    counts = f"{rows.row_count} rows now, {committed.row_count} then"
    return f", with other rows ({counts}). Was the query put back to an earlier checkpoint, or is it not deterministic?"


def _refused(query: StagedQuery, path: TablePath, batch_id: int, reason: str) -> InvalidRequestError:
    last = _last(query)
    import shlex  # only for the text of an error

    name = f"{path} {shlex.quote(query.query_id)}"
    back = f" --to {batch_id - 1}" if batch_id else ""
    return InvalidRequestError(
        f"Batch {batch_id} of query {query.query_id!r} is refused: batch {last} is the last one committed to table "
        f"{path}{reason} If the table has the rows of all batches up to {last}: `fluss staged accept {name} {last}`. "
        "If the rows from this batch on are to be stored, those that are there a second time: "
        f"`fluss staged reset {name}{back}`.",
        ErrorCode.INVALID_TABLE_EXCEPTION,
    )


class StagedCommit:
    """One run. When it fails it can be run again, as another object."""

    def __init__(self, storage: Storage, query: StagedQuery, decided: StagedDecision) -> None:
        entry = storage.catalog.table_by_id(query.table_id)
        self._storage = storage
        self._query = query
        self._decided = decided
        self._has_primary_key = entry is not None and has_primary_key(entry.table_json)
        self._stored: dict[TableBucket, int] = {}  # the last sequence that was in the log before; -1: none
        self._sequences: dict[TableBucket, int] = {}  # of the next batch
        self._puts: list[tuple[TableBucket, Put]] = []

    @property
    def buckets(self) -> list[TableBucket]:
        """Those that have batches."""
        return list(self._stored)

    async def run(self) -> None:
        """Return when all is appended, durable, and visible to readers; if it fails, nothing is left under way."""
        try:
            await self._store()
        except Exception:
            # Puts of other buckets go on, and the next run must know how far they came.
            if self._puts:
                await asyncio.wait([put.applied for _, put in self._puts])
            raise

    async def _store(self) -> None:
        for task in sorted(self._decided.tasks):
            for sequence in range(task.request_count):
                request = await self._read(task.task, task.attempt, sequence)
                for bucket, records in request.batches:
                    with self._unless_dropped(bucket):
                        await self._write(bucket, records, request)
        for bucket, put in self._puts:
            with self._unless_dropped(bucket):
                await put.applied
        await self._make_durable()

    async def _read(self, task: int, attempt: int, sequence: int) -> StagedRequest:
        query = staged_files.query_name(self._query.query_id)
        key = StagedKey(self._query.table_id, query, self._decided.batch_id, task, attempt, sequence)
        directory = self._storage.staging_path(key.table_id)
        try:
            return await self._storage.run_blocking(partial(staged_files.read, directory, key))
        except OSError as error:
            text = f"{files.shown(directory / key.file_name)}: the staged rows can't be read: {files.reason(error)}"
            raise FlussError(text, ErrorCode.LOG_STORAGE_EXCEPTION) from error

    @contextmanager
    def _unless_dropped(self, bucket: TableBucket) -> Iterator[None]:
        """What is for a dropped partition is left out."""
        try:
            yield
        except FlussError:
            if self._storage.exists(bucket):
                raise

    async def _write(self, bucket: TableBucket, records: memoryview, request: StagedRequest) -> None:
        writer_id = self._decided.writer_id
        if bucket not in self._stored:
            last = (await self._storage.opened(bucket)).last_sequence(writer_id)
            self._stored[bucket] = -1 if last is None else last
        sequence = self._sequences.get(bucket, 0)
        self._sequences[bucket] = sequence + 1
        if sequence <= self._stored[bucket]:
            return
        if self._has_primary_key:
            await self._put(bucket, records, sequence, request)
            return
        log_batch.set_writer(records, writer_id, sequence)
        log = await self._storage.opened(bucket)
        log.append(records, log_batch.parse_header(records), self._storage.clock.now_ms())

    async def _put(self, bucket: TableBucket, records: memoryview, sequence: int, request: StagedRequest) -> None:
        from fluss.formats.batches import kv_batch  # A server of log tables does without pyarrow.

        kv_batch.set_writer(records, self._decided.writer_id, sequence, b"")
        kv = self._storage.kv.bucket(bucket)
        await kv.room()
        self._puts.append((bucket, kv.put(records, request.target_columns, overwrite=request.overwrite)))

    async def _make_durable(self) -> None:
        """In all modes: the staged rows, which are durable, are about to go."""
        for bucket in self._stored:
            with self._unless_dropped(bucket):
                (await self._storage.opened(bucket)).request_sync()
        for bucket in self._stored:
            with self._unless_dropped(bucket):
                log = await self._storage.opened(bucket)
                await log.flush()
                log.last_sequence(self._decided.writer_id)  # raises if the log has failed meanwhile

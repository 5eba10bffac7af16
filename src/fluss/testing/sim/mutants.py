"""Bugs that a simulation has to find: each is put into the program by name, before anything runs.

A mutant replaces one function, and nothing else. `python -m fluss.testing.sim --mutant NAME` runs seeds with one until
a seed fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from fluss.client.lookup.pending import Lookup
from fluss.client.net.connection import Connection
from fluss.client.write.bucket_queue import NOT_NUMBERED, BucketQueue
from fluss.client.write.encode_queue import BufferMemory
from fluss.storage import files
from fluss.storage.catalog.db import CatalogDatabase
from fluss.storage.failpoints import Site
from fluss.storage.kv.bucket import KvBucket
from fluss.storage.log import group_commit
from fluss.storage.log.group_commit import Durable
from fluss.storage.log.log import BucketLog
from fluss.storage.log.marks import Marks
from fluss.storage.log.writer_state import WriterTable


def _without(owner: Any, name: str, *sites: Site) -> Callable[[], None]:
    """Leave out a step towards the disk at some sites."""

    def apply() -> None:
        real = getattr(owner, name)

        def left_out(what: Any, site: Site) -> None:
            if site not in sites:
                real(what, site)

        setattr(owner, name, left_out)

    return apply


def _replaced(owner: Any, name: str, other: Any) -> Callable[[], None]:
    return lambda: setattr(owner, name, other)


def _accept_any_sequence(self: WriterTable, writer_id: int, sequence: int, now_ms: int) -> None:
    """Neither a repeat nor a gap is noticed."""


def _forget_no_writer_is_wrong(self: WriterTable, header: Any) -> None:
    """Recovery knows nothing of writers, so a batch that is sent again is stored again."""


def _promise_at_once(self: BucketLog, last_offset: int) -> Durable:
    self._sync_covering(last_offset)
    return self._done


def _ignore_errors(job: Any) -> tuple[Exception | None, float]:
    try:
        job.run()
    except OSError:
        pass
    return None, 0.0


async def _fold_without_overlay(self: KvBucket, request: Any) -> Any:
    kept, self._unapplied = self._unapplied, type(self._unapplied)()
    try:
        return await _real_fold(self, request)
    finally:
        self._unapplied = kept


_real_fold = KvBucket._fold


class _SendsAllTheSame:
    """A transport that sends what it has before it ends."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.abort = transport.close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _connect_softly(self: Connection, transport: Any) -> None:
    softly: Any = _SendsAllTheSame(transport)
    _real_connection_made(self, softly)


_real_connection_made = Connection.connection_made


def _send_all_the_same() -> None:
    """A client that is closed lets leave what is on its way."""
    vars_of: Any = Connection
    vars_of.connection_made = _connect_softly
    vars_of.cut = lambda self: None


def _number_anew(self: BucketQueue, batch: Any, now: float, *, in_doubt: bool) -> None:
    """A batch that is tried again gets a new number, so nobody knows that it is a repeat."""
    _real_again(self, batch, now, in_doubt=in_doubt)
    batch.sequence = NOT_NUMBERED


_real_again = BucketQueue.again


def _resolve_strictly(self: Lookup) -> None:
    """As it was: a lookup that all have left has no results, and telling nobody fails."""
    if self.error is None:
        list(zip(self.callers, self.results, strict=True))
    _real_resolve(self)


_real_resolve = Lookup.resolve


def _fail_and_cut(self: BucketLog, error: Exception, *, keeps_tail: bool = False) -> Any:
    """As it was: rows are cut whose mark may be there."""
    return _real_fail(self, error)


_real_fail = BucketLog._fail


def _do_nothing(*_: Any, **__: Any) -> None:
    """Leave it out."""


def _release_without_a_word(self: BufferMemory, size_bytes: int) -> None:
    with self._room:
        self.used_bytes -= size_bytes
        self.full = self.used_bytes >= self.limit_bytes


def _never_wake(self: BucketLog) -> None:
    """Whoever waits for rows is not told."""


def _advance_nothing(self: CatalogDatabase, counter: str, next_id: int) -> None:
    """Ids are given out again after a restart."""


async def _apply_before_durable(self: KvBucket) -> None:
    while self._unapplied:
        put = self._unapplied[0]
        failure = await self._apply([put])
        if self._ended is not None:
            break
        self._unapplied.popleft()
        self._unapplied_bytes = sum(put.prepared.size_bytes for put in self._unapplied)
        self._done([put], failure)
        await asyncio.sleep(0)
    self._applying = False


MUTANTS: Final[dict[str, Callable[[], None]]] = {
    "segment-not-synced": _without(files, "sync", Site.SEGMENT_COMMIT),
    "sealed-segment-not-synced": _without(files, "sync", Site.SEGMENT_SEAL),
    "segment-name-not-synced": _without(files, "sync_directory", Site.SEGMENT_CREATE, Site.SEGMENT_NAME),
    "bucket-name-not-synced": _without(files, "sync_directory", Site.BUCKET_DIRECTORY),
    "staged-rows-not-synced": _without(files, "sync", Site.STAGING_REPLACE),
    "lake-offsets-not-synced": _without(files, "sync", Site.LAKE_REPLACE),
    "sequence-not-checked": _replaced(WriterTable, "check", _accept_any_sequence),
    "writers-not-recovered": _replaced(WriterTable, "fold", _forget_no_writer_is_wrong),
    "promise-before-sync": _replaced(BucketLog, "_durable_at", _promise_at_once),
    "sync-error-ignored": _replaced(group_commit, "_run", _ignore_errors),
    "watermark-too-early": _replaced(BucketLog, "high_watermark", property(lambda self: self._end)),
    "overlay-dropped-early": _replaced(KvBucket, "_fold", _fold_without_overlay),
    "store-before-log": _replaced(KvBucket, "_apply_all", _apply_before_durable),
    "sends-after-close": _send_all_the_same,
    "retry-with-a-new-number": _replaced(BucketQueue, "again", _number_anew),
    "abandoned-lookup-raises": _replaced(Lookup, "resolve", _resolve_strictly),
    "cut-behind-a-mark": _replaced(BucketLog, "_fail", _fail_and_cut),
    "staged-query-not-kept": _replaced(CatalogDatabase, "put_staged_query", _do_nothing),
    "lake-snapshot-not-kept": _replaced(CatalogDatabase, "put_lake_snapshot", _do_nothing),
    "marks-not-written": _replaced(Marks, "put", _do_nothing),
    "lost-wake-up-of-readers": _replaced(BucketLog, "_wake", _never_wake),
    "lost-wake-up-of-writers": _replaced(BufferMemory, "release", _release_without_a_word),
    "id-reused": _replaced(CatalogDatabase, "_advance", _advance_nothing),
}

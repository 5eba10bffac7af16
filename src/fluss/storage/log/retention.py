"""Retention: whole segments removed from the beginning of a log, because they are too old or there is too much.

A pass looks at the files of all buckets, in a thread and without opening their logs; only a log that has something to
lose is opened. A segment is too old when its newest batch was committed before the time limit; one that takes appends
is sealed first. That is judged only while the clock can be trusted. A batch that was stamped in the future, by a clock
that was wrong, is as old as the first batch behind it whose time may be right; without one it stays.

By size, the oldest go while those behind them still have as many bytes as are to be kept. The log of a primary-key
table stays from the older of its two snapshots on, for its rows are rebuilt from there. The log of a table that is
tiered stays from where its lake snapshot ends; all of it, while there is none.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from fluss.model.clock import Clock
from fluss.model.errors import CorruptDataError, FlussError
from fluss.model.paths import TableBucket
from fluss.model.tables.options import LOG_TTL, duration_ms
from fluss.storage import files
from fluss.storage.catalog.catalog import TableEntry
from fluss.storage.catalog.view import DefinitionCache, has_primary_key, lake_freshness_ms
from fluss.storage.kv.snapshots import KvSnapshots
from fluss.storage.log.index import OffsetIndex, scan
from fluss.storage.log.segment import INDEX_SUFFIX, LOG_SUFFIX, list_base_offsets, segment_path
from fluss.storage.store import Storage

_log = logging.getLogger(__name__)

TTL_MS_DEFAULT: Final = 7 * 24 * 60 * 60 * 1_000
SIZE_KEY: Final = "log.retention.size-bytes"
INTERVAL_MS: Final = 60_000
UNLIMITED: Final = 0
# Buckets looked at in one job of a thread.
_SURVEY_BUCKETS: Final = 64


class Policy(NamedTuple):
    """What to keep of each bucket of a table; 0 or less: everything."""

    ttl_ms: int
    size_bytes: int


class Removal(NamedTuple):
    """What may go of a bucket: everything before an offset, and the active segment too if it is older than a time."""

    bucket: TableBucket
    start: int
    remove_before: int
    seal_before_ms: int | None


class _SegmentFile(NamedTuple):
    base_offset: int
    size_bytes: int
    modified_ms: int


@DefinitionCache
def policy_of(table_json: bytes, size_bytes_default: int) -> Policy:
    """The policy in the table's properties; one that can't be read counts as not set."""
    table = json.loads(table_json)
    ttl_ms = duration_ms(table.get("properties", {}).get(LOG_TTL, ""))
    size_text = table.get("custom_properties", {}).get(SIZE_KEY, "")
    size_bytes = int(size_text) if size_text.isascii() and size_text.isdigit() else size_bytes_default
    return Policy(TTL_MS_DEFAULT if ttl_ms is None else ttl_ms, size_bytes)


class Retention:
    """Removes old segments. With `kv_snapshots` logs of primary-key tables are cut behind snapshots."""

    def __init__(
        self,
        storage: Storage,
        *,
        size_bytes: int = UNLIMITED,
        kv_snapshots: KvSnapshots | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._storage = storage
        self._size_bytes = size_bytes
        self._kv_snapshots = kv_snapshots
        self._clock = clock or storage.clock
        self._is_lake_tidy = False

    def set_size_bytes(self, size_bytes: int) -> None:
        """Change the size from the next pass on, for tables that say nothing of it."""
        self._size_bytes = size_bytes

    async def run(self, interval_ms: int = INTERVAL_MS) -> None:
        """A pass every so often, until cancelled."""
        while True:
            await asyncio.sleep(interval_ms / 1_000)
            try:
                await self.run_once()
            except Exception:
                _log.exception("a retention pass failed, the next one comes in %d ms", interval_ms)

    async def run_once(self) -> None:
        """Look at all buckets and remove what may go."""
        now_ms = self._clock.expiry_ms()
        if now_ms is not None and not self._is_lake_tidy:
            await self._storage.lake.remove_unused(now_ms)
            self._is_lake_tidy = True
        for table_id in [entry.table_id for entry in self._storage.catalog.all_tables()]:
            entry = self._storage.catalog.table_by_id(table_id)
            if entry is None:
                continue
            policy = policy_of(entry.table_json, self._size_bytes)
            # Asked for each table: a pass may take long.
            now_ms = self._clock.expiry_ms()
            if now_ms is None:
                policy = policy._replace(ttl_ms=UNLIMITED)
            if policy.ttl_ms <= 0 and policy.size_bytes <= 0:
                continue
            buckets = self._buckets(entry)
            while chunk := list(islice(buckets, _SURVEY_BUCKETS)):
                job = partial(_survey, chunk, policy, now_ms or 0)
                for removal in await self._storage.run_blocking(job):
                    await self._remove(removal)

    def _buckets(self, entry: TableEntry) -> Iterator[tuple[TableBucket, Path]]:
        for bucket in self._storage.buckets(entry):
            yield bucket, self._storage.bucket_path(bucket)

    async def _remove(self, removal: Removal) -> None:
        bucket, start, offset, seal_before_ms = removal
        if (opening := self._storage.opening([bucket])) is not None:
            await opening
        try:
            log = self._storage.bucket(bucket)
        except FlussError as error:
            _log.info("%s: nothing is removed: %s", bucket, error)
            return
        # Somebody who waits: the log is not closed meanwhile.
        stop_waiting = log.on_advance(lambda: None)
        try:
            if seal_before_ms is not None and log.seal_if_older(seal_before_ms):
                offset = log.log_end_offset
            offset = await self._removable_before(bucket, offset)
            if offset > start:
                async with self._storage.segments_lock:
                    await log.remove_before(offset)
                _log.info("%s: offsets %d to %d were removed", bucket, start, log.log_start_offset - 1)
        except (OSError, FlussError) as error:
            _log.warning("%s: old segments could not be removed: %s", bucket, error)
        finally:
            stop_waiting()

    async def _removable_before(self, bucket: TableBucket, wanted: int) -> int:
        entry = self._storage.catalog.table_by_id(bucket.table_id)
        if entry is None:
            return wanted
        if lake_freshness_ms(entry.table_json) is not None:
            wanted = min(wanted, self._storage.lake.log_kept_from(bucket))
        if not has_primary_key(entry.table_json):
            return wanted
        kept_from = 0 if self._kv_snapshots is None else await self._kv_snapshots.log_kept_from(bucket, wanted)
        return min(wanted, kept_from)


def _survey(buckets: Sequence[tuple[TableBucket, Path]], policy: Policy, now_ms: int) -> list[Removal]:
    removals = (_look_at(bucket, directory, policy, now_ms) for bucket, directory in buckets)
    return [removal for removal in removals if removal is not None]


def _look_at(bucket: TableBucket, directory: Path, policy: Policy, now_ms: int) -> Removal | None:
    segments = _segment_files(directory)
    if not segments:
        return None
    start = segments[0].base_offset
    remove_before, seal_before_ms = start, None
    if policy.ttl_ms > 0:
        kept_ms = range(now_ms - policy.ttl_ms, now_ms + 1)
        remove_before = _expired_before(directory, segments, kept_ms)
        last = segments[-1]
        if remove_before == last.base_offset and last.size_bytes and last.modified_ms not in kept_ms:
            seal_before_ms = kept_ms.start
    if policy.size_bytes > 0:
        remove_before = max(remove_before, _surplus_before(segments, policy.size_bytes))
    if remove_before == start and seal_before_ms is None:
        return None
    return Removal(bucket, start, remove_before, seal_before_ms)


def _segment_files(directory: Path) -> list[_SegmentFile]:
    found = []
    for base_offset in list_base_offsets(directory):
        try:
            status = os.stat(segment_path(directory, base_offset, LOG_SUFFIX))
        except FileNotFoundError:
            # The table was dropped in this moment.
            return []
        found.append(_SegmentFile(base_offset, status.st_size, status.st_mtime_ns // 1_000_000))
    return found


def _expired_before(directory: Path, segments: list[_SegmentFile], kept_ms: range) -> int:
    for number, segment in enumerate(segments[:-1]):
        # Files are changed when their last batch is committed, or later, by a clock that may have been wrong then: such
        # a time can save the second look, but nothing goes because of it.
        if segment.modified_ms in kept_ms or not _is_expired(directory, segments[number:], kept_ms):
            return segment.base_offset
    return segments[-1].base_offset


def _is_expired(directory: Path, segments: list[_SegmentFile], kept_ms: range) -> bool:
    """Whether the first of these segments is too old, by what was stamped into its batches or those behind it."""
    newest_ms = _newest_ms(directory, segments[0])
    for later in segments[1:]:
        if newest_ms is not None and newest_ms < kept_ms.stop:
            break
        newest_ms = _first_ms(directory, later)
    return newest_ms is not None and newest_ms < kept_ms.start


def _newest_ms(directory: Path, segment: _SegmentFile) -> int | None:
    """The commit time of its last batch, by its index or the batches themselves; None where that can't be read."""
    try:
        loaded = OffsetIndex.decode(
            segment_path(directory, segment.base_offset, INDEX_SUFFIX).read_bytes(), segment.base_offset
        )
        if loaded is not None and loaded[1].size_bytes == segment.size_bytes:
            return loaded[1].timestamp_ms_max
    except OSError:
        pass
    return max(_stamps(directory, segment), default=None)


def _first_ms(directory: Path, segment: _SegmentFile) -> int | None:
    """The commit time of its first batch; None where that can't be read."""
    return next(_stamps(directory, segment), None)


def _stamps(directory: Path, segment: _SegmentFile) -> Iterator[int]:
    """Commit times of the batches, as far as the file can be walked."""
    path = segment_path(directory, segment.base_offset, LOG_SUFFIX)
    try:
        fd = files.open_existing(path, writable=False)
    except OSError:
        return
    try:
        for _, header in scan(fd, path, 0, segment.size_bytes, segment.base_offset, verify=False):
            yield header.commit_timestamp_ms
    except (OSError, CorruptDataError) as error:
        _log.warning("%s: how old its rows are can't be read from there on: %s", path, error)
    finally:
        files.close(fd)


def _surplus_before(segments: list[_SegmentFile], size_bytes_kept: int) -> int:
    size_bytes = sum(segment.size_bytes for segment in segments)
    for segment in segments[:-1]:
        size_bytes -= segment.size_bytes
        if size_bytes < size_bytes_kept:
            return segment.base_offset
    return segments[-1].base_offset

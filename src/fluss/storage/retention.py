"""Removing what is too old or too much: whole segments, from the beginning of a log.

A pass looks at the files of all buckets, in a thread and without opening their logs; only a log that has something to
lose is opened. A segment is too old when its newest batch was committed before the time limit; one that takes appends
is sealed first. By size, the oldest go while those behind them still have as many bytes as are to be kept. The log of a
primary-key table stays from the older of its two snapshots on, for its rows are rebuilt from there. The log of a table
that is tiered stays from where its lake snapshot ends; all of it, while there is none.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from fluss.model.durations import duration_ms, wall_clock_ms
from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket
from fluss.model.table_options import LOG_TTL
from fluss.storage.catalog import TableEntry
from fluss.storage.catalog_view import has_primary_key, lake_freshness_ms
from fluss.storage.index import OffsetIndex
from fluss.storage.kv_snapshots import KvSnapshots
from fluss.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, list_base_offsets, segment_path
from fluss.storage.store import Storage

_log = logging.getLogger(__name__)

TTL_MS_DEFAULT: Final = 7 * 24 * 60 * 60 * 1_000
SIZE_KEY: Final = "log.retention.size-bytes"
INTERVAL_MS: Final = 60_000
UNLIMITED: Final = 0
# Buckets looked at in one job of a thread.
_SURVEY_BUCKETS: Final = 64
_POLICIES_CACHED: Final = 16_384


class Policy(NamedTuple):
    """What to keep of each bucket of a table; 0 or less: everything."""

    ttl_ms: int
    size_bytes: int


class Finding(NamedTuple):
    """What may go of a bucket: everything before an offset, and the active segment too if it is older than a time."""

    bucket: TableBucket
    start: int
    remove_before: int
    seal_before_ms: int | None


class _SegmentFile(NamedTuple):
    base_offset: int
    size_bytes: int
    modified_ms: int


@lru_cache(_POLICIES_CACHED)
def policy_of(table_json: bytes, size_bytes_default: int) -> Policy:
    """By the table's properties; one that can't be read counts as not set."""
    table = json.loads(table_json)
    ttl_ms = duration_ms(table.get("properties", {}).get(LOG_TTL, ""))
    size_text = table.get("custom_properties", {}).get(SIZE_KEY, "")
    size_bytes = int(size_text) if size_text.isascii() and size_text.isdigit() else size_bytes_default
    return Policy(TTL_MS_DEFAULT if ttl_ms is None else ttl_ms, size_bytes)


class Retention:
    """With `kv_snapshots`, logs of primary-key tables are cut behind snapshots; without, they stay whole."""

    def __init__(
        self,
        storage: Storage,
        *,
        size_bytes: int = UNLIMITED,
        kv_snapshots: KvSnapshots | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._storage = storage
        self._size_bytes = size_bytes
        self._kv_snapshots = kv_snapshots
        self._now_ms = now_ms

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
        for table_id in [entry.table_id for entry in self._storage.catalog.all_tables()]:
            entry = self._storage.catalog.table_by_id(table_id)
            if entry is None:
                continue
            policy = policy_of(entry.table_json, self._size_bytes)
            if policy.ttl_ms <= 0 and policy.size_bytes <= 0:
                continue
            buckets = self._buckets(entry)
            while chunk := list(islice(buckets, _SURVEY_BUCKETS)):
                job = partial(_survey, chunk, policy, self._now_ms())
                for finding in await self._storage.run_blocking(job):
                    await self._remove(finding)

    def _buckets(self, entry: TableEntry) -> Iterator[tuple[TableBucket, Path]]:
        for bucket in self._storage.buckets(entry):
            yield bucket, self._storage.bucket_path(bucket)

    async def _remove(self, finding: Finding) -> None:
        bucket, start, offset, seal_before_ms = finding
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


def _survey(buckets: Sequence[tuple[TableBucket, Path]], policy: Policy, now_ms: int) -> list[Finding]:
    findings = (_look_at(bucket, directory, policy, now_ms) for bucket, directory in buckets)
    return [finding for finding in findings if finding is not None]


def _look_at(bucket: TableBucket, directory: Path, policy: Policy, now_ms: int) -> Finding | None:
    segments = _segment_files(directory)
    if not segments:
        return None
    start = segments[0].base_offset
    remove_before, seal_before_ms = start, None
    if policy.ttl_ms > 0:
        oldest_kept_ms = now_ms - policy.ttl_ms
        remove_before = _expired_before(directory, segments, oldest_kept_ms)
        last = segments[-1]
        if remove_before == last.base_offset and last.size_bytes and last.modified_ms < oldest_kept_ms:
            seal_before_ms = oldest_kept_ms
    if policy.size_bytes > 0:
        remove_before = max(remove_before, _surplus_before(segments, policy.size_bytes))
    if remove_before == start and seal_before_ms is None:
        return None
    return Finding(bucket, start, remove_before, seal_before_ms)


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


def _expired_before(directory: Path, segments: list[_SegmentFile], oldest_kept_ms: int) -> int:
    for segment in segments[:-1]:
        # Files are changed when their last batch is committed, or later: most need no second look.
        if segment.modified_ms >= oldest_kept_ms or _newest_ms(directory, segment) >= oldest_kept_ms:
            return segment.base_offset
    return segments[-1].base_offset


def _newest_ms(directory: Path, segment: _SegmentFile) -> int:
    """When its last batch was committed, by its index; without one, when the file was changed last."""
    try:
        data = segment_path(directory, segment.base_offset, INDEX_SUFFIX).read_bytes()
    except OSError:
        return segment.modified_ms
    loaded = OffsetIndex.decode(data, segment.base_offset)
    if loaded is None or loaded[1].size_bytes != segment.size_bytes:
        return segment.modified_ms
    return loaded[1].timestamp_ms_max


def _surplus_before(segments: list[_SegmentFile], size_bytes_kept: int) -> int:
    size_bytes = sum(segment.size_bytes for segment in segments)
    for segment in segments[:-1]:
        size_bytes -= segment.size_bytes
        if size_bytes < size_bytes_kept:
            return segment.base_offset
    return segments[-1].base_offset

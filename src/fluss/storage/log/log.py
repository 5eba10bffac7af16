"""The log of one bucket: checks and appends batches, knows what is durable, is read-only after a failed sync.

All calls are made on the loop, except that `LogSync.run` may run in a thread. An append puts bytes into the page cache
and hands out a future; the high watermark follows the syncs, so a reader never sees a batch that a crash can take back
(with `fsync=False` it follows the appends, and a power loss can take the last seconds). Before anybody is told that a
batch is safe, the log's mark says so. A full segment is synced in a thread like any other, before those behind it;
meanwhile batches go to the next one, which has no name yet and is not found by recovery: the rest of a segment can't be
torn when there is a next one. The checksum of a batch is checked here; before that only those of staged batches, and of
batches that are refused anyway, to name the right error. A failed sync makes the log read-only for good: what reached
the disk is unknown, so the unacknowledged tail is cut off and no later sync is asked to vouch for it. One that got no
descriptor for a directory was not begun, and is tried again.
"""

# Large on purpose: nearly all of it is one class, whose state an append, a sync and a read share.

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from fluss.formats.batches.log_batch import NO_WRITER_ID, BatchHeader, stamp, verify_crc
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError
from fluss.storage import files
from fluss.storage.failpoints import Site
from fluss.storage.files import StorageStats
from fluss.storage.log.group_commit import UNPROVEN_SYNC_S, Durable, GroupCommit
from fluss.storage.log.index import ALL_BATCHES, CorruptBatchError
from fluss.storage.log.marks import UNKNOWN_HEADS, LogMark, Mark
from fluss.storage.log.recovery import Recovered, lineage, make_lineage, recover, write_disposable
from fluss.storage.log.segment import (
    WRITERS_SUFFIX,
    Segment,
    SegmentList,
    remove_segment_files,
    segment_path,
    unreadable,
)
from fluss.storage.log.writer_state import EXPIRY_MS, KeepsWriter, StoredBatch, keeps_none

_log = logging.getLogger(__name__)

SEGMENT_SIZE_BYTES: Final = 256 * 1024 * 1024
SEGMENT_SIZE_BYTES_MAX: Final = 1024 * 1024 * 1024
CHECKPOINT_INTERVAL_BYTES: Final = 16 * 1024 * 1024
# So much is written out while the sync before it waits for the disk; less is better gathered for the next one.
OVERLAP_BYTES_MIN: Final = 256 * 1024
# Up to here a sync takes hardly longer than one of a single row.
SMALL_SYNC_BYTES_MAX: Final = 64 * 1024
# A last commit time so far ahead is of a clock that was wrong: times go back, in a segment of their own. Up to here
# they stay where they are until the clock is there.
STAMP_AHEAD_MS_MAX: Final = 24 * 60 * 60 * 1_000
# A sync that got no descriptor is tried again after so long.
SYNC_RETRY_S: Final = 0.2
# So many full segments may wait for their sync; then the last one takes more than its size. Each keeps a file open.
UNSEALED_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class LogOptions:
    fsync: bool = True
    # Called with the size of each batch before it is written; raises when there is no room.
    admit: Callable[[int], None] = lambda _: None
    stats: StorageStats = field(default_factory=StorageStats)
    segment_size_bytes: int = SEGMENT_SIZE_BYTES
    checkpoint_interval_bytes: int = CHECKPOINT_INTERVAL_BYTES
    writer_expiry_ms: int = EXPIRY_MS
    keeps_writer: KeepsWriter = keeps_none  # whose state is needed, however long it takes


class Appended(NamedTuple):
    base_offset: int
    last_offset: int
    durable: Durable
    duplicate: bool


class LogPosition(NamedTuple):
    """The place where a batch begins; that never changes."""

    segment_base_offset: int
    position: int


class LogCut(NamedTuple):
    """What a log has at one moment. Its files have it as long as they are there: nothing of it changes."""

    base_offsets: tuple[int, ...]  # of its segments
    end_offset: int
    size_bytes: int  # of the last segment
    timestamp_ms_max: int  # of the last segment
    writers: bytes | None  # their state; None: it is not known


@dataclass(slots=True, eq=False)
class LogSync:
    """One sync of a segment: names first, then bytes, then the disposable files that speak for them."""

    segment: Segment
    fd: int
    site: Site
    is_named: bool
    directories: tuple[tuple[Path, Site], ...]
    end_offset: int
    end_position: int
    heads_checksum: int | None  # of the segment up to there
    durable: Durable | None
    writes: tuple[tuple[Path, bytes, Site], ...]
    is_small: bool

    def run(self) -> None:
        if not self.is_named:
            self.segment.give_name()
        for directory, directory_site in self.directories:
            files.sync_directory(directory, directory_site)
        files.sync(self.fd, self.site)
        for path, data, write_site in self.writes:
            write_disposable(path, data, write_site)


@dataclass(slots=True)
class Unsealed:
    """A full segment that is not on disk yet."""

    segment: Segment
    durable: Durable | None  # of its batches that no sync in flight covers


class BucketLog:
    def __init__(
        self,
        directory: Path,
        root: Path,
        commit: GroupCommit,
        loop: asyncio.AbstractEventLoop,
        options: LogOptions,
        recovered: Recovered | None = None,
        mark: LogMark | None = None,
    ) -> None:
        """Open the bucket in `directory`, as `recovered` in a thread before, or recover it here and now.

        A bucket that was never written has no files.
        """
        self._directory = directory
        self._name = files.shown(directory)
        self._root = root
        self._commit = commit
        self._loop = loop
        self._options = options
        # Its table's directory, root/tables/<id>: the buckets of a table share their part of the threads.
        self.syncs_with = str(lineage(directory, root)[-3:][0])
        self.small_sync_s = UNPROVEN_SYNC_S
        self._done = Durable(loop=loop)
        self._done.complete()
        self._waiters: dict[int, Callable[[], None]] = {}
        self._waiter_ids = count()
        self._failure: tuple[str, int] | None = None
        self._keeps_tail = False  # when it failed, rows that nobody is told of were left
        self._closed: tuple[str, int] | None = None
        self._corruption_logged = ""
        self.batches_checked = 0  # by reads so far
        self._pending: Durable | None = None
        self._in_flight: list[LogSync] = []  # in the order in which they began
        self._put_off: list[LogSync] = []  # that got no descriptor; later ones cover them
        self._is_closing = False
        # Disposable files to be written, and up to where the log must be durable for that.
        self._deferred: dict[Path, tuple[bytes, Site, int]] = {}
        self._unsealed: list[Unsealed] = []  # all behind the first have no name yet, and nor has the active segment

        self._mark = mark
        found = None if mark is None else mark.found
        # A power loss may have taken what was acknowledged: that is what `fsync=False` means.
        self.may_lack_rows = not options.fsync or (found is not None and not found.is_certain)

        if recovered is None:
            recovered = recover(directory, root, options.writer_expiry_ms, options.keeps_writer, found)
        segments, self._writers, problem = recovered
        self._is_damaged = problem is not None
        if problem is not None:
            text = f"{problem.message}. The bucket is read-only; 'fluss repair' shows what a repair would lose"
            # Not a code of storage, which clients answer by trying again: this does not pass.
            self._failure = (text, ErrorCode.UNKNOWN_SERVER_ERROR)
        self._segments = SegmentList(segments, partial(commit.run, table=self.syncs_with), self._wake)
        active = self._segments.active
        self._end = active.end_offset if active else 0
        self._durable_end = self._end
        self._durable_position = active.size_bytes if active else 0  # in the first segment that is not sealed
        self._checkpoint_position = self._durable_position
        self._timestamp_ms = active.timestamp_ms_max if active else 0
        if active is not None and not self._is_damaged and found != self._mark_at_end(active):
            self._put_mark_at_end(active)

    def _put_mark(self, segment: Segment, position: int, end_offset: int, heads: int | None) -> None:
        """Note how far the log is safe."""
        if self._mark is not None:
            is_synced = self._options.fsync
            start = self._segments.start_offset
            self._mark.put(
                Mark(start, segment.base_offset, position, end_offset, heads or UNKNOWN_HEADS, True, is_synced)
            )

    def _put_mark_at_end(self, active: Segment, *, is_synced: bool = False) -> None:
        if self._mark is not None:
            self._mark.put(self._mark_at_end(active, is_synced=is_synced))

    def _mark_at_end(self, active: Segment, *, is_synced: bool = False) -> Mark:
        heads = active.index.heads_checksum or UNKNOWN_HEADS
        start, is_synced = self.log_start_offset, is_synced or self._options.fsync
        return Mark(start, active.base_offset, active.size_bytes, self._end, heads, is_synced=is_synced)

    # --- what there is

    @property
    def log_start_offset(self) -> int:
        return self._segments.start_offset

    @property
    def log_end_offset(self) -> int:
        return self._end

    @property
    def high_watermark(self) -> int:
        """The end of what readers may see."""
        return self._durable_end if self._options.fsync else self._end

    @property
    def is_read_only(self) -> bool:
        return self._failure is not None

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits and everything is durable: the log may be closed and opened again at will.

        Not a failed one: opening it again would forget the failure.
        """
        if self._waiters or self._put_off or self._segments.rebuilds or self._failure is not None:
            return False
        return self._durable_end == self._end and not self._commit.is_busy(self)

    @property
    def open_base_offsets(self) -> set[int]:
        """Base offsets of segments that are, or were lately, written or read."""
        return self._segments.open_base_offsets

    def cut(self) -> LogCut | None:
        """What a kill would leave of the log now, durable or not; None if it was never written to."""
        named = self._segments.named
        if not named:
            return None
        last, bases = named[-1], tuple(segment.base_offset for segment in named)
        is_all = last is self._segments.active and self._failure is None
        writers = self._writers.encode(self._end) if is_all else None
        end_offset = self._end if last is self._segments.active else last.end_offset
        return LogCut(bases, end_offset, last.size_bytes, last.timestamp_ms_max, writers)

    def on_advance(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back on the loop whenever the high watermark moves, or the log goes away; returns how to stop that."""
        key = next(self._waiter_ids)
        self._waiters[key] = callback

        def stop() -> None:
            self._waiters.pop(key, None)

        return stop

    # --- writing

    def repeated(self, writer_id: int, batch_sequence: int, now_ms: int) -> Appended | None:
        """What was appended when a writer sent this batch before; None for its next one, code 31 for any other."""
        self._check_takes_batches()
        stored = self._writers.check(writer_id, batch_sequence, now_ms) if writer_id != NO_WRITER_ID else None
        return None if stored is None else self._repeated(stored)

    def _repeated(self, stored: StoredBatch) -> Appended:
        return Appended(stored.base_offset, stored.last_offset, self._durable_at(stored.last_offset), True)

    def last_sequence(self, writer_id: int) -> int | None:
        """The sequence of a writer's last batch; None when it wrote none. Not of a failed log, which lost some."""
        self._check_usable()
        if self._failure is not None:
            raise FlussError(*self._failure)
        return self._writers.last_sequence(writer_id)

    def forget_writer(self, writer_id: int) -> None:
        """The writer will not come back."""
        self._writers.forget(writer_id)

    def append(self, batch: bytearray | memoryview, header: BatchHeader, now_ms: int) -> Appended:
        """Check one batch, stamp offset and commit time into it (in place), and write it."""
        self._check_takes_batches()
        if header.size_bytes != len(batch):
            raise CorruptDataError(f"log batch: {header.size_bytes} bytes announced, {len(batch)} received")
        verify_crc(batch, 0, header)
        if header.writer_id != NO_WRITER_ID:
            stored = self._writers.check(header.writer_id, header.batch_sequence, now_ms)
            if stored is not None:
                return self._repeated(stored)
        if self._failure is not None:
            raise FlussError(*self._failure)
        self._options.admit(len(batch))
        segment = self._segment_for(len(batch), now_ms)
        base_offset, last_offset = self._end, self._end + header.last_offset_delta
        timestamp_ms = now_ms if now_ms >= self._timestamp_ms else self._stamp_behind(segment, now_ms)
        stamp(batch, 0, base_offset, timestamp_ms)
        try:
            segment.append(batch, header, base_offset, timestamp_ms)
        except OSError as error:
            raise self._take_back(segment, error) from error
        if not self._options.fsync:
            self._mark_written(segment, last_offset + 1)
        self._options.stats.appended(header.record_count, len(batch))
        self._end = last_offset + 1
        self._timestamp_ms = timestamp_ms
        if header.writer_id != NO_WRITER_ID:
            stored = StoredBatch(header.batch_sequence, base_offset, last_offset)
            self._writers.record(header.writer_id, stored, timestamp_ms)
        if self._waiters and not self._options.fsync:
            self._wake()
        return Appended(base_offset, last_offset, self._durable_at(last_offset), False)

    def _mark_written(self, segment: Segment, end_offset: int) -> None:
        """Put the mark behind a batch that the system has, which counts as safe with `fsync=False`."""
        try:
            self._put_mark(segment, segment.size_bytes, end_offset, segment.index.heads_checksum)
        except OSError as error:
            raise self._fail(error) from error

    async def flush(self) -> None:
        """Return when everything appended so far is on disk, whatever the durability mode."""
        if self._needs_sync:
            await self._sync_covering(self._end - 1)
        await self._commit.settle(self)

    def request_sync(self) -> None:
        """Start making everything durable, without waiting."""
        if self._needs_sync:
            self._sync_covering(self._end - 1)

    @property
    def _needs_sync(self) -> bool:
        return self._end > self._durable_end and self._failure is None and self._closed is None

    def _durable_at(self, last_offset: int) -> Durable:
        if not self._options.fsync:
            return self._done
        return self._sync_covering(last_offset)

    def _sync_covering(self, last_offset: int) -> Durable:
        """The future of the sync that makes an offset durable; asks for one if none is under way."""
        if last_offset < self._durable_end:
            return self._done
        if self._failure is not None:
            raise FlussError(*self._failure)
        for job in (*self._put_off, *self._in_flight):
            if job.durable is not None and last_offset < job.end_offset:
                return job.durable
        self._commit.request(self)
        for unsealed in self._unsealed:
            if unsealed.durable is not None and last_offset < unsealed.segment.end_offset:
                return unsealed.durable
        if self._pending is None:
            self._pending = Durable(loop=self._loop)
        return self._pending

    def _stamp_behind(self, segment: Segment, now_ms: int) -> int:
        """The commit time of a batch when the last one's is later than now."""
        may_go_back = not segment.size_bytes and self._is_far_ahead(now_ms)
        return now_ms if may_go_back else self._timestamp_ms

    def _is_far_ahead(self, now_ms: int) -> bool:
        return self._timestamp_ms - now_ms > STAMP_AHEAD_MS_MAX

    def _segment_for(self, size_bytes: int, now_ms: int) -> Segment:
        """The segment that takes the next batch: a new one behind a full one, and behind times that are wrong."""
        active = self._segments.active
        goes_back = self._timestamp_ms > now_ms and self._is_far_ahead(now_ms)
        if active is not None and not (active.size_bytes and goes_back):
            room_bytes = self._options.segment_size_bytes - active.size_bytes
            if size_bytes <= room_bytes or not active.size_bytes:
                return active
            if len(self._unsealed) >= UNSEALED_MAX and active.size_bytes + size_bytes <= SEGMENT_SIZE_BYTES_MAX:
                return active
        try:
            return self._roll(active)
        except OSError as error:
            _log.error("%s: a new segment can't be made: %s", self._directory, error)
            text = f"{self._name}: a new segment can't be made: {files.reason(error)}"
            raise FlussError(text, ErrorCode.LOG_STORAGE_EXCEPTION) from error

    def _roll(self, active: Segment | None) -> Segment:
        if active is None:
            make_lineage(self._directory, self._root, Site.BUCKET_DIRECTORY)
        is_sealed = self._durable_end == self._end and self._pending is None
        segment = Segment.create(self._directory, self._end, is_named=is_sealed or not self._options.fsync)
        if active is None:
            parents = tuple((path, Site.BUCKET_DIRECTORY) for path in lineage(self._directory, self._root)[1:])
            segment.unsynced_directories += parents
        else:
            self._leave(active, is_sealed=is_sealed)
        self._defer_writers(segment)
        self._segments.add(segment)
        self._checkpoint_position = 0
        return segment

    def _leave(self, full: Segment, *, is_sealed: bool) -> None:
        """Write nothing to a segment any more: what is not on disk of it comes before all that follows."""
        self._defer(full.index_path, full.encode_index(), Site.INDEX_REPLACE)
        if is_sealed:
            self._durable_position = 0
            return
        self._unsealed.append(Unsealed(full, self._pending))
        self._pending = None
        self._commit.request(self)

    @property
    def _durable_segment(self) -> Segment | None:
        """The segment in which the durable end lies: those before it are sealed."""
        return self._unsealed[0].segment if self._unsealed else self._segments.active

    def _take_back(self, segment: Segment, error: OSError) -> FlussError:
        """A write failed half way: remove what there is of it, or give up on the log."""
        try:
            segment.cut(segment.size_bytes, segment.end_offset)
        except OSError as second:
            return self._fail(second)
        _log.error("%s: write failed: %s", segment.path, error)
        text = f"{files.shown(segment.path)}: write failed: {files.reason(error)}"
        return FlussError(text, ErrorCode.LOG_STORAGE_EXCEPTION)

    def _fail(self, error: Exception, *, keeps_tail: bool = False) -> FlussError:
        """Read-only from here on; nobody who waits is told that his batch is safe."""
        _log.error("%s: a sync or repair failed, the bucket is read-only: %s", self._directory, error)
        reason = files.reason(error) if isinstance(error, OSError) else str(error)
        text = f"{self._name}: a sync or repair failed, the bucket is read-only until the server restarts: {reason}"
        self._failure = (text, ErrorCode.LOG_STORAGE_EXCEPTION)
        self._end_waits(self._failure)
        self._keeps_tail = keeps_tail
        if self._options.fsync and not keeps_tail:
            self._cut_unacknowledged()
        return FlussError(*self._failure)

    def _cut_unacknowledged(self) -> None:
        last = self._durable_segment
        if last is None:
            return
        self._unsealed.clear()
        try:
            # None of them has its name, so what is left of the log has no gap, whatever becomes of this.
            for segment in self._segments.drop_behind(last):
                files.remove(segment.unnamed_path, Site.SEGMENT_REMOVE)
            last.cut(self._durable_position, self._durable_end)
        except OSError as error:
            _log.error("%s: the unacknowledged tail could not be cut: %s", last.path, error)
        self._end = self._durable_end

    def _end_waits(self, failure: tuple[str, int]) -> None:
        for job in (*self._put_off, *self._in_flight):
            if job.durable is not None:
                job.durable.fail(FlussError(*failure))
        for durable in (*(unsealed.durable for unsealed in self._unsealed), self._pending):
            if durable is not None:
                durable.fail(FlussError(*failure))
        self._pending = None

    # --- group commit calls these

    def may_overlap(self) -> bool:
        active = self._segments.active
        if active is None or not self._options.fsync or not active.has_spare_fd:
            return False
        if self._deferred or self._checkpoint_is_due(active):
            return False  # two that write the same files can't run at once
        last = self._in_flight[-1]
        if last.segment is not active:
            return False  # what is full comes first
        return active.size_bytes - last.end_position >= OVERLAP_BYTES_MIN

    def begin_sync(self) -> LogSync | None:
        segment = self._durable_segment
        if segment is None or self._failure is not None or self._closed is not None:
            return None
        if self._durable_end == self._end and not self._deferred:
            return None
        if self._unsealed:
            unsealed, site = self._unsealed[0], Site.SEGMENT_SEAL
            durable, unsealed.durable = unsealed.durable, None
        else:
            site = Site.SEGMENT_COMMIT
            durable, self._pending = self._pending, None
            self._prepare_active(segment)
        writes = self._take_deferred(segment.end_offset) if self._deferred else ()
        job = LogSync(
            segment,
            segment.free_fd([job.fd for job in self._in_flight]) if self._in_flight else segment.fd,
            site,
            segment.is_named,
            segment.unsynced_directories,
            segment.end_offset,
            segment.size_bytes,
            segment.index.heads_checksum,
            durable,
            writes,
            self._is_small(segment, writes),
        )
        self._in_flight.append(job)
        return job

    def _prepare_active(self, active: Segment) -> None:
        if self._checkpoint_is_due(active):
            self._defer_checkpoint(active)
        is_large = active.size_bytes - self._durable_position >= OVERLAP_BYTES_MIN
        if is_large and active.is_named and not self._in_flight:
            active.open_spare_fd()

    def _take_deferred(self, end_offset: int) -> tuple[tuple[Path, bytes, Site], ...]:
        """The disposable files that may be written when the log is durable up to an offset."""
        due = {path: one for path, one in self._deferred.items() if one[2] <= end_offset}
        for path in due:
            del self._deferred[path]
        return tuple((path, data, site) for path, (data, site, _) in due.items())

    def _is_small(self, segment: Segment, writes: tuple[object, ...]) -> bool:
        if self._unsealed or writes or segment.unsynced_directories or not segment.is_named:
            return False
        return segment.size_bytes - self._durable_position <= SMALL_SYNC_BYTES_MAX

    def finish_sync(self, job: LogSync, error: Exception | None) -> None:
        if self._failure is None and self._closed is None:
            try:
                if error is not None:
                    raise error
                self._accept_sync(job)
            except Exception as failure:
                if files.lacks_descriptor(failure) and not self._is_closing:
                    self._try_later(job, failure)
                else:
                    # A mark that could not be written may be there all the same, and must not name what was cut.
                    self._fail(failure, keeps_tail=error is None)
        self._in_flight.remove(job)
        self._close_cold()

    def _try_later(self, job: LogSync, error: Exception) -> None:
        """Let all waiters of a sync wait for the next one: what it left undone proves nothing."""
        if not self._put_off:
            _log.warning("%s: a sync is put off until it can open a file: %s", self._directory, error)
        self._put_off.append(job)
        self._deferred = {path: (data, site, job.end_offset) for path, data, site in job.writes} | self._deferred
        self._loop.call_later(SYNC_RETRY_S, self._commit.request, self)

    def _accept_sync(self, job: LogSync) -> None:
        job.segment.is_named, job.segment.unsynced_directories = True, ()
        if job.end_offset > self._durable_end:
            if self._options.fsync:
                self._put_mark(job.segment, job.end_position, job.end_offset, job.heads_checksum)
            self._advance(job.end_offset, job.end_position)
        self._complete_covered()
        if self._unsealed:
            self._forget_sealed()
        if self._unsealed or self._pending is not None:
            self._commit.request(self)

    def _forget_sealed(self) -> None:
        while self._unsealed:
            first = self._unsealed[0]
            if first.durable is not None or first.segment.end_offset > self._durable_end:
                return
            del self._unsealed[0]
            self._durable_position = 0

    def _complete_covered(self) -> None:
        """Wake those who wait for what is durable now, in the order of the log: a later sync may return first."""
        for job in (*self._put_off, *self._in_flight):
            if job.durable is not None and job.end_offset <= self._durable_end:
                job.durable.complete()
        if self._put_off:
            self._put_off = [job for job in self._put_off if job.end_offset > self._durable_end]

    def _advance(self, end_offset: int, position: int) -> None:
        self._durable_end = end_offset
        self._durable_position = position
        if self._options.fsync:
            self._wake()

    def _wake(self) -> None:
        for callback in self._waiters.values():
            self._loop.call_soon(callback)

    def _checkpoint_is_due(self, active: Segment) -> bool:
        return active.size_bytes - self._checkpoint_position >= self._options.checkpoint_interval_bytes

    def _defer_checkpoint(self, active: Segment) -> None:
        self._defer(active.index_path, active.encode_index(), Site.INDEX_REPLACE)
        self._defer_writers(active)
        self._checkpoint_position = active.size_bytes

    def _defer(self, path: Path, data: bytes, site: Site) -> None:
        self._deferred[path] = (data, site, self._end)

    def _defer_writers(self, segment: Segment) -> None:
        path = segment_path(self._directory, segment.base_offset, WRITERS_SUFFIX)
        self._defer(path, self._writers.encode(self._end), Site.WRITERS_REPLACE)

    # --- reading

    def read(self, fetch_offset: int, max_bytes: int, *, verify: bool = False, batches_max: int = ALL_BATCHES) -> bytes:
        """Whole batches below the high watermark from the one with `fetch_offset` on; at least one if there is any.

        They are verified, unless this process has done that before and `verify` is not asked for. To verify a small
        batch takes as long as to copy a large one: `batches_max` says about how many are verified at most.
        """
        self._check_usable()
        if not self.log_start_offset <= fetch_offset <= self._end:
            raise FlussError(
                f"Offset {fetch_offset} is out of range: the log has offsets {self.log_start_offset} to {self._end}.",
                ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION,
            )
        if fetch_offset >= self.high_watermark:
            return b""
        segment = self._segments.at_offset(fetch_offset)
        checked = segment.batches_checked
        readable_bytes = segment.size_bytes
        is_cut = self._failure is not None and not self._keeps_tail
        if segment is self._durable_segment and self._options.fsync and not is_cut:
            readable_bytes = self._durable_position
        try:
            return segment.read(fetch_offset, max_bytes, readable_bytes, verify=verify, batches_max=batches_max)
        except OSError as error:
            raise unreadable(segment, error) from error
        except CorruptBatchError as error:
            # Readers may come back for ever: it is logged once.
            if error.message != self._corruption_logged:
                self._corruption_logged = error.message
                _log.error("%s: %s", self._directory, error)
            raise
        finally:
            self.batches_checked += segment.batches_checked - checked
            self._close_cold()

    async def read_indexed(self, fetch_offset: int, max_bytes: int) -> bytes:
        """As `read`, waiting for an index that has to be made."""
        with suppress(FlussError):
            self.locate(fetch_offset)
        await self._segments.indexed()
        return self.read(fetch_offset, max_bytes)

    def distrust(self) -> None:
        """Verify again what is read next, whatever was verified before."""
        self._segments.distrust()

    def locate(self, offset: int) -> LogPosition:
        """The place where the batch with an offset below the high watermark begins."""
        segment = self._segments.at_offset(offset)
        try:
            return LogPosition(segment.base_offset, segment.locate(offset)[0])
        except OSError as error:
            raise unreadable(segment, error) from error
        finally:
            self._close_cold()

    def bytes_behind(self, position: LogPosition) -> int:
        """How much a read from there could give by now."""
        last = self._durable_segment if self._options.fsync else self._segments.active
        if last is None or position.segment_base_offset != last.base_offset or self._failure is not None:
            # More can't come: a read does not go on into the next segment, and nothing is written to a failed log.
            return SEGMENT_SIZE_BYTES_MAX
        return (self._durable_position if self._options.fsync else last.size_bytes) - position.position

    def offset_for_timestamp(self, timestamp_ms: int, now_ms: int) -> int:
        """The first offset of the first batch committed at or after a time; the high watermark if there is none yet."""
        self._check_usable()
        if timestamp_ms > now_ms:
            raise FlussError(
                f"Timestamp {timestamp_ms} lies in the future, it is now {now_ms}.",
                ErrorCode.INVALID_TIMESTAMP_EXCEPTION,
            )
        try:
            offset = self._segments.offset_for_timestamp(timestamp_ms, now_ms)
        finally:
            self._close_cold()
        return self.high_watermark if offset is None else min(offset, self.high_watermark)

    # --- removing what is old

    def seal_if_older(self, timestamp_ms: int) -> bool:
        """Begin a new segment when all batches of the active one were committed before a time, so that it can go."""
        active = self._segments.active
        if active is None or not active.size_bytes or self._timestamp_ms >= timestamp_ms:
            return False
        if self._failure is not None or self._closed is not None or self._durable_end < self._end:
            return False
        try:
            self._roll(active)
        except OSError as error:
            _log.warning("%s: a new segment can't be made: %s", self._directory, error)
            return False
        return True

    async def remove_before(self, offset: int) -> None:
        """Remove sealed segments that end at or before an offset; the caller sees to it that the log stays open.

        What the removed batches say of their writers is kept in a checkpoint first. The start moves before the files
        go: readers are told, and a crash in between leaves more than was asked for, never a gap.
        """
        active = self._segments.active
        if active is None or self._failure is not None or self._closed is not None:
            return
        self._defer_checkpoint(active)
        if self._pending is None:
            self._pending = Durable(loop=self._loop)
            self._commit.request(self)
        await self._pending
        await self._commit.settle(self)
        if self._failure is not None or self._closed is not None:
            return
        self._options.stats.removed_segments += self._segments.remove_before(offset)
        await self._mark_start()
        writers_path = segment_path(self._directory, active.base_offset, WRITERS_SUFFIX)
        remove = partial(remove_segment_files, self._directory, self.log_start_offset, writers_path)
        await self._commit.run(remove, self.syncs_with)

    async def _mark_start(self) -> None:
        """Make it known that the log begins later: segments that are removed without that count as lost."""
        active, last = self._segments.active, self._durable_segment
        if active is None or last is None or self._mark is None:
            return
        if self._options.fsync:
            heads = last.index.heads_checksum if self._durable_position == last.size_bytes else None
            self._put_mark(last, self._durable_position, self._durable_end, heads)
        else:
            self._put_mark_at_end(active)
        await self._commit.run(self._mark.sync)

    def _close_cold(self) -> None:
        # A sync in flight may hold the descriptor of any segment that was active when it began.
        if not self._in_flight and self._segments.has_cold:
            self._segments.close_cold([unsealed.segment for unsealed in self._unsealed])

    # --- the end

    def _check_usable(self) -> None:
        if self._closed is not None:
            raise FlussError(*self._closed)

    def _check_takes_batches(self) -> None:
        """What the writers of a damaged log have sent is not known."""
        if self._closed is not None:
            raise FlussError(*self._closed)
        if self._is_damaged and self._failure is not None:
            raise FlussError(*self._failure)

    async def close(self) -> None:
        """Make everything durable, leave a checkpoint, close the files."""
        self._is_closing = True
        await self._segments.indexed()
        try:
            await self.flush()
        except FlussError as error:
            _log.error("%s: closed with unsynced batches: %s", self._directory, error)
        self.release()

    def release(self) -> None:
        """Leave a checkpoint and close the files of an idle log."""
        if self._closed is not None:
            return
        active = self._segments.active
        if active is not None and self._failure is None and self._durable_end == self._end:
            self._defer_checkpoint(active)
            for path, (data, site, _) in self._deferred.items():
                write_disposable(path, data, site)
            with suppress(OSError):
                self._put_mark_at_end(active, is_synced=True)
        self._closed = (f"{self._name}: the bucket was closed, look it up again", ErrorCode.LOG_STORAGE_EXCEPTION)
        self._segments.close()

    def end(self) -> None:
        """The table or partition is gone: tell everyone who waits. The files are closed by `discard`."""
        text = f"{self._name}: the table or partition was dropped"
        self._closed = (text, ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION)
        self._end_waits(self._closed)
        self._wake()

    async def discard(self) -> None:
        """Close the files of a log that was ended, when no sync holds them."""
        await self._commit.settle(self)
        await self._segments.indexed()
        self._segments.close()

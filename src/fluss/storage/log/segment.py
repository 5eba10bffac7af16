"""One segment, a file of batches with dense offsets; and the segments of a log in order, a few kept open.

Only the last segment of a log is ever written. Bytes are put at known positions, so a failed or torn append leaves
garbage only behind the segment's end, where the next append or recovery removes it. A sealed segment is opened when it
is first read; its bytes were synced before the next segment got its name, so anything wrong in it is corruption and
not a torn tail. Until then the next segment takes its batches under a temporary name, which recovery does not look at.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import sys
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

from fluss.formats.batches.log_batch import BatchHeader
from fluss.model.errors import ErrorCode, FlussError
from fluss.storage import files
from fluss.storage.failpoints import Site
from fluss.storage.files import BufferLike
from fluss.storage.log.index import (
    ALL_BATCHES,
    BATCHES_PER_ENTRY_MAX,
    ByteRanges,
    Checkpoint,
    CorruptBatchError,
    IndexEntry,
    OffsetIndex,
    WrongHeadsError,
    check,
    scan,
)

_log = logging.getLogger(__name__)

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
WRITERS_SUFFIX: Final = ".writers"
ASIDE_SUFFIX: Final = ".cut"
NO_TIMESTAMP_MS: Final = -1
# Read at a time where checksums are still to be compared: that is done on the loop, batch by batch.
UNCHECKED_BYTES_MAX: Final = 1 << 20
# An index is rebuilt on the loop from so much at most: of single rows these are 12,000 batches.
REBUILT_BYTES_MAX: Final = 1 << 20

_LOG_NAME: Final = re.compile(r"(\d{20})\.log\Z")
_DISPOSABLE_NAME: Final = re.compile(r"(\d{20})\.(?:(?:index|writers)(?:\.tmp)?|log\.tmp|log\.\d+\.cut)\Z")
_ASIDE_FILES_MAX: Final = 4  # of a bucket
_CLOSED: Final = -1
_NEXT_READS_MAX: Final = 64


def segment_path(directory: Path, base_offset: int, suffix: str) -> Path:
    return directory / f"{base_offset:020d}{suffix}"


def list_base_offsets(directory: Path) -> list[int]:
    """Base offsets of the segments in a directory, ascending; none if there is no directory."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for match in map(_LOG_NAME.match, names) if match)


def list_aside(directory: Path) -> list[Path]:
    """Files with bytes that were cut off from segments."""
    return list(directory.glob(f"*{LOG_SUFFIX}.*{ASIDE_SUFFIX}"))


def remove_unnamed(directory: Path) -> None:
    """Remove segments that had no name yet when the server ended: nothing in them was acknowledged."""
    for path in directory.glob(f"*{LOG_SUFFIX}{files.TEMPORARY_SUFFIX}"):
        files.remove(path, Site.SEGMENT_REMOVE)


def remove_segment_files(directory: Path, start_offset: int, writers_path: Path) -> None:
    """Remove the files of all segments before the one that begins at `start_offset`; called in a thread.

    The writers' state is made durable first: what it says of removed batches can't be rebuilt any more. Then the oldest
    segment goes first, and each is gone for good before the next: whatever a crash leaves has no gaps.
    """
    try:
        files.sync_path(writers_path, Site.SEGMENT_REMOVE)
    except OSError as error:
        _log.warning("%s: some writers will have to begin anew after a crash: %s", writers_path, error)
    names = os.listdir(directory)
    for match in map(_DISPOSABLE_NAME.match, names):
        if match and int(match[1]) < start_offset:
            files.remove(directory / match[0], Site.SEGMENT_REMOVE)
    for base_offset in list_base_offsets(directory):
        if base_offset < start_offset:
            files.remove(segment_path(directory, base_offset, LOG_SUFFIX), Site.SEGMENT_REMOVE)
            files.sync_directory(directory, Site.SEGMENT_REMOVE)


class UnindexedError(Exception):
    """A segment has no index, and to make it takes too long to be done on the loop."""


class Segment:
    __slots__ = (
        "_fd",
        "_next_reads",
        "_spare_fd",
        "base_offset",
        "batches_checked",
        "directory",
        "end_offset",
        "index",
        "is_damaged",
        "is_named",
        "limit_bytes",
        "path",
        "size_bytes",
        "timestamp_ms_max",
        "unsynced_directories",
        "verified",
        "wrong_heads",
    )

    def __init__(self, directory: Path, base_offset: int) -> None:
        self.directory = directory
        self.path = segment_path(directory, base_offset, LOG_SUFFIX)
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size_bytes = 0
        self.timestamp_ms_max = NO_TIMESTAMP_MS
        self.index = OffsetIndex(base_offset)
        self.verified = ByteRanges()
        self.batches_checked = 0  # by reads so far: what takes their time
        # Directories whose sync must come before the first acknowledged batch of this segment.
        self.unsynced_directories: tuple[tuple[Path, Site], ...] = ()
        # Where batches begin that readers got to: a reader who follows the log asks for the next one there.
        self._next_reads: dict[int, int] = {}
        self.is_named = True  # its file has its name, so that recovery finds it
        self.is_damaged = False  # an index that is made from it proves nothing
        self.limit_bytes: int | None = None  # of a damaged one: what lies behind was never acknowledged
        self.wrong_heads: WrongHeadsError | None = None  # nothing from there on can be relied on
        self._fd = _CLOSED
        self._spare_fd = _CLOSED

    @classmethod
    def create(cls, directory: Path, base_offset: int, *, is_named: bool = True) -> Segment:
        """A new segment; one that has no name yet gets it by `give_name`."""
        segment = cls(directory, base_offset)
        segment.is_named = is_named
        segment._fd = files.create(segment.path if is_named else segment.unnamed_path, Site.SEGMENT_CREATE)
        segment.unsynced_directories = ((directory, Site.SEGMENT_CREATE),) if is_named else ()
        return segment

    @property
    def unnamed_path(self) -> Path:
        return self.path.with_name(self.path.name + files.TEMPORARY_SUFFIX)

    def give_name(self) -> None:
        """Return when the file has its name, for good; called in a thread. The segment before must be durable."""
        if self.unnamed_path.exists():
            files.rename(self.unnamed_path, self.path, Site.SEGMENT_NAME)
        else:  # A sync before this one got so far.
            files.sync_directory(self.directory, Site.SEGMENT_NAME)

    @classmethod
    def sealed(cls, directory: Path, base_offset: int, end_offset: int) -> Segment:
        """A segment that ends where the next one begins; nothing is opened yet."""
        segment = cls(directory, base_offset)
        segment.end_offset = end_offset
        return segment

    @classmethod
    def open_last(cls, directory: Path, base_offset: int) -> tuple[Segment, int, Checkpoint | None]:
        """The last segment up to its checkpoint, the file's size, and the checkpoint: the caller recovers.

        Without a checkpoint, or with one that says more than the file has, the segment is empty at first.
        """
        segment = cls(directory, base_offset)
        loaded = segment._load_index()
        segment._fd = files.open_existing(segment.path, writable=True)
        file_size_bytes = os.fstat(segment._fd).st_size
        if loaded is None:
            return segment, file_size_bytes, None
        index, checkpoint = loaded
        if index is not None and checkpoint.size_bytes <= file_size_bytes:
            segment._adopt(index, checkpoint)
        return segment, file_size_bytes, checkpoint

    @property
    def is_open(self) -> bool:
        return self._fd != _CLOSED

    @property
    def fd(self) -> int:
        return self._fd

    @property
    def has_spare_fd(self) -> bool:
        return self._spare_fd != _CLOSED

    def open_spare_fd(self) -> None:
        """Open a descriptor for a second sync: of two on one descriptor only one would be told that a write failed."""
        if self._spare_fd == _CLOSED:
            try:
                self._spare_fd = files.open_existing(self.path, writable=False)
            except OSError as error:
                _log.warning("%s: syncs run one after the other: %s", self.path, error)

    def free_fd(self, used: list[int]) -> int:
        """The descriptor for a sync beside those on `used` ones."""
        return self._spare_fd if self._fd in used else self._fd

    @property
    def index_path(self) -> Path:
        return segment_path(self.directory, self.base_offset, INDEX_SUFFIX)

    def append(self, batch: BufferLike, header: BatchHeader, base_offset: int, timestamp_ms: int) -> None:
        """Write one stamped batch behind the last; on OSError nothing of it counts."""
        files.write_at(self._fd, batch, self.size_bytes, Site.SEGMENT_APPEND)
        self.accept(header, base_offset, timestamp_ms)

    def accept(self, header: BatchHeader, base_offset: int, timestamp_ms: int) -> None:
        """Count a batch, known to be good, that lies at the segment's end."""
        position = self.size_bytes
        self.index.add(header, base_offset, position, timestamp_ms)
        self.size_bytes = position + header.size_bytes
        self.end_offset = base_offset + header.last_offset_delta + 1
        self.timestamp_ms_max = timestamp_ms
        self.verified.add(position, self.size_bytes)

    def cut(self, size_bytes: int, end_offset: int) -> None:
        """Remove everything behind a batch boundary, from memory first: whatever the disk does, it is not served."""
        if size_bytes < self.size_bytes:
            self.index.heads_checksum = None
        self.size_bytes = size_bytes
        self.end_offset = end_offset
        self.index.cut(size_bytes)
        self.verified.cut(size_bytes)
        self._next_reads.clear()
        files.truncate(self._fd, size_bytes, Site.SEGMENT_CUT)

    def keep_aside(self, position: int, end: int) -> Path:
        """Copy bytes that are about to be cut off to a file of their own, and forget the oldest of such files."""
        target = self.path.with_name(f"{self.path.name}.{position}{ASIDE_SUFFIX}")
        files.remove(target, Site.SEGMENT_CUT)
        files.copy(self.path, target, end - position, Site.SEGMENT_CUT, start=position)
        earlier = sorted(list_aside(self.directory), key=lambda path: path.stat().st_mtime_ns)
        for path in earlier[:-_ASIDE_FILES_MAX]:
            files.remove(path, Site.SEGMENT_CUT)
        return target

    def sync(self, site: Site) -> None:
        """Make names and bytes durable, in the loop's thread."""
        for directory, directory_site in self.unsynced_directories:
            files.sync_directory(directory, directory_site)
        files.sync(self._fd, site)
        self.unsynced_directories = ()

    def batches(self, position: int, offset: int, *, verify: bool) -> Iterator[tuple[int, BatchHeader]]:
        return scan(self._fd, self.path, position, self.size_bytes, offset, verify=verify)

    def headers_from(self, offset: int, *, verify: bool = False) -> Iterator[tuple[int, BatchHeader]]:
        """Headers from the batch that contains `offset` to the end."""
        entry = self.index.at_offset(offset)
        for position, header in self.batches(entry.position, entry.offset, verify=verify):
            if header.last_offset >= offset:
                yield position, header

    def locate(self, offset: int) -> tuple[int, BatchHeader]:
        """The place of the batch with `offset`."""
        for found in self.headers_from(offset):
            return found
        raise self._ends_before(offset)

    def _ends_before(self, offset: int) -> CorruptBatchError:
        text = f"the file ends before offset {offset}, later offsets exist"
        return CorruptBatchError(self.path, self.size_bytes, text)

    def first_at_or_after(self, timestamp_ms: int) -> BatchHeader | None:
        """The first batch committed at `timestamp_ms` or later."""
        entry = self.index.before_timestamp(timestamp_ms)
        for _, header in self.batches(entry.position, entry.offset, verify=False):
            if header.commit_timestamp_ms >= timestamp_ms:
                return header
        return None

    def read(
        self, offset: int, max_bytes: int, readable_bytes: int, *, verify: bool, batches_max: int = ALL_BATCHES
    ) -> bytes:
        """Whole good batches from the one with `offset` on, within the segment's first `readable_bytes`.

        Where they are verified there are so many, or some more, up to where commit times can be verified.
        """
        known = self._next_reads.get(offset)
        position, base_offset = self._start_of(offset) if known is None else (known, offset)
        end = readable_bytes
        if self.wrong_heads is not None:
            end = min(end, self.wrong_heads.position)
            if position >= end:
                raise self.wrong_heads
        if not self.verified.contains(position, min(end, position + max_bytes)):
            max_bytes = min(max_bytes, UNCHECKED_BYTES_MAX)
        if end - position > max_bytes:
            # Cut at an indexed boundary: leaves at most one index interval unused, and saves walking every header.
            end = max(self.index.boundary(position + max_bytes), position + self.locate(offset)[1].size_bytes)
        data = b"" if verify else files.read_at(self._fd, end - position, position)
        if not self.verified.contains(position, end) or len(data) < end - position:
            data = self._read_checked(position, base_offset, end, batches_max)
        if position + len(data) == self.size_bytes:
            self._expect_read(self.end_offset, self.size_bytes)
        return data

    def _start_of(self, offset: int) -> tuple[int, int]:
        position, header = self.locate(offset)
        return position, header.base_offset

    def _read_checked(self, position: int, base_offset: int, end: int, batches_max: int) -> bytes:
        """What is good of the bytes from a batch on; raises if that is bad itself."""
        start = self.index.at_offset(base_offset)
        batches_max += BATCHES_PER_ENTRY_MAX  # those before the one that is asked for
        data = files.read_at(self._fd, end - start.position, start.position)
        good, count, problem = check(data, self.path, start.position, start.offset, self._heads_at, batches_max)
        if start.position + good <= position and not isinstance(problem, WrongHeadsError):
            # A bad batch between the entry and this one takes nothing from it but the proof of its commit time.
            data, start = data[position - start.position :], IndexEntry(base_offset, position)
            good, more, problem = check(data, self.path, position, base_offset, batches_max=batches_max)
            count += more
        self.batches_checked += count
        if start.position + good <= position:
            raise problem or self._ends_before(base_offset)
        self.verified.add(start.position, start.position + good)
        return data[position - start.position : good]

    def _heads_at(self, position: int) -> int | None:
        return self.index.heads_checksum if position == self.size_bytes else self.index.heads_at(position)

    def _expect_read(self, offset: int, position: int) -> None:
        if len(self._next_reads) >= _NEXT_READS_MAX:
            del self._next_reads[next(iter(self._next_reads))]
        self._next_reads[offset] = position

    def encode_index(self) -> bytes:
        checkpoint = Checkpoint(self.size_bytes, self.end_offset, self.timestamp_ms_max, self.index.heads_checksum)
        return self.index.encode(checkpoint)

    def twin(self) -> Segment:
        """The same sealed segment, not opened, to be made ready in a thread."""
        twin = Segment.sealed(self.directory, self.base_offset, self.end_offset)
        twin.is_damaged, twin.limit_bytes, twin.wrong_heads = self.is_damaged, self.limit_bytes, self.wrong_heads
        return twin

    def ensure_open(self, rebuilt_bytes_max: int = sys.maxsize) -> None:
        """Open a sealed segment, with its index from the file or rebuilt from at most so many bytes of the log."""
        if self.is_open:
            return
        self._fd = files.open_existing(self.path, writable=False)
        try:
            self.size_bytes = os.fstat(self._fd).st_size
            if self.limit_bytes is not None:
                self.size_bytes = min(self.size_bytes, self.limit_bytes)
            loaded = self._load_index()
            if loaded is None or loaded[0] is None or loaded[1][:2] != (self.size_bytes, self.end_offset):
                if self.size_bytes > rebuilt_bytes_max:
                    raise UnindexedError
                self._rebuild_index()
            else:
                self._adopt(loaded[0], loaded[1])
        except (OSError, UnindexedError):
            self.release()
            raise

    def release(self) -> None:
        """Close the file and forget the index."""
        if self.is_open:
            files.close(self._fd)
            self._fd = _CLOSED
        if self.has_spare_fd:
            files.close(self._spare_fd)
            self._spare_fd = _CLOSED
        self.index = OffsetIndex(self.base_offset)
        self.verified = ByteRanges()
        self._next_reads.clear()

    def _load_index(self) -> tuple[OffsetIndex | None, Checkpoint] | None:
        try:
            data = self.index_path.read_bytes()
        except OSError as error:
            if files.lacks_descriptor(error):
                raise  # It may well be there, and say how far the segment was safe.
            return None
        return OffsetIndex.decode(data, self.base_offset)

    def _adopt(self, index: OffsetIndex, checkpoint: Checkpoint) -> None:
        self.index = index
        self.size_bytes, self.end_offset, self.timestamp_ms_max, _ = checkpoint

    def _rebuild_index(self) -> None:
        """Index what can be walked. A break in the walk is met again, and reported, by a reader that gets there."""
        self.index = OffsetIndex(self.base_offset)
        end_offset = self.base_offset
        try:
            for position, header in self.batches(0, self.base_offset, verify=False):
                self.index.add(header, header.base_offset, position, header.commit_timestamp_ms)
                self.timestamp_ms_max = header.commit_timestamp_ms
                end_offset = header.next_offset
        except CorruptBatchError as error:
            _log.error("%s: %s", self.directory, error)
            return
        if end_offset == self.end_offset and not self.is_damaged:
            try:
                files.replace(self.index_path, self.encode_index(), Site.INDEX_REPLACE, durable=False)
            except OSError as error:
                _log.warning("%s was rebuilt but could not be written: %s", self.index_path, error)


SEALED_OPEN_MAX: Final = 4
_TRANSIENT_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
Run: TypeAlias = Callable[[Callable[[], None]], Awaitable[None]]  # work in a thread


class SegmentList:
    """The last segment is the active one: it is always open, the others when needed; in a damaged log it is, too."""

    def __init__(self, segments: list[Segment], run: Run, on_rebuilt: Callable[[], None]) -> None:
        self._run = run
        self._on_rebuilt = on_rebuilt
        self.rebuilds: dict[Segment, asyncio.Task[None]] = {}  # of indexes, in threads
        self._failed: set[Segment] = set()  # whose index could not be rebuilt: readers are told the reason
        self._is_closed = False
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        # Sealed and open, the one used last at the end.
        self._opened = [segment for segment in segments[:-1] if segment.is_open]
        # Plain attributes: each batch asks for them several times.
        self.active: Segment | None = None
        self.start_offset = 0
        self._find_ends()

    def _find_ends(self) -> None:
        if self._segments:
            self.active, self.start_offset = self._segments[-1], self._bases[0]

    @property
    def named(self) -> list[Segment]:
        """Those that a restart would find."""
        return [segment for segment in self._segments if segment.is_named]

    @property
    def open_base_offsets(self) -> set[int]:
        """Base offsets of the open segments, which are those that were read or written lately."""
        return {segment.base_offset for segment in self._segments if segment.is_open}

    def add(self, segment: Segment) -> None:
        """Make a new segment the active one."""
        if self._segments:
            self._opened.append(self._segments[-1])
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self._find_ends()

    def drop_behind(self, kept: Segment) -> list[Segment]:
        """Forget the segments behind one, which becomes the active one."""
        count = self._segments.index(kept) + 1
        dropped = self._segments[count:]
        for segment in dropped:
            segment.release()
        del self._segments[count:], self._bases[count:]
        self._opened = [segment for segment in self._opened if segment is not kept and segment not in dropped]
        self._find_ends()
        return dropped

    def remove_before(self, offset: int) -> int:
        """Forget the sealed segments that end at or before an offset; how many those were."""
        count = max(0, bisect_right(self._bases, offset) - 1)
        for segment in self._segments[:count]:
            segment.release()
            if segment in self._opened:
                self._opened.remove(segment)
        del self._segments[:count], self._bases[:count]
        self._find_ends()
        return count

    def at_offset(self, offset: int) -> Segment:
        """The segment with an offset that the log has, open."""
        return self._open(self._segments[bisect_right(self._bases, offset) - 1])

    def offset_for_timestamp(self, timestamp_ms: int, now_ms: int) -> int | None:
        """The first offset of the first batch committed at or after a time, None if there is none.

        Commit times grow along a log, but for those of a clock that was far ahead: behind them a segment begins with
        earlier ones. So a segment that begins in the future was committed no later than the next that does not.
        """
        low, high = 0, len(self._segments)
        while low < high:
            # Find the first segment that begins late enough; the batch may still be at the end of the one before.
            middle = (low + high) // 2
            told = self._first_of_the_past(middle, high, now_ms)
            if told is None:
                high = middle
            elif self._first_ms(told) < timestamp_ms:
                low = told + 1
            else:
                high = middle
        if low > 0:
            segment = self._open(self._segments[low - 1])
            try:
                found = segment.first_at_or_after(timestamp_ms)
            except OSError as error:
                raise unreadable(segment, error) from error
            if found is not None:
                return found.base_offset
        return self._bases[low] if low < len(self._bases) else None

    def _first_of_the_past(self, start: int, end: int, now_ms: int) -> int | None:
        """The first of some segments that does not begin in the future; None if all do, or have no batch yet."""
        return next((at for at in range(start, end) if 0 <= self._first_ms(at) <= now_ms), None)

    def _first_ms(self, at: int) -> int:
        first_ms = self._open(self._segments[at]).index.first_timestamp_ms
        return NO_TIMESTAMP_MS if first_ms is None else first_ms

    def distrust(self) -> None:
        """Verify again what is read next."""
        for segment in self._segments:
            segment.verified = ByteRanges()

    @property
    def has_cold(self) -> bool:
        """Whether more sealed segments are open than need be."""
        return len(self._opened) > SEALED_OPEN_MAX

    def close_cold(self, keep: list[Segment]) -> None:
        """Close the sealed segments used longest ago, except those in `keep`."""
        for segment in self._opened[:-SEALED_OPEN_MAX]:
            if segment not in keep:
                self._opened.remove(segment)
                segment.release()

    def close(self) -> None:
        self._is_closed = True
        for segment in self._segments:
            segment.release()

    async def indexed(self) -> None:
        """Return when no index is being made anew."""
        while self.rebuilds:
            await asyncio.wait(self.rebuilds.values())

    async def _rebuild(self, segment: Segment) -> None:
        """Make a sealed segment ready in a thread and let that take its place, unless that is gone."""
        made = segment.twin()
        try:
            await self._run(made.ensure_open)
            if self._is_closed or segment.is_open or segment not in self._segments:
                made.release()
            else:
                self._segments[self._segments.index(segment)] = made
                self._opened.append(made)
                self._find_ends()
        except OSError:
            self._failed.add(segment)
        finally:
            del self.rebuilds[segment]
            self._on_rebuilt()

    def _open(self, segment: Segment) -> Segment:
        if segment is self._segments[-1] and segment.is_open:
            return segment
        try:
            segment.ensure_open(sys.maxsize if segment in self._failed else REBUILT_BYTES_MAX)
        except UnindexedError:
            if segment not in self.rebuilds:
                self.rebuilds[segment] = asyncio.get_running_loop().create_task(self._rebuild(segment))
            text = f"{files.shown(segment.path)}: its index is being made anew; try again."
            raise FlussError(text, ErrorCode.LOG_STORAGE_EXCEPTION) from None
        except OSError as error:
            raise unreadable(segment, error) from error
        if segment in self._opened:
            self._opened.remove(segment)
        self._opened.append(segment)
        return segment


def unreadable(segment: Segment, error: OSError) -> FlussError:
    # Too many open files passes; a bad disk does not, and readers must be told instead of trying for ever.
    transient = error.errno in _TRANSIENT_ERRNOS
    code = ErrorCode.LOG_STORAGE_EXCEPTION if transient else ErrorCode.CORRUPT_MESSAGE
    _log.error("%s can't be read: %s", segment.path, error)
    return FlussError(f"{files.shown(segment.path)}: can't be read: {files.reason(error)}", code)

"""The sparse index of one segment, and walking its batches with checks.

The index leads from offset and commit time to byte position, with about one entry per 4 KiB.

Each entry also has the checksum of the heads of all batches before it: commit time, epoch and base offset, which the
server stamps and a batch's own checksum leaves out. So between any two entries they can be verified.

Every entry points at the first byte of a batch, so positions from here are also safe places to cut a read. Commit times
never decrease within a segment, so a binary search over them is right. The file form is disposable: checksummed, bound
to the segment's base offset and to the length of log it covers, and rebuilt from the log whenever anything about it is
wrong.

A batch is good when its header makes sense, it ends within the file, its base offset is the one expected next, and,
where asked, its checksum holds. Length, magic, base offset, commit time and epoch are outside the checksum: the first
two break the walk when wrong, the third is caught by density, and the index has a checksum of them all.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from fluss.formats.batches.log_batch import (
    HEADER_SIZE_BYTES,
    HEADER_SIZE_BYTES_MAX,
    BatchHeader,
    crc32c,
    head_checksum,
    parse_header,
    verify_crc,
    walk,
)
from fluss.model.errors import CorruptDataError, ErrorCode
from fluss.storage import files

RANGES_MAX: Final = 32


class ByteRanges:
    """Half-open ranges, joined where they touch. Forgetting one costs a second check, so the set is bounded."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        last = self._ranges[-1] if self._ranges else None
        if last is not None and last[1] == start:
            # The hot path: an append extends the range that ends at the tail.
            self._ranges[-1] = (last[0], end)
            return
        kept: list[tuple[int, int]] = []
        for low, high in self._ranges:
            if high < start or end < low:
                kept.append((low, high))
            else:
                start, end = min(start, low), max(end, high)
        kept.append((start, end))
        kept.sort()
        # The first goes: it is the farthest from the tail, which is read most.
        self._ranges = kept[-RANGES_MAX:]

    def contains(self, start: int, end: int) -> bool:
        return any(low <= start and end <= high for low, high in self._ranges)

    def cut(self, end: int) -> None:
        """Forget everything from `end` on."""
        self._ranges = [(low, min(high, end)) for low, high in self._ranges if low < end]


INTERVAL_BYTES: Final = 4096
BATCHES_PER_ENTRY_MAX: Final = INTERVAL_BYTES // HEADER_SIZE_BYTES + 1

_MAGIC: Final = b"FLIX"
# In the machine's own byte order, as the arrays are: a file from another kind of machine is rebuilt.
_HEADER: Final = struct.Struct("=4sHxxqqqqI")
_CRC: Final = struct.Struct("=I")
_VERSION: Final = 2
_VERSION_WITHOUT_HEADS: Final = 1  # is read for what it says of the segment's length
_ENTRY_BYTES: Final = 28
_ENTRY_BYTES_1: Final = 24


class IndexEntry(NamedTuple):
    offset: int
    position: int


class Checkpoint(NamedTuple):
    """How much of a segment an index file speaks for."""

    size_bytes: int
    end_offset: int
    timestamp_ms_max: int
    heads_checksum: int | None  # of all batches; None in an old file


class OffsetIndex:
    __slots__ = ("_heads", "_offsets", "_positions", "_timestamps", "base_offset", "heads_checksum")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.heads_checksum: int | None = 0  # of all batches that were added; None when some were cut off again
        self._heads = array("I")  # the same of all before each entry
        self._offsets = array("q")
        self._positions = array("q")
        self._timestamps = array("q")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, header: BatchHeader, offset: int, position: int, timestamp_ms: int) -> None:
        """Tell of the next batch; it becomes an entry when it is far enough from the last one.

        Offset and commit time are the ones it has in the log; its header may be from before they were stamped.
        """
        heads = self.heads_checksum or 0
        self.heads_checksum = head_checksum(header, offset, timestamp_ms, heads)
        if self._positions and position - self._positions[-1] < INTERVAL_BYTES:
            return
        self._offsets.append(offset)
        self._positions.append(position)
        self._timestamps.append(timestamp_ms)
        self._heads.append(heads)

    def at_offset(self, offset: int) -> IndexEntry:
        """The last entry whose batch begins at or before `offset`."""
        return self._entry(bisect_right(self._offsets, offset) - 1)

    def before_timestamp(self, timestamp_ms: int) -> IndexEntry:
        """The last entry with an earlier commit time, or the first one: where a search for the time begins."""
        return self._entry(bisect_left(self._timestamps, timestamp_ms) - 1)

    def boundary(self, position: int) -> int:
        """The last indexed batch boundary at or before a byte position."""
        at = bisect_right(self._positions, position) - 1
        return self._positions[at] if at >= 0 else 0

    def positions_behind(self, position: int) -> Sequence[int]:
        """Indexed batch boundaries behind a byte position."""
        return self._positions[bisect_right(self._positions, position) :]

    def _entry(self, at: int) -> IndexEntry:
        if not self._offsets:
            return IndexEntry(self.base_offset, 0)
        at = max(at, 0)
        return IndexEntry(self._offsets[at], self._positions[at])

    def heads_at(self, position: int) -> int | None:
        """The checksum of the heads of all batches before a position; None where that is not known."""
        at = bisect_left(self._positions, position)
        if at < len(self._heads) and self._positions[at] == position:
            return self._heads[at]
        return None

    @property
    def first_timestamp_ms(self) -> int | None:
        return self._timestamps[0] if self._timestamps else None

    def rewind(self, position: int) -> IndexEntry:
        """Go back to the last entry at or before a position: the caller adds the batches from there on again."""
        entry = self._entry(bisect_right(self._positions, position) - 1)
        heads = self.heads_at(entry.position) or 0
        self.cut(entry.position)
        self.heads_checksum = heads
        return entry

    def cut(self, position: int) -> None:
        """Drop entries at or after a byte position."""
        keep = bisect_left(self._positions, position)
        for column in (self._offsets, self._positions, self._timestamps, self._heads):
            del column[keep:]

    def encode(self, checkpoint: Checkpoint) -> bytes:
        *ends, heads = checkpoint
        header = _HEADER.pack(_MAGIC, _VERSION, self.base_offset, *ends, len(self)) + _CRC.pack(heads or 0)
        columns = (self._offsets, self._positions, self._timestamps, self._heads)
        body = b"".join((header, *(column.tobytes() for column in columns)))
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def decode(cls, data: bytes, base_offset: int) -> tuple[OffsetIndex | None, Checkpoint] | None:
        """The index and what it covers, or None for a file that can't be trusted; of an old one, what it covers."""
        if len(data) < _HEADER.size + _CRC.size:
            return None
        body = memoryview(data)[: -_CRC.size]
        if crc32c(body) != _CRC.unpack_from(data, len(body))[0]:
            return None
        magic, version, base, size_bytes, end_offset, timestamp_ms_max, count = _HEADER.unpack_from(data)
        if (magic, base) != (_MAGIC, base_offset):
            return None
        if version == _VERSION_WITHOUT_HEADS and len(body) == _HEADER.size + count * _ENTRY_BYTES_1:
            return None, Checkpoint(size_bytes, end_offset, timestamp_ms_max, None)
        at = _HEADER.size + _CRC.size
        if version != _VERSION or len(body) != at + count * _ENTRY_BYTES:
            return None
        index = cls(base_offset)
        (index.heads_checksum,) = _CRC.unpack_from(body, _HEADER.size)
        for column in (index._offsets, index._positions, index._timestamps, index._heads):
            column.frombytes(body[at : at + count * column.itemsize])
            at += count * column.itemsize
        return index, Checkpoint(size_bytes, end_offset, timestamp_ms_max, index.heads_checksum)


_WINDOW_VERIFY_BYTES: Final = 4 * 1024 * 1024
_WINDOW_HEADERS_BYTES: Final = 8 * 1024
ALL_BATCHES: Final = sys.maxsize


class CorruptBatchError(CorruptDataError):
    """A batch on disk is bad. CORRUPT_MESSAGE makes readers raise; the storage codes would make them retry for ever."""

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(f"{files.shown(path)}: corrupt batch at byte {position}: {reason}", ErrorCode.CORRUPT_MESSAGE)
        self.path = path
        self.position = position

    def __reduce__(self) -> tuple[type[CorruptDataError], tuple[str, int]]:
        return CorruptDataError, (self.message, self.error_code)


class WrongHeadsError(CorruptBatchError):
    """Commit times, or what else a batch's own checksum leaves out, are not what they were from a position on."""

    def __init__(self, path: Path, position: int) -> None:
        super().__init__(path, position, "the checksum of commit times from here on is wrong")


def _reason(error: CorruptDataError) -> str:
    # The format layer's text begins with a position within its buffer, which means nothing here.
    return error.message.partition(": ")[2] or error.message


def scan(
    fd: int,
    path: Path,
    position: int,
    end: int,
    offset: int,
    *,
    verify: bool,
    read_at: Callable[[int, int, int], bytes] = files.read_at,
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield each batch from `position` to `end`, the first beginning at `offset`; a bad one raises CorruptBatchError.

    With `verify` every byte is read and every checksum compared; without, only headers are read.
    """
    window_bytes = _WINDOW_VERIFY_BYTES if verify else _WINDOW_HEADERS_BYTES
    window, window_start = b"", position
    while position < end:
        at = position - window_start
        if at + HEADER_SIZE_BYTES_MAX > len(window):
            window, window_start, at = read_at(fd, min(window_bytes, end - position), position), position, 0
        try:
            header = parse_header(window, at)
            _check_place(header, position, end, offset)
            if verify:
                if at + header.size_bytes > len(window):
                    wanted = min(max(window_bytes, header.size_bytes), end - position)
                    window, window_start, at = read_at(fd, wanted, position), position, 0
                verify_crc(window, at, header)
        except CorruptDataError as error:
            raise CorruptBatchError(path, position, _reason(error)) from None
        yield position, header
        position += header.size_bytes
        offset = header.next_offset


def _check_place(header: BatchHeader, position: int, end: int, offset: int) -> None:
    if header.base_offset != offset:
        raise CorruptDataError(f"log batch: base offset is {header.base_offset}, {offset} should follow here")
    if position + header.size_bytes > end:
        raise CorruptDataError(f"log batch: {header.size_bytes} bytes announced, {end - position} are left")


def check(
    data: bytes,
    path: Path,
    position: int,
    offset: int,
    heads_at: Callable[[int], int | None] = lambda _: None,
    batches_max: int = ALL_BATCHES,
) -> tuple[int, int, CorruptBatchError | None]:
    """Verify batches read from `position`: how many bytes are good, of how many batches, and what is wrong after them.

    `heads_at` tells the checksum of the heads of all batches before a position, where the index has one; bytes between
    two such positions are good when it fits. After `batches_max` batches it ends at the next such position.
    """
    good = checked = count = 0
    heads = heads_at(position)
    try:
        for count, (at, header) in enumerate(walk(data), 1):
            _check_place(header, at, len(data), offset)
            verify_crc(data, at, header)
            good = at + header.size_bytes
            offset = header.next_offset
            if heads is not None:
                heads = head_checksum(header, header.base_offset, header.commit_timestamp_ms, heads)
                expected = heads_at(position + good)
                if expected is None:
                    continue
                if expected != heads:
                    return checked, count, WrongHeadsError(path, position + checked)
                checked = good
            if count >= batches_max:
                return good, count, None
        if good < len(data):
            raise CorruptDataError(f"log batch: a batch is cut after {len(data) - good} bytes")
    except CorruptDataError as error:
        return good, count, CorruptBatchError(path, position + good, _reason(error))
    return good, count, None

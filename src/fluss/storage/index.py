"""Sparse index of one segment: offset and commit time to byte position, about one entry per 4 KiB.

Every entry points at the first byte of a batch, so positions from here are also safe places to cut a read. Commit
times never decrease along a log, so a binary search over them is right. The file form is disposable: checksummed,
bound to the segment's base offset and to the length of log it covers, and rebuilt from the log whenever anything about
it is wrong.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from fluss.formats.checksum import crc32c

INTERVAL_BYTES: Final = 4096

_MAGIC: Final = b"FLIX"
# In the machine's own byte order, as the arrays are: a file from another kind of machine is rebuilt.
_HEADER: Final = struct.Struct("=4sHxxqqqqI")
_CRC: Final = struct.Struct("=I")
_VERSION: Final = 1
_ENTRY_BYTES: Final = 24


class IndexEntry(NamedTuple):
    offset: int
    position: int


class Checkpoint(NamedTuple):
    """How much of a segment an index file speaks for."""

    size_bytes: int
    end_offset: int
    timestamp_ms_max: int


class OffsetIndex:
    __slots__ = ("_offsets", "_positions", "_timestamps", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._offsets = array("q")
        self._positions = array("q")
        self._timestamps = array("q")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int, position: int, timestamp_ms: int) -> None:
        """Tell of the next batch; it becomes an entry when it is far enough from the last one."""
        if self._positions and position - self._positions[-1] < INTERVAL_BYTES:
            return
        self._offsets.append(offset)
        self._positions.append(position)
        self._timestamps.append(timestamp_ms)

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

    @property
    def first_timestamp_ms(self) -> int | None:
        return self._timestamps[0] if self._timestamps else None

    def cut(self, position: int) -> None:
        """Drop entries at or after a byte position."""
        keep = bisect_left(self._positions, position)
        for column in (self._offsets, self._positions, self._timestamps):
            del column[keep:]

    def encode(self, checkpoint: Checkpoint) -> bytes:
        header = _HEADER.pack(_MAGIC, _VERSION, self.base_offset, *checkpoint, len(self))
        body = b"".join((header, self._offsets.tobytes(), self._positions.tobytes(), self._timestamps.tobytes()))
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def decode(cls, data: bytes, base_offset: int) -> tuple[OffsetIndex, Checkpoint] | None:
        """The index and what it covers, or None for a file that can't be trusted."""
        if len(data) < _HEADER.size + _CRC.size:
            return None
        body = memoryview(data)[: -_CRC.size]
        if crc32c(body) != _CRC.unpack_from(data, len(body))[0]:
            return None
        magic, version, base, size_bytes, end_offset, timestamp_ms_max, count = _HEADER.unpack_from(data)
        if (magic, version, base) != (_MAGIC, _VERSION, base_offset):
            return None
        if len(body) != _HEADER.size + count * _ENTRY_BYTES:
            return None
        index = cls(base_offset)
        columns = (index._offsets, index._positions, index._timestamps)
        column_bytes = count * _ENTRY_BYTES // len(columns)
        for number, column in enumerate(columns):
            start = _HEADER.size + number * column_bytes
            column.frombytes(body[start : start + column_bytes])
        return index, Checkpoint(size_bytes, end_offset, timestamp_ms_max)

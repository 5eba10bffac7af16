"""The segments of a log in order of offset: finding the right one, and keeping only a few sealed ones open."""

from __future__ import annotations

import errno
import logging
from bisect import bisect_right
from typing import Final

from fluss.model.errors import ErrorCode, FlussError
from fluss.storage import files
from fluss.storage.log.index import ByteRanges
from fluss.storage.log.segment import NO_TIMESTAMP_MS, Segment

_log = logging.getLogger(__name__)

SEALED_OPEN_MAX: Final = 4
_TRANSIENT_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class SegmentList:
    """The last segment is the active one: it is always open, the others when needed; in a damaged log it is, too."""

    def __init__(self, segments: list[Segment]) -> None:
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
        """Of those that are open, so that they are or were read or written lately."""
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
        for segment in self._segments:
            segment.release()

    def _open(self, segment: Segment) -> Segment:
        if segment is self._segments[-1] and segment.is_open:
            return segment
        try:
            segment.ensure_open()
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

"""A small set of byte ranges: which parts of a file this process has already checked."""

from __future__ import annotations

from typing import Final

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

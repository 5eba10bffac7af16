"""Counters of what the storage has done since it was opened: plain numbers, cheap enough for every append."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

SYNC_BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class StorageStats:
    __slots__ = (
        "appended_batches",
        "appended_bytes",
        "appended_rows",
        "removed_segments",
        "sync_counts",
        "sync_failures",
        "sync_seconds",
    )

    def __init__(self) -> None:
        self.appended_batches = 0
        self.appended_bytes = 0
        self.appended_rows = 0
        self.removed_segments = 0
        self.sync_counts = [0] * (len(SYNC_BOUNDS_S) + 1)  # by duration, the last one for all above the bounds
        self.sync_failures = 0
        self.sync_seconds = 0.0

    def appended(self, rows: int, size_bytes: int) -> None:
        self.appended_batches += 1
        self.appended_rows += rows
        self.appended_bytes += size_bytes

    def synced(self, seconds: float, failed: bool) -> None:
        self.sync_counts[bisect_left(SYNC_BOUNDS_S, seconds)] += 1
        self.sync_seconds += seconds
        self.sync_failures += failed

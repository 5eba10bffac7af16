"""Timed runs of a workload, and their sums."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final

RUNS_MAX: Final = 1_000_000
# Of fewer, the 99th percentile would be just the slowest.
P99_RUNS_MIN: Final = 100
OK, FAILED, UNSUPPORTED = "ok", "failed", "unsupported"


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured; or why there is nothing. Seconds are those of the runs alone, without what is around them."""

    workload: str
    part: str | None = None
    status: str = OK
    reason: str | None = None
    runs: int | None = None
    rows: int | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None
    rows_per_second: float | None = None
    megabytes_per_second: float | None = None
    median_ms: float | None = None
    p99_ms: float | None = None


class Meter:
    """Lets a workload run until its time is up, and at least once."""

    def __init__(self, part: str | None, seconds: float, *, single: bool, paused: bool) -> None:
        self._part, self._single, self._paused = part, single, paused
        self._budget_s, self._ends_s = seconds, 0.0
        self._times_s: list[float] = []
        self._cpu_s = 0.0
        self._rows = self._size_bytes = 0

    def more(self) -> bool:
        """Whether there is time for one more run; the first call starts the time, preparations and checks count."""
        if not self._times_s:
            self._ends_s = time.perf_counter() + self._budget_s
            return True
        return time.perf_counter() < self._ends_s and len(self._times_s) < RUNS_MAX

    def run(self, rows: int = 1, size_bytes: int = 0) -> _Run:
        """Time a block that deals with so many rows."""
        return _Run(self, rows, size_bytes)

    def add(self, seconds: float, cpu_s: float, rows: int, size_bytes: int) -> None:
        """One run is done."""
        self._times_s.append(seconds)
        self._cpu_s += cpu_s
        self._rows += rows
        self._size_bytes += size_bytes

    def result(self, workload: str) -> Result:
        """The sum of all runs; single operations have times of their own, and paused ones no rate."""
        seconds = sum(self._times_s) or 1e-9
        times_s = sorted(self._times_s) if self._single else []
        return Result(
            workload,
            self._part,
            runs=len(self._times_s),
            rows=self._rows,
            seconds=seconds,
            cpu_seconds=self._cpu_s,
            rows_per_second=None if self._paused else self._rows / seconds,
            megabytes_per_second=self._size_bytes / seconds / 1e6 if self._size_bytes else None,
            median_ms=statistics.median(times_s) * 1_000 if times_s else None,
            p99_ms=percentile(times_s, 0.99) * 1_000 if len(times_s) >= P99_RUNS_MIN else None,
        )


class _Run:
    """Wall and processor time of a block. One that fails is not counted."""

    def __init__(self, meter: Meter, rows: int, size_bytes: int) -> None:
        self._meter, self._rows, self._size_bytes = meter, rows, size_bytes
        self.ended_s: float | None = None
        """Set where the end was seen by another thread."""

    def __enter__(self) -> _Run:
        self._cpu_s = time.process_time()
        self.began_s = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended_s = self.ended_s or time.perf_counter()
        if kind is None:
            cpu_s = time.process_time() - self._cpu_s
            self._meter.add(ended_s - self.began_s, cpu_s, self._rows, self._size_bytes)


def percentile(ordered: list[float], share: float) -> float:
    """The smallest value that is not less than this share of all."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

"""Single rows: until they are acknowledged, and until another process sees them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from benchmarks.corners import RunningCorner
from benchmarks.data import WrongResultError
from benchmarks.log_workloads import create_log_table
from benchmarks.workloads import Metric, Sample, Sizes, Workload, check, p99, rows_checksum

# Apache Fluss does not wake a waiting reader, so a row is visible when its wait ends: short here, 500 ms as shipped.
TUNED_WAIT_MS = 10
_WARM_UP_ROWS = 10


def _config(running: RunningCorner, *, tuned: bool) -> dict[str, str]:
    if not tuned:
        return running.config()
    if running.corner.is_kafka:
        return running.config(**{"linger.ms": "0"})
    return running.config(**{"scanner.log.fetch.wait-max-time-ms": str(TUNED_WAIT_MS)})


def _acknowledged(*, tuned: bool) -> Callable[[RunningCorner, Sizes], Sample]:
    def measure(running: RunningCorner, sizes: Sizes) -> Sample:
        rows = sizes.ack_rows + _WARM_UP_ROWS
        table = create_log_table(running, sizes)
        arguments = {"config": _config(running, tuned=tuned), "nodelay": tuned, "paused": False}
        written = running.writer.call("append_one_by_one", table=table, rows=rows, **arguments)
        found = running.call("poll_rows", table=table, rows=rows)
        check(running.corner.title, found, rows=len(written), checksum=rows_checksum(rows))
        running.drop_table(table)
        return _summed_up("ack", [done - sent for sent, done in written])

    return measure


def _visible(*, tuned: bool) -> Callable[[RunningCorner, Sizes], Sample]:
    def measure(running: RunningCorner, sizes: Sizes) -> Sample:
        rows = (sizes.latency_rows if tuned else sizes.shipped_rows) + _WARM_UP_ROWS
        table = create_log_table(running, sizes)
        arguments = {"config": _config(running, tuned=tuned), "table": table, "rows": rows, "nodelay": tuned}
        with ThreadPoolExecutor(1) as executor:
            tail = executor.submit(running.reader.call, "tail", **arguments)
            try:
                running.reader.wait_for("tailing")
                written = running.writer.call("append_one_by_one", paused=True, **arguments)
            except BaseException:
                running.reader.kill()  # It would wait for rows that never come.
                raise
            seen = tail.result()
        running.drop_table(table)
        if [number for number, _ in seen] != list(range(len(written))):
            raise WrongResultError(f"{running.corner.title}: the reader did not see every row once and in order")
        # Both processes read the system's monotonic clock, which is one and the same.
        visible = [at - sent for (_, at), (sent, _) in zip(seen, written, strict=True)]
        return _summed_up("ack", [done - sent for sent, done in written]) | _summed_up("visible", visible)

    return measure


def _summed_up(key: str, times: list[float]) -> Sample:
    times_ms = [seconds * 1e3 for seconds in times[_WARM_UP_ROWS:]]
    return {f"{key}_ms": median(times_ms), f"{key}_p99_ms": p99(times_ms)}


_ACK = (
    Metric("ack_ms", "acknowledged, median ms", higher_is_better=False, is_compared=True),
    Metric("ack_p99_ms", "acknowledged, p99 ms", higher_is_better=False),
)
_BOTH = (
    *_ACK,
    Metric("visible_ms", "visible, median ms", higher_is_better=False, is_compared=True),
    Metric("visible_p99_ms", "visible, p99 ms", higher_is_better=False),
)

LATENCY_WORKLOADS = (
    Workload("ack", "Append + flush of one row, back to back", _ACK, _acknowledged(tuned=False), has_kafka=True),
    Workload(
        "ack_tuned", "Append + flush of one row, back to back, tuned", _ACK, _acknowledged(tuned=True), has_kafka=True
    ),
    Workload("latency", "Append + flush of one row, with pauses", _BOTH, _visible(tuned=False), has_kafka=True),
    Workload(
        "latency_tuned", "Append + flush of one row, with pauses, tuned", _BOTH, _visible(tuned=True), has_kafka=True
    ),
)

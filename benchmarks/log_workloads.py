"""Log tables: appends of batches and rows, and ways to read them."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.corners import RunningCorner
from benchmarks.data import BATCH_ROWS, PROJECTED
from benchmarks.workloads import (
    CPU,
    KROWS_PER_S,
    Metric,
    Sample,
    Sizes,
    Workload,
    check,
    log_checksum,
    rates,
    rows_checksum,
)

# A filter on the last tenth of the ids; batches of the others can be left out where statistics say what they hold.
_LEFT_OUT = 0.9
_STATISTICS = {"table.statistics.columns": "id"}


def create_log_table(running: RunningCorner, sizes: Sizes, **properties: str) -> str:
    properties = {"table.log.arrow.compression.type": sizes.codec, **properties}
    return running.create_table(buckets=sizes.buckets, properties=properties)


def append_arrow(running: RunningCorner, table: str, rows: int, batch_rows: int = BATCH_ROWS) -> Sample:
    return rates(running.call("append_arrow", table=table, rows=rows, batch_rows=batch_rows))


def scan_arrow(running: RunningCorner, table: str, rows: int) -> Sample:
    answer = running.call("scan_arrow", table=table)
    check(running.corner.title, answer, rows=rows, checksum=log_checksum(rows))
    return rates(answer)


def _append_arrow(batch_rows: int) -> Callable[[RunningCorner, Sizes], Sample]:
    def measure(running: RunningCorner, sizes: Sizes) -> Sample:
        table = create_log_table(running, sizes)
        sample = append_arrow(running, table, sizes.arrow_rows, batch_rows)
        scan_arrow(running, table, sizes.arrow_rows)
        running.drop_table(table)
        return sample

    return measure


def _append_rows(running: RunningCorner, sizes: Sizes) -> Sample:
    table = create_log_table(running, sizes)
    answer = running.call("append_rows", table=table, rows=sizes.dict_rows)
    found = running.call("poll_rows", table=table, rows=sizes.dict_rows)
    check(running.corner.title, found, rows=sizes.dict_rows, checksum=rows_checksum(sizes.dict_rows))
    running.drop_table(table)
    return rates(answer)


def _kept_log_table(running: RunningCorner, sizes: Sizes, **properties: str) -> str:
    def make() -> str:
        table = create_log_table(running, sizes, **properties)
        append_arrow(running, table, sizes.arrow_rows)
        return table

    purpose = f"to scan {sizes.buckets} {sizes.codec} {sorted(properties)}"
    return running.kept_table(purpose, sizes.arrow_rows, make)


def _scan_arrow(running: RunningCorner, sizes: Sizes) -> Sample:
    return scan_arrow(running, _kept_log_table(running, sizes), sizes.arrow_rows)


def _scan_projected(running: RunningCorner, sizes: Sizes) -> Sample:
    answer = running.call("scan_arrow", table=_kept_log_table(running, sizes), columns=PROJECTED)
    wanted = log_checksum(sizes.arrow_rows, projected=True)
    check(running.corner.title, answer, rows=sizes.arrow_rows, checksum=wanted)
    return rates(answer)


def _scan_filtered(running: RunningCorner, sizes: Sizes) -> Sample:
    id_min = int(sizes.arrow_rows * _LEFT_OUT)
    # Apache Fluss does not know this property yet.
    properties = {} if running.corner.server == "apache" else _STATISTICS
    answer = running.call("scan_arrow", table=_kept_log_table(running, sizes, **properties), id_min=id_min)
    wanted = log_checksum(sizes.arrow_rows, id_min=id_min)
    check(running.corner.title, answer, rows=sizes.arrow_rows - id_min, checksum=wanted)
    # The rate is that of all rows of the table, as if each had been read.
    return rates({**answer, "rows": sizes.arrow_rows})


def _poll_rows(running: RunningCorner, sizes: Sizes) -> Sample:
    rows = sizes.poll_rows

    def make() -> str:
        table = create_log_table(running, sizes)
        if running.corner.is_kafka:
            running.call("append_rows", table=table, rows=rows)
        else:
            append_arrow(running, table, rows)
        return table

    answer = running.call("poll_rows", table=running.kept_table("to poll", rows, make), rows=rows)
    check(running.corner.title, answer, rows=rows, checksum=rows_checksum(rows))
    return rates(answer)


_MB_PER_S = Metric("mb_per_s", "MB/s", higher_is_better=True)
_ARROW = (KROWS_PER_S, _MB_PER_S, *CPU)
_ROWS = (KROWS_PER_S, *CPU)

LOG_WORKLOADS = (
    Workload("append_arrow_1k", "Arrow append, 1,000 rows a call", _ARROW, _append_arrow(1_000)),
    Workload("append_arrow_10k", "Arrow append, 10,000 rows a call", _ARROW, _append_arrow(10_000)),
    Workload("append_arrow_50k", "Arrow append, 50,000 rows a call", _ARROW, _append_arrow(50_000)),
    Workload("append_rows", "Row append", _ROWS, _append_rows, has_kafka=True),
    Workload("scan_arrow", "Scan to Arrow", _ARROW, _scan_arrow),
    Workload("scan_projected", "Scan to Arrow, 2 of 5 columns", _ARROW, _scan_projected),
    Workload("scan_filtered", "Filtered scan, a tenth of the rows", _ROWS, _scan_filtered),
    Workload("poll_rows", "Polling rows", _ROWS, _poll_rows, has_kafka=True),
)

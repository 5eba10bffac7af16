"""What is measured on log tables: each workload with its figures, and the steps that take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any

from benchmarks.corners import RunningCorner
from benchmarks.data import sum_of_ids

Sample = dict[str, float]

# Apache Fluss does not wake a waiting reader, so a row is visible when its wait ends: short here, 500 ms as shipped.
TUNED_WAIT_MS = 10
_TUNED = {"scanner.log.fetch.wait-max-time-ms": str(TUNED_WAIT_MS)}
_WARM_UP_ROWS = 20


@dataclass(frozen=True)
class Sizes:
    """Rows per measurement."""

    arrow_rows: int
    dict_rows: int
    latency_rows: int
    shipped_rows: int
    kv_rows: int
    kv_dict_rows: int
    lookups: int  # one after another
    concurrent_lookups: int
    buckets: int = 1


@dataclass(frozen=True)
class Metric:
    key: str
    title: str
    higher_is_better: bool
    # Compared with the baseline; the others are only shown.
    is_compared: bool = False


@dataclass(frozen=True)
class Workload:
    key: str
    title: str
    metrics: tuple[Metric, ...]
    measure: Callable[[RunningCorner, Sizes], Sample]
    rounds_max: int | None = None  # None: as many as are asked for


class CheckFailedError(Exception):
    """Rows were lost, doubled or changed: the figure would mean nothing."""


def _append_arrow(codec: str) -> Callable[[RunningCorner, Sizes], Sample]:
    def measure(running: RunningCorner, sizes: Sizes) -> Sample:
        table = running.create_table(codec, buckets=sizes.buckets, codec=codec)
        answer = running.writer.call("append_arrow", config=running.config(), table=table, rows=sizes.arrow_rows)
        return rates(answer)

    return measure


def _scan_arrow(codec: str) -> Callable[[RunningCorner, Sizes], Sample]:
    def measure(running: RunningCorner, sizes: Sizes) -> Sample:
        answer = running.writer.call("scan_arrow", config=running.config(), table=running.tables[codec])
        check_rows(running.corner.title, answer, sizes.arrow_rows)
        running.drop_table(codec)
        return rates(answer)

    return measure


def _append_rows(running: RunningCorner, sizes: Sizes) -> Sample:
    table = running.create_table("rows", buckets=sizes.buckets)
    answer = running.writer.call("append_rows", config=running.config(), table=table, rows=sizes.dict_rows)
    found = running.writer.call("scan_arrow", config=running.config(), table=table)
    check_rows(running.corner.title, found, sizes.dict_rows)
    running.drop_table("rows")
    return rates(answer)


def _latency(running: RunningCorner, sizes: Sizes) -> Sample:
    return _latency_figures(running, sizes.latency_rows, running.config(**_TUNED), nodelay=True)


def _latency_as_shipped(running: RunningCorner, sizes: Sizes) -> Sample:
    return _latency_figures(running, sizes.shipped_rows, running.config(), nodelay=False)


def _latency_figures(running: RunningCorner, rows: int, config: Mapping[str, str], *, nodelay: bool) -> Sample:
    table = running.create_table("latency")
    arguments = {"config": config, "table": table, "rows": rows + _WARM_UP_ROWS, "nodelay": nodelay}
    with ThreadPoolExecutor(1) as executor:
        tail = executor.submit(running.reader.call, "tail", **arguments)
        running.reader.wait_for("tailing")
        written = running.writer.call("append_one_by_one", **arguments)
        seen = tail.result()
    running.drop_table("latency")
    if [number for number, _ in seen] != list(range(len(written))):
        raise CheckFailedError(f"{running.corner.title}: the reader did not see every row once and in order")
    # Both processes read the system's monotonic clock, which is one and the same.
    acknowledged = [(done - sent) * 1e3 for sent, done in written][_WARM_UP_ROWS:]
    visible = [(at - sent) * 1e3 for (_, at), (sent, _) in zip(seen, written, strict=True)][_WARM_UP_ROWS:]
    return {
        "ack_ms": median(acknowledged),
        "ack_p99_ms": p99(acknowledged),
        "visible_ms": median(visible),
        "visible_p99_ms": p99(visible),
    }


def p99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98]


def rates(answer: Mapping[str, Any]) -> Sample:
    seconds = answer["seconds"]
    rates = {
        "seconds": seconds,
        "client_cpu_seconds": answer["client_cpu_seconds"],
        "krows_per_s": answer["rows"] / seconds / 1e3,
    }
    if "bytes" in answer:
        rates["mb_per_s"] = answer["bytes"] / seconds / 1e6
    return rates


def check_rows(title: str, found: Mapping[str, Any], rows: int) -> None:
    """Every id from 0 on, once."""
    wanted = {"rows": rows, "distinct_ids": rows, "sum_of_ids": sum_of_ids(rows)}
    actual = {key: found[key] for key in wanted}
    if actual != wanted:
        raise CheckFailedError(f"{title}: read {actual}, wrote {wanted}")


_MB_PER_S = Metric("mb_per_s", "MB/s", higher_is_better=True, is_compared=True)
KROWS_PER_S = Metric("krows_per_s", "thousand rows/s", higher_is_better=True)
CLIENT_CPU = Metric("client_cpu_seconds", "client CPU s", higher_is_better=False)
_ARROW = (_MB_PER_S, KROWS_PER_S, CLIENT_CPU)
_LATENCIES = (
    Metric("ack_ms", "acknowledged, median ms", higher_is_better=False, is_compared=True),
    Metric("ack_p99_ms", "acknowledged, p99 ms", higher_is_better=False),
    Metric("visible_ms", "visible, median ms", higher_is_better=False, is_compared=True),
    Metric("visible_p99_ms", "visible, p99 ms", higher_is_better=False),
)

# In the order of a round: a scan reads what the append before it wrote.
LOG_WORKLOADS = (
    Workload("append_arrow_zstd", "Arrow append, ZSTD", _ARROW, _append_arrow("ZSTD")),
    Workload("scan_arrow_zstd", "Scan to Arrow, ZSTD", _ARROW, _scan_arrow("ZSTD")),
    Workload("append_arrow_none", "Arrow append, uncompressed", _ARROW, _append_arrow("NONE")),
    Workload("scan_arrow_none", "Scan to Arrow, uncompressed", _ARROW, _scan_arrow("NONE")),
    Workload(
        "append_rows", "Row append (dicts), ZSTD", (replace(KROWS_PER_S, is_compared=True), CLIENT_CPU), _append_rows
    ),
    Workload("latency", "Append + flush of one row, tuned", _LATENCIES, _latency),
    Workload("latency_as_shipped", "Append + flush of one row, as shipped", _LATENCIES, _latency_as_shipped),
)

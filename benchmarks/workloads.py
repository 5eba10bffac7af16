"""What a workload is: how it is measured, its figures, and the checks without which a figure means nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from statistics import quantiles
from typing import Any

import pyarrow as pa

from benchmarks.corners import RunningCorner
from benchmarks.data import BATCH_ROWS, PROJECTED, WrongResultError, checksum, checksum_of_rows, log_batches

Sample = dict[str, float]


@dataclass(frozen=True)
class Sizes:
    """Rows per measurement."""

    arrow_rows: int
    dict_rows: int
    poll_rows: int
    ack_rows: int  # one by one, back to back
    latency_rows: int  # one by one, with pauses
    shipped_rows: int  # the same with the settings as shipped, where a row may take long
    kv_rows: int
    kv_dict_rows: int
    prefix_rows: int
    lookups: int  # one after another
    concurrent_lookups: int
    load_rows: int  # before memory is looked at
    buckets: int = 1
    codec: str = "ZSTD"


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
    has_kafka: bool = False  # a peer without tables can do it as well


KROWS_PER_S = Metric("krows_per_s", "thousand rows/s", higher_is_better=True, is_compared=True)
CPU = (
    Metric("client_cpu_us_per_row", "client CPU µs/row", higher_is_better=False),
    Metric("server_cpu_us_per_row", "server CPU µs/row", higher_is_better=False),
)


def rates(answer: Mapping[str, Any]) -> Sample:
    """The figures of a clock that saw so many rows."""
    rows, seconds = answer["rows"], answer["seconds"]
    found = {
        "rows": rows,
        "seconds": seconds,
        "krows_per_s": rows / seconds / 1e3,
        "client_cpu_us_per_row": answer["client_cpu_seconds"] / rows * 1e6,
        "server_cpu_us_per_row": answer["server_cpu_seconds"] / rows * 1e6,
    }
    if "bytes" in answer:
        found["mb_per_s"] = answer["bytes"] / seconds / 1e6
    return found


def p99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98]


def check(title: str, found: Mapping[str, Any], **wanted: Any) -> None:
    """What was read is what was written."""
    actual = {key: found[key] for key in wanted}
    if actual != wanted:
        raise WrongResultError(f"{title}: read {actual}, wrote {wanted}")


@cache
def log_checksum(rows: int, *, projected: bool = False, id_min: int = 0) -> int:
    data = pa.Table.from_batches(log_batches(rows, BATCH_ROWS)).slice(id_min)
    return checksum(data.select(PROJECTED) if projected else data)


rows_checksum = cache(checksum_of_rows)

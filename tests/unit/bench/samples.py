"""Measurements made by hand."""

from __future__ import annotations

from benchmarks.corners import Corner
from benchmarks.measure import Measurement
from benchmarks.workloads import Metric, Workload

OURS = Corner("flussbett", "flussbett-fsync")
OURS_ON_APACHE = Corner("flussbett", "apache")
BASELINE = Corner("pyfluss", "apache")

RATE = Metric("krows_per_s", "thousand rows/s", higher_is_better=True, is_compared=True)
LATENCY = Metric("ack_ms", "acknowledged, median ms", higher_is_better=False, is_compared=True)


def measurements(workload: str, metric: Metric, values: dict[Corner, list[float]]) -> list[Measurement]:
    return [
        Measurement(workload, corner, number, {metric.key: value})
        for corner, found in values.items()
        for number, value in enumerate(found, 1)
    ]


def workload(key: str, *metrics: Metric) -> Workload:
    return Workload(key, f"Title of {key}", metrics, lambda _, __: {})

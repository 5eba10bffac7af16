"""Measurements made by hand."""

from __future__ import annotations

from benchmarks.corners import Corner
from benchmarks.measure import Measurement
from benchmarks.workloads import Metric, Sizes, Workload

OURS = Corner("flussbett", "flussbett-fsync")
OURS_WITHOUT_FSYNC = Corner("flussbett", "flussbett-os")
OURS_ON_APACHE = Corner("flussbett", "apache")
BASELINE = Corner("pyfluss", "apache")
KAFKA = Corner("aiokafka", "kafka")

RATE = Metric("krows_per_s", "thousand rows/s", higher_is_better=True, is_compared=True)
LATENCY = Metric("ack_ms", "acknowledged, median ms", higher_is_better=False, is_compared=True)
SIZES = Sizes(
    arrow_rows=1_000,
    dict_rows=100,
    poll_rows=100,
    ack_rows=10,
    latency_rows=20,
    shipped_rows=10,
    kv_rows=100,
    kv_dict_rows=10,
    prefix_rows=100,
    lookups=5,
    concurrent_lookups=50,
    load_rows=100,
)


def measurements(workload: str, metric: Metric, values: dict[Corner, list[float]]) -> list[Measurement]:
    return [
        Measurement(workload, corner, number, {metric.key: value})
        for corner, found in values.items()
        for number, value in enumerate(found, 1)
    ]


def scaled(workload: str, costs: dict[int, float], corner: Corner = OURS_WITHOUT_FSYNC) -> list[Measurement]:
    """Points of a series, with half of the cost in the client."""
    return [
        Measurement(
            workload,
            corner,
            1,
            {"value": value, "client_cpu_us_per_row": cost / 2, "server_cpu_us_per_row": cost / 2},
        )
        for value, cost in costs.items()
    ]


def workload(key: str, *metrics: Metric, has_kafka: bool = False) -> Workload:
    return Workload(key, f"Title of {key}", metrics, lambda _, __: {}, has_kafka)

"""Medians, spread and ratios of the samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.corners import Corner
from benchmarks.measure import Measurement
from benchmarks.workloads import Metric


@dataclass(frozen=True)
class Figure:
    """One metric of one corner over all rounds."""

    median: float
    lowest: float
    highest: float
    # How many times better than the baseline; None without one.
    ratio: float | None


def figures(measurements: Sequence[Measurement], workload: str, metric: Metric) -> dict[Corner, Figure]:
    """The figures of a workload by corner; the baseline comes last."""
    values: dict[Corner, list[float]] = {}
    for item in sorted(measurements, key=lambda item: item.corner.place):
        if item.workload == workload and metric.key in item.sample:
            values.setdefault(item.corner, []).append(item.sample[metric.key])
    baseline = next((median(found) for corner, found in values.items() if corner.is_baseline), None)
    return {
        corner: Figure(median(found), min(found), max(found), ratio(median(found), baseline, metric))
        for corner, found in values.items()
    }


def ratio(value: float, baseline: float | None, metric: Metric) -> float | None:
    """How many times better `value` is."""
    if baseline is None:
        return None
    return value / baseline if metric.higher_is_better else baseline / value


def failures(measurements: Sequence[Measurement]) -> list[Measurement]:
    return [item for item in measurements if item.failure is not None]


def costs(measurements: Sequence[Measurement], axis: str, path: str, corner: Corner) -> dict[int, float]:
    """Processor time of client and server together, µs a row, by the place on an axis of scale."""
    found: dict[int, list[float]] = {}
    for item in measurements:
        if item.workload == f"{axis}:{path}" and item.corner == corner and item.failure is None:
            cost = item.sample["client_cpu_us_per_row"] + item.sample["server_cpu_us_per_row"]
            found.setdefault(int(item.sample["value"]), []).append(cost)
    return {value: median(costs) for value, costs in sorted(found.items())}

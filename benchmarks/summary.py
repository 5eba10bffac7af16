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
        if item.workload == workload:
            values.setdefault(item.corner, []).append(item.sample[metric.key])
    baseline = next((median(found) for corner, found in values.items() if corner.is_baseline), None)
    return {
        corner: Figure(median(found), min(found), max(found), _ratio(median(found), baseline, metric))
        for corner, found in values.items()
    }


def _ratio(value: float, baseline: float | None, metric: Metric) -> float | None:
    if baseline is None:
        return None
    return value / baseline if metric.higher_is_better else baseline / value

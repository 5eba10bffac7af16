"""Medians, spread and ratios of the samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    # How many times better than the baseline, the median of the rounds; None without a baseline.
    ratio: float | None


def figures(measurements: Sequence[Measurement], workload: str, metric: Metric) -> dict[Corner, Figure]:
    """The figures of a workload by corner; the baseline comes last."""
    values = by_round(measurements, workload, metric.key)
    baseline = next((found for corner, found in values.items() if corner.is_baseline), {})
    return {corner: _figure(list(found.values()), ratio(found, baseline, metric)) for corner, found in values.items()}


def by_round(measurements: Sequence[Measurement], workload: str, key: str) -> dict[Corner, dict[int, float]]:
    """What each corner measured in each round; the baseline comes last."""
    values: dict[Corner, dict[int, float]] = {}
    for item in sorted(measurements, key=lambda item: item.corner.place):
        if item.workload == workload and key in item.sample:
            values.setdefault(item.corner, {})[item.round] = item.sample[key]
    return values


def ratio(found: Mapping[int, float], baseline: Mapping[int, float], metric: Metric) -> float | None:
    """How many times better, by round: a machine that is slower for some minutes meets both sides of a round."""
    shared = found.keys() & baseline.keys()
    ratios = [_times_better(found[number], baseline[number], metric) for number in shared]
    return median(ratios) if ratios else None


def _times_better(value: float, baseline: float, metric: Metric) -> float:
    return value / baseline if metric.higher_is_better else baseline / value


def _figure(values: list[float], ratio: float | None) -> Figure:
    return Figure(median(values), min(values), max(values), ratio)


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

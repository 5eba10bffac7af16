"""Rounds over workloads and corners, interleaved so that a busy machine disturbs all corners alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.corners import Corner, RunningCorner
from benchmarks.workloads import Sample, Sizes, Workload


@dataclass(frozen=True)
class Measurement:
    workload: str
    corner: Corner
    round: int
    sample: Sample

    def to_json(self) -> dict[str, Any]:
        return {"workload": self.workload, **asdict(self.corner), "round": self.round, **self.sample}


def measure(
    corners: Sequence[RunningCorner],
    sizes: Sizes,
    warm_up: Sizes | None,
    rounds: int,
    progress: Callable[[str], None],
    workloads: Sequence[Workload],
) -> list[Measurement]:
    """One round with the sizes of `warm_up` that does not count, if given, then `rounds` that do."""
    measurements = []
    for number in range(0 if warm_up else 1, rounds + 1):
        for workload in workloads:
            if workload.rounds_max is not None and number > workload.rounds_max:
                continue
            for running in rotated(corners, number):
                sample = workload.measure(running, warm_up if warm_up and number == 0 else sizes)
                name = f"round {number} of {rounds}" if number else "warm-up"
                progress(f"{name}: {workload.title}: {running.corner.title}: {shown(sample)}")
                if number:
                    measurements.append(Measurement(workload.key, running.corner, number, sample))
    return measurements


def rotated(corners: Sequence[RunningCorner], number: int) -> list[RunningCorner]:
    """Another corner goes first in each round."""
    start = number % len(corners)
    return [*corners[start:], *corners[:start]]


def shown(sample: Sample) -> str:
    return ", ".join(f"{key} {value:.3g}" for key, value in sample.items())

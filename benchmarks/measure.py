"""Rounds over workloads and corners, interleaved so that a busy machine disturbs all corners alike."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.corners import Corner, RunningCorner, running_corners
from benchmarks.workloads import Sample, Sizes, Workload

Progress = Callable[[str], None]
_REASON_MAX = 300
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Measurement:
    """A cell of one round: its figures, or why there are none."""

    workload: str
    corner: Corner
    round: int
    sample: Sample
    failure: str | None = None

    def to_json(self) -> dict[str, Any]:
        found = {"workload": self.workload, **asdict(self.corner), "round": self.round, **self.sample}
        return found if self.failure is None else {**found, "failure": self.failure}


def measure(
    corners: Sequence[RunningCorner],
    sizes: Sizes,
    warm_up: Sizes | None,
    rounds: int,
    progress: Progress,
    workloads: Sequence[Workload],
) -> list[Measurement]:
    """One round with the sizes of `warm_up` that does not count, if given, then `rounds` that do."""
    measurements = []
    for number in range(0 if warm_up else 1, rounds + 1):
        for workload in workloads:
            for running in rotated(corners, number):
                if running.corner.is_kafka and not workload.has_kafka:
                    continue
                running.revive()
                wanted = warm_up if warm_up and number == 0 else sizes
                found = attempt(workload.key, running.corner, number, partial(workload.measure, running, wanted))
                name = f"round {number} of {rounds}" if number else "warm-up"
                progress(f"{name}: {workload.title}: {running.corner.title}: {shown(found)}")
                if number or found.failure:
                    measurements.append(found)
    return measurements


def attempt(workload: str, corner: Corner, number: int, take: Callable[[], Sample]) -> Measurement:
    """A cell that fails must not take the others along; the end of the run tells."""
    try:
        return Measurement(workload, corner, number, take())
    except Exception as error:
        return failed(workload, corner, number, error)


def failed(workload: str, corner: Corner, number: int, error: Exception) -> Measurement:
    text = " ".join(str(error).split()).replace(f"{_ROOT}/", "")
    reason = f"{type(error).__name__}: {text}"
    return Measurement(workload, corner, number, {}, reason[:_REASON_MAX])


@contextlib.contextmanager
def started(corners: Sequence[Corner], folder: Path, found: list[Measurement]) -> Iterator[list[RunningCorner]]:
    """The corners that start; that of the others is a failure of its own."""

    def note(corner: Corner, error: Exception) -> None:
        found.append(failed("start", corner, 0, error))

    with running_corners(corners, folder, note) as running:
        yield running


def rotated(corners: Sequence[RunningCorner], number: int) -> list[RunningCorner]:
    """Another corner goes first in each round."""
    start = number % len(corners) if corners else 0
    return [*corners[start:], *corners[:start]]


def shown(found: Measurement) -> str:
    if found.failure is not None:
        return f"FAILED: {found.failure}"
    return ", ".join(f"{key} {value:.4g}" for key, value in found.sample.items())

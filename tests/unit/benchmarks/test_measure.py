from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from benchmarks.corners import Corner, RunningCorner, corners_of
from benchmarks.measure import measure
from benchmarks.summary import failures
from benchmarks.workloads import Sample, Sizes

from tests.unit.benchmarks.samples import BASELINE, KAFKA, OURS, RATE, SIZES, workload


class FakeCorner:
    """A corner without processes."""

    def __init__(self, corner: Corner) -> None:
        self.corner = corner
        self.revived = 0

    def revive(self) -> None:
        self.revived += 1


def _fakes(*corners: Corner) -> list[RunningCorner]:
    return cast(list[RunningCorner], [FakeCorner(corner) for corner in corners])


def test_a_cell_that_fails_does_not_stop_the_others() -> None:
    def take(running: Any, _: Sizes) -> Sample:
        if running.corner == OURS:
            raise ValueError("rows\n  were lost")
        return {RATE.key: 1.0}

    lines: list[str] = []
    corners = _fakes(OURS, BASELINE)
    found = measure(corners, SIZES, None, 2, lines.append, [replace(workload("rate", RATE), measure=take)])
    assert len(found) == len(lines) == 4
    assert [item.sample for item in found if item.corner == BASELINE] == [{RATE.key: 1.0}] * 2
    assert {item.failure for item in failures(found)} == {"ValueError: rows were lost"}
    assert {item.corner for item in failures(found)} == {OURS}
    assert sum("FAILED: ValueError" in line for line in lines) == 2
    assert cast(FakeCorner, corners[0]).revived == 2


def test_the_warm_up_does_not_count_unless_it_fails() -> None:
    def take(running: Any, sizes: Sizes) -> Sample:
        if sizes.arrow_rows == 1 and running.corner == OURS:
            raise ValueError("cold")
        return {RATE.key: float(sizes.arrow_rows)}

    warm_up = replace(SIZES, arrow_rows=1)
    corners = _fakes(OURS, BASELINE)
    found = measure(corners, SIZES, warm_up, 1, lambda _: None, [replace(workload("rate", RATE), measure=take)])
    assert [(item.round, item.failure) for item in found if item.failure] == [(0, "ValueError: cold")]
    assert [item.sample[RATE.key] for item in found if not item.failure] == [1_000.0, 1_000.0]


def test_kafka_does_what_it_can() -> None:
    workloads = [workload("both", RATE, has_kafka=True), workload("tables", RATE)]
    found = measure(_fakes(OURS, KAFKA), SIZES, None, 1, lambda _: None, workloads)
    assert [item.workload for item in found if item.corner == KAFKA] == ["both"]
    assert [item.workload for item in found if item.corner == OURS] == ["both", "tables"]


def test_clients_meet_the_servers_they_speak_to() -> None:
    everything = corners_of([], [])
    assert len(everything) == 8
    assert corners_of(["aiokafka"], []) == [KAFKA]
    assert corners_of([], ["kafka"]) == [KAFKA, Corner("confluent-kafka", "kafka")]
    assert corners_of(["pyfluss"], ["apache"]) == [BASELINE]
    assert corners_of(["pyfluss"], ["kafka"]) == []

from __future__ import annotations

import pytest
from benchmarks.corners import Corner
from benchmarks.floors import Floor, floors
from benchmarks.measure import Measurement
from benchmarks.workloads import Metric

from tests.unit.benchmarks.samples import (
    BASELINE,
    OURS,
    OURS_ON_APACHE,
    OURS_WITHOUT_FSYNC,
    RATE,
    measurements,
    scaled,
    workload,
)

VISIBLE = Metric("visible_ms", "visible, median ms", higher_is_better=False, is_compared=True)
LOOKUP = Metric("lookup_ms", "median ms", higher_is_better=False, is_compared=True)


def _by_place(found: list[Floor], path: str) -> dict[str, tuple[str, bool | None]]:
    return {floor.where: (floor.measured, floor.is_reached) for floor in found if floor.path == path}


def test_a_path_has_a_floor_for_each_durability() -> None:
    found = measurements("append_arrow_1k", RATE, {OURS: [1.1], OURS_WITHOUT_FSYNC: [1.1], BASELINE: [1.0]})
    lines = floors(found, [workload("append_arrow_1k", RATE)])
    assert _by_place(lines, "Title of append_arrow_1k") == {"os": ("1.10x", False), "fsync": ("1.10x", True)}


def test_a_figure_that_reads_as_the_floor_has_reached_it() -> None:
    found = measurements("append_arrow_1k", RATE, {OURS: [0.996], BASELINE: [1.0]})
    lines = floors(found, [workload("append_arrow_1k", RATE)])
    assert _by_place(lines, "Title of append_arrow_1k") == {"fsync": ("1.00x", True)}


def test_what_failed_has_neither_reached_nor_missed_its_floor() -> None:
    found = measurements("append_rows", RATE, {BASELINE: [1.0]})
    lines = floors([*found, Measurement("append_rows", OURS, 1, {}, "broken")], [workload("append_rows", RATE)])
    assert _by_place(lines, "Title of append_rows") == {"fsync": ("-", None)}


def test_no_floor_without_the_peer_or_without_the_workload() -> None:
    assert floors(measurements("append_rows", RATE, {OURS: [1.0]}), [workload("append_rows", RATE)]) == []
    assert floors([], []) == []


def test_visible_as_shipped_is_compared_with_the_peer_tuned_as_well() -> None:
    found = measurements("latency", VISIBLE, {OURS: [4.0], BASELINE: [200.0]})
    found += measurements("latency_tuned", VISIBLE, {OURS: [1.0], BASELINE: [6.0]})
    lines = floors(found, [workload("latency", VISIBLE), workload("latency_tuned", VISIBLE)])
    assert _by_place(lines, "Title of latency: visible, median ms") == {"fsync": ("50.00x", True)}
    assert _by_place(lines, "Append to visible, against the peer tuned") == {"fsync": ("1.50x", False)}


def test_a_lookup_has_a_time_limit_too() -> None:
    found = measurements("lookup", LOOKUP, {OURS: [0.31], BASELINE: [100.0]})
    lines = floors(found, [workload("lookup", LOOKUP)])
    assert _by_place(lines, "Lookup, median") == {"fsync": ("0.310 ms", False)}
    assert _by_place(lines, "Title of lookup: median ms") == {"fsync": ("322.58x", True)}


def test_every_path_of_our_client_on_apache_counts() -> None:
    workloads = [workload("one", RATE), workload("two", RATE), workload("three", LOOKUP)]
    good = measurements("one", RATE, {OURS_ON_APACHE: [3.0], BASELINE: [2.0]})
    bad = measurements("two", RATE, {OURS_ON_APACHE: [1.0], BASELINE: [2.0]})
    bad += measurements("three", LOOKUP, {OURS_ON_APACHE: [4.0], BASELINE: [1.0]})
    where = "our client on Apache Fluss"
    assert floors(good, workloads) == [Floor("Every path, the lowest: Title of one", where, "1x", "1.50x", True)]
    assert [(floor.path, floor.measured, floor.is_reached) for floor in floors(good + bad, workloads)] == [
        ("Title of three: median ms", "0.25x", False),
        ("Title of two", "0.50x", False),
    ]


def test_pyfluss_on_our_server_counts_for_each_durability() -> None:
    corners = {Corner("pyfluss", "flussbett-os"): [2.0], Corner("pyfluss", "flussbett-fsync"): [1.0]}
    found = measurements("one", RATE, {**corners, BASELINE: [1.5]})
    lines = floors(found, [workload("one", RATE)])
    assert [(floor.where, floor.is_reached) for floor in lines] == [
        ("pyfluss on our server, os", True),
        ("pyfluss on our server, fsync", False),
    ]


@pytest.mark.parametrize(
    ("series", "costs", "measured", "reached"),
    [
        ("rows:append", {100_000: 1.0, 1_000_000: 1.2, 10_000_000: 1.1}, "1.20x", True),
        ("rows:scan", {100_000: 1.0, 10_000_000: 1.4}, "1.40x", False),
        ("rows:append", {100_000: 2.0, 10_000_000: 1.0}, "1.00x", True),
        ("buckets:append", {1: 1.0, 16: 1.6}, "1.60x", False),
        # Of primary-key tables the first million does not count.
        ("rows:upsert", {100_000: 1.0, 1_000_000: 4.0, 10_000_000: 9.0}, "2.25x", True),
    ],
)
def test_a_row_may_cost_so_much_more_at_scale(
    series: str, costs: dict[int, float], measured: str, reached: bool
) -> None:
    (line,) = floors(scaled(series, costs), [])
    assert (line.measured, line.is_reached) == (measured, reached)


def test_a_series_with_a_single_place_says_nothing() -> None:
    assert floors(scaled("rows:append", {100_000: 1.0}), []) == []

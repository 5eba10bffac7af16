from __future__ import annotations

import pytest
from benchmarks.measure import Measurement
from benchmarks.summary import figures

from tests.unit.benchmarks.samples import BASELINE, LATENCY, OURS, OURS_ON_APACHE, RATE, measurements


def test_median_and_spread_over_rounds() -> None:
    figure = figures(measurements("w", RATE, {OURS: [5.0, 100.0, 7.0]}), "w", RATE)[OURS]
    assert (figure.median, figure.lowest, figure.highest) == (7.0, 5.0, 100.0)


def test_more_is_better_for_rates_and_less_for_latencies() -> None:
    rates = figures(measurements("w", RATE, {OURS: [30.0], BASELINE: [10.0]}), "w", RATE)
    latencies = figures(measurements("w", LATENCY, {OURS: [30.0], BASELINE: [10.0]}), "w", LATENCY)
    assert rates[OURS].ratio == pytest.approx(3.0)
    assert latencies[OURS].ratio == pytest.approx(1 / 3)
    assert rates[BASELINE].ratio == latencies[BASELINE].ratio == 1.0


def test_a_ratio_compares_within_a_round() -> None:
    # The machine was half as fast in the second round, for both, and a third one was disturbed on one side.
    found = figures(measurements("w", RATE, {OURS: [20.0, 10.0, 1.0], BASELINE: [10.0, 5.0, 10.0]}), "w", RATE)
    assert found[OURS].ratio == pytest.approx(2.0)


def test_a_round_that_one_side_lacks_does_not_count() -> None:
    ours = [Measurement("w", OURS, 1, {}, "broken"), Measurement("w", OURS, 2, {RATE.key: 30.0})]
    found = figures([*ours, *measurements("w", RATE, {BASELINE: [1.0, 10.0]})], "w", RATE)
    assert found[OURS].ratio == pytest.approx(3.0)


def test_no_ratio_without_the_baseline() -> None:
    assert figures(measurements("w", RATE, {OURS: [1.0]}), "w", RATE)[OURS].ratio is None


def test_other_workloads_do_not_count() -> None:
    both = measurements("w", RATE, {OURS: [1.0]}) + measurements("other", RATE, {OURS: [9.0]})
    assert figures(both, "w", RATE)[OURS].highest == 1.0


def test_the_baseline_comes_last_whatever_the_order_of_measurement() -> None:
    found = figures(measurements("w", RATE, {BASELINE: [1.0], OURS_ON_APACHE: [1.0], OURS: [1.0]}), "w", RATE)
    assert list(found) == [OURS, OURS_ON_APACHE, BASELINE]

"""What `fluss bench` makes of the times it has taken."""

from __future__ import annotations

import pytest

from fluss.bench.bench import Meter, percentile


def test_the_sum_of_runs() -> None:
    meter = Meter("insert", 0.0, single=False, paused=False)
    assert meter.more()
    meter.add(2.0, 0.5, rows=1_000, size_bytes=8_000_000)
    assert not meter.more()
    meter.add(1.0, 0.25, rows=500, size_bytes=4_000_000)
    result = meter.result("upsert")
    assert (result.workload, result.part, result.status, result.runs, result.rows) == (
        "upsert",
        "insert",
        "ok",
        2,
        1_500,
    )
    assert (result.seconds, result.cpu_seconds, result.rows_per_second) == (3.0, 0.75, 500.0)
    assert result.megabytes_per_second == 4.0
    assert (result.median_ms, result.p99_ms) == (None, None)


def test_single_operations() -> None:
    meter = Meter(None, 60.0, single=True, paused=True)
    for number in range(200, 0, -1):
        assert meter.more()
        meter.add(number / 1_000, 0.0, rows=1, size_bytes=0)
    result = meter.result("visible")
    assert result.median_ms == pytest.approx(100.5)
    assert result.p99_ms == pytest.approx(198.0)
    assert (result.rows_per_second, result.megabytes_per_second) == (None, None)


def test_few_operations_have_no_percentile() -> None:
    meter = Meter(None, 60.0, single=True, paused=False)
    for _ in range(99):
        meter.add(0.5, 0.0, rows=1, size_bytes=0)
    assert (meter.result("ack").median_ms, meter.result("ack").p99_ms) == (500.0, None)
    meter.add(0.5, 0.0, rows=1, size_bytes=0)
    assert meter.result("ack").p99_ms == 500.0


def test_a_run_that_fails_is_not_counted() -> None:
    meter = Meter(None, 60.0, single=True, paused=False)
    with pytest.raises(ZeroDivisionError), meter.run():
        raise ZeroDivisionError
    with meter.run(10):
        pass
    with meter.run(5) as run:
        run.ended_s = run.began_s + 3.0
    result = meter.result("ack")
    assert (result.runs, result.rows) == (2, 15)
    assert result.seconds is not None
    assert result.seconds >= 3.0


@pytest.mark.parametrize(("values", "found"), [([1.0], 1.0), ([1.0, 2.0], 2.0), ([float(n) for n in range(100)], 98.0)])
def test_percentile(values: list[float], found: float) -> None:
    assert percentile(values, 0.99) == found

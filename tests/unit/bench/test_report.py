from __future__ import annotations

import pytest
from benchmarks.report import number, render, table
from benchmarks.workloads import Sizes

from tests.unit.bench.samples import BASELINE, LATENCY, OURS, RATE, measurements, workload

SIZES = Sizes(
    arrow_rows=1_000,
    dict_rows=100,
    latency_rows=20,
    shipped_rows=10,
    kv_rows=100,
    kv_dict_rows=10,
    lookups=5,
    concurrent_lookups=50,
)


def test_table_lines_are_equally_long() -> None:
    lines = table(["", "a long header"], [["first", "1"], ["the second", "22"]]).splitlines()
    assert lines == [
        "|            | a long header |",
        "| ---------- | ------------: |",
        "| first      |             1 |",
        "| the second |            22 |",
    ]


@pytest.mark.parametrize(
    ("value", "text"), [(0.123, "0.12"), (9.99, "9.99"), (12.34, "12.3"), (123.4, "123"), (12_345.6, "12,346")]
)
def test_numbers_have_three_digits_that_matter(value: float, text: str) -> None:
    assert number(value) == text


def test_report_has_medians_spread_and_ratios() -> None:
    found = measurements("rate", RATE, {OURS: [200.0, 300.0, 400.0], BASELINE: [100.0, 120.0, 140.0]})
    found += measurements("latency", LATENCY, {OURS: [2.0], BASELINE: [5.0]})
    workloads = [workload("rate", RATE), workload("latency", LATENCY)]
    text = render(found, workloads, {"System": "any"}, SIZES, 3, "of today")
    assert "# Benchmark of today" in text
    assert "3 rounds; per measurement 1,000 rows" in text
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    assert [OURS.title, "300 (200-400)", "2.50x"] in cells
    assert [BASELINE.title, "120 (100-140)", "1.00x"] in cells
    assert [OURS.title, "2.00 (2.00-2.00)", "2.50x"] in cells
    assert ["Title of rate", "2.50x"] in cells
    assert ["Title of latency: acknowledged, median ms", "2.50x"] in cells

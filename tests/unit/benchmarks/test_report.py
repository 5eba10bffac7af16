from __future__ import annotations

import pytest
from benchmarks.measure import Measurement
from benchmarks.report import number, render, table

from tests.unit.benchmarks.samples import (
    BASELINE,
    KAFKA,
    LATENCY,
    OURS,
    RATE,
    SIZES,
    measurements,
    scaled,
    workload,
)


def _cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_table_lines_are_equally_long() -> None:
    lines = table(["", "a long header"], [["first", "1"], ["the second", "22"]]).splitlines()
    assert lines == [
        "|            | a long header |",
        "| ---------- | ------------: |",
        "| first      |             1 |",
        "| the second |            22 |",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "0.012"), (0.123, "0.12"), (9.99, "9.99"), (12.34, "12.3"), (123.4, "123"), (12_345.6, "12,346")],
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
    cells = _cells(text)
    assert [OURS.title, "300 (200-400)", "2.50x"] in cells
    assert [BASELINE.title, "120 (100-140)", "1.00x"] in cells
    assert [OURS.title, "2.00 (2.00-2.00)", "2.50x"] in cells
    assert ["Title of rate", "2.50x"] in cells
    assert ["Title of latency: acknowledged, median ms", "2.50x"] in cells
    assert "## Failed" not in text


def test_what_failed_is_shown_with_the_reason() -> None:
    found = [*measurements("rate", RATE, {BASELINE: [100.0]}), Measurement("rate", OURS, 1, {}, "ValueError: a | b")]
    text = render(found, [workload("rate", RATE)], {}, SIZES, 1, "of today")
    assert ["rate", OURS.title, "1", "ValueError: a / b"] in _cells(text)
    assert [OURS.title, "failed", "-"] in _cells(text)
    assert ["Title of rate", "-"] in _cells(text)


def test_kafka_has_a_table_of_its_own() -> None:
    values = {OURS: [3.0], KAFKA: [2.0], BASELINE: [1.0]}
    found = measurements("rate", RATE, values) + measurements("tables", RATE, {OURS: [1.0], BASELINE: [1.0]})
    text = render(found, [workload("rate", RATE, has_kafka=True), workload("tables", RATE)], {}, SIZES, 1, "of today")
    _, kafka = text.split("## Ratios of Kafka")
    assert ["", KAFKA.title] in _cells(kafka.split("## ")[0])
    assert ["Title of rate", "2.00x"] in _cells(kafka)
    assert ["Title of tables", "1.00x"] not in _cells(kafka)


def test_costs_at_scale_are_those_of_client_and_server() -> None:
    found = scaled("rows:append", {100: 1.0, 1_000: 1.5}) + scaled("rows:upsert", {1_000: 4.0})
    cells = _cells(render(found, [], {}, SIZES, 1, "of today"))
    assert ["append", "1.00", "1.50"] in cells
    assert ["upsert", "-", "4.00"] in cells


def test_pictures_are_shown_by_name() -> None:
    text = render([], [], {}, SIZES, 1, "of today", ["latest.svg", "latest-scale.svg"])
    assert "](latest.svg)" in text
    assert "](latest-scale.svg)" in text

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import run
from benchmarks.measure import Measurement
from click.testing import CliRunner

from tests.unit.benchmarks.samples import BASELINE, OURS, OURS_WITHOUT_FSYNC, RATE, measurements, scaled


def _outcome(monkeypatch: pytest.MonkeyPatch, found: list[Measurement], output: Path) -> tuple[int, str]:
    monkeypatch.setattr(run, "_run", lambda plan, progress: ({"System": "any"}, found))
    result = CliRunner().invoke(run.main, ["--quick", "--output", str(output)])
    return result.exit_code, result.output


def test_what_was_measured_is_kept_with_its_pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = measurements("scan_arrow", RATE, {OURS: [3.0], OURS_WITHOUT_FSYNC: [4.0], BASELINE: [2.0]})
    found += scaled("rows:scan", {100_000: 1.0, 1_000_000: 1.1})
    status, text = _outcome(monkeypatch, found, tmp_path)
    assert status == 0
    assert "2.00x" in text
    names = {path.name for path in tmp_path.iterdir()}
    assert {"latest.md", "latest.json", "latest.svg", "latest-scale.svg"} <= names
    assert len(names) == 6  # and two with the date
    raw = json.loads((tmp_path / "latest.json").read_text())
    assert {"path": "Scan to Arrow", "where": "os", "needed": "1.2x", "measured": "2.00x", "is_reached": True} in raw[
        "floors"
    ]


def test_a_failure_is_kept_and_ends_the_run_with_its_status(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = [*measurements("scan_arrow", RATE, {BASELINE: [2.0]}), Measurement("scan_arrow", OURS, 1, {}, "broken")]
    status, text = _outcome(monkeypatch, found, tmp_path)
    assert status == 1
    assert "broken" in text
    raw = json.loads((tmp_path / "latest.json").read_text())
    assert [item["failure"] for item in raw["measurements"] if "failure" in item] == ["broken"]


def test_clients_without_a_server_are_refused() -> None:
    result = CliRunner().invoke(run.main, ["--quick", "--client", "aiokafka", "--server", "apache"])
    assert result.exit_code == 2

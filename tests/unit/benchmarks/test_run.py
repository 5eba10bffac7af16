from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import run
from benchmarks.measure import Measurement
from click.testing import CliRunner

from tests.unit.benchmarks.samples import BASELINE, OURS, OURS_WITHOUT_FSYNC, RATE, measurements, scaled

ROOT = Path(__file__).parents[3]
CHOSEN = ("append_arrow_10k", "scan_filtered", "append_rows", "upsert_bulk_update", "lookup_prefix", "latency_tuned")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.run", "--quick", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)


def test_quick_run_of_both_clients_on_our_server(tmp_path: Path) -> None:
    chosen = [word for key in CHOSEN for word in ("--workload", key)]
    done = _run("--server", "flussbett-fsync", *chosen, "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr[-4_000:]
    raw = json.loads((tmp_path / "latest.json").read_text())
    measured = {(item["workload"], item["client"]) for item in raw["measurements"]}
    assert measured == {(key, client) for key in CHOSEN for client in ("flussbett", "pyfluss")}
    report = (tmp_path / "latest.md").read_text()
    assert report.strip() == done.stdout.strip()
    assert str(ROOT) not in report + json.dumps(raw)


def test_quick_run_of_start_up_memory_and_writers(tmp_path: Path) -> None:
    chosen = ["--workload", "resources", "--workload", "scale_writers"]
    done = _run("--server", "flussbett-os", "--client", "flussbett", *chosen, "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr[-4_000:]
    raw = json.loads((tmp_path / "latest.json").read_text())
    assert {item["workload"] for item in raw["measurements"]} == {"resources", "loaded", "writers:append"}
    assert "![" in (tmp_path / "latest.md").read_text()
    assert (tmp_path / "latest-scale.svg").exists()


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

"""Quick runs of the benchmark, its servers and workers included."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
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

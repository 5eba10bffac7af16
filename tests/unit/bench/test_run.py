from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.run import WORKLOADS

ROOT = Path(__file__).parents[3]


def test_quick_run_of_both_clients_on_our_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.run", "--quick", "--server", "flussbett-fsync"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    raw = json.loads((tmp_path / "latest.json").read_text())
    measured = {(item["workload"], item["client"]) for item in raw["measurements"]}
    assert measured == {(workload.key, client) for workload in WORKLOADS for client in ("flussbett", "pyfluss")}
    report = (tmp_path / "latest.md").read_text()
    assert report.strip() == done.stdout.strip()
    assert str(ROOT) not in report + json.dumps(raw)

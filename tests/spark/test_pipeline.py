"""The reference pipeline, run as its readers run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

PIPELINE = Path(__file__).parents[2] / "examples" / "pipeline.py"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.timeout(900)
def test_the_pipeline_sums_up_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "revenue.png"
    command = [sys.executable, str(PIPELINE), str(picture), str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The sums equal those of the orders." in done.stdout
    assert "Revenue by country" in done.stdout
    assert "a union read finds 50,500" in " ".join(done.stdout.split())
    assert picture.read_bytes().startswith(PNG)
    # What it says to try next works, as it is written there.
    suggested = [line.strip() for line in done.stdout.partition("Try next:")[2].splitlines() if line.strip()]
    assert len(suggested) == 3
    shown = [
        subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60, check=True) for line in suggested
    ]
    assert "ordered_at" in shown[0].stdout
    assert "customer 7" in shown[1].stdout
    assert "anchor" in shown[2].stdout

"""The reference pipeline, run as its readers run it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kit.command import INTERRUPTIBLE

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


@pytest.mark.timeout(300)
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, str(PIPELINE), str(tmp_path / "revenue.png"), str(data)]
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            while not any(log.stat().st_size for log in data.rglob(f"{'?' * 20}.log")):  # rows come in
                assert process.poll() is None
                time.sleep(0.1)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            printed, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130, printed
    assert "Traceback" not in printed
    assert printed.endswith("Interrupted; everything is stopped.\n")
    assert not _running(str(data))


def _running(text: str) -> list[str]:
    """Processes with this in their command lines."""
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True, timeout=60).stdout
    return [line for line in lines.splitlines() if text in line]

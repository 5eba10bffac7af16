"""A seed says everything: run again it does the same, and a fixed set of seeds breaks no promise."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

SEEDS = 6


def simulated(*options: str) -> str:
    """What a run of the simulation prints, in a process of its own."""
    command = [sys.executable, "-m", "fluss.testing.sim", "--seconds", "250", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def hashes(output: str) -> dict[str, str]:
    """The trace of each seed."""
    return dict(re.findall(r"^seed (\d+) trace (\w+ of \d+ steps)$", output, re.MULTILINE))


def test_a_seed_does_the_same_again() -> None:
    first = hashes(simulated("--seed", "1", "--count", str(SEEDS), "--hashes"))
    again = hashes(simulated("--seed", "1", "--count", str(SEEDS), "--hashes", "--workers", "1"))
    assert len(first) == SEEDS
    assert first == again


def test_a_planted_bug_is_found() -> None:
    assert "segment-not-synced: found" in simulated("--seed", "1", "--mutant", "segment-not-synced")


@pytest.mark.full
@pytest.mark.timeout(800)
def test_ten_minutes() -> None:
    command = [sys.executable, "-m", "fluss.testing.sim", "--seconds", "600"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=700)
    assert done.returncode == 0, done.stdout + done.stderr

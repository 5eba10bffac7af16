"""Queries go on when their server restarts. Stopping one ends it quietly: no traceback of Python, no stack of Java."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.spark.stopped_queries import PROGRAMS, ROUNDS

pytestmark = pytest.mark.spark

# Whole lines that may be said.
EXPECTED: Final = (
    r"WARNING: Using incubator modules: .*",
    r"The stream of fluss\.source has more rows than a micro-batch may have\..*",
    r"No Fluss server answers at \S+ .* Waiting for it, for up to 120 s \(server\.wait-timeout-ms\)\.",
    r"The server at \S+ answers after \d+\.\d s\.",
    r"Rows of micro-batch \d+ stay staged until they expire: No Fluss server answers at .*",
)


@pytest.mark.timeout(600)
def test_queries_go_on_and_nothing_is_printed_when_they_are_stopped(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.stopped_queries", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr
    stopped = ["stopped"] * len(PROGRAMS)
    assert done.stdout.splitlines() == [*stopped * (ROUNDS - 1), "went on", *stopped]
    said = [line for line in done.stderr.splitlines() if not any(re.fullmatch(text, line) for text in EXPECTED)]
    assert said == [], done.stderr

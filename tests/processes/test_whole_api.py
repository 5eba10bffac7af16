"""One program uses the whole API: it satisfies a strict type-checker, leaves nothing out, and runs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from enum import Enum
from pathlib import Path

import pytest

import fluss

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "kit" / "whole_api.py"
TOUR = ROOT / "examples" / "tour.py"

OTHER_SPELLINGS = {
    *("Earliest", "Timestamp", "EARLIEST", "LATEST", "TIMESTAMP", "kind", "timestamp_ms", "ScanBatch"),
    *("create_batch_scanner", "poll_batches", "get_table", "connect", "create"),
}
# How values travel, and what users never call.
NOT_WALKED = {"Config", "ErrorCode", "DataType", "PrimaryKey"}
INTERNAL = {
    "primary_key",
    "description",
    "address",
    "to_json",
    "from_json",
    "of",
    "name",
    "matches",
    "check_types",
    "check_values",
    "OPTIONS",
}


@pytest.mark.parametrize("program", [PROGRAM, TOUR], ids=lambda path: path.name)
def test_strictly_typed(program: Path) -> None:
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), str(program)]
    done = subprocess.run(mypy, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_nothing_is_left_out() -> None:
    source = PROGRAM.read_text()
    missing = [
        f"{owner}.{name}"
        for owner in fluss.__all__
        for name in public_names(getattr(fluss, owner)) - OTHER_SPELLINGS - INTERNAL
        if not re.search(rf"\b{name}\b", source)
    ]
    assert sorted(missing) == []


def public_names(kind: object) -> set[str]:
    if not inspect.isclass(kind) or issubclass(kind, BaseException | Enum) or kind.__name__ in NOT_WALKED:
        return set()
    ours = [base for base in kind.__mro__ if base.__module__.startswith("fluss.")]
    return {name for base in ours for name in vars(base) if not name.startswith("_")}


@pytest.mark.parametrize("program", [PROGRAM, TOUR], ids=lambda path: path.name)
def test_runs(program: Path) -> None:
    done = subprocess.run([sys.executable, str(program), "memory:"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

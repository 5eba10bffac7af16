"""Long runs by seed: which ranges of which suite were run on which commit, in `runs.csv` beside this file.

Runs of one suite on one commit add up, so a long one can be stopped and gone on with, or be shared. The file has no
dates: the commit says when. `python -m tests.crash.ledger` prints the sums.
"""

from __future__ import annotations

import csv
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

LEDGER: Final = Path(__file__).with_name("runs.csv")
_HEADER: Final = "commit,suite,first,last,failures\n"
_DIRTY_MARK: Final = "+"  # behind a commit: sources or tests had changes that no commit has


class Run(NamedTuple):
    """One run of the seeds from `first` to `last`, both included."""

    commit: str
    suite: str
    first: int
    last: int
    failures: int


def record(suite: str, first: int, last: int, failures: int, ledger: Path = LEDGER) -> Run:
    """Append a run of the code as it is checked out."""
    run = Run(_commit(), suite, first, last, failures)
    line = ",".join(map(str, run)) + "\n"
    with ledger.open("a") as file:
        # One write, so that two runs that end at once do not mix their lines.
        file.write(line if file.tell() else _HEADER + line)
    return run


def runs(ledger: Path = LEDGER) -> Iterator[Run]:
    """All runs, the first one first."""
    if not ledger.exists():
        return
    with ledger.open(newline="") as file:
        for row in csv.DictReader(file):
            numbers = (int(row[name]) for name in ("first", "last", "failures"))
            yield Run(row["commit"], row["suite"], *numbers)


def seeds_run(suite: str, commit: str, ledger: Path = LEDGER) -> set[int]:
    """The seeds of a suite that were run on a commit."""
    found = [run for run in runs(ledger) if (run.suite, run.commit) == (suite, commit)]
    return {seed for run in found for seed in range(run.first, run.last + 1)}


def _commit() -> str:
    commit = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--", "src", "tests", f":!tests/crash/{LEDGER.name}")
    return commit + _DIRTY_MARK if changed else commit


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(LEDGER.parents[2]), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _print_sums() -> None:
    failures: dict[tuple[str, str], int] = defaultdict(int)
    for run in runs():
        failures[run.suite, run.commit] += run.failures
    for (suite, commit), failed in failures.items():
        print(f"{suite:12} {commit:14} {len(seeds_run(suite, commit)):>7} seeds {failed:>5} failures")


if __name__ == "__main__":
    _print_sums()

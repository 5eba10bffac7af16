"""The list of long runs: what was run on which commit, and how much of a suite that is."""

from __future__ import annotations

from pathlib import Path

from tests.crash.ledger import record, runs, seeds_run


def test_runs_of_one_suite_add_up(tmp_path: Path) -> None:
    ledger = tmp_path / "runs.csv"
    assert list(runs(ledger)) == []
    written = [record("rot", 0, 9, 1, ledger), record("rot", 5, 14, 0, ledger), record("power", 0, 99, 0, ledger)]
    assert list(runs(ledger)) == written
    commit = written[0].commit
    assert seeds_run("rot", commit, ledger) == set(range(15))
    assert seeds_run("rot", "another", ledger) == set()
    assert ledger.read_text().count("commit,suite") == 1

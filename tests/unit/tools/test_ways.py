"""tools/ways.py: what it counts, and one real run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tools import ways
from tools.folders import inserted
from tools.ways import Step

ROOT = Path(__file__).parents[3]
BEGIN, END = f"<!-- begin of {ways.TOOL} -->", f"<!-- end of {ways.TOOL} -->"

STEPS = [
    Step("api/append.py", "client"),
    Step("client/writer.py", "client"),
    Step("client/sender.py", "client"),
    Step("protocol/frames.py", "client"),
    Step("protocol/frames.py", "server"),
    Step("server/handlers/writes.py", "server"),
    Step("sync.py", "client"),
]


def test_files_count_once_and_folders_whenever_they_change() -> None:
    assert ways.files_of(STEPS) == [step.file for step in STEPS if step is not STEPS[4]]
    assert ways.changes(step.folder for step in STEPS) == 4
    assert ways.changes([]) == 0


def test_report() -> None:
    text = ways.report({"Append": STEPS})
    assert "| Append | 6 | 4 | 4 |" in text
    assert "| client | api | `append.py` |\n|  | client | `writer.py`, `sender.py` |\n" in text
    assert (
        "| server | protocol | `frames.py` |\n|  | server/handlers | `writes.py` |\n| client | . | `sync.py` |" in text
    )


def test_the_result_goes_between_the_marks() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert inserted("new\n", page, ways.TOOL) == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    with pytest.raises(SystemExit, match="the page lacks the lines"):
        inserted("new\n", "a page without marks", ways.TOOL)


def test_a_real_run_is_seen_on_both_sides(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    command = [sys.executable, "-m", "tools.ways", "append", "--write", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.count("**Append a row and flush**") == 1
    client, _, server = text.partition("| server |")
    assert "`row_appender.py`" in client  # plain Python, or it would not be seen
    assert "| client | api/_sync |" in client
    assert "| storage |" in server
    assert "patience.py" not in text  # of what the server does by the clock

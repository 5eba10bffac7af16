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

# How many files a way may have at most; one more is one more to read.
FILES_MAX = {"append": 40, "poll": 40, "lookup": 30}
TITLES = {
    "append": "Append a row and flush",
    "poll": "Subscribe to a table and poll its first rows",
    "lookup": "Look a row up",
}

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


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page with three real runs."""
    page = tmp_path_factory.mktemp("ways") / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    command = [sys.executable, "-m", "tools.ways", *FILES_MAX, "--write", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return page.read_text()


def files(page: str, title: str) -> dict[str, set[str]]:
    """The files of a way on a page, by side."""
    found: dict[str, set[str]] = {"client": set(), "server": set()}
    side = ""
    for line in page.partition(f"\n**{title}**\n")[2].partition("\n**")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[2].startswith("`"):
            side = cells[0] or side
            found[side] |= {f"{cells[1]}/{name}" for name in cells[2].replace("`", "").split(", ")}
    return found


def test_a_real_run_is_seen_on_both_sides(traced: str) -> None:
    assert traced.count("**Append a row and flush**") == 1
    client, _, _ = traced.partition("| server |")
    assert "`row_appender.py`" in client  # plain Python, or it would not be seen
    assert "| client | api/_sync |" in client
    assert "| storage |" in traced.partition("| server |")[2].partition("\n**")[0]
    assert "`limits.py`" not in traced  # what the server does by the clock: closing idle connections


@pytest.mark.parametrize("way", FILES_MAX)
def test_the_ways_of_the_house_are_short(traced: str, way: str) -> None:
    way_files = files(traced, TITLES[way])
    names = set.union(*way_files.values())
    assert len(names) <= FILES_MAX[way], sorted(names)


@pytest.mark.parametrize("way", FILES_MAX)
def test_the_map_has_the_files_of_each_way(traced: str, way: str) -> None:
    shown = files(ROOT.joinpath("docs", "map.md").read_text(encoding="utf-8"), TITLES[way])
    assert shown == files(traced, TITLES[way]), "run python -m tools.ways --write docs/map.md"

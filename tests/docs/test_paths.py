"""Files and modules that pages name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools import folders

from tests.kit.pages import DOCS, ROOT

# Pages about the source; a path in them may begin anywhere in it. Pages for users name files of their own.
PAGES = [
    *(DOCS / name for name in ("design.md", "hacking.md", "map.md", "promises.md", "style.md")),
    *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md")),
]
SOURCE = ROOT / "src" / "fluss"
_PATH = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|csv|proto|toml))`")
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
# Of a user, or written there by a server.
OTHERS = {"fluss.toml"}


def _known_paths() -> list[str]:
    folders = ("src", "tests", "benchmarks", "docs", "examples", "tools")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [f"/{path.relative_to(ROOT).as_posix()}" for path in [*found, *ROOT.glob("*")]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_paths_are_there(page: Path) -> None:
    known = _known_paths()
    named = set(_PATH.findall(page.read_text(encoding="utf-8"))) - OTHERS
    missing = sorted(path for path in named if not any(place.endswith(f"/{path}") for place in known))
    assert not missing, f"{page.name} names {missing}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent == ROOT], ids=lambda page: str(page.name))
def test_links_of_pages_outside_of_the_site(page: Path) -> None:
    missing = [target for target in _LINK.findall(page.read_text(encoding="utf-8")) if not (ROOT / target).exists()]
    assert not missing, f"{page.name} links to {missing}"


def test_the_map_has_every_folder_and_every_module() -> None:
    page = (DOCS / "map.md").read_text(encoding="utf-8")
    assert folders.inserted(folders.listing(SOURCE), page) == page, "run python -m tools.folders --write docs/map.md"


def test_every_folder_and_every_module_says_what_it_holds() -> None:
    paths = [*SOURCE.rglob("*.py")]
    silent = [path for path in paths if not path.stem.startswith("__main__") and not folders.sentence(path)]
    assert not [path for path in silent if "_pb2" not in path.name], "a first sentence for the map"

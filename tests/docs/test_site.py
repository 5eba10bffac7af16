"""The site builds without a warning: all links, anchors and names of the reference resolve. It loads nothing remote."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.pages import DOCS, ROOT

# What a browser fetches by itself; links that a reader may click are none of it.
_FETCHED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=\"?(https?:[^\" >]+)")
OTHER_NAMES = {"ScanBatch"}  # of RecordBatch
_STYLE_FETCHED = re.compile(r"(?:@import|url\()\s*[\"']?(?:https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    for path in DOCS.rglob("*.md"):
        page = path.relative_to(DOCS).with_suffix("")
        built = site / (page.parent if page.name == "index" else page) / "index.html"
        assert built.is_file(), f"{path} is not in the site"


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert not (found := _FETCHED.findall(path.read_text(encoding="utf-8"))), f"{path.name} fetches {found}"
    for path in site.rglob("*.css"):
        assert not _STYLE_FETCHED.search(path.read_text(encoding="utf-8")), path


def test_the_reference_has_every_public_name(site: Path) -> None:
    import fluss.spark
    import fluss.sync
    import fluss.testing

    text = "".join(path.read_text(encoding="utf-8") for path in (site / "reference").rglob("*.html"))
    anchors = {anchor.rpartition(".")[2] for anchor in re.findall(r'id="(fluss\.[\w.]+)"', text)}
    public = {*fluss.sync.__all__, *fluss.spark.__all__, *fluss.testing.__all__} - OTHER_NAMES
    assert not (missing := public - anchors), f"the reference lacks {sorted(missing)}"

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from benchmarks.plots import draw

from tests.unit.benchmarks.samples import (
    BASELINE,
    OURS,
    OURS_ON_APACHE,
    OURS_WITHOUT_FSYNC,
    RATE,
    measurements,
    scaled,
    workload,
)

VALUES = {OURS: [300.0], OURS_WITHOUT_FSYNC: [25.0], OURS_ON_APACHE: [0.5], BASELINE: [1.0]}
WORKLOADS = [workload("scan_arrow", RATE), workload("poll_rows", RATE)]


def _texts(file: Path) -> set[str]:
    return {"".join(item.itertext()).strip() for item in ElementTree.parse(file).iter() if item.tag.endswith("text")}


def test_the_summary_has_a_bar_for_each_path_and_corner(tmp_path: Path) -> None:
    assert draw(tmp_path, "latest", measurements("scan_arrow", RATE, VALUES), WORKLOADS, OURS) == ["latest.svg"]
    texts = _texts(tmp_path / "latest.svg")
    assert {"Scan to Arrow", "300x", "25x", "0.50x", "Flussbett client on Apache Fluss"} <= texts
    assert "Polling rows" not in texts


def test_scale_has_a_line_for_each_path(tmp_path: Path) -> None:
    found = scaled("rows:append", {100_000: 1.0, 10_000_000: 2.0}) + scaled("buckets:scan", {1: 1.0, 16: 2.0})
    assert draw(tmp_path, "latest", found, WORKLOADS, OURS_WITHOUT_FSYNC) == ["latest-scale.svg"]
    texts = _texts(tmp_path / "latest-scale.svg")
    assert {"Arrow append", "scan to Arrow", "100k", "10M", "1", "16", "buckets"} <= texts
    assert "writers at a time" not in texts


def test_nothing_measured_is_no_picture(tmp_path: Path) -> None:
    assert draw(tmp_path, "latest", [], WORKLOADS, OURS) == []
    # Without the peer there are no ratios.
    assert draw(tmp_path, "latest", measurements("scan_arrow", RATE, {OURS: [1.0]}), WORKLOADS, OURS) == []


def test_the_same_figures_make_the_same_picture(tmp_path: Path) -> None:
    found = measurements("scan_arrow", RATE, VALUES)
    for stem in ("first", "second"):
        draw(tmp_path, stem, found, WORKLOADS, OURS)
    assert (tmp_path / "first.svg").read_text() == (tmp_path / "second.svg").read_text()

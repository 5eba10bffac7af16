"""The verdict of a soak: what counts as growth, and what a journal holds."""

from __future__ import annotations

import math
import os
import random
from pathlib import Path

import pytest
from benchmarks.soak_report import ClientResult, draw, page, problems, trends
from benchmarks.soak_samples import Journal, Sample, columns, read, second_half, take, trend

from fluss.testing.processes import free_ports

CLIENTS = {"keys": ClientResult(10, 1_000, 0)}


def curve(memory_mb_a_minute: float = 0.0, files_a_minute: float = 0.0) -> list[Sample]:
    """Two hours: a steep start, then a saw-tooth with noise and the slopes given."""
    chance = random.Random(1)
    samples = []
    for number in range(1_440):
        minutes = number / 12
        level = {
            "rss_mb": 200 - 80 * math.exp(-minutes / 8) + memory_mb_a_minute * minutes + chance.uniform(-4, 4),
            "descriptors": 300 + 20 * math.sin(minutes),
            "threads": 27.0,
            "data_files": 600 + number % 60 + files_a_minute * minutes,
        }
        samples.append({"minutes": minutes, "sync_failures": 0.0, **level})
    return samples


def test_a_level_run_has_no_problems() -> None:
    assert problems(curve(), CLIENTS, is_judged=True) == []


def test_memory_that_grows_slowly_is_told() -> None:
    (problem,) = problems(curve(memory_mb_a_minute=0.12), CLIENTS, is_judged=True)
    assert "memory grows by 0.1" in problem
    assert problems(curve(memory_mb_a_minute=0.12), CLIENTS, is_judged=False) == []


def test_files_that_grow_are_told() -> None:
    (problem,) = problems(curve(files_a_minute=1.0), CLIENTS, is_judged=True)
    assert "files in the data directory grow" in problem


def test_errors_fail_any_run() -> None:
    clients = {"keys": ClientResult(10, 1_000, 2), "scans": ClientResult(0, 0, 0)}
    assert problems(curve(), clients, is_judged=False) == ["keys: 2 errors", "scans: not one step"]
    failing = [*curve(), {"minutes": 121.0, "sync_failures": 1.0}]
    assert problems(failing, CLIENTS, is_judged=False) == ["a sync of the server failed"]


def test_the_line_of_a_straight_curve_is_exact() -> None:
    line = trend([{"minutes": x, "y": 3 * x + 1} for x in range(10)], "y")
    assert line == pytest.approx((3.0, 14.5, 27.0))
    assert trend([], "y").slope == 0


def test_a_journal_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "soak.csv", columns(["keys"]))
    (tmp_path / "data" / "folder").mkdir(parents=True)
    (tmp_path / "data" / "folder" / "file").write_bytes(bytes(2_000_000))
    # Nobody serves metrics there, and one client is gone.
    sample = take(0.5, os.getpid(), free_ports(1)[0], tmp_path / "data", {"keys": os.getpid(), "gone": 2**22 + 1})
    journal.add(sample)
    (found,) = read(tmp_path / "soak.csv")
    assert found["data_files"] == 1
    assert found["data_mb"] == 2.0
    assert found["rss_mb"] >= found["anon_mb"] > 1
    assert found["descriptors"] > 2
    assert found["client_keys_mb"] > 10
    assert "client_gone_mb" not in found
    assert "open_stores" not in found
    journal.close()


def test_picture_and_page(tmp_path: Path) -> None:
    samples = [{**sample, "cpu_s": sample["minutes"], "client_keys_mb": 100.0} for sample in curve()[:200]]
    draw(samples, tmp_path / "soak.svg")
    assert "client memory" in (tmp_path / "soak.svg").read_text()
    text = page(samples, CLIENTS, {"Memory": "8 GiB"}, ["keys: 2 errors"], "soak.svg")
    assert "**Failed**: keys: 2 errors." in text
    assert trends(samples) in text
    assert second_half(samples)[0]["minutes"] >= samples[-1]["minutes"] / 2

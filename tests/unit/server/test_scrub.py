"""A server that scrubs: what is damaged under it shows in metrics and log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path

from fluss.storage.directory import SCRUB_NAME
from tests.kit.kv_requests import create_kv_table, kv_batch, lookup, put
from tests.kit.thread_server import TIMEOUT_S, RunningServer, batch, create_table, produce
from tests.unit.server.calls import scrape

INTERVAL_MS = 10


class Told(logging.Handler):
    """Waits for a line of the log."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self.lines: list[str] = []
        self._is_there = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage():
            self.lines.append(record.getMessage())
            self._is_there.set()

    def wait(self) -> None:
        assert self._is_there.wait(TIMEOUT_S), f"nothing told of {self._text!r}"


@contextmanager
def told(text: str) -> Iterator[Told]:
    handler, logger = Told(text), logging.getLogger("fluss.storage.damage.scrub")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        data = bytearray(file.read())
        data[position] ^= 0x10
        file.seek(0)
        file.write(data)


def test_rot_under_a_running_server_is_told(tmp_path: Path) -> None:
    settings = {"metrics_port": 0, "segment_size_bytes": 1_000, "scrub_interval_ms": INTERVAL_MS}
    with RunningServer(tmp_path / "data", **settings) as running, running.connect() as wire:
        table_id = create_table(wire)
        for _ in range(8):
            produce(wire, table_id, batch(5))
        with told(", 0 files are damaged") as clean:
            clean.wait()
        before = scrape(running)
        assert before["fluss_scrub_damaged_files"] == 0
        assert before["fluss_scrub_bytes_total"] > 0
        assert before["fluss_scrub_pass_end_timestamp_seconds"] > 1_700_000_000
        damaged = sorted((tmp_path / "data" / "tables").rglob("*.log"))[1]
        with told(str(damaged)) as rot:
            flip(damaged, 100)
            rot.wait()
        assert "corrupt batch at byte" in rot.lines[0]
        assert "fluss repair" in rot.lines[0]
        with told(", 1 files are damaged") as summary:
            summary.wait()
        after = scrape(running)
        assert after["fluss_scrub_damaged_files"] == 1
        assert after["fluss_scrub_pass_seconds"] > 0
    assert damaged.name in (tmp_path / "data" / SCRUB_NAME).read_text()


def snapshot_files(data: Path) -> list[Path]:
    """SST files of snapshots; glob, other than Path.rglob, goes on where a folder goes away meanwhile."""
    return sorted(map(Path, glob(f"{data}/tables/**/snapshots/*-*/*.sst", recursive=True)))


def test_a_store_that_rots_under_a_running_server_is_replaced(tmp_path: Path) -> None:
    settings = {"metrics_port": 0, "scrub_interval_ms": INTERVAL_MS, "kv_snapshot_interval_ms": 20}
    with RunningServer(tmp_path / "data", **settings) as running, running.connect() as wire:
        table_id = create_kv_table(wire)
        put(wire, table_id, kv_batch([(number, "x" * 50, 1.0) for number in range(500)]))
        with told(", 0 files are damaged") as clean:
            while not (tables := snapshot_files(tmp_path / "data")):
                clean.wait()
        answer = lookup(wire, table_id, 7)
        with told("damaged files are replaced") as replaced:
            flip(max(tables, key=lambda path: path.stat().st_size), 100)
            replaced.wait()
        assert lookup(wire, table_id, 7) == answer
        with told(", 0 files are damaged") as clean:
            clean.wait()
        assert scrape(running)["fluss_scrub_damaged_files"] == 0


def test_a_server_that_does_not_scrub_reads_nothing(tmp_path: Path) -> None:
    settings = {"metrics_port": 0, "scrub_interval_ms": INTERVAL_MS, "scrub_bytes_per_second": 0}
    with RunningServer(tmp_path / "data", **settings) as running:
        assert scrape(running)["fluss_scrub_bytes_total"] == 0
    assert not (tmp_path / "data" / SCRUB_NAME).exists()


def test_a_pass_that_would_take_days_does_not_delay_the_stop(tmp_path: Path) -> None:
    settings = {"scrub_interval_ms": INTERVAL_MS, "scrub_bytes_per_second": 1}
    with told("scrub 1 begins") as begun, RunningServer(tmp_path / "data", **settings) as running:
        with running.connect() as wire:
            produce(wire, create_table(wire), batch(5))
        begun.wait()
    # `RunningServer` waits for the end with a time limit.
    assert (tmp_path / "data" / SCRUB_NAME).exists()


def test_a_server_without_tables_has_nothing_to_read(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data", metrics_port=0, scrub_interval_ms=INTERVAL_MS) as running:
        assert scrape(running)["fluss_scrub_bytes_total"] == 0
    assert not (tmp_path / "data" / SCRUB_NAME).exists()

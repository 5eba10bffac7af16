"""Killed at every step that touches the disk: after a clean restart all that was acknowledged is there.

The server kills itself at the n-th hit of a fail point, n up to a count that the scenario is sure to reach. The short
run draws one step of every site and one n from the seed; the full run takes every fail point, at its first hit, its
last, and some in between. Those of primary-key tables are in `test_kv_failpoints.py`.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from enum import Enum
from pathlib import Path

import pytest

import fluss
from fluss.storage import failpoints
from fluss.storage.failpoints import STEPS, Site
from fluss.testing import FlussServer, ProcessFailedError
from tests.crash.fail_point_hits import DEATH_S_MAX, LOG_HITS
from tests.crash.partitions import PATH as PARTED
from tests.crash.partitions import Partitions
from tests.crash.servers import new_server
from tests.kit.loads.workload import DATABASE, Plan, Workload
from tests.kit.loads.writers import POLL_INTERVAL_S
from tests.kit.rows import SCHEMA, Row, descriptor, wire_batch
from tests.kit.wire import ConnectionLostError, Wire

NAMES = [f"{site}.{step}" for site in LOG_HITS for step in STEPS[site]]
# Hit only when there is something to repair.
RECOVERY_SITES = (Site.SEGMENT_RECOVER, Site.SEGMENT_CUT)
PLAN = Plan(tables=(("single", 1), ("spread", 2)), row_writers=0, batch_writers=2, plain_writers=2)
DOOMED = fluss.TablePath(DATABASE, "doomed")
EXPIRING = fluss.TablePath(DATABASE, "expiring")
EXPIRING_ROWS = 1_200
EXPIRING_BATCH_ROWS = 100
SURVIVAL_ROWS = 300
FULL_COUNTS = 3


class Expected(Enum):
    """What is known of the table that is made and dropped."""

    ABSENT = "absent"
    UNKNOWN = "unknown"
    PRESENT = "present"


class Scenario:
    """A table made and dropped, then a load on others; with all that must hold after a restart."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.server: FlussServer = new_server(directory)
        self.seed = seed
        self.doomed = Expected.ABSENT
        self.partitions = Partitions()
        self.expiring_rows = 0  # acknowledged
        self._load: Workload | None = None

    @property
    def load(self) -> Workload:
        if self._load is None:
            self._load = Workload(self.server.bootstrap_servers, self.seed, PLAN)
        return self._load

    def crash_with_torn_tails(self) -> None:
        """Leave something to recover and to cut."""
        self.server.start()
        self.make_and_drop()
        self.make_tables()
        self.load.__enter__()
        self.load.await_progress()
        self.server.kill()
        for directory in {path.parent for path in self.server.data_dir.rglob("*.log")}:
            with max(directory.glob("*.log")).open("ab") as segment:
                segment.write(wire_batch([Row(0, 0)])[:-1])

    def run_until_killed(self, spec: str) -> None:
        """Start with an armed fail point and go on until the server is dead by its own hand."""
        self.server.env = {failpoints.ENVIRONMENT_VARIABLE: spec}
        try:
            self.server.start()
            if self._load is None:
                self.make_and_drop()
                self.make_tables()
                self.fill_expiring()
                self.load.__enter__()
        except (ProcessFailedError, ConnectionLostError):
            pass
        deadline = time.monotonic() + DEATH_S_MAX
        while self.server.process.returncode is None and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        assert self.server.process.returncode == -signal.SIGKILL, f"{spec} was not reached"

    def make_and_drop(self) -> None:
        with Wire(self.server.bootstrap_servers) as wire:
            self.doomed = Expected.UNKNOWN
            table_id = wire.create_table(DOOMED, descriptor(1))
            self.doomed = Expected.PRESENT
            assert wire.produce(table_id, 0, wire_batch([Row(0, 0)])).error_code == 0
            self.doomed = Expected.UNKNOWN
            wire.drop_table(DOOMED)
            self.doomed = Expected.ABSENT
            self.partitions.change(wire)

    def make_tables(self) -> None:
        """Make the load's tables, those that are not there yet."""
        with Wire(self.server.bootstrap_servers) as wire:
            for path, buckets in self.load.tables:
                if not wire.table_exists(path):
                    wire.create_table(path, descriptor(buckets))

    def fill_expiring(self) -> None:
        """Write several segments into a table that keeps one."""
        with Wire(self.server.bootstrap_servers) as wire:
            properties = {"table.log.arrow.compression.type": "NONE"}
            table_id = wire.create_table(
                EXPIRING,
                fluss.TableDescriptor(
                    fluss.Schema(SCHEMA),
                    bucket_count=1,
                    properties=properties,
                    custom_properties={"log.retention.size-bytes": "1"},
                ),
            )
            while self.expiring_rows < EXPIRING_ROWS:
                rows = [Row(0, self.expiring_rows + number) for number in range(EXPIRING_BATCH_ROWS)]
                assert wire.produce(table_id, 0, wire_batch(rows)).error_code == 0
                self.expiring_rows += len(rows)

    def check_expiring(self) -> None:
        """What is left is the end of what was written, without a gap."""
        with Wire(self.server.bootstrap_servers) as wire:
            if not wire.table_exists(EXPIRING):
                assert not self.expiring_rows
                return
            table_id = wire.table_id(EXPIRING)
            bucket = self.server.data_dir / "tables" / str(table_id) / "0"
            deadline = time.monotonic() + DEATH_S_MAX
            while len(segments_with_rows(bucket)) > 1:
                assert time.monotonic() < deadline, "old segments were not removed"
                time.sleep(POLL_INTERVAL_S)
            stored = wire.read(table_id, 0, wire.earliest(table_id, 0))
            rows = [(batch.base_offset + at, row) for batch in stored for at, row in enumerate(batch.rows)]
            assert all(row == Row(0, offset) for offset, row in rows)
            assert len(rows) == (rows[-1][0] - rows[0][0] + 1 if rows else 0)
            if self.expiring_rows:
                assert rows[-1][0] >= self.expiring_rows - 1

    def restart_and_check(self) -> None:
        self.server.env = {}
        self.server.start()
        with Wire(self.server.bootstrap_servers) as wire:
            exists = wire.table_exists(DOOMED)
            assert self.doomed is Expected.UNKNOWN or exists == (self.doomed is Expected.PRESENT)
            self.partitions.check(wire, self.server.data_dir)
        self.make_tables()
        self.check_expiring()
        if not self.load.writers[0].ident:
            self.load.__enter__()
        self.load.await_progress()
        self.load.finish()
        self.check_directories()
        assert "Traceback" not in self.server.log_file.read_text()

    def check_directories(self) -> None:
        """Nothing is left of dropped tables."""
        with Wire(self.server.bootstrap_servers) as wire:
            paths = [*(path for path, _ in self.load.tables), DOOMED, EXPIRING, PARTED]
            known = {str(wire.table_id(path)) for path in paths if wire.table_exists(path)}
        assert {path.name for path in (self.server.data_dir / "tables").iterdir()} <= known

    def stop(self) -> None:
        if self._load is not None:
            self._load.__exit__(None, None, None)
        self.server.__exit__(None, None, None)


def segments_with_rows(bucket: Path) -> list[Path]:
    """One that was begun and has nothing in it yet is not the one that is kept."""
    found = []
    for path in bucket.glob("*.log"):
        with contextlib.suppress(FileNotFoundError):  # removed in this moment
            if path.stat().st_size:
                found.append(path)
    return found


def site_of(name: str) -> Site:
    return next(site for site, steps in STEPS.items() if name in {f"{site}.{step}" for step in steps})


def kill_at(directory: Path, seed: int, name: str, count: int) -> None:
    spec = f"{name}:{count}"
    print(f"fail point {spec}")
    scenario = Scenario(directory, seed)
    try:
        if site_of(name) in RECOVERY_SITES:
            scenario.crash_with_torn_tails()
        scenario.run_until_killed(spec)
        scenario.restart_and_check()
    finally:
        scenario.stop()


def test_the_scenario_itself_does_not_end_the_server(tmp_path: Path, seed: int) -> None:
    scenario = Scenario(tmp_path, seed)
    try:
        scenario.server.start()
        scenario.make_and_drop()
        scenario.make_tables()
        with scenario.load:
            scenario.load.await_progress(SURVIVAL_ROWS)
            assert scenario.server.process.returncode is None
            scenario.load.finish()
    finally:
        scenario.stop()


@pytest.mark.parametrize("site", LOG_HITS)
def test_killed_at_a_step_of(tmp_path: Path, chance: random.Random, seed: int, site: Site) -> None:
    kill_at(tmp_path, seed, f"{site}.{chance.choice(STEPS[site])}", chance.randint(1, LOG_HITS[site]))


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_killed_at(tmp_path: Path, chance: random.Random, seed: int, name: str) -> None:
    most = LOG_HITS[site_of(name)]
    for count in sorted({1, most, *(chance.randint(1, most) for _ in range(FULL_COUNTS))}):
        kill_at(tmp_path / str(count), seed, name, count)

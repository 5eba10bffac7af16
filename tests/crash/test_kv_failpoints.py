"""Killed at every step of a store or a snapshot: after a restart all that was acknowledged is there.

As `test_failpoints.py` does it for the rest of the storage: the short run draws one step of every site, the full run
takes them all, at several counts.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Final

import pytest

from fluss.storage import failpoints
from fluss.storage.failpoints import STEPS, Site
from fluss.testing import FlussServer, ProcessFailedError
from tests.crash.fail_point_hits import BACKUP_HITS, DEATH_S_MAX, LAKE_HITS, LOG_SITES, STAGING_HITS
from tests.crash.servers import new_server
from tests.kit.loads.kv_clients import BUCKETS, KvLoad, make_tables
from tests.kit.loads.writers import POLL_INTERVAL_S

# How often each site is sure to be hit, at every one of its steps.
HITS: Final[dict[Site, int]] = {
    Site.KV_CREATE: 4,
    Site.KV_COMMIT: 30,
    Site.KV_RESTORE: 3,
    Site.KV_CHECKPOINT: 3,
    Site.KV_CHECKPOINT_REMOVE: 2,
}
NAMES: Final = [f"{site}.{step}" for site in HITS for step in STEPS[site]]
FULL_COUNTS = 3
PROGRESS_S_MAX = 30.0
END_S_MAX = 60.0


def site_of(name: str) -> Site:
    return next(site for site in HITS if name in {f"{site}.{step}" for step in STEPS[site]})


def kill_at(directory: Path, seed: int, name: str, count: int) -> None:
    spec = f"{name}:{count}"
    print(f"fail point {spec}")
    with new_server(directory) as server:
        make_tables(server.bootstrap_servers)
        load = KvLoad(server.bootstrap_servers, seed)
        try:
            if site_of(name) is Site.KV_RESTORE:
                load.start()
                await_snapshots(server, load)
                server.kill()
                damage_stores(server)
            else:
                server.terminate()
            run_until_killed(server, load, spec)
            server.env = {}
            server.start()
            load.await_progress(PROGRESS_S_MAX)
            load.finish(END_S_MAX)
        finally:
            load.stop()
        assert "Traceback" not in server.log_file.read_text()


def await_snapshots(server: FlussServer, load: KvLoad) -> None:
    """Wait until every bucket has a snapshot."""
    deadline = time.monotonic() + PROGRESS_S_MAX
    while len(_with_snapshots(server.data_dir)) < sum(BUCKETS.values()):
        load.raise_failures()
        assert time.monotonic() < deadline, "not all buckets have a snapshot"
        time.sleep(POLL_INTERVAL_S)


def _with_snapshots(data_dir: Path) -> set[str]:
    """The snapshot folders that have one. Walked, not globbed: folders come and go meanwhile."""
    found = set()
    for folder, _, names in os.walk(data_dir):
        parent, name = os.path.split(folder)
        if "CURRENT" in names and os.path.basename(parent) == "snapshots" and not name.endswith(".tmp"):
            found.add(parent)
    return found


def damage_stores(server: FlussServer) -> None:
    for path in server.data_dir.rglob("kv/CURRENT"):
        path.write_bytes(b"")


def run_until_killed(server: FlussServer, load: KvLoad, spec: str) -> None:
    server.env = {failpoints.ENVIRONMENT_VARIABLE: spec}
    try:
        server.start()
    except ProcessFailedError:
        pass
    if not load.threads[0].ident:
        load.start()
    deadline = time.monotonic() + DEATH_S_MAX
    while server.process.returncode is None and time.monotonic() < deadline:
        load.raise_failures()
        time.sleep(POLL_INTERVAL_S)
    assert server.process.returncode == -signal.SIGKILL, f"{spec} was not reached"


def test_every_site_has_a_count() -> None:
    # A start removes what a backup left behind and notes the clock, a scrub leaves a report, numbers are noted: tests
    # of the storage kill there.
    elsewhere = {Site.BACKUP_REMOVE, Site.CLOCK_NOTE, Site.SCRUB_REPORT, Site.KV_NUMBERS}
    # Repairs are made without a server: `test_rot_repair` interrupts them.
    elsewhere |= {Site.REPAIR_KEEP, Site.REPAIR_REPLACE}
    counted = {*LOG_SITES, *HITS, *STAGING_HITS, *LAKE_HITS, *BACKUP_HITS}
    assert counted | elsewhere == set(Site)


@pytest.mark.parametrize("site", HITS)
def test_killed_at_a_step_of(tmp_path: Path, chance: random.Random, seed: int, site: Site) -> None:
    kill_at(tmp_path, seed, f"{site}.{chance.choice(STEPS[site])}", chance.randint(1, HITS[site]))


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_killed_at(tmp_path: Path, chance: random.Random, seed: int, name: str) -> None:
    most = HITS[site_of(name)]
    for count in sorted({1, most, *(chance.randint(1, most) for _ in range(FULL_COUNTS))}):
        kill_at(tmp_path / str(count), seed, name, count)

"""A stream of staged writes while the server is killed and answers are lost: each row is stored once."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Final

import pytest

from fluss.protocol import api_keys
from fluss.storage import failpoints
from fluss.storage.failpoints import STEPS, Site
from fluss.testing import Action, Direction, Fault, FaultProxy
from tests.crash.fail_point_hits import STAGING_HITS
from tests.crash.servers import new_server
from tests.crash.staged_stream import StagedStream, check, make_tables
from tests.kit.loads.writers import POLL_INTERVAL_S

BATCHES: Final = 8
DEATH_S_MAX: Final = 30.0
HITS: Final[dict[Site, int]] = {
    **STAGING_HITS,
    Site.CATALOG_COMMIT: 45,  # the decision and the end of each commit
    Site.SEGMENT_APPEND: 80,
    Site.SEGMENT_COMMIT: 40,
    Site.KV_COMMIT: 30,
}
FULL_COUNTS: Final = 3
STAGED_KEYS: Final = frozenset({api_keys.STAGE_WRITE.key, api_keys.COMMIT_STAGED.key})


def kill_at(directory: Path, name: str, count: int) -> None:
    spec = f"{name}:{count}"
    print(f"fail point {spec}")
    with new_server(directory) as server:
        make_tables(server.bootstrap_servers)
        server.terminate()
        server.env = {failpoints.ENVIRONMENT_VARIABLE: spec}
        server.start()
        stream = StagedStream(server.bootstrap_servers, BATCHES)
        stream.start()
        deadline = time.monotonic() + DEATH_S_MAX
        while server.process.returncode is None and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        assert server.process.returncode == -signal.SIGKILL, f"{spec} was not reached"
        server.env = {}
        server.start()
        stream.finish()
        check(server.bootstrap_servers, BATCHES)
        assert not list(server.data_dir.glob("tables/*/staging/*"))
        assert "Traceback" not in server.log_file.read_text()


@pytest.mark.parametrize("site", HITS)
def test_killed_at_a_step_of(tmp_path: Path, chance: random.Random, site: Site) -> None:
    kill_at(tmp_path, f"{site}.{chance.choice(STEPS[site])}", chance.randint(1, HITS[site]))


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [f"{site}.{step}" for site in HITS for step in STEPS[site]])
def test_killed_at(tmp_path: Path, chance: random.Random, name: str) -> None:
    most = next(count for site, count in HITS.items() if name in {f"{site}.{step}" for step in STEPS[site]})
    for count in sorted({1, most, *(chance.randint(1, most) for _ in range(FULL_COUNTS))}):
        kill_at(tmp_path / str(count), name, count)


def test_killed_at_random_moments(tmp_path: Path, chance: random.Random) -> None:
    batches = 20
    with new_server(tmp_path) as server:
        make_tables(server.bootstrap_servers)
        stream = StagedStream(server.bootstrap_servers, batches)
        stream.start()
        for _ in range(4):
            time.sleep(chance.uniform(0.05, 0.6))
            server.restart()
        stream.finish()
        check(server.bootstrap_servers, batches)
        assert not list(server.data_dir.glob("tables/*/staging/*"))


def test_lost_answers_double_nothing(tmp_path: Path, seed: int) -> None:
    """The client repeats what it was not told of: requests, commits, and whole batches when its time is over."""
    batches = 15
    settings = {"request-timeout-ms": "400", "writer.delivery-timeout-ms": "1000"}
    with FaultProxy(seed=seed) as proxy, new_server(tmp_path, args=["--advertise", proxy.address]) as server:
        proxy.set_target(server.bootstrap_servers)
        make_tables(server.bootstrap_servers)
        proxy.add(Fault(Action.DROP, Direction.RESPONSE, STAGED_KEYS, 0.1))
        proxy.add(Fault(Action.DROP_AND_CUT, Direction.RESPONSE, STAGED_KEYS, 0.2))
        proxy.add(Fault(Action.CUT_MID_FRAME, Direction.REQUEST, STAGED_KEYS, 0.05))
        stream = StagedStream(proxy.address, batches, settings)
        stream.start()
        stream.finish()
        counters = proxy.counters
        print(f"{counters}, {stream.failures} batches were repeated")
        assert sum(counters.faults.values()) > 10
        proxy.clear()
        check(server.bootstrap_servers, batches)

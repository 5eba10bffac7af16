"""SIGKILL under load on primary-key tables: table, changelog and what was acknowledged agree after every restart."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.kills import EARLY_KILL_SHARE, HEAL_S_MAX, kill_at_random_moment
from tests.crash.servers import new_server
from tests.kit.loads.kv_clients import KvLoad, make_tables

KILLS = 5
FULL_EPISODES = 10
FULL_KILLS_PER_EPISODE = 20
START_S_MAX = 30.0
END_S_MAX = 60.0


def kill_under_load(directory: Path, seed: int, kills: int) -> None:
    chance = random.Random(seed)
    with new_server(directory) as server:
        make_tables(server.bootstrap_servers)
        load = KvLoad(server.bootstrap_servers, seed)
        load.start()
        try:
            load.await_progress(START_S_MAX)
            for _ in range(kills):
                kill_at_random_moment(server, chance)
                server.start()
                if chance.random() >= EARLY_KILL_SHARE:
                    load.await_progress(HEAL_S_MAX)
            load.finish(END_S_MAX)
        finally:
            load.stop()
        assert list(server.data_dir.rglob("snapshots/*/CURRENT")), "no snapshot was ever made"
        assert "Traceback" not in server.log_file.read_text()


def test_kills(tmp_path: Path, seed: int) -> None:
    kill_under_load(tmp_path, seed, KILLS)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("episode", range(FULL_EPISODES))
def test_many_kills(tmp_path: Path, seed: int, episode: int) -> None:
    kill_under_load(tmp_path, seed + episode, FULL_KILLS_PER_EPISODE)

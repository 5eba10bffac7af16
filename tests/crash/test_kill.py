"""SIGKILL at random moments under load: no acknowledged row is lost, none is doubled, clients go on by themselves."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.kills import EARLY_KILL_SHARE, HEAL_S_MAX, kill_at_random_moment
from tests.crash.servers import new_server
from tests.kit.loads.workload import Workload

KILLS = 6
FULL_EPISODES = 10
FULL_KILLS_PER_EPISODE = 20


def kill_under_load(directory: Path, seed: int, kills: int) -> None:
    chance = random.Random(seed)
    with new_server(directory) as server:
        load = Workload(server.bootstrap_servers, seed)
        load.prepare()
        with load:
            load.await_progress()
            for _ in range(kills):
                kill_at_random_moment(server, chance)
                server.start()
                if chance.random() >= EARLY_KILL_SHARE:
                    load.await_progress(within_s=HEAL_S_MAX)
            stored = load.finish()
        rolled = {path.parent for path in server.data_dir.rglob("*.log") if int(path.stem) > 0}
        assert len(rolled) == len(stored), "some bucket never rolled a segment: the load was too small to prove much"
        assert "Traceback" not in server.log_file.read_text()


def test_kills_lose_and_double_nothing(tmp_path: Path, seed: int) -> None:
    kill_under_load(tmp_path, seed, KILLS)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("episode", range(FULL_EPISODES))
def test_many_kills_lose_and_double_nothing(tmp_path: Path, seed: int, episode: int) -> None:
    kill_under_load(tmp_path, seed + episode, FULL_KILLS_PER_EPISODE)

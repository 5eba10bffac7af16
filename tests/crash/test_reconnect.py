"""Kills under programs that reconnect after every error: no old value behind a newer one, every failure reported.

The full run is 500 kills. It can be done in parts, one after the other: FLUSS_SEEDS=0:10 are the first hundred.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import fluss.sync
from fluss.model.trust import ENDPOINT_NAME, Endpoint
from tests.crash.reconnecting import Program, make_tables, programs_of
from tests.crash.servers import new_server

SEEDS_VARIABLE = "FLUSS_SEEDS"
FULL_SEEDS = "0:50"
KILLS_PER_SEED = 10
SHORT_KILLS = 3
MOMENT_S_MAX = 0.4
DOWN_S_MAX = 0.5
STEPS_BETWEEN = 5
PROGRESS_S_MAX = 60.0


def kill_under_programs(address: str, seed: int, kills: int, kill: Callable[[random.Random], None]) -> None:
    chance = random.Random(seed)
    programs = programs_of(address, seed)
    make_tables(address, programs)
    for program in programs:
        program.start()
    try:
        for _ in range(kills):
            await_progress(programs)
            time.sleep(chance.uniform(0, MOMENT_S_MAX))
            kill(chance)
        await_progress(programs)
    finally:
        for program in programs:
            program.stop()
        for program in programs:
            program.join(PROGRESS_S_MAX)
    raise_failures(programs)
    with fluss.sync.connect(address) as connection:
        for program in programs:
            rows = program.check(connection)
            doubtful, never = len(program.doubtful), len(program.never_stored)
            print(
                f"seed {seed}, {program.name}: {rows} rows, {program.errors} errors, {doubtful} in doubt, {never} not"
            )


def await_progress(programs: list[Program]) -> None:
    """Until each program has done something, so that it has healed from the last kill."""
    deadline = time.monotonic() + PROGRESS_S_MAX
    for program, goal in [(program, program.steps + STEPS_BETWEEN) for program in programs]:
        while program.steps < goal:
            raise_failures(programs)
            assert time.monotonic() < deadline, f"{program.name} does not go on"
            time.sleep(0.005)


def raise_failures(programs: list[Program]) -> None:
    for program in programs:
        if program.failure is not None:
            raise program.failure
        assert not program.ident or program.is_alive() or program._stopping.is_set()


@contextmanager
def running_server(directory: Path) -> Iterator[tuple[str, Callable[[random.Random], None]]]:
    with new_server(directory) as server:

        def kill(chance: random.Random) -> None:
            server.kill()
            time.sleep(chance.choice([0.0, chance.uniform(0, DOWN_S_MAX)]))
            server.start()

        yield server.bootstrap_servers, kill
        assert "Traceback" not in server.log_file.read_text()


@contextmanager
def embedded_server(directory: Path) -> Iterator[tuple[str, Callable[[random.Random], None]]]:
    """Whoever comes first starts the next one."""

    def kill(_: random.Random) -> None:
        endpoint = Endpoint.from_bytes((directory / ENDPOINT_NAME).read_bytes())
        assert endpoint is not None
        os.kill(endpoint.pid, signal.SIGKILL)

    yield f"file://{directory}", kill


def test_kills(tmp_path: Path, seed: int) -> None:
    with running_server(tmp_path) as (address, kill):
        kill_under_programs(address, seed, SHORT_KILLS, kill)


def test_kills_of_an_embedded_server(tmp_path: Path, seed: int) -> None:
    with embedded_server(tmp_path / "data") as (address, kill):
        kill_under_programs(address, seed, 1, kill)


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(*map(int, os.environ.get(SEEDS_VARIABLE, FULL_SEEDS).split(":"))))
def test_many_kills(tmp_path: Path, seed: int) -> None:
    servers = embedded_server if seed % 5 == 4 else running_server
    with servers(tmp_path / "data") as (address, kill):
        kill_under_programs(address, seed, KILLS_PER_SEED, kill)

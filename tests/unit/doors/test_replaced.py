"""What a simulation puts into a door reaches those who go through it, and goes again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from random import Random
from uuid import UUID

import pytest

from fluss.client.cluster.retry import Backoff, pause_s
from fluss.doors import clock, randomness, replaced
from fluss.model.clock import elapsed_ms, wall_clock_ms
from fluss.storage.damage.scrub_files import ScrubPace


def test_a_replaced_clock_is_everybodys() -> None:
    now_s, slept_s = 100.0, []
    with replaced(clock, monotonic=lambda: now_s, sleep=slept_s.append, wall_ns=lambda: 7_000_000):
        backoff = Backoff(2_000)
        assert backoff.remaining_s == 2.0
        now_s += 3
        assert backoff.expired
        clock.sleep(5)
        assert (slept_s, wall_clock_ms()) == ([5], 7)
    assert (clock.monotonic, clock.sleep, clock.wall_ns) == (time.monotonic, time.sleep, time.time_ns)


def test_a_clock_that_is_taken_at_a_call_is_the_one_of_then() -> None:
    with replaced(clock, monotonic=lambda: 5.0):
        pace = ScrubPace(10, wait=lambda seconds: seconds > 0)
        pace.take(1)
    with replaced(clock, elapsed_ns=lambda: 12_000_000):
        assert elapsed_ms() == 12


def drawn(seed: int) -> tuple[float, UUID, bytes]:
    """A pause, an id and a key, from seeds."""
    with replaced(randomness, chance=Random(seed), token_bytes=Random(seed + 1).randbytes):
        return pause_s(3), randomness.new_uuid(), randomness.token_bytes(8)


def test_the_same_seed_draws_the_same() -> None:
    assert drawn(1) == drawn(1)
    assert not set(drawn(1)) & set(drawn(3))
    assert drawn(1)[1].version == 4


def test_without_a_seed_nothing_is_drawn_twice() -> None:
    assert len({randomness.new_uuid() for _ in range(1_000)}) == 1_000
    assert randomness.token_bytes(8) != randomness.token_bytes(8)
    assert randomness.chance.getstate() != Random(0).getstate()


def test_forked_children_do_not_choose_alike() -> None:
    with replaced(randomness, chance=Random(1)):
        assert len({in_child() for _ in range(3)}) == 3


def in_child() -> bytes:
    """What a forked child draws first."""
    read, write = os.pipe()
    if not (child := os.fork()):
        os.write(write, randomness.chance.randbytes(8))
        os._exit(0)
    os.waitpid(child, 0)
    with open(read, "rb") as pipe:
        os.close(write)
        return pipe.read()


def test_what_a_door_has_not_can_not_be_replaced() -> None:
    before = dict(vars(clock))
    with pytest.raises(AttributeError, match="monotonik"), replaced(clock, sleep=print, monotonik=print):
        pass
    assert vars(clock) == before


def test_an_error_in_the_block_brings_the_door_back() -> None:
    with pytest.raises(ValueError, match=r"^$"), replaced(clock, sleep=print):
        raise ValueError
    assert clock.sleep is time.sleep


def test_the_clock_is_light() -> None:
    code = "import sys, fluss.doors.clock; print({'asyncio', 'random', 'socket', 'logging'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"

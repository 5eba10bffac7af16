"""Rounds of random requests: how long, how many at once, and what a server may need for them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from fluss.protocol import frames
from tests.crash.target import Target
from tests.kit.memory import Memory
from tests.kit.wire import Wire

SHORT_S, LONG_S = 2.0, 300.0
ANSWER_S_MAX = 10.0
MEMORY_GROWTH_BYTES_MAX = 128 << 20
BATCHES_AT_ONCE = 32
DURATIONS = pytest.mark.parametrize(
    "seconds",
    [SHORT_S, pytest.param(LONG_S, marks=[pytest.mark.full, pytest.mark.timeout(900)])],
    ids=["short", "long"],
)


@contextlib.contextmanager
def watched(target: Target, growth_bytes_max: int = MEMORY_GROWTH_BYTES_MAX) -> Iterator[None]:
    """No crash, no stall for others, no exception in the log, memory within bounds."""
    with Memory(target.server.pid) as memory:
        yield
        target.check()
    assert memory.growth_bytes < growth_bytes_max


def rounds(seconds: float) -> Iterator[int]:
    number = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield number
        number += 1
    print(f"{number} rounds")
    assert number > 2


def ask_all(wire: Wire, requests: list[tuple[int, bytes]], api_version: int = 0) -> list[frames.Response]:
    """Send many at once; each gets one answer, in whichever order."""
    sent = [wire.frame(api_key, body, api_version) for api_key, body in requests]
    wire.send_bytes(b"".join(frame for _, frame in sent))
    answers = [wire.receive() for _ in sent]
    by_id = {answer.request_id: answer for answer in answers}
    assert by_id.keys() == {request_id for request_id, _ in sent}
    return [by_id[request_id] for request_id, _ in sent]

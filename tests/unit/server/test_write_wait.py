"""Writes that wait for their batches: when they are answered, and with what."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

from fluss.protocol import messages_pb2 as pb
from fluss.server.handlers.writes import BucketWait, DeferredWrite, answered
from fluss.server.net.context import Answer


class Asker:
    """Who waits for the answer: knows the wait, as a call does."""

    def __init__(self, wait: DeferredWrite) -> None:
        self.wait = wait
        self.answers: list[Answer] = []
        wait.start(self)

    def reply(self, answer: Answer) -> None:
        self.answers.append(answer)

    def fail(self, error: BaseException) -> None:
        raise error

    def when_writable(self, make_response: Callable[[], object]) -> None:
        raise NotImplementedError


def waiting(*batches: asyncio.Future[int]) -> tuple[Asker, list[int | BaseException]]:
    """An asker, and what was written into the response, in the order of the batches."""
    outcomes: list[int | BaseException] = []
    waits = [BucketWait(safe, outcomes.append, outcomes.append) for safe in batches]
    wait = answered(pb.ProduceLogResponse(), waits, 1_000)
    assert isinstance(wait, DeferredWrite)
    return Asker(wait), outcomes


def futures(count: int) -> list[asyncio.Future[int]]:
    return [asyncio.get_running_loop().create_future() for _ in range(count)]


async def test_the_answer_waits_for_the_last_batch() -> None:
    first, second = futures(2)
    asker, outcomes = waiting(first, second)
    second.set_result(2)
    await asyncio.sleep(0)
    assert not asker.answers
    first.set_exception(OSError("gone"))
    await asyncio.sleep(0)
    assert len(asker.answers) == 1
    assert isinstance(outcomes[0], OSError)
    assert outcomes[1] == 2


async def test_batches_that_are_done_already_are_answered_at_once() -> None:
    (failed,) = futures(1)
    failed.set_exception(OSError("gone"))
    asker, outcomes = waiting(failed)
    assert len(asker.answers) == 1
    assert isinstance(outcomes[0], OSError)


async def test_late_batches_are_told_so_and_answered_once() -> None:
    first, second = futures(2)
    asker, outcomes = waiting(first, second)
    first.set_result(1)
    asker.wait.expire()
    second.set_result(2)
    await asyncio.sleep(0)
    assert len(asker.answers) == 1
    assert outcomes[0] == 1
    assert isinstance(outcomes[1], TimeoutError)


async def test_nobody_is_answered_after_the_client_has_gone() -> None:
    (safe,) = futures(1)
    asker, _ = waiting(safe)
    asker.wait.abandon()
    safe.set_result(1)
    await asyncio.sleep(0)
    assert not asker.answers


async def test_an_answered_write_leaves_nothing_to_the_collector() -> None:
    (safe,) = futures(1)
    asker, _ = waiting(safe)
    safe.set_result(1)
    await asyncio.sleep(0)
    gone = weakref.ref(asker.wait)
    gc.disable()
    try:
        del asker
        assert gone() is None
    finally:
        gc.enable()

"""Trying again: what is final, what may pass, and when it ends."""

from __future__ import annotations

import asyncio
import time

import pytest

from fluss.client.cluster.retry import NotReadyError, Tries, is_retriable, never, repeat
from fluss.model.errors import ConnectError, FlussError, InvalidRequestError, TimeoutError

LIMIT_S = 10.0
SHORT_S = 0.05


def outcomes(*results: Exception | int, tries: Tries) -> int:
    """What a call comes to whose attempts have these results in turn, the last one for ever."""
    left = list(results)

    async def attempt(_: Tries) -> int:
        result = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(result, Exception):
            raise result
        return result

    return asyncio.run(repeat(tries, attempt))


def test_what_may_pass_is_tried_again_and_renewed_before() -> None:
    renewed = []

    async def renew() -> None:
        renewed.append(True)

    tries = Tries(LIMIT_S, is_retriable, renew)
    assert outcomes(ConnectError("gone"), ConnectError("gone"), 3, tries=tries) == 3
    assert len(renewed) == 2


def test_what_is_final_is_raised_as_it_is() -> None:
    error = InvalidRequestError("wrong")
    with pytest.raises(InvalidRequestError) as raised:
        outcomes(error, 3, tries=Tries(LIMIT_S, is_retriable))
    assert raised.value is error


def test_the_last_failure_is_raised_when_the_time_is_over() -> None:
    began = time.monotonic()
    with pytest.raises(ConnectError, match="gone"):
        outcomes(ConnectError("gone"), tries=Tries(SHORT_S, is_retriable))
    assert time.monotonic() - began >= SHORT_S


def test_nobody_to_ask_is_tried_again_whatever_the_problem_is() -> None:
    problem = TimeoutError("there is no leader")
    assert outcomes(NotReadyError(problem), 3, tries=Tries(LIMIT_S, never)) == 3
    with pytest.raises(TimeoutError) as raised:
        outcomes(NotReadyError(problem), tries=Tries(SHORT_S, never))
    assert raised.value is problem
    assert raised.value.__cause__ is None


def test_a_failure_of_what_is_done_before_a_try_is_final() -> None:
    async def renew() -> None:
        raise FlussError("no table")

    with pytest.raises(FlussError, match="no table"):
        outcomes(ConnectError("gone"), 3, tries=Tries(LIMIT_S, is_retriable, renew))


def test_a_try_at_the_deadline_has_some_time() -> None:
    async def limits() -> None:
        tries = Tries(0, never)
        assert 0 < tries.wait_s < 0.1

    asyncio.run(limits())

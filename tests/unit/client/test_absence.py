"""Waiting for a server that is away: for how long, and what the log says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from fluss.client.cluster.retry import Absence
from fluss.model.config import Config
from fluss.model.errors import ConnectError

SERVERS = "127.0.0.1:1"


def _failing(times: int) -> tuple[Callable[[], Awaitable[str]], list[int]]:
    tries: list[int] = []

    async def ask() -> str:
        tries.append(len(tries))
        if len(tries) <= times:
            raise ConnectError(f"{SERVERS} refuses connections.")
        return "found"

    return ask, tries


def _outlast(absence: Absence, ask: Callable[[], Awaitable[str]]) -> str:
    async def run() -> str:
        return await absence.outlast(ask)

    return asyncio.run(run())


def test_without_a_limit_nobody_waits(caplog: pytest.LogCaptureFixture) -> None:
    ask, tries = _failing(1)
    with pytest.raises(ConnectError, match="refuses connections") as caught:
        _outlast(Absence(SERVERS, 0.0, 0.0), ask)
    assert caught.value.is_retriable
    assert len(tries) == 1
    assert not caplog.records


def test_the_wait_is_said_once_when_it_begins_and_once_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    ask, tries = _failing(3)
    with caplog.at_level(logging.WARNING):
        assert _outlast(Absence(SERVERS, 30.0, 30.0), ask) == "found"
    assert len(tries) == 4
    began, ended = [record.getMessage() for record in caplog.records]
    assert "Waiting for it, for up to 30 s (server.wait-timeout-ms)" in began
    assert ended.startswith(f"The server at {SERVERS} answers after ")


def test_who_waited_in_vain_is_told_for_how_long_and_nobody_waits_again() -> None:
    absence = Absence(SERVERS, 0.05, 0.05)
    ask, _ = _failing(1_000)
    with pytest.raises(ConnectError, match=r"waited for, for 0\.05 s \(server\.wait-timeout-ms\)") as caught:
        _outlast(absence, ask)
    assert not caught.value.is_retriable


def test_an_address_that_has_never_answered_is_waited_for_no_longer_than_opening_may_take() -> None:
    absence = Absence(SERVERS, 1_000.0, 0.05)
    in_vain, _ = _failing(1_000)
    with pytest.raises(ConnectError, match=r"for 0\.05 s \(connect-timeout\)"):
        _outlast(absence, in_vain)
    answered, _ = _failing(0)
    assert _outlast(absence, answered) == "found"
    back_again, tries = _failing(4)
    assert _outlast(absence, back_again) == "found"
    assert len(tries) == 5


def test_the_limits_are_those_of_the_settings() -> None:
    config = Config({"bootstrap.servers": SERVERS, "server.wait-timeout-ms": "90000"})
    assert Absence.of(config).limit_s == 90.0
    assert Absence.of(Config({"bootstrap.servers": SERVERS})).limit_s == 0.0

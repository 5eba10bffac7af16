"""One timer ends the waits of all requests of a connection, each in its time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fluss.protocol import frames
from fluss.server.net.context import ConnectionContext, Replier
from fluss.server.net.limits import Limits
from fluss.server.net.session import Call, Session


class Clock:
    """A loop whose time is told, with the timers that were set and not cancelled."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.timers_set = 0
        self.timers: dict[float, Callable[[], None]] = {}

    def time(self) -> float:
        return self.now_s

    def call_at(self, at_s: float, callback: Callable[[], None]) -> SimpleNamespace:
        self.timers_set += 1
        self.timers[at_s] = callback
        return SimpleNamespace(cancel=lambda: self.timers.pop(at_s))

    def pass_until(self, now_s: float) -> None:
        while self.timers and (first_s := min(self.timers)) <= now_s:
            self.now_s = max(first_s, self.now_s)
            self.timers.pop(first_s)()
        self.now_s = now_s


class Waits:
    """Requests of one connection that only wait, and those that ended by themselves, in this order."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.ended: list[str] = []
        server = SimpleNamespace(metrics=None, turns=None, loop=self.clock)
        context = SimpleNamespace(server=server, limits=Limits())
        self.session = Session(cast(ConnectionContext, context), lambda _: None, lambda: None)

    def begin(self, name: str, wait_ms: int) -> Call:
        call = Call(self.session, frames.Request(0, 0, 0, memoryview(b"")), 0)
        self.session._open[call] = None
        call.defer(Deferred(self, name, call, wait_ms), wait_ms)
        return call


class Deferred:
    def __init__(self, waits: Waits, name: str, call: Call, wait_ms: int) -> None:
        self._waits, self._name, self._call = waits, name, call
        self.wait_ms = wait_ms

    def start(self, replier: Replier) -> None: ...
    def hurry(self) -> None: ...
    def abandon(self) -> None: ...

    def expire(self) -> None:
        self._waits.ended.append(self._name)
        self._waits.session.answer(self._call, [])


@pytest.fixture
def waits() -> Waits:
    return Waits()


def test_each_wait_ends_in_its_time(waits: Waits) -> None:
    for name, wait_ms in (("middle", 2_000), ("last", 3_000), ("first", 1_000)):
        waits.begin(name, wait_ms)
    assert len(waits.clock.timers) == 1
    for now_s, ended in ((100.9, []), (101.1, ["first"]), (102.1, ["first", "middle"])):
        waits.clock.pass_until(now_s)
        assert waits.ended == ended
    waits.clock.pass_until(110)
    assert waits.ended == ["first", "middle", "last"]
    assert not waits.clock.timers


def test_late_ones_end_in_the_order_of_their_times(waits: Waits) -> None:
    for name, wait_ms in (("c", 300), ("a", 100), ("d", 400), ("b", 200)):
        waits.begin(name, wait_ms)
    waits.clock.now_s = 200  # the loop stood still
    waits.clock.pass_until(200)
    assert waits.ended == list("abcd")


def test_an_answer_in_time_leaves_the_others_theirs(waits: Waits) -> None:
    answered = waits.begin("answered", 1_000)
    waits.begin("late", 2_000)
    waits.session.answer(answered, [])
    waits.clock.pass_until(110)
    assert waits.ended == ["late"]


def test_a_wait_may_begin_in_the_end_of_another(waits: Waits, monkeypatch: pytest.MonkeyPatch) -> None:
    def expire(aside: Any) -> None:
        waits.ended.append("first")
        waits.session.answer(aside._call, [])
        monkeypatch.undo()
        waits.begin("next", 500)

    monkeypatch.setattr(Deferred, "expire", expire)
    waits.begin("first", 1_000)
    waits.clock.pass_until(110)
    assert waits.ended == ["first", "next"]


def test_nothing_ends_after_the_connection(waits: Waits) -> None:
    waits.begin("dropped", 1_000)
    waits.session.close()
    assert not waits.clock.timers
    waits.begin("too late", 1_000)
    assert not waits.clock.timers


def test_many_requests_that_are_answered_set_one_timer(waits: Waits) -> None:
    for number in range(100):
        waits.session.answer(waits.begin(str(number), 60_000), [])
    assert waits.clock.timers_set == 1

"""What callers' loops have sent, and the I/O loop takes back."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from fluss.client import runtime
from fluss.client.net.connection import Connection
from fluss.client.net.own_loop import OwnLoopSends

CONNECTION = cast(Connection, object())


class Sends:
    """Keys under way, and what was taken back."""

    def __init__(self) -> None:
        self.under_way: set[str] = set()
        self.again: list[str] = []
        self.resumed = 0
        self.sends = OwnLoopSends[str](threading.RLock(), self.is_answered, self.send_again, self.resume)

    def is_answered(self, key: str, connection: Connection) -> bool:
        assert connection is CONNECTION
        return key not in self.under_way

    def send_again(self, key: str, connection: Connection) -> None:
        assert connection is CONNECTION
        self.again.append(key)

    def resume(self) -> None:
        self.resumed += 1

    def send(self, key: str, now: float) -> None:
        self.under_way.add(key)
        self.sends.sent(key, CONNECTION, now)


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> Sends:
    monkeypatch.setattr(runtime, "call_soon", lambda *_: None)  # no watch: the test says what time it is
    return Sends()


def test_what_is_not_answered_in_time_is_taken_back_once(sends: Sends) -> None:
    sends.send("a", 1.0)
    sends.send("b", 3.0)
    sends.sends.take_back(2.0)
    assert sends.again == ["a"]
    sends.sends.take_back(2.0)
    assert sends.again == ["a"]
    sends.sends.take_back(4.0)
    assert sends.again == ["a", "b"]
    assert sends.resumed == 3


def test_what_was_answered_is_forgotten(sends: Sends) -> None:
    sends.send("a", 1.0)
    sends.under_way.clear()
    sends.sends.take_back(2.0)
    sends.under_way.add("a")  # by another way since
    sends.sends.take_back(2.0)
    assert sends.again == []


def test_a_loop_that_goes_on_sending_keeps_its_time(sends: Sends) -> None:
    sends.send("a", 1.0)
    sends.send("a", 3.0)
    sends.sends.take_back(2.0)
    assert sends.again == []


def test_nothing_is_taken_back_after_the_end(sends: Sends) -> None:
    sends.send("a", 1.0)
    sends.sends.stop()
    sends.sends.take_back(2.0)
    assert sends.again == []

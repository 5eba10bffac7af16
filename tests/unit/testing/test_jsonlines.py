from __future__ import annotations

import datetime as dt
import json
import math
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from fluss.testing.processes import ProcessFailedError
from tests.peers.jsonlines import JsonLinesProcess, PeerError, PeerTimeoutError
from tests.peers.values import decode, encode

PROGRAM = """
import json, sys, time
for line in sys.stdin:
    message = json.loads(line)
    command = message["command"]
    if command == "hang":
        time.sleep(60)
    if command == "crash":
        sys.exit("crashed on request")
    if command == "events":
        print(json.dumps({"event": "tail-1", "items": message["items"]}))
    if command == "fail":
        answer = {"error": {"type": "Refused", "message": "not today", "code": 7}}
    else:
        answer = {"result": message.get("items")}
    print(json.dumps({"id": message["id"], **answer}), flush=True)
"""

Start = Callable[[], JsonLinesProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[JsonLinesProcess] = []

    def launch() -> JsonLinesProcess:
        started.append(JsonLinesProcess("echo", [sys.executable, "-c", PROGRAM], log_file=tmp_path / "log"))
        return started[-1]

    yield launch
    for process in started:
        process.kill()


def test_answers_errors_and_events(start: Start) -> None:
    process = start()
    values = [1, None, b"\x00", Decimal("1.50"), dt.date(2026, 1, 2)]
    assert process.call("echo", 10, items=values) == values
    with pytest.raises(PeerError, match="Refused: not today") as caught:
        process.call("fail", 10)
    assert caught.value.code == 7
    process.call("events", 10, items=values)
    process.call("events", 10, items=[2])
    assert process.take_events("tail-1", 6, 10) == [*values, 2]
    with pytest.raises(PeerTimeoutError, match="0 of 1 events"):
        process.take_events("tail-1", 1, 0.05)


def test_a_peer_that_ends_is_reported_with_its_output(start: Start) -> None:
    process = start()
    with pytest.raises(ProcessFailedError, match="crashed on request"):
        process.call("crash", 10)
    with pytest.raises(ProcessFailedError):
        process.call("echo", 10)
    with pytest.raises(ProcessFailedError):
        process.take_events("tail-1", 1, 10)


def test_a_peer_that_hangs_is_killed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.peers.jsonlines.GRACE_S", 0.1)
    process = start()
    with pytest.raises(PeerTimeoutError, match="did not answer 'hang'"):
        process.call("hang", 0.1)
    with pytest.raises(ProcessFailedError):
        process.call("echo", 10)


def test_values_survive_json() -> None:
    values = {
        "floats": [math.inf, -math.inf, 0.1],
        "decimal": Decimal("-0.00"),
        "bytes": b"",
        "wall": dt.datetime(2026, 1, 2, 3, 4, 5, 6),
        "instant": dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC),
        "day": dt.date(1, 1, 1),
        "clock": dt.time(1, 2, 3, 4),
        "nested": [{"a": None}, [True, "text"]],
    }
    assert decode(json.loads(json.dumps(encode(values)))) == values
    assert math.isnan(decode(encode(math.nan)))
    elsewhere = dt.datetime(2026, 1, 2, 3, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    assert encode(elsewhere) == {"$timestamp_ltz": "2026-01-02T01:00:00Z"}
    with pytest.raises(TypeError, match="set"):
        encode({1})

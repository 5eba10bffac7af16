"""How long fetches wait."""

from __future__ import annotations

from fluss.client.scan.fetcher import WAIT_MS_MIN, FetchWait
from fluss.model.config import Config

SERVERS = {"bootstrap.servers": "localhost:9123"}


def test_a_server_that_answers_with_the_first_row_may_wait_as_configured() -> None:
    wait = FetchWait(Config(SERVERS))
    configured_ms = wait.ms
    for took_s in (0.0, 0.1, 0.4):
        wait.learn(wait.ms, took_s, has_rows=True)
    wait.learn(wait.ms, 0.5, has_rows=False)
    assert wait.ms == configured_ms == 500


def test_rows_at_the_end_of_a_wait_make_waits_short_until_none_come() -> None:
    wait = FetchWait(Config(SERVERS))
    wait.learn(500, 0.501, has_rows=True)
    assert wait.ms == WAIT_MS_MIN
    wait.learn(WAIT_MS_MIN, 0.001, has_rows=True)
    assert wait.ms == WAIT_MS_MIN
    waits = []
    for _ in range(8):
        wait.learn(wait.ms, wait.ms / 1000, has_rows=False)
        waits.append(wait.ms)
    assert waits == [20, 40, 80, 160, 320, 500, 500, 500]


def test_what_a_user_has_set_stays() -> None:
    for settings in ({"scanner.log.fetch.wait-max-time-ms": "500"}, {"scanner.log.fetch.min-bytes": "1000"}):
        wait = FetchWait(Config(SERVERS | settings))
        wait.learn(500, 0.6, has_rows=True)
        assert wait.ms == 500

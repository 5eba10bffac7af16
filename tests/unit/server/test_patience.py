"""Connections that do not log in, do not finish a frame, ask nothing or take nothing are closed; others are not."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.limits import ConnectionPatience, Limits, Seen, sweep_interval_s
from fluss.server.net.logins import SharedSecret
from tests.kit.thread_server import (
    RunningServer,
    Wire,
    WireError,
    batch,
    checked_bucket,
    create_table,
    eventually,
    fetch_request,
    produce_request,
)

LIMITS = Limits()
KIB = 1 << 10


def at_rest(received_bytes: int = 100, **changes: object) -> Seen:
    seen = Seen(
        frames=1,
        received_bytes=received_bytes,
        unsent_bytes=0,
        frame_bytes=0,
        is_large=False,
        is_in_the_way=False,
        is_read=True,
        is_idle=True,
        is_stranger=False,
    )
    return seen._replace(**changes)  # type: ignore[arg-type]


class Watched:
    """A connection that is looked at every second."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self._patience = ConnectionPatience(self.now_s)

    def for_s(self, seconds: int, seen: Seen, bytes_per_s: int = 0) -> str | None:
        """The first reason to close it, or None when it stayed all the time."""
        for second in range(1, seconds + 1):
            self.now_s += 1
            now = seen._replace(received_bytes=seen.received_bytes + second * bytes_per_s)
            reason = self._patience.overdue(now, self.now_s, LIMITS)
            if reason is not None:
                return reason
        return None


def test_idle_connections() -> None:
    watched = Watched()
    assert watched.for_s(600, at_rest()) is None
    # One request, and the time begins anew.
    assert watched.for_s(600, at_rest(200)) is None
    assert watched.for_s(10, at_rest(200)) == "asked nothing for 600000 ms"


def test_a_connection_with_a_request_under_way_is_not_idle() -> None:
    assert Watched().for_s(5_000, at_rest(is_idle=False)) is None


def test_answers_that_are_not_taken() -> None:
    stopped = at_rest(is_idle=False, is_read=False, unsent_bytes=1_000)
    assert Watched().for_s(610, stopped) == "did not take its answers for 600000 ms"
    slow = Watched()
    for unsent_bytes in range(1_000, 900, -1):
        assert slow.for_s(100, stopped._replace(unsent_bytes=unsent_bytes)) is None


def test_strangers() -> None:
    assert Watched().for_s(29, at_rest(is_stranger=True), 100) is None
    assert Watched().for_s(31, at_rest(is_stranger=True), 100) == "did not log in within 30000 ms"


def test_small_frames_that_drip() -> None:
    dripping = at_rest(frame_bytes=3)
    assert Watched().for_s(30, dripping, 1) is None
    assert Watched().for_s(33, dripping, 1) == "did not send the rest of a request within 30000 ms"


def test_a_client_that_is_always_in_the_middle_of_some_frame_may_stay() -> None:
    watched = Watched()
    for number in range(1_000):
        assert watched.for_s(1, at_rest(number * 100, frame_bytes=50, frames=number)) is None


@pytest.mark.parametrize(
    ("bytes_per_s", "in_the_way", "seconds", "reason"),
    [
        (0, False, 13, "sent a large request at less than 16384 bytes/s"),
        (15 * KIB, False, 13, "sent a large request at less than 16384 bytes/s"),
        (0, True, 5, "sent a large request at less than 16384 bytes/s"),
        (17 * KIB, False, 110, None),
        (17 * KIB, True, 110, None),
        (17 * KIB, False, 125, "did not send the rest of a request within 120000 ms"),
    ],
)
def test_large_frames_need_a_rate(bytes_per_s: int, in_the_way: bool, seconds: int, reason: str | None) -> None:
    seen = at_rest(frame_bytes=1 << 20, is_large=True, is_in_the_way=in_the_way)
    assert Watched().for_s(seconds, seen, bytes_per_s) == reason


def test_a_large_frame_that_came_quickly_and_stands_still_is_ended() -> None:
    watched = Watched()
    assert watched.for_s(5, at_rest(frame_bytes=1 << 20, is_large=True), 20 << 20) is None
    still = at_rest(100 << 20, frame_bytes=1 << 20, is_large=True)
    assert watched.for_s(25, still) == "sent a large request at less than 16384 bytes/s"


def test_time_in_which_the_server_does_not_read_does_not_count() -> None:
    watched = Watched()
    assert watched.for_s(500, at_rest(frame_bytes=3, is_read=False, is_idle=False)) is None
    assert watched.for_s(20, at_rest(frame_bytes=3)) is None


def test_sweeps_are_as_frequent_as_the_shortest_wait_needs() -> None:
    assert sweep_interval_s(LIMITS) == 0.5
    assert sweep_interval_s(Limits(login_wait_ms_max=400)) == 0.1


# --- with a server


def test_three_bytes_and_nothing_more(tmp_path: Path) -> None:
    with RunningServer(tmp_path, limits=Limits(small_frame_wait_ms_max=200)) as server, server.connect() as wire:
        with server.connect() as dripping:
            dripping.socket.sendall(b"\0\0\0")
            assert dripping.is_closed_by_server()
        assert wire.call(api_keys.METADATA, pb.MetadataRequest()).tablet_servers


def test_a_large_frame_that_drips_loses_its_memory(tmp_path: Path) -> None:
    limits = Limits(frame_stall_ms_max=200, frame_bytes_per_second_min=1 << 20)
    with RunningServer(tmp_path, limits=limits) as server, server.connect() as dripping:
        dripping.socket.sendall((100 << 20).to_bytes(4, "big") + bytes(100_000))
        assert dripping.is_closed_by_server()
        eventually(lambda: server.look(lambda: server.server.context.request_budget.used_bytes) == 0)


def test_an_idle_connection_is_closed_and_one_that_waits_for_rows_is_not(tmp_path: Path) -> None:
    rows = batch()  # made first: it loads Arrow, and no connection must be idle meanwhile
    with RunningServer(tmp_path, limits=Limits(connection_idle_ms_max=300)) as server, ExitStack() as stack:
        waiting, idle = (stack.enter_context(server.connect()) for _ in range(2))
        table_id = create_table(waiting)
        fetch = waiting.send(api_keys.FETCH_LOG, fetch_request(table_id, (0, 0), max_wait_ms=20_000, min_bytes=1))
        idle.call(api_keys.METADATA, pb.MetadataRequest())
        assert idle.is_closed_by_server()
        with server.connect() as writer:
            writer.call(api_keys.PRODUCE_LOG, produce_request(table_id, (0, rows)))
        assert checked_bucket(waiting.receive_answer(fetch, api_keys.FETCH_LOG)).records


def log_in(wire: Wire) -> None:
    wire.call(api_keys.AUTHENTICATE, pb.AuthenticateRequest(protocol="PLAIN", token=b"\0ada\0right"))


def test_connections_that_never_log_in_are_closed(tmp_path: Path) -> None:
    limits = Limits(login_wait_ms_max=500)
    with (
        RunningServer(tmp_path, limits=limits, authenticator=SharedSecret("ada", "right")) as server,
        ExitStack() as stack,
    ):
        user = stack.enter_context(server.connect())
        log_in(user)
        strangers = [stack.enter_context(server.connect()) for _ in range(50)]
        with pytest.raises(WireError):
            strangers[0].call(api_keys.METADATA, pb.MetadataRequest())
        for stranger in strangers:
            assert stranger.is_closed_by_server()
        assert user.call(api_keys.METADATA, pb.MetadataRequest()).tablet_servers
        assert server.look(lambda: len(server.server._connections)) == 1


@pytest.mark.parametrize("limits", [Limits(connections_max=5), Limits(connections_per_address_max=5)])
def test_strangers_make_room_for_users(tmp_path: Path, limits: Limits) -> None:
    with (
        RunningServer(tmp_path, limits=limits, authenticator=SharedSecret("ada", "right")) as server,
        ExitStack() as stack,
    ):
        users = [stack.enter_context(server.connect()) for _ in range(2)]
        for user in users:
            log_in(user)
        strangers = [stack.enter_context(server.connect()) for _ in range(20)]
        eventually(lambda: server.look(lambda: len(server.server._connections)) == 5)
        for _ in range(3):
            users.append(stack.enter_context(server.connect()))
            log_in(users[-1])
        for stranger in strangers:
            assert stranger.is_closed_by_server()
        for user in users:
            assert user.call(api_keys.METADATA, pb.MetadataRequest()).tablet_servers
        # Nobody is left who could make room.
        with server.connect() as refused, pytest.raises(WireError, match="5 connections"):
            refused.call(api_keys.METADATA, pb.MetadataRequest())
        assert server.look(lambda: (len(server.server._connections), server.server._strangers)) == (5, {})

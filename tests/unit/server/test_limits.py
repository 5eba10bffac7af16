"""Limits in effect: connections, memory, time (R15, R16, R17 in small)."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.connection import LINGER_S
from fluss.server.net.limits import Limits
from tests.kit.thread_server import (
    MIB,
    RunningServer,
    StalledSyncs,
    Wire,
    WireError,
    batch,
    checked_bucket,
    create_table,
    descriptor,
    eventually,
    fetch,
    fetch_request,
    headers,
    path,
    produce,
    produce_request,
)

LONG_WAIT_MS = 15_000


def ping(wire: Wire) -> None:
    assert wire.call(api_keys.METADATA, pb.MetadataRequest()).tablet_servers


# --- connections


@pytest.mark.parametrize("limits", [Limits(connections_max=2), Limits(connections_per_address_max=2)])
def test_connections_above_the_limit_are_told_why(tmp_path: Path, limits: Limits) -> None:
    with RunningServer(tmp_path, limits=limits) as server, server.connect() as first:
        with server.connect() as second:
            ping(first)
            ping(second)
            with server.connect() as third:
                with pytest.raises(WireError, match="2 connections") as raised:
                    ping(third)
                assert raised.value.code == 1
                assert third.is_closed_by_server()
            with server.connect() as fourth:
                fourth.socket.sendall(b"\0\0\0\x02xy")
                assert fourth.is_closed_by_server()
            ping(first)
            ping(second)
        eventually(lambda: server.look(lambda: len(server.server._connections)) == 1)
        with server.connect() as admitted:
            ping(admitted)


def test_refused_connections_that_ask_nothing_are_closed(tmp_path: Path) -> None:
    limits = Limits(connections_max=1, refusals_waiting_max=2)
    with RunningServer(tmp_path, limits=limits) as server, server.connect() as first:
        ping(first)
        begin = time.monotonic()
        refused = [server.connect() for _ in range(5)]
        for wire in refused:
            assert wire.is_closed_by_server()
            wire.socket.close()
        assert time.monotonic() - begin < LINGER_S + 10
        ping(first)
        eventually(lambda: not server.server._refused)


def test_idle_connections_hold_no_buffers(server: RunningServer) -> None:
    wires = [server.connect() for _ in range(100)]
    for wire in wires:
        ping(wire)
    held = server.look(lambda: sum(item._reader._scratch is not None for item in server.server._connections))
    assert held == 0
    for wire in wires:
        ping(wire)
        wire.socket.close()


# --- a reader that stops


def test_a_stopped_reader_costs_little_and_delays_nobody(tmp_path: Path) -> None:
    limits = Limits(response_bytes_per_connection_max=64 << 10)
    with RunningServer(tmp_path, limits=limits, durability="os") as server, server.connect() as writer:
        table_id = create_table(writer)
        records = batch(40_000)
        for _ in range(20):
            produce(writer, table_id, records)
        with server.connect() as stopped:
            stopped.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            request = fetch_request(table_id, (0, 0), bucket_bytes=MIB, max_wait_ms=LONG_WAIT_MS, min_bytes=1)
            ids = [stopped.send(api_keys.FETCH_LOG, request) for _ in range(100)]
            for _ in range(20):
                produce(writer, table_id, records)
                assert fetch(writer, table_id, bucket_bytes=1).records
            unsent_bytes = server.look(lambda: server.server.context.response_budget.unsent_bytes)
            buffered_bytes = server.look(
                lambda: sum(
                    item._transport.get_write_buffer_size() for item in server.server._connections if item._transport
                )
            )
            assert 0 < unsent_bytes <= 3 * MIB
            assert buffered_bytes <= 3 * MIB
            answers = [stopped.receive() for _ in ids]
            assert sorted(answer.request_id or 0 for answer in answers) == ids
            assert headers(checked_bucket(pb.FetchLogResponse.FromString(bytes(answers[-1].body))).records)
        eventually(lambda: server.look(lambda: server.server.context.response_budget.unsent_bytes) == 0)


def test_a_stopped_reader_that_goes_on_sending_is_not_read(tmp_path: Path) -> None:
    limits = Limits(response_bytes_per_connection_max=64 << 10, request_bytes_per_connection_max=256 << 10)
    with RunningServer(tmp_path, limits=limits, durability="os") as server, server.connect() as writer:
        table_id = create_table(writer)
        produce(writer, table_id, batch(200_000))
        with server.connect() as stopped:
            request = fetch_request(table_id, (0, 0), bucket_bytes=16 * MIB).SerializeToString()
            frame = frames.request_header(api_keys.FETCH_LOG.key, 0, 1, len(request)) + request
            stopped.socket.setblocking(False)
            sent_bytes = 0
            idle = 0
            while idle < 20:
                try:
                    sent_bytes += stopped.socket.send(frame * 1_000)
                    idle = 0
                except BlockingIOError:
                    idle += 1
                    time.sleep(0.01)
            budget = server.server.context.request_budget
            assert server.look(lambda: budget.used_bytes) <= limits.request_bytes_per_connection_max + (64 << 10)
            assert server.look(lambda: server.server.context.response_budget.unsent_bytes) <= 20 * MIB
            ping(writer)
        eventually(lambda: server.look(lambda: budget.used_bytes) == 0)


def test_too_many_waiting_fetches_are_answered_at_once(tmp_path: Path) -> None:
    limits = Limits(fetches_waiting_per_connection_max=2)
    with RunningServer(tmp_path, limits=limits) as server, server.connect() as wire:
        table_id = create_table(wire)
        request = fetch_request(table_id, (0, 0), max_wait_ms=LONG_WAIT_MS, min_bytes=1)
        ids = [wire.send(api_keys.FETCH_LOG, request) for _ in range(3)]
        begin = time.monotonic()
        assert checked_bucket(wire.receive_answer(ids[2], api_keys.FETCH_LOG)).records == b""
        assert time.monotonic() - begin < LONG_WAIT_MS / 1_000 / 2


# --- large frames


def _large_request(table_id: int) -> bytes:
    body = produce_request(table_id, (0, batch(60_000))).SerializeToString()
    assert len(body) > MIB
    return frames.request_header(api_keys.PRODUCE_LOG.key, 0, 5, len(body)) + body


def test_large_frames_that_are_half_there_all_finish(tmp_path: Path) -> None:
    limits = Limits(frame_bytes_max=2 * MIB, request_bytes_total_max=2 * MIB)
    with RunningServer(tmp_path, limits=limits, durability="os") as server, ExitStack() as stack:
        wire = stack.enter_context(server.connect())
        table_id = create_table(wire)
        frame = _large_request(table_id)
        senders = [stack.enter_context(server.connect()) for _ in range(6)]
        budget = server.server.context.request_budget
        last_byte = threading.Event()

        def send(sender: Wire) -> None:
            sender.socket.sendall(frame[:-1])
            last_byte.wait(10)
            sender.socket.sendall(frame[-1:])

        for sender in senders:
            threading.Thread(target=send, args=(sender,), daemon=True).start()
        eventually(lambda: server.look(lambda: budget.is_crowded))
        assert server.look(lambda: budget.used_bytes) <= 4 * MIB
        ping(wire)
        last_byte.set()
        for sender in senders:
            (entry,) = sender.receive_answer(5, api_keys.PRODUCE_LOG).buckets_resp
            assert not entry.HasField("error_code")
        assert server.look(lambda: budget.used_bytes) == 0


def test_a_large_frame_that_never_ends_loses_its_connection_and_its_memory(tmp_path: Path) -> None:
    with RunningServer(tmp_path, limits=Limits(frame_wait_ms_max=200)) as server, server.connect() as wire:
        table_id = create_table(wire)
        with server.connect() as slow:
            slow.socket.sendall(_large_request(table_id)[:-1])
            assert slow.is_closed_by_server()
        assert server.look(lambda: server.server.context.request_budget.used_bytes) == 0
        ping(wire)


def test_announced_frames_hold_next_to_nothing_and_delay_nobody(tmp_path: Path) -> None:
    with RunningServer(tmp_path, durability="os") as server, ExitStack() as stack:
        wire = stack.enter_context(server.connect())
        table_id = create_table(wire)
        for _ in range(4):
            announcing = stack.enter_context(server.connect())
            announcing.socket.sendall((100 * MIB).to_bytes(4, "big") + b"xyz")
        budget = server.server.context.request_budget
        eventually(lambda: server.look(lambda: budget.used_bytes) > 0)
        assert server.look(lambda: budget.used_bytes) <= 4 * (64 << 10)
        wire.socket.sendall(_large_request(table_id))
        (entry,) = wire.receive_answer(5, api_keys.PRODUCE_LOG).buckets_resp
        assert not entry.HasField("error_code")


def test_many_frames_that_stand_still_are_ended_when_others_wait_for_their_memory(tmp_path: Path) -> None:
    limits = Limits(frame_bytes_max=4 * MIB, request_bytes_total_max=4 * MIB, frame_stall_crowded_ms_max=200)
    with RunningServer(tmp_path, limits=limits, durability="os") as server, ExitStack() as stack:
        wire = stack.enter_context(server.connect())
        table_id = create_table(wire)
        header = (4 * MIB).to_bytes(4, "big")
        for _ in range(8):
            still = stack.enter_context(server.connect())
            still.socket.setblocking(False)
            with suppress(BlockingIOError):
                still.socket.send(header + bytes(2 * MIB))
        eventually(lambda: server.look(lambda: server.server.context.request_budget.is_crowded))
        wire.socket.sendall(_large_request(table_id))
        (entry,) = wire.receive_answer(5, api_keys.PRODUCE_LOG).buckets_resp
        assert not entry.HasField("error_code")


# --- time


def test_requests_that_take_too_long_are_answered_and_those_in_the_queue_not_executed(tmp_path: Path) -> None:
    with RunningServer(tmp_path, limits=Limits(request_wait_ms_max=300)) as server, server.connect() as wire:
        release = threading.Event()
        server.server.context.storage.catalog._executor.submit(release.wait, 30)
        request = pb.CreateTableRequest(table_path=path("a"), table_json=descriptor(), ignore_if_exists=False)
        running = wire.send(api_keys.CREATE_TABLE, request)
        request.table_path.table_name = "b"
        queued = wire.send(api_keys.CREATE_TABLE, request)
        answers = [wire.receive(), wire.receive()]
        assert {answer.request_id for answer in answers} == {running, queued}
        assert [pb.ErrorResponse.FromString(bytes(answer.body)).error_code for answer in answers] == [25, 25]
        release.set()
        listed = wire.call(api_keys.LIST_TABLES, pb.ListTablesRequest(database_name="fluss"))
        assert list(listed.table_name) == ["a"]


# --- stopping


def test_stopping_answers_what_waits(tmp_path: Path) -> None:
    server = RunningServer(tmp_path)
    server.__enter__()
    wire = server.connect()
    table_id = create_table(wire)
    waiting = wire.send(api_keys.FETCH_LOG, fetch_request(table_id, (0, 0), max_wait_ms=LONG_WAIT_MS, min_bytes=1))
    ping(wire)
    begin = time.monotonic()
    server.__exit__(None, None, None)
    assert time.monotonic() - begin < LONG_WAIT_MS / 1_000 / 2
    assert checked_bucket(wire.receive_answer(waiting, api_keys.FETCH_LOG)).records == b""
    assert wire.is_closed_by_server()


def test_stopping_waits_for_a_write_to_be_durable(tmp_path: Path) -> None:
    server = RunningServer(tmp_path)
    server.__enter__()
    wire = server.connect()
    table_id = create_table(wire)
    stall = StalledSyncs(server)
    stall.__enter__()
    written = wire.send(api_keys.PRODUCE_LOG, produce_request(table_id, (0, batch())))
    ping(wire)
    threading.Timer(0.3, stall.__exit__).start()
    server.__exit__(None, None, None)
    (entry,) = wire.receive_answer(written, api_keys.PRODUCE_LOG).buckets_resp
    assert (entry.HasField("error_code"), entry.base_offset) == (False, 0)
    assert wire.is_closed_by_server()
    with RunningServer(tmp_path) as again, again.connect() as reader:
        assert fetch(reader, table_id).high_watermark == 3


def test_stopping_does_not_wait_for_a_stopped_reader_for_ever(tmp_path: Path) -> None:
    limits = Limits(stop_wait_ms_max=300)
    with RunningServer(tmp_path, limits=limits, durability="os") as server:
        wire = server.connect()
        table_id = create_table(wire)
        produce(wire, table_id, batch(500_000))
        wire.send(api_keys.FETCH_LOG, fetch_request(table_id, (0, 0), bucket_bytes=16 * MIB))
        eventually(lambda: server.look(lambda: server.server.context.response_budget.unsent_bytes) > 0)
    wire.socket.close()

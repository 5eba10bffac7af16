"""Many connections at once: the idle cost little, the active are all served, one too many is told why (R16)."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.connection import ServerConnection
from fluss.server.net.session import Session
from fluss.testing import FlussServer
from tests.kit.descriptors import allow_files
from tests.kit.thread_server import (
    TIMEOUT_S,
    RunningServer,
    Wire,
    batch,
    create_table,
    eventually,
    produce_request,
)

ROUNDS = 5
ROWS = 3
BYTES_PER_IDLE_MAX = 64 << 10
GROWTH_BYTES_FIXED = 32 << 20


def test_closed_connections_leave_no_reference_cycles(tmp_path: Path) -> None:
    """What is in cycles stays until a collection, in which nobody is served: 140 ms after 8,500 connections."""
    with RunningServer(tmp_path) as server:
        gc.collect()
        gc.disable()
        try:
            for number in range(20):
                with server.connect() as wire:
                    if number % 2:
                        wire.call(api_keys.API_VERSIONS, _VERSIONS)
                    else:
                        wire.socket.sendall(frames.request_header(api_keys.PRODUCE_LOG.key, 0, 1, 1_000_000))
            eventually(lambda: not any(isinstance(one, ServerConnection | Session) for one in gc.get_objects()))
        finally:
            gc.enable()


@pytest.mark.parametrize(("idle", "active"), [(300, 50), pytest.param(2_000, 200, marks=pytest.mark.full)])
def test_idle_and_active_connections(tmp_path: Path, idle: int, active: int) -> None:
    allow_files(idle + active)
    settings = tmp_path / "fluss.toml"
    settings.write_text(f"[limits]\nconnections_max = {idle + active}\n")
    with FlussServer(tmp_path / "data", args=["--config", str(settings)]) as server, ExitStack() as stack:
        process = psutil.Process(server.pid)

        def connect() -> Wire:
            return stack.enter_context(Wire("127.0.0.1", server.port))

        first = connect()
        table_id = create_table(first)
        before_bytes = process.memory_info().rss
        sleepers = [connect() for _ in range(idle)]
        for wire in sleepers:
            wire.call(api_keys.API_VERSIONS, _VERSIONS)
        growth_bytes = process.memory_info().rss - before_bytes
        assert growth_bytes < GROWTH_BYTES_FIXED + idle * BYTES_PER_IDLE_MAX
        workers = [first, *(connect() for _ in range(active - 1))]
        offsets = _write(workers, table_id)
        assert sorted(offsets) == list(range(0, active * ROUNDS * ROWS, ROWS))
        refused = connect()
        error = refused.receive_error(refused.send(api_keys.API_VERSIONS, _VERSIONS))
        assert error.code == 1
        assert f"{idle + active} connections" in error.text
        assert refused.is_closed_by_server()
        # The others did not notice, and a place that becomes free is given away.
        for wire in (*sleepers, *workers):
            wire.call(api_keys.API_VERSIONS, _VERSIONS)
        sleepers[0].socket.close()
        assert _is_admitted_soon(connect)


def _is_admitted_soon(connect: Callable[[], Wire]) -> bool:
    """The server may see the new connection before the end of the old one."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        wire = connect()
        wire.send(api_keys.API_VERSIONS, _VERSIONS)
        if wire.receive().kind == frames.SUCCESS:
            return True
    return False


def _write(workers: list[Wire], table_id: int) -> list[int]:
    """Every worker has one batch under way in each round; the offsets they got."""
    offsets = []
    for _ in range(ROUNDS):
        sent = [wire.send(api_keys.PRODUCE_LOG, produce_request(table_id, (0, batch(ROWS)))) for wire in workers]
        for wire, request_id in zip(workers, sent, strict=True):
            (entry,) = wire.receive_answer(request_id, api_keys.PRODUCE_LOG).buckets_resp
            assert not entry.HasField("error_code")
            offsets.append(entry.base_offset)
    return offsets


_VERSIONS = pb.ApiVersionsRequest(client_software_name="test", client_software_version="1")

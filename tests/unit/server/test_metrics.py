"""The metrics page: what it counts, and that it can't be abused."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluss.model.errors import FlussError
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server import metrics_page
from fluss.server.net.users import add_user
from fluss.testing import FlussServer
from tests.kit.kv_requests import (
    create_kv_table,
    kv_batch,
    lookup,
    prefix_lookup,
    put,
    scan,
    scan_request,
)
from tests.kit.thread_server import (
    TIMEOUT_S,
    RunningServer,
    WireError,
    batch,
    create_table,
    fetch,
    fetch_request,
    path,
    produce,
)
from tests.unit.server.calls import scrape


@pytest.fixture
def measured(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data", metrics_port=0) as running:
        yield running


def test_what_is_counted_of_primary_key_tables(measured: RunningServer) -> None:
    with measured.connect() as wire:
        assert scrape(measured)["fluss_open_kv_stores"] == 0
        table_id = create_kv_table(wire)
        records = kv_batch([(number, "x", 1.0) for number in range(10)])
        put(wire, table_id, records)
        lookup(wire, table_id, 1, 2, 3)
        prefix_lookup(wire, table_id, b"k")
        assert scan(wire, scan_request(table_id, batch_size_bytes=1)).has_more_results
        after = scrape(measured)
    assert after['fluss_requests_total{api="PutKv"}'] == after["fluss_put_batches_total"] == 1
    assert after["fluss_put_bytes_total"] == len(records)
    assert after["fluss_lookup_keys_total"] == 4
    assert after["fluss_kv_scanners"] == after["fluss_open_kv_stores"] == 1
    assert after["fluss_kv_memory_bytes"] > 0
    assert after["fluss_allocated_bytes"] > 1_000_000
    assert after["fluss_python_blocks"] > 10_000


def test_what_is_counted(measured: RunningServer) -> None:
    before = scrape(measured)
    assert before["fluss_connections"] == 0
    with measured.connect() as wire:
        table_id = create_table(wire)
        for _ in range(3):
            produce(wire, table_id, batch(5))
        fetch(wire, table_id, 0)
        with pytest.raises(WireError):
            wire.call(api_keys.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path("missing")))
        wire.receive_error(wire.send_raw(9_999, b""))
        wire.send(api_keys.FETCH_LOG, fetch_request(table_id, (0, 15), max_wait_ms=10_000, min_bytes=1))
        wire.call(api_keys.LIST_DATABASES, pb.ListDatabasesRequest())
        after = scrape(measured)
    assert after['fluss_requests_total{api="ProduceLog"}'] == 3
    assert after['fluss_requests_total{api="FetchLog"}'] == 2
    assert after['fluss_request_errors_total{api="GetTableInfo",code="7"}'] == 1
    assert after['fluss_request_errors_total{api="unknown",code="2"}'] == 1
    assert after["fluss_appended_rows_total"] == 15
    assert after["fluss_appended_batches_total"] == 3
    assert after["fluss_appended_bytes_total"] == 3 * len(batch(5))
    assert after["fluss_received_bytes_total"] > 3 * len(batch(5))
    assert after["fluss_sent_bytes_total"] > 3 * len(batch(5))
    assert after["fluss_connections"] == 1
    assert after["fluss_fetches_waiting"] == 1
    assert after["fluss_sync_seconds_count"] >= 3
    assert after["fluss_sync_seconds_sum"] > 0
    assert after['fluss_sync_seconds_bucket{le="+Inf"}'] == after["fluss_sync_seconds_count"]
    assert after["fluss_open_logs"] == after["fluss_tables"] == 1
    assert after["fluss_partitions"] == after["fluss_writes_refused_total"] == after["fluss_disk_low"] == 0
    assert after["fluss_disk_free_bytes"] > 0
    assert after["process_resident_memory_bytes"] > 1_000_000


def test_every_api_is_listed(measured: RunningServer) -> None:
    seen = scrape(measured)
    for api in api_keys.ALL:
        assert f'fluss_requests_total{{api="{api.name}"}}' in seen


def test_refused_logins_are_counted(tmp_path: Path) -> None:
    add_user(tmp_path / "users", "ada", "right")
    with RunningServer(tmp_path / "data", metrics_port=0, sasl_users=tmp_path / "users") as running:
        with running.connect() as wire, pytest.raises(WireError):
            wire.call(api_keys.AUTHENTICATE, pb.AuthenticateRequest(protocol="PLAIN", token=b"\0ada\0wrong"))
        assert scrape(running)["fluss_logins_refused_total"] == 1


def ask(server: RunningServer, request: bytes) -> bytes:
    assert server.server.metrics_port is not None
    with socket.create_connection(("127.0.0.1", server.server.metrics_port), TIMEOUT_S) as client:
        client.sendall(request)
        answer = b""
        while part := client.recv(1 << 16):
            answer += part
    return answer


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"405"),
        (b"\r\n\r\n", b"405"),
    ],
)
def test_requests(measured: RunningServer, request_: bytes, status: bytes) -> None:
    answer = ask(measured, request_)
    assert answer.startswith(b"HTTP/1.1 " + status)
    head, _, body = answer.partition(b"\r\n\r\n")
    if request_.startswith(b"HEAD"):
        assert body == b""
    else:
        assert f"Content-Length: {len(body)}".encode() in head


def test_a_request_that_never_ends(measured: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(measured, b"GET /" + b"x" * 3 * metrics_page.REQUEST_BYTES_MAX)[:12] in (b"HTTP/1.1 431", b"")
    monkeypatch.setattr(metrics_page, "REQUEST_WAIT_S_MAX", 0.05)
    assert ask(measured, b"GET /metr") == b""
    assert scrape(measured)["fluss_connections"] == 0


def test_too_many_connections_are_closed(measured: RunningServer) -> None:
    assert measured.server.metrics_port is not None
    address = ("127.0.0.1", measured.server.metrics_port)
    waiting = [socket.create_connection(address, TIMEOUT_S) for _ in range(metrics_page.CONNECTIONS_MAX)]
    try:
        assert ask(measured, b"GET /metrics HTTP/1.0\r\n\r\n") == b""
    finally:
        for client in waiting:
            client.close()


def test_a_port_in_use_is_an_error_that_leaves_nothing_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(FlussError, match="--metrics-port"), RunningServer(tmp_path, metrics_port=port):
            pass
    with RunningServer(tmp_path, metrics_port=port) as running:
        assert running.server.metrics_port == port


def test_the_command_takes_a_port(tmp_path: Path) -> None:
    with FlussServer(tmp_path / "data", args=["--metrics-port", "0"]) as server:
        assert "metrics on http://127.0.0.1:" in server.log_file.read_text()

"""Promises R10, R24 and R25 in short form: lost answers, cut connections, restarts; every row once and in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.client.table import TableCore
from fluss.model.config import Config
from fluss.protocol import api_keys
from fluss.testing import Direction, FaultProxy, FlussServer
from tests.kit.client_tables import everything, make_table

HEAL_S_MAX = 5.0
SEED = 20


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[tuple[FlussServer, FaultProxy]]:
    proxy = FaultProxy(seed=SEED)
    with proxy, FlussServer(tmp_path / "data", args=["--advertise", proxy.address]) as server:
        proxy.set_target(server.bootstrap_servers)
        yield server, proxy


def connect(address: str, **settings: object) -> ClientCore:
    return run(ClientCore.connect(Config({"bootstrap.servers": address, **settings})))


def small_batches(proxy: FaultProxy) -> ClientCore:
    return connect(proxy.address, **{"writer.batch-size": 4_000, "writer.batch-timeout-ms": 5})


def ids_by_bucket(table: TableCore) -> list[int]:
    return everything(table)["id"].to_pylist()


def test_dropped_answers_store_every_row_once_in_order(proxied: tuple[FlussServer, FaultProxy]) -> None:
    _, proxy = proxied
    client = small_batches(proxy)
    table = make_table(client)
    writer = table.append_writer()
    fault = proxy.drop_responses([api_keys.PRODUCE_LOG.key], probability=0.3)
    for number in range(20_000):
        writer.append([number, "x" * 20, 0.5])
    run(writer.flush())
    counters = proxy.counters
    proxy.remove(fault)
    assert counters.dropped_by_api[api_keys.PRODUCE_LOG.key] > 5
    assert ids_by_bucket(table) == list(range(20_000))
    run(client.close())


@pytest.mark.full
@pytest.mark.timeout(1_800)
def test_a_million_rows_through_dropped_answers_and_restarts(proxied: tuple[FlussServer, FaultProxy]) -> None:
    server, proxy = proxied
    client = connect(proxy.address, **{"writer.batch-size": 64_000})
    table = make_table(client)
    writer = table.append_writer()
    fault = proxy.drop_responses([api_keys.PRODUCE_LOG.key], probability=0.3)
    for number in range(1_000_000):
        writer.append([number, "x" * 20, 0.5])
        if number % 250_000 == 125_000:
            server.restart()
    run(writer.flush())
    assert proxy.counters.dropped_by_api[api_keys.PRODUCE_LOG.key] > 100
    proxy.remove(fault)
    assert ids_by_bucket(table) == list(range(1_000_000))
    run(client.close())


def test_requests_cut_in_the_middle_store_every_row_once_in_order(proxied: tuple[FlussServer, FaultProxy]) -> None:
    _, proxy = proxied
    client = small_batches(proxy)
    table = make_table(client)
    writer = table.append_writer()
    for direction in Direction:
        proxy.cut_mid_frame(direction, [api_keys.PRODUCE_LOG.key], probability=0.15)
    for number in range(20_000):
        writer.append([number, "x" * 20, 0.5])
    run(writer.flush())
    proxy.clear()
    assert sum(proxy.counters.faults.values()) > 5
    assert ids_by_bucket(table) == list(range(20_000))
    run(client.close())


def test_a_frozen_network_ends_at_the_deadline_and_heals(proxied: tuple[FlussServer, FaultProxy]) -> None:
    from fluss.model.errors import TimeoutError

    _, proxy = proxied
    client = connect(proxy.address, **{"request-timeout-ms": 300})
    table = make_table(client)
    writer = table.append_writer()
    writer.append([0, "a", 0.5]).result(5)
    proxy.freeze()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        run(client.admin.list_databases())
    assert time.monotonic() - began < HEAL_S_MAX
    handle = writer.append([1, "a", 0.5])
    time.sleep(0.5)
    proxy.unfreeze()
    handle.result(HEAL_S_MAX)
    assert ids_by_bucket(table) == [0, 1]
    run(client.close())


def test_restarts_under_load_heal_and_keep_every_row_once_in_order(tmp_path: Path) -> None:
    with FlussServer(tmp_path / "data") as server:
        client = connect(server.bootstrap_servers, **{"writer.batch-size": 20_000, "writer.batch-timeout-ms": 5})
        table = make_table(client, 2, bucket_keys=["id"])
        writer = table.append_writer()
        scanner = table.log_scanner(None)
        run(scanner.subscribe({(None, 0): -2, (None, 1): -2}))
        stop = threading.Event()
        written = 0
        seen: dict[int, list[int]] = {0: [], 1: []}

        def read() -> None:
            while not stop.is_set() or sum(map(len, seen.values())) < written:
                for fetched in run(scanner.poll_batches(200, None)):
                    seen[fetched.bucket.bucket].extend(fetched.batch.column("id").to_pylist())

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for _ in range(3):
                end = time.monotonic() + 0.3
                while time.monotonic() < end:
                    writer.append([written, "x" * 20, 0.5])
                    written += 1
                server.restart()
                began = time.monotonic()
                writer.append([written, "x", 0.5]).result(HEAL_S_MAX)
                written += 1
                assert time.monotonic() - began < HEAL_S_MAX
            run(writer.flush())
        finally:
            stop.set()
            reader.join(20)
        assert not reader.is_alive()
        for ids in seen.values():
            assert ids == sorted(ids)
        assert sorted(seen[0] + seen[1]) == list(range(written))
        assert sorted(ids_by_bucket(table)) == list(range(written))
        run(client.close())


def test_a_server_on_a_new_port_is_found_through_the_bootstrap_list(tmp_path: Path) -> None:
    with FlussServer(tmp_path / "data") as server:
        first_port = server.port
        with FaultProxy() as stable:
            stable.set_target(server.bootstrap_servers)
            client = connect(f"{server.bootstrap_servers},{stable.address}")
            table = make_table(client)
            writer = table.append_writer()
            writer.append([0, "a", 0.5]).result(5)
            server.kill()
            server.port = 0
            server.start()
            stable.set_target(server.bootstrap_servers)
            assert server.port != first_port or stable.counters.connections >= 0
            writer.append([1, "a", 0.5]).result(HEAL_S_MAX)
            assert ids_by_bucket(table) == [0, 1]
            run(client.close())


def test_a_scan_goes_on_after_cut_connections(proxied: tuple[FlussServer, FaultProxy]) -> None:
    _, proxy = proxied
    client = connect(proxy.address, **{"scanner.log.fetch.max-bytes-for-bucket": 4_000})
    table = make_table(client)
    writer = table.append_writer()
    for start in range(0, 5_000, 100):
        ids = list(range(start, start + 100))
        writer.write_batch(pa.record_batch({"id": ids, "name": ["x"] * 100, "value": [0.5] * 100}))
        run(writer.flush())
    proxy.drop_responses([api_keys.FETCH_LOG.key], probability=0.2)
    scanner = table.log_scanner(None)
    run(scanner.subscribe({(None, 0): -2}))
    ids = []
    deadline = time.monotonic() + 60
    while len(ids) < 5_000 and time.monotonic() < deadline:
        for fetched in run(scanner.poll_batches(1_000, 500)):
            ids.extend(fetched.batch.column("id").to_pylist())
    assert ids == list(range(5_000))
    assert ids_by_bucket(table) == list(range(5_000))
    assert proxy.counters.dropped_by_api[api_keys.FETCH_LOG.key] > 0
    run(client.close())

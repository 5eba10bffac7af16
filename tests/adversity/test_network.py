"""Delays, cuts, freezes, restarts and a new port under load: rows exact, deadlines kept, healed within five seconds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fluss.sync as fluss
from fluss.protocol import api_keys
from fluss.testing import Direction, FaultProxy, FlussServer
from fluss.testing.processes import free_ports
from tests.adversity.load import Load
from tests.adversity.network import FAULTS, HEAL_S_MAX, ROUNDS, SLACK_S, TIMEOUT_MS, cut_all

PRODUCE, FETCH = api_keys.PRODUCE_LOG.key, api_keys.FETCH_LOG.key


def assert_through(proxy: FaultProxy) -> None:
    """A proxy proves nothing unless the data went through it."""
    counters = proxy.counters
    assert counters.requests_by_api[PRODUCE] > 0
    assert counters.responses_by_api[FETCH] > 0


def test_delays(proxied: tuple[FlussServer, FaultProxy], chance: random.Random) -> None:
    _, proxy = proxied
    with Load(proxy.address) as load:
        load.await_progress(HEAL_S_MAX)
        for _ in range(ROUNDS):
            faults = [proxy.delay(direction, chance.uniform(0.001, 0.05)) for direction in Direction]
            load.await_progress(HEAL_S_MAX)
            for fault in faults:
                proxy.remove(fault)
        assert load.finish() > 0
    assert_through(proxy)


def test_cuts_of_all_connections(proxied: tuple[FlussServer, FaultProxy]) -> None:
    _, proxy = proxied
    healed: list[float] = []
    with Load(proxy.address) as load:
        load.await_progress(HEAL_S_MAX)
        for _ in range(ROUNDS):
            cut_all(proxy)
            healed.append(load.await_progress(HEAL_S_MAX))
        load.finish()
    assert_through(proxy)
    print("healed after", [f"{seconds:.2f} s" for seconds in healed])


@pytest.mark.parametrize("direction", Direction)
def test_cuts_in_the_middle_of_frames(proxied: tuple[FlussServer, FaultProxy], direction: Direction) -> None:
    _, proxy = proxied
    with Load(proxy.address) as load:
        load.await_progress(HEAL_S_MAX)
        proxy.cut_mid_frame(direction, [PRODUCE, FETCH], probability=0.1)
        while sum(proxy.counters.faults.values()) < FAULTS:
            load.await_progress(2 * HEAL_S_MAX)
        proxy.clear()
        load.await_progress(HEAL_S_MAX)
        load.finish()
    assert_through(proxy)


def test_lost_answers(proxied: tuple[FlussServer, FaultProxy]) -> None:
    """The server did the work, the client never hears of it: the rows are there once all the same."""
    _, proxy = proxied
    with Load(proxy.address) as load:
        load.await_progress(HEAL_S_MAX)
        proxy.drop_responses([PRODUCE, FETCH], probability=0.2)
        while proxy.counters.dropped_by_api[PRODUCE] < FAULTS:
            load.await_progress(2 * HEAL_S_MAX)
        proxy.clear()
        load.finish()
    assert_through(proxy)


def test_freezes(proxied: tuple[FlussServer, FaultProxy]) -> None:
    """Longer than a request may take: requests time out, are sent again, and the held-back ones arrive, too."""
    _, proxy = proxied
    with Load(proxy.address, request_timeout_ms=300) as load:
        load.await_progress(HEAL_S_MAX)
        for _ in range(2):
            proxy.freeze()
            time.sleep(0.7)  # the length of the freeze, not a wait for something
            proxy.unfreeze()
            load.await_progress(HEAL_S_MAX)
        load.finish()
    assert_through(proxy)


@pytest.mark.parametrize("graceful", [True, False], ids=["terminated", "killed"])
def test_restarts(tmp_path: Path, graceful: bool) -> None:
    healed: list[float] = []
    with FlussServer(tmp_path / "data") as server, Load(server.bootstrap_servers) as load:
        load.await_progress(HEAL_S_MAX)
        for _ in range(ROUNDS - 1):
            server.restart(graceful=graceful)
            healed.append(load.await_progress(HEAL_S_MAX))
        load.finish()
    print("healed after", [f"{seconds:.2f} s" for seconds in healed])


def test_a_restart_on_another_port(proxied: tuple[FlussServer, FaultProxy]) -> None:
    """All that is stable is an address that leads to the new place, such as a load balancer's."""
    server, proxy = proxied
    with Load(proxy.address) as load:
        load.await_progress(HEAL_S_MAX)
        for _ in range(2):
            before = server.port
            server.kill()
            server.port = free_ports(1)[0]
            assert server.port != before
            server.start()
            proxy.set_target(server.bootstrap_servers)
            load.await_progress(HEAL_S_MAX)
        load.finish()
    assert_through(proxy)


def test_a_restart_on_another_port_without_a_proxy_in_the_way_of_data(tmp_path: Path) -> None:
    """The server tells its own address; only the bootstrap list has one that stays."""
    with FaultProxy() as stable, FlussServer(tmp_path / "data") as server:
        stable.set_target(server.bootstrap_servers)
        with Load(stable.address) as load:
            load.await_progress(HEAL_S_MAX)
            assert stable.counters.requests_by_api[PRODUCE] == 0
            for _ in range(2):
                server.kill()
                server.port = free_ports(1)[0]
                server.start()
                stable.set_target(server.bootstrap_servers)
                load.await_progress(HEAL_S_MAX)
            load.finish()


def scan(connection: fluss.FlussConnection) -> fluss.LogScanner:
    scanner = connection.get_table(PATH).new_scan().create_record_batch_log_scanner()
    scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET})
    return scanner


PATH = fluss.TablePath("fluss", "deadline")
Call = Callable[[fluss.FlussConnection, fluss.FlussTable, fluss.LogScanner], object]
CALLS: dict[str, Call] = {
    "list_databases": lambda connection, table, scanner: connection.get_admin().list_databases(),
    "get_table": lambda connection, table, scanner: connection.get_table(PATH),
    "get_table_info": lambda connection, table, scanner: connection.get_admin().get_table_info(PATH),
    "table_exists": lambda connection, table, scanner: connection.get_admin().table_exists(PATH),
    "drop_table": lambda connection, table, scanner: connection.get_admin().drop_table(PATH),
    "list_offsets": lambda connection, table, scanner: connection.get_admin().list_offsets(
        PATH, [0], fluss.OffsetSpec.latest()
    ),
    "to_arrow": lambda connection, table, scanner: scanner.to_arrow(),
    "subscribe": lambda connection, table, scanner: scanner.subscribe_buckets({0: fluss.LATEST_OFFSET}),
    "flush": lambda connection, table, scanner: flush(table),
    "connect": lambda connection, table, scanner: fluss.FlussConnection.create(connection.config),
}


def flush(table: fluss.FlussTable) -> None:
    writer = table.new_append().create_writer()
    writer.append([1])
    writer.flush()


@pytest.mark.parametrize("name", CALLS)
def test_no_call_outlives_its_deadline(proxied: tuple[FlussServer, FaultProxy], name: str) -> None:
    """In a frozen network every call ends with an error by its deadline, and works again when the network does."""
    _, proxy = proxied
    options = {"request_timeout_ms": TIMEOUT_MS, "writer_delivery_timeout_ms": TIMEOUT_MS}
    connection = fluss.connect(proxy.address, connect_timeout_ms=TIMEOUT_MS, **options)
    schema = fluss.Schema.builder().column("id", fluss.DataTypes.bigint()).build()
    connection.get_admin().create_table(PATH, fluss.TableDescriptor(schema))
    table, scanner = connection.get_table(PATH), scan(connection)
    flush(table)
    proxy.freeze()
    began = time.monotonic()
    with pytest.raises(fluss.FlussError) as caught:
        CALLS[name](connection, table, scanner)
    took_s = time.monotonic() - began
    proxy.unfreeze()
    assert "\n" not in str(caught.value)
    assert took_s < TIMEOUT_MS / 1_000 + SLACK_S
    assert connection.get_admin().list_databases() == ["fluss"]
    assert connection.get_admin().table_exists(PATH) or name == "drop_table"
    connection.close()


def test_a_poll_keeps_its_time_in_a_frozen_network(proxied: tuple[FlussServer, FaultProxy]) -> None:
    _, proxy = proxied
    with fluss.connect(proxy.address, request_timeout_ms=TIMEOUT_MS) as connection:
        schema = fluss.Schema.builder().column("id", fluss.DataTypes.bigint()).build()
        connection.get_admin().create_table(PATH, fluss.TableDescriptor(schema))
        table, scanner = connection.get_table(PATH), scan(connection)
        flush(table)
        assert scanner.poll_arrow(5_000).num_rows == 1
        proxy.freeze()
        for wait_ms in (0, 50, 1_200):
            began = time.monotonic()
            assert scanner.poll_arrow(wait_ms).num_rows == 0
            assert time.monotonic() - began < wait_ms / 1_000 + SLACK_S
        proxy.unfreeze()
        flush(table)
        began = time.monotonic()
        while not scanner.poll_arrow(100).num_rows:
            assert time.monotonic() - began < HEAL_S_MAX

"""Primary-key tables under delays, cuts, freezes, restarts and a new port: writers find what they wrote, at once and in
the end, followers see changes that fit each other, and all heals within five seconds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import fluss.sync as fluss
from fluss.protocol import api_keys
from fluss.testing import Direction, FaultProxy, FlussServer
from fluss.testing.processes import free_ports
from tests.adversity.network import FAULTS, HEAL_S_MAX, ROUNDS, SLACK_S, TIMEOUT_MS, cut_all
from tests.kit.loads.kv_clients import KvLoad, make_tables

PUT, LOOKUP, FETCH = api_keys.PUT_KV.key, api_keys.LOOKUP.key, api_keys.FETCH_LOG.key
FINISH_S_MAX = 60.0


@contextmanager
def loaded(address: str, seed: int) -> Iterator[KvLoad]:
    """Clients at work; in the end tables, changelogs and what writers know are compared."""
    make_tables(address)
    load = KvLoad(address, seed)
    load.start()
    try:
        load.await_progress(2 * HEAL_S_MAX)
        yield load
        load.finish(FINISH_S_MAX)
    finally:
        load.stop()
        for thread in load.threads:
            thread.join(FINISH_S_MAX)


def assert_through(proxy: FaultProxy) -> None:
    """A proxy proves nothing unless the data went through it."""
    assert proxy.counters.requests_by_api[PUT] > 0
    assert proxy.counters.responses_by_api[LOOKUP] > 0
    assert proxy.counters.responses_by_api[FETCH] > 0


def test_delays(proxied: tuple[FlussServer, FaultProxy], chance: random.Random, seed: int) -> None:
    _, proxy = proxied
    with loaded(proxy.address, seed) as load:
        for _ in range(ROUNDS):
            faults = [proxy.delay(direction, chance.uniform(0.001, 0.05)) for direction in Direction]
            load.await_progress(HEAL_S_MAX)
            for fault in faults:
                proxy.remove(fault)
    assert_through(proxy)


def test_cuts_of_all_connections(proxied: tuple[FlussServer, FaultProxy], seed: int) -> None:
    _, proxy = proxied
    with loaded(proxy.address, seed) as load:
        for _ in range(ROUNDS):
            cut_all(proxy)
            load.await_progress(HEAL_S_MAX)
    assert_through(proxy)


@pytest.mark.parametrize("direction", Direction)
def test_cuts_in_the_middle_of_frames(proxied: tuple[FlussServer, FaultProxy], direction: Direction, seed: int) -> None:
    _, proxy = proxied
    with loaded(proxy.address, seed) as load:
        proxy.cut_mid_frame(direction, [PUT, LOOKUP, FETCH], probability=0.1)
        while sum(proxy.counters.faults.values()) < FAULTS:
            load.await_progress(2 * HEAL_S_MAX)
        proxy.clear()
        load.await_progress(HEAL_S_MAX)
    assert_through(proxy)


def test_lost_answers(proxied: tuple[FlussServer, FaultProxy], seed: int) -> None:
    """The server did the work, the client never hears of it: sums are right all the same."""
    _, proxy = proxied
    with loaded(proxy.address, seed) as load:
        proxy.drop_responses([PUT, LOOKUP, FETCH], probability=0.2)
        while proxy.counters.dropped_by_api[PUT] < FAULTS:
            load.await_progress(2 * HEAL_S_MAX)
        proxy.clear()
        load.await_progress(HEAL_S_MAX)
    assert_through(proxy)


def test_freezes(proxied: tuple[FlussServer, FaultProxy], seed: int) -> None:
    _, proxy = proxied
    with loaded(proxy.address, seed) as load:
        for _ in range(2):
            proxy.freeze()
            time.sleep(0.7)  # the length of the freeze, not a wait for something
            proxy.unfreeze()
            load.await_progress(HEAL_S_MAX)
    assert_through(proxy)


@pytest.mark.parametrize("graceful", [True, False], ids=["terminated", "killed"])
def test_restarts(tmp_path: Path, graceful: bool, seed: int) -> None:
    with FlussServer(tmp_path / "data") as server, loaded(server.bootstrap_servers, seed) as load:
        for _ in range(ROUNDS - 1):
            server.restart(graceful=graceful)
            load.await_progress(HEAL_S_MAX)


def test_a_restart_on_another_port(proxied: tuple[FlussServer, FaultProxy], seed: int) -> None:
    server, proxy = proxied
    with loaded(proxy.address, seed) as load:
        for _ in range(2):
            server.kill()
            server.port = free_ports(1)[0]
            server.start()
            proxy.set_target(server.bootstrap_servers)
            load.await_progress(HEAL_S_MAX)
    assert_through(proxy)


PATH = fluss.TablePath("fluss", "deadline")
CALLS: dict[str, Callable[[fluss.FlussTable], object]] = {
    "flush": lambda table: upsert(table),
    "lookup": lambda table: table.new_lookup().create_lookuper().lookup([1, 1]),
    "lookup_many": lambda table: table.new_lookup().create_lookuper().lookup_many([[1, 1], [1, 2]]),
    "prefix_lookup": lambda table: table.new_lookup().lookup_by(["part"]).create_lookuper().lookup([1]),
    "insert": lambda table: table.new_lookup().enable_insert_if_not_exists().create_lookuper().lookup([1, 3]),
    "to_arrow": lambda table: table.new_scan().to_arrow(),
    "changes": lambda table: table.changes(start="latest"),
}


def make_table(address: str) -> None:
    """With a row; the first one of a server takes longer than others."""
    columns = pa.schema([("part", pa.int32()), ("id", pa.int32()), ("name", pa.string())])
    descriptor = fluss.TableDescriptor(fluss.Schema(columns, ["part", "id"]), bucket_keys=["part"])
    with fluss.connect(address) as connection:
        connection.get_admin().create_table(PATH, descriptor)
        upsert(connection.get_table(PATH))


def upsert(table: fluss.FlussTable) -> None:
    writer = table.new_upsert().create_writer()
    writer.upsert([1, 1, "x"])
    writer.flush()


@pytest.mark.parametrize("name", CALLS)
def test_no_call_outlives_its_deadline(proxied: tuple[FlussServer, FaultProxy], name: str) -> None:
    """In a frozen network every call ends with an error by its deadline, and works again when the network does."""
    _, proxy = proxied
    make_table(proxy.address)
    options = {"request_timeout_ms": TIMEOUT_MS, "writer_delivery_timeout_ms": TIMEOUT_MS}
    with fluss.connect(proxy.address, connect_timeout_ms=TIMEOUT_MS, **options) as connection:
        table = connection.get_table(PATH)
        upsert(table)
        proxy.freeze()
        began = time.monotonic()
        with pytest.raises(fluss.FlussError) as caught:
            CALLS[name](table)
        took_s = time.monotonic() - began
        proxy.unfreeze()
        assert "\n" not in str(caught.value)
        assert took_s < TIMEOUT_MS / 1_000 + SLACK_S
        assert CALLS[name](table) is not None or name == "flush"


def test_a_poll_of_changes_keeps_its_time_in_a_frozen_network(proxied: tuple[FlussServer, FaultProxy]) -> None:
    _, proxy = proxied
    make_table(proxy.address)
    with fluss.connect(proxy.address, request_timeout_ms=TIMEOUT_MS) as connection:
        table = connection.get_table(PATH)
        with table.changes(start="earliest") as changes:
            assert changes.poll(5_000).num_rows == 1
            proxy.freeze()
            for wait_ms in (0, 50, 300):
                began = time.monotonic()
                assert changes.poll(wait_ms).num_rows == 0
                assert time.monotonic() - began < wait_ms / 1_000 + SLACK_S
            proxy.unfreeze()
            upsert(table)
            assert changes.poll(int(HEAL_S_MAX * 1_000)).num_rows > 0

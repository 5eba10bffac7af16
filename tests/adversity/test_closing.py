"""Closing while servers die, networks freeze and processes end: nothing is lost in silence, nothing is sent later."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import fluss
import fluss.sync
from fluss.testing import FaultProxy, FlussServer
from tests.kit.facades import FACADES, Facade

PATH = fluss.TablePath("fluss", "t")
PUT_KV = 1016
SCRIPT_S_MAX = 60
# Longer than the longest pause between the tries of a client.
OBSERVED_S = 1.5


@pytest.fixture(params=FACADES)
def facade(request: pytest.FixtureRequest) -> Iterator[Facade]:
    made = Facade(request.param)
    yield made
    made.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    with FlussServer(tmp_path_factory.mktemp("server") / "data") as started:
        yield started


@pytest.fixture
def server(running: FlussServer) -> FlussServer:
    """A server with an empty table; whoever kills it starts it again."""
    if running.process.returncode is not None:
        running.start()
    make_table(running.bootstrap_servers)
    return running


def make_table(address: str) -> None:
    schema = fluss.Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), ["id"])
    with fluss.sync.connect(address) as connection:
        connection.get_admin().drop_table(PATH, ignore_if_not_exists=True)
        connection.get_admin().create_table(PATH, fluss.TableDescriptor(schema, bucket_count=1))


def names(address: str) -> dict[int, str]:
    with fluss.sync.connect(address) as connection:
        rows = connection.get_table(PATH).new_scan().to_arrow().to_pylist()
    return {row["id"]: row["name"] for row in rows}


def writer_of(facade: Facade, connection: Any) -> Any:
    return facade.table(connection, PATH).new_upsert().create_writer()


def test_an_old_row_never_comes_after_a_newer_one(facade: Facade, server: FlussServer) -> None:
    """The server dies, flush is given up where that can be, close fails, the program reconnects and writes anew."""
    connection = facade.connect(server.bootstrap_servers, **{"close.timeout-ms": 100})
    writer = writer_of(facade, connection)
    server.kill()
    writer.upsert([1, "old"])
    if not facade.blocks:
        with pytest.raises(TimeoutError):
            facade.do(lambda: asyncio.wait_for(writer.flush(), 0.05))
    told = ""
    try:
        facade.close_connection(connection)
    except fluss.TimeoutError as error:
        told = str(error)
    server.start()
    other = facade.connect(server.bootstrap_servers)
    second = writer_of(facade, other)
    second.upsert([1, "new"])
    facade.do(second.flush)
    deadline = time.monotonic() + OBSERVED_S
    while time.monotonic() < deadline:
        assert names(server.bootstrap_servers) == {1: "new"}
    facade.close_connection(other)
    assert "close.timeout-ms" in told


def test_close_waits_for_a_server_that_comes_back(facade: Facade, server: FlussServer) -> None:
    connection = facade.connect(server.bootstrap_servers)
    writer = writer_of(facade, connection)
    server.kill()
    for number in range(50):
        writer.upsert([number, "a"])
    server.start()
    facade.close_connection(connection)
    assert names(server.bootstrap_servers) == dict.fromkeys(range(50), "a")


def test_a_frozen_network_leaves_doubt_and_close_says_so(
    facade: Facade, proxied: tuple[FlussServer, FaultProxy]
) -> None:
    server, proxy = proxied
    make_table(server.bootstrap_servers)
    settings = {"close.timeout-ms": 200, "writer.batch-timeout-ms": 0, "request-timeout-ms": 60_000}
    connection = facade.connect(proxy.address, **settings)
    writer = writer_of(facade, connection)
    writer.upsert([0, "a"])
    facade.do(writer.flush)
    proxy.freeze()
    writer.upsert([1, "a"])
    with pytest.raises(fluss.TimeoutError, match="may have been stored"):
        facade.close_connection(connection)
    before = proxy.counters.requests_by_api[PUT_KV]
    proxy.unfreeze()
    with fluss.sync.connect(proxy.address) as other:
        second = other.get_table(PATH).new_upsert().create_writer()
        second.upsert([2, "a"])
        second.flush()
    # What the network held is delivered at most once, and nothing was sent anew.
    assert before + 1 <= proxy.counters.requests_by_api[PUT_KV] <= before + 2


def test_a_server_that_stood_still_takes_nothing_from_a_connection_that_was_closed(
    facade: Facade, server: FlussServer
) -> None:
    """The row lies in its socket, and behind it the end of the connection, which the kernel knows of."""
    connection = facade.connect(server.bootstrap_servers, **{"close.timeout-ms": 200, "writer.batch-timeout-ms": 0})
    writer = writer_of(facade, connection)
    writer.upsert([0, "a"])
    facade.do(writer.flush)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        writer.upsert([1, "old"])
        with pytest.raises(fluss.TimeoutError, match="may have been stored"):
            facade.close_connection(connection)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    other = facade.connect(server.bootstrap_servers)
    second = writer_of(facade, other)
    second.upsert([1, "new"])
    facade.close_connection(other)
    changes = [row["name"] for row in all_changes(server.bootstrap_servers)]
    assert changes == ["a", "new"]


def all_changes(address: str) -> list[dict[str, Any]]:
    with fluss.sync.connect(address) as connection:
        scanner = connection.get_table(PATH).new_scan().create_changelog_batch_scanner()
        scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET})
        rows: list[dict[str, Any]] = scanner.to_arrow().to_pylist()
        scanner.close()
    return rows


# ---- processes ----


def start(script: str, address: str) -> subprocess.Popen[str]:
    code = "import asyncio, sys, fluss, fluss.aio, fluss.sync\nPATH = fluss.TablePath('fluss', 't')\n"
    return subprocess.Popen(
        [sys.executable, "-c", code + textwrap.dedent(script), address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str], more: str = "") -> tuple[str, str]:
    return process.communicate(more, timeout=SCRIPT_S_MAX)


def run(script: str, server: FlussServer) -> str:
    """What a program that ends well writes on standard error."""
    process = start(script, server.bootstrap_servers)
    _, errors = finished(process)
    assert process.returncode == 0, errors
    return errors


def test_a_program_of_the_specification_that_closes_without_await_loses_nothing(server: FlussServer) -> None:
    script = """
        async def main():
            config = fluss.Config({"bootstrap.servers": sys.argv[1], "writer.batch-timeout-ms": 600_000})
            conn = await fluss.FlussConnection.create(config)
            table = await conn.get_table(PATH)
            writer = table.new_upsert().create_writer()
            for number in range(1_000):
                writer.upsert({"id": number, "name": "a"})
            conn.close()

        asyncio.run(main())
    """
    assert run(script, server) == ""
    assert len(names(server.bootstrap_servers)) == 1_000


def test_a_close_that_was_not_awaited_warns_and_loses_nothing(server: FlussServer) -> None:
    script = """
        async def main():
            conn = await fluss.aio.connect(sys.argv[1], writer_batch_timeout_ms=600_000)
            writer = (await conn.get_table(PATH)).new_upsert().create_writer()
            for number in range(1_000):
                writer.upsert({"id": number, "name": "a"})
            conn.close()

        asyncio.run(main())
    """
    assert "RuntimeWarning: coroutine 'FlussConnection.close' was never awaited" in run(script, server)
    assert len(names(server.bootstrap_servers)) == 1_000


def test_a_process_that_ends_without_closing_says_what_failed(server: FlussServer) -> None:
    script = """
        conn = fluss.sync.connect(sys.argv[1])
        writer = conn.get_table(PATH).new_upsert().create_writer()
        conn.get_admin().drop_table(PATH)
        writer.upsert([1, "a"])
    """
    errors = run(script, server)
    assert errors.startswith("fluss: nobody was told before the process ended: 1 row for bucket 0 of table fluss.t")


def test_an_interrupt_ends_a_close_that_waits(server: FlussServer) -> None:
    script = """
        import os, signal, threading, time
        signal.signal(signal.SIGINT, signal.default_int_handler)
        conn = fluss.sync.connect(sys.argv[1])
        writer = conn.get_table(PATH).new_upsert().create_writer()
        print("ready", flush=True)
        input()
        handle = writer.upsert([1, "old"])

        def interrupt():
            while conn._core._closing._ending is None:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        try:
            conn.close()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        try:
            handle.wait()
        except fluss.FlussError as error:
            print(error)
    """
    process = start(script, server.bootstrap_servers)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    server.kill()
    output, errors = finished(process, "\n")
    assert output.startswith("interrupted\n1 row for "), errors
    assert "without waiting any longer" in output
    server.start()
    assert names(server.bootstrap_servers) == {}

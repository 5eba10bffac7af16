"""Addresses where no Fluss server answers: one line that says what was tried and what to do."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.model.config import Config
from fluss.model.errors import ConnectError, FlussError, InvalidRequestError, TimeoutError
from fluss.model.offsets import OffsetSpec
from fluss.testing import FlussServer
from tests.kit.client_tables import make_table

LIMIT_MS = 1_000


def connect_error(bootstrap: str) -> FlussError:
    began = time.monotonic()
    with pytest.raises(ConnectError) as caught:
        run(ClientCore.connect(Config({"bootstrap.servers": bootstrap, "connect-timeout": LIMIT_MS})))
    assert time.monotonic() - began < 5 * LIMIT_MS / 1000
    message = caught.value.message
    assert "\n" not in message
    assert bootstrap in message
    assert "Check bootstrap.servers" in message
    assert caught.value.is_retriable
    return caught.value


@contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A port where something else answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_nobody_listens() -> None:
    assert "refused" in connect_error("127.0.0.1:1").message


def test_a_host_that_is_not_found() -> None:
    assert "no-such-host.invalid" in connect_error("no-such-host.invalid:9123").message


def test_a_port_that_speaks_something_else() -> None:
    def http(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

    with listener(http) as address:
        assert "Is that the port of a Fluss server?" in connect_error(address).message


def test_a_port_that_hangs_up() -> None:
    with listener(lambda connection: None) as address:
        assert "Is that the port of a Fluss server?" in connect_error(address).message


def test_a_port_that_says_nothing() -> None:
    done = threading.Event()

    def silent(_: socket.socket) -> None:
        done.wait(30)

    with listener(silent) as address:
        try:
            assert "within 1 s" in connect_error(address).message
        finally:
            done.set()


def test_a_server_that_dies_fails_what_waits_and_says_so(tmp_path: Path) -> None:
    with FlussServer(tmp_path / "data") as server:
        settings = {"bootstrap.servers": server.bootstrap_servers, "request-timeout-ms": LIMIT_MS}
        client = run(ClientCore.connect(Config(settings | {"writer.delivery-timeout-ms": LIMIT_MS})))
        table = make_table(client)
        writer = table.append_writer()
        writer.append([1, "a", 0.5]).result(10)
        server.kill()
        with pytest.raises(ConnectError, match="No Fluss server answers") as caught:
            run(client.admin.list_databases())
        assert "\n" not in caught.value.message
        with pytest.raises(TimeoutError, match=r"1 row for bucket 0 of table .*delivery-timeout"):
            writer.append([2, "a", 0.5]).result(10)
        server.start()
        writer.append([3, "a", 0.5]).result(10)
        assert "fluss" in run(client.admin.list_databases())
        run(client.close())


def test_a_server_that_comes_back_elsewhere_is_found_through_the_bootstrap_list(tmp_path: Path) -> None:
    with FlussServer(tmp_path / "data") as first, FlussServer(tmp_path / "other") as second:
        later_port = second.port
        second.terminate()
        both = f"{first.bootstrap_servers},127.0.0.1:{later_port}"
        client = run(ClientCore.connect(Config({"bootstrap.servers": both})))
        table = make_table(client)
        writer = table.append_writer()
        writer.append([1, "a", 0.5]).result(10)
        first.kill()
        with FlussServer(tmp_path / "data", port=later_port, log_file=tmp_path / "moved.log"):
            began = time.monotonic()
            writer.append([2, "a", 0.5]).result(10)
            assert time.monotonic() - began < 5
            path = table.info.table_path
            assert run(client.admin.list_offsets(path, [0], OffsetSpec.latest())) == {0: 2}
            run(client.close())


def test_a_time_in_the_future_has_no_offset(client: ClientCore) -> None:
    path = make_table(client).info.table_path
    with pytest.raises(InvalidRequestError) as caught:
        run(client.admin.list_offsets(path, [0], OffsetSpec.timestamp(int(time.time() * 1_000) + 10**7)))
    assert caught.value.error_code == 38

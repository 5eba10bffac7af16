from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from fluss.testing import Action, Direction, Fault, FaultProxy

PRODUCE, FETCH = 1014, 1015
TIMEOUT_S = 5.0
SILENCE_S = 0.3


def request(api_key: int, request_id: int, body: bytes) -> bytes:
    return struct.pack(">ihhi", 8 + len(body), api_key, 0, request_id) + body


def read_exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise EOFError(received)
        received += chunk
    return received


class EchoServer:
    """Answers every request with success and the request's own body."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.handled: list[int] = []
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        try:
            while True:
                (length,) = struct.unpack(">i", read_exactly(connection, 4))
                frame = read_exactly(connection, length)
                (request_id,) = struct.unpack(">i", frame[4:8])
                self.handled.append(request_id)
                connection.sendall(struct.pack(">iBi", 5 + len(frame) - 8, 0, request_id) + frame[8:])
        except (OSError, EOFError):
            connection.close()

    def close(self) -> None:
        for open_socket in (self._listener, *self._connections):
            # `shutdown` wakes the thread that waits on the socket; `close` alone does not.
            with contextlib.suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
            open_socket.close()


class Client:
    def __init__(self, proxy: FaultProxy) -> None:
        self.socket = socket.create_connection(("127.0.0.1", proxy.port), TIMEOUT_S)

    def send(self, api_key: int, request_id: int, body: bytes = b"payload") -> None:
        self.socket.sendall(request(api_key, request_id, body))

    def receive(self) -> tuple[int, bytes]:
        length, kind, request_id = struct.unpack(">iBi", read_exactly(self.socket, 9))
        assert kind == 0
        return request_id, read_exactly(self.socket, length - 5)

    def call(self, api_key: int, request_id: int, body: bytes = b"payload") -> bytes:
        self.send(api_key, request_id, body)
        answered, answer = self.receive()
        assert answered == request_id
        return answer

    def is_silent(self) -> bool:
        self.socket.settimeout(SILENCE_S)
        try:
            return self.socket.recv(1) == b"never"
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(TIMEOUT_S)

    def rest_until_cut(self) -> bytes:
        received = b""
        try:
            while chunk := self.socket.recv(65536):
                received += chunk
        except ConnectionResetError:
            pass
        return received


@pytest.fixture
def server() -> Iterator[EchoServer]:
    echo = EchoServer()
    yield echo
    echo.close()


@pytest.fixture
def proxy(server: EchoServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.address, seed=7) as running:
        yield running


def test_forwards_frames_and_counts_them(proxy: FaultProxy) -> None:
    client = Client(proxy)
    big = bytes(range(256)) * 20_000
    assert client.call(PRODUCE, 1, big) == big
    assert client.call(FETCH, 2) == b"payload"
    counters = proxy.counters
    assert counters.connections == 1
    assert counters.requests_by_api == {PRODUCE: 1, FETCH: 1}
    assert counters.responses_by_api == {PRODUCE: 1, FETCH: 1}
    assert counters.frames == {Direction.REQUEST: 2, Direction.RESPONSE: 2}
    assert counters.bytes[Direction.REQUEST] == 12 + len(big) + 12 + 7
    assert counters.bytes[Direction.RESPONSE] == 9 + len(big) + 9 + 7
    assert not counters.faults


def test_interleaved_requests_are_matched_by_id(proxy: FaultProxy) -> None:
    client = Client(proxy)
    for request_id in range(100):
        client.send(PRODUCE if request_id % 2 else FETCH, request_id, b"x" * request_id)
    assert [client.receive() for _ in range(100)] == [(n, b"x" * n) for n in range(100)]
    assert proxy.counters.responses_by_api == {PRODUCE: 50, FETCH: 50}


def test_dropped_response_was_handled_and_the_connection_is_cut(server: EchoServer, proxy: FaultProxy) -> None:
    proxy.drop_responses([PRODUCE], limit=1)
    client = Client(proxy)
    assert client.call(FETCH, 1) == b"payload"
    client.send(PRODUCE, 2)
    assert client.rest_until_cut() == b""
    assert server.handled == [1, 2]
    again = Client(proxy)
    assert again.call(PRODUCE, 3) == b"payload"
    counters = proxy.counters
    assert counters.faults == {Action.DROP_AND_CUT: 1}
    assert counters.dropped_by_api == {PRODUCE: 1}
    assert counters.responses_by_api == {FETCH: 1, PRODUCE: 1}


def test_dropped_response_can_leave_the_connection_open(proxy: FaultProxy) -> None:
    proxy.drop_responses([PRODUCE], cut=False, limit=1)
    client = Client(proxy)
    client.send(PRODUCE, 1)
    assert client.is_silent()
    assert client.call(PRODUCE, 2) == b"payload"


def test_cut_mid_frame_delivers_a_part_only(server: EchoServer, proxy: FaultProxy) -> None:
    proxy.cut_mid_frame(Direction.RESPONSE, [FETCH])
    client = Client(proxy)
    client.send(FETCH, 1, b"y" * 1000)
    part = client.rest_until_cut()
    assert 0 < len(part) < 1009
    assert proxy.counters.bytes[Direction.RESPONSE] == len(part)
    proxy.clear()
    proxy.cut_mid_frame(Direction.REQUEST)
    second = Client(proxy)
    second.send(PRODUCE, 2)
    assert second.rest_until_cut() == b""
    assert server.handled == [1]


def test_forward_and_cut_delivers_the_whole_frame(proxy: FaultProxy) -> None:
    proxy.add(Fault(Action.FORWARD_AND_CUT, Direction.RESPONSE))
    client = Client(proxy)
    assert client.call(FETCH, 1) == b"payload"
    assert client.rest_until_cut() == b""


def test_skip_lets_the_first_frames_pass(proxy: FaultProxy) -> None:
    proxy.drop_responses([PRODUCE], skip=2)
    client = Client(proxy)
    assert client.call(PRODUCE, 1) == client.call(PRODUCE, 2) == b"payload"
    client.send(PRODUCE, 3)
    assert client.rest_until_cut() == b""


def test_a_seed_repeats_its_draws(server: EchoServer) -> None:
    def survivors(seed: int) -> list[int]:
        with FaultProxy(server.address, seed=seed) as proxy:
            proxy.drop_responses([PRODUCE], probability=0.5, cut=False)
            client = Client(proxy)
            for request_id in range(64):
                client.send(PRODUCE, request_id)
            client.send(FETCH, 64)
            received: list[int] = []
            while not received or received[-1] != 64:
                received.append(client.receive()[0])
            return received

    assert survivors(1) == survivors(1) != survivors(2)
    assert 10 < len(survivors(1)) < 55


def test_delay_holds_frames_back(proxy: FaultProxy) -> None:
    fault = proxy.delay(Direction.RESPONSE, SILENCE_S * 3)
    client = Client(proxy)
    client.send(FETCH, 1)
    assert client.is_silent()
    assert client.receive() == (1, b"payload")
    proxy.remove(fault)
    assert client.call(FETCH, 2) == b"payload"
    assert proxy.counters.faults == {Action.DELAY: 1}


def test_freeze_holds_everything_until_unfreeze(server: EchoServer, proxy: FaultProxy) -> None:
    client = Client(proxy)
    assert client.call(FETCH, 1) == b"payload"
    proxy.freeze()
    client.send(FETCH, 2)
    assert client.is_silent()
    assert server.handled == [1]
    proxy.unfreeze()
    assert client.receive() == (2, b"payload")


def test_cut_all_ends_open_connections_and_lets_new_ones_in(proxy: FaultProxy) -> None:
    clients = [Client(proxy) for _ in range(3)]
    for client in clients:
        client.call(FETCH, 1)
    assert proxy.cut_all() == 3
    assert [client.rest_until_cut() for client in clients] == [b"", b"", b""]
    assert Client(proxy).call(FETCH, 1) == b"payload"


def test_target_can_come_later_and_change(server: EchoServer) -> None:
    other = EchoServer()
    with FaultProxy() as proxy:
        assert Client(proxy).rest_until_cut() == b""
        proxy.set_target(server.address)
        assert Client(proxy).call(FETCH, 1) == b"payload"
        proxy.set_target(other.address)
        assert Client(proxy).call(FETCH, 2) == b"payload"
        assert (server.handled, other.handled) == ([1], [2])
        other.close()
        assert Client(proxy).rest_until_cut() == b""
        assert proxy.counters.refused_connections == 2


def test_a_closed_server_closes_the_client(server: EchoServer, proxy: FaultProxy) -> None:
    client = Client(proxy)
    client.call(FETCH, 1)
    server.close()
    assert client.rest_until_cut() == b""


def test_a_frame_of_absurd_length_cuts_the_connection(proxy: FaultProxy) -> None:
    client = Client(proxy)
    client.socket.sendall(b"\xff\xff\xff\xff")
    assert client.rest_until_cut() == b""
    assert proxy.counters.invalid_frames == 1


def test_stop_cuts_connections_and_frees_the_port(server: EchoServer) -> None:
    proxy = FaultProxy(server.address).start()
    client = Client(proxy)
    client.call(FETCH, 1)
    proxy.stop()
    assert client.rest_until_cut() == b""
    with pytest.raises(ConnectionRefusedError):
        Client(proxy)

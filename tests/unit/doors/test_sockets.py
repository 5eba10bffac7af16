"""A client and a server over a network that is a few lists: the door to sockets is the only way to the real one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fluss.client.net.connection import Connection
from fluss.doors import replaced, sockets
from fluss.model.errors import ConnectError
from fluss.model.trust import Address
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.config import ServerConfig
from fluss.server.server import Server

HOST, PORT = "far.away", 7


class End(asyncio.Transport):
    """One end of a connection: what is written here is read at the other end in a later turn of the loop."""

    def __init__(self, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__({"peername": (HOST, PORT), "sockname": (HOST, PORT)})
        self.protocol = protocol
        self.other: End | None = None

    def write(self, data: Any) -> None:
        asyncio.get_running_loop().call_soon(self._deliver, bytes(data))

    def writelines(self, parts: Iterable[Any]) -> None:
        self.write(b"".join(parts))

    def _deliver(self, data: bytes) -> None:
        while data and self.other is not None:
            room = self.other.protocol.get_buffer(-1)
            size_bytes = min(len(room), len(data))
            room[:size_bytes] = data[:size_bytes]  # type: ignore[index]
            self.other.protocol.buffer_updated(size_bytes)
            data = data[size_bytes:]

    def close(self) -> None:
        other, self.other = self.other, None
        if other is not None:
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)
            asyncio.get_running_loop().call_soon(other.close)

    abort = close

    def is_closing(self) -> bool:
        return self.other is None

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Network:
    """Connects whoever asks to the one server that listens."""

    def __init__(self) -> None:
        self.accept: Callable[[], Any] | None = None

    async def connect(self, make_protocol: Callable[[], Any], host: str, port: int) -> Any:
        if self.accept is None:
            raise ConnectionRefusedError("nobody listens")
        near, far = End(make_protocol()), End(self.accept())
        near.other, far.other = far, near
        for end in (far, near):
            end.protocol.connection_made(end)
        return near.protocol

    def bind(self, host: str, port: int) -> Any:
        return mock.Mock(getsockname=lambda: (HOST, PORT))

    async def listen(self, make_protocol: Callable[[], Any], bound: Any, backlog: int) -> Any:
        self.accept = make_protocol
        return mock.Mock(close=self.close)

    def close(self) -> None:
        self.accept = None


async def test_client_and_server_meet_on_another_network(tmp_path: Path) -> None:
    network = Network()
    no_sockets = mock.patch.object(socket.socket, "connect", side_effect=AssertionError)
    with no_sockets, replaced(sockets, connect=network.connect, bind=network.bind, listen=network.listen):
        server = Server(ServerConfig(tmp_path / "data", port=0))
        await server.start()
        connection = await Connection.open(Address(HOST, PORT), 5.0)
        request = pb.CreateDatabaseRequest(database_name="shop", ignore_if_exists=False)
        await connection.request(api_keys.CREATE_DATABASE, request, 5.0)
        answer = await connection.request(api_keys.LIST_DATABASES, pb.ListDatabasesRequest(), 5.0)
        assert "shop" in answer.database_name
        assert server.connection_count == 1
        connection.close()
        await server.stop()
        assert server.connection_count == 0
        with pytest.raises(ConnectError, match=r"Can't connect to far.away:7: nobody listens"):
            await Connection.open(Address(HOST, PORT), 5.0)


class Sink(asyncio.Protocol):
    """Completes when its connection has ended, with what came until then."""

    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        self.ended.set_result(self.data)


async def test_a_real_connection() -> None:
    taken: list[Sink] = []

    def take() -> Sink:
        taken.append(Sink())
        return taken[-1]

    bound = sockets.bind("127.0.0.1", 0)
    host, port = bound.getsockname()
    async with asyncio.timeout(30), await sockets.listen(take, bound, 8):
        with pytest.raises(OSError, match="in use"):
            sockets.bind(host, port)
        sender = await sockets.connect(Sink, host, port)
        sender.transport.write(b"hello")
        sender.transport.close()
        await sender.ended
        while not taken:
            await asyncio.sleep(0)
        assert await taken[0].ended == b"hello"


def test_a_socket_of_a_number() -> None:
    one, other = socket.socketpair()
    with one, other:
        for same in (sockets.attach(one.fileno()), sockets.attach(one.fileno(), one.family, one.type, one.proto)):
            assert (same.family, same.type) == (one.family, one.type)
            same.send(b"x")
            assert other.recv(9) == b"x"
            same.detach()

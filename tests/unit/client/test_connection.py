"""One connection against a server that behaves and one that does not."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from fluss.client.net.connection import Connection
from fluss.client.runtime import run
from fluss.model.errors import ConnectError, ErrorCode, FlussError, NotFoundError, TimeoutError
from fluss.model.infos import ServerType
from fluss.model.trust import Address
from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb

TIMEOUT_S = 5.0
# More than the buffers of two sockets hold.
SENT_BYTES = 32 << 20


class Peer:
    """The server's side of one connection, frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def receive(self) -> frames.Request:
        (length,) = struct.unpack(">i", await self.reader.readexactly(4))
        return frames.parse_request(memoryview(await self.reader.readexactly(length)))

    def answer(self, request: frames.Request, body: bytes, kind: int = frames.SUCCESS) -> None:
        self.writer.write(frames.response_header(kind, request.request_id, len(body)) + body)

    async def shake_hands(
        self, *, server_type: int | None = None, keys: dict[int, tuple[int, int]] | None = None
    ) -> None:
        request = await self.receive()
        hello = pb.ApiVersionsRequest.FromString(bytes(request.body))
        assert (request.api_key, request.api_version, hello.client_software_name) == (1000, 0, api_keys.CLIENT_NAME)
        answer = pb.ApiVersionsResponse(server_type=server_type)
        for key, (low, high) in (keys or {api.key: (0, api.version_max) for api in api_keys.ALL}).items():
            answer.api_versions.add(api_key=key, min_version=low, max_version=high)
        self.answer(request, answer.SerializeToString())


@asynccontextmanager
async def serving(script: Callable[[Peer], Awaitable[None]]) -> AsyncIterator[Address]:
    problems: list[BaseException] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(Peer(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except BaseException as error:
            problems.append(error)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
    assert not problems


def exists(value: bool) -> bytes:
    return pb.DatabaseExistsResponse(exists=value).SerializeToString()


async def ask(connection: Connection, name: str = "db", timeout_s: float = TIMEOUT_S) -> bool:
    request = pb.DatabaseExistsRequest(database_name=name)
    return (await connection.request(api_keys.DATABASE_EXISTS, request, timeout_s)).exists


async def test_answers_may_come_in_any_order() -> None:
    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        requests = [await peer.receive() for _ in range(3)]
        assert len({request.request_id for request in requests}) == 3
        for request in reversed(requests):
            name = pb.DatabaseExistsRequest.FromString(bytes(request.body)).database_name
            peer.answer(request, exists(name == "b"))
        await peer.receive()

    async with serving(script) as address:
        connection = await Connection.open(address, TIMEOUT_S)
        assert await asyncio.gather(ask(connection, "a"), ask(connection, "b"), ask(connection, "c")) == [
            False,
            True,
            False,
        ]
        connection.close()


async def test_a_cancelled_request_leaves_the_connection_usable_and_its_late_answer_is_dropped() -> None:
    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        late = await peer.receive()
        following = await peer.receive()
        peer.answer(late, exists(False))
        peer.answer(following, exists(True))
        await peer.receive()

    async with serving(script) as address:
        connection = await Connection.open(address, TIMEOUT_S)
        first = asyncio.ensure_future(ask(connection))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await ask(connection) is True
        assert not connection.closed
        connection.close()


async def test_a_request_has_a_deadline_and_the_connection_goes_on() -> None:
    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        late = await peer.receive()
        peer.answer(await peer.receive(), exists(True))
        peer.answer(late, exists(False))
        peer.answer(await peer.receive(), exists(True))
        await peer.receive()

    async with serving(script) as address:
        connection = await Connection.open(address, TIMEOUT_S)
        with pytest.raises(TimeoutError, match=r"did not answer DatabaseExists within 0\.05 s"):
            await ask(connection, timeout_s=0.05)
        assert await ask(connection) is True
        assert await ask(connection) is True
        connection.close()


async def test_each_request_has_its_own_time() -> None:
    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        requests = [await peer.receive() for _ in range(3)]
        await asyncio.sleep(0.15)
        peer.answer(requests[0], exists(True))
        await peer.receive()

    async with serving(script) as address:
        connection = await Connection.open(address, TIMEOUT_S)
        patient = asyncio.ensure_future(ask(connection))
        hurried = [asyncio.ensure_future(ask(connection, timeout_s=limit_s)) for limit_s in (0.1, 0.05)]
        await asyncio.wait(hurried, return_when=asyncio.FIRST_COMPLETED)
        assert [task.done() for task in hurried] == [False, True]
        for task in hurried:
            with pytest.raises(TimeoutError):
                await task
        assert await patient is True
        connection.close()


async def test_who_asks_again_when_his_time_is_over_does_not_hold_up_others() -> None:
    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        await peer.receive()
        await peer.receive()
        await peer.receive()
        await peer.receive()

    async with serving(script) as address:
        connection = await Connection.open(address, TIMEOUT_S)
        parts = (pb.DatabaseExistsRequest(database_name="db").SerializeToString(),)

        def ask_again(_: object) -> None:
            connection.submit(api_keys.DATABASE_EXISTS, parts, TIMEOUT_S, lambda _: None)

        connection.submit(api_keys.DATABASE_EXISTS, parts, 0.05, ask_again)
        async with asyncio.timeout(1):
            with pytest.raises(TimeoutError):
                await ask(connection, timeout_s=0.1)
        connection.close()


def test_requests_without_time_fail_as_such_on_any_loop() -> None:
    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        while True:
            await peer.receive()

    async def ask_twice() -> None:
        async with serving(script) as address:
            connection = await Connection.open(address, TIMEOUT_S)
            asking = [ask(connection, timeout_s=0) for _ in range(2)]
            results = await asyncio.gather(*asking, return_exceptions=True)
            assert all(isinstance(result, TimeoutError) for result in results), results
            connection.close()

    run(ask_twice())
    asyncio.run(ask_twice())


async def test_an_error_answer_raises_its_class_with_the_first_line_of_a_stack_trace() -> None:
    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        error = pb.ErrorResponse(error_code=4, error_message="No db.\n\tat org.example.Handler(Handler.java:1)")
        peer.answer(await peer.receive(), error.SerializeToString(), frames.ERROR)
        await peer.receive()

    async with serving(script) as address:
        connection = await Connection.open(address, TIMEOUT_S)
        with pytest.raises(NotFoundError) as caught:
            await ask(connection)
        assert (caught.value.message, caught.value.error_code) == ("No db.", 4)
        connection.close()


async def test_a_failure_frame_fails_everything_and_closes() -> None:
    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        await peer.receive()
        await peer.receive()
        body = pb.ErrorResponse(error_code=-1, error_message="request too large").SerializeToString()
        peer.writer.write(struct.pack(">ib", 1 + len(body), frames.FAILURE) + body)
        await peer.receive()

    async with serving(script) as address:
        connection = await Connection.open(address, TIMEOUT_S)
        results = await asyncio.gather(ask(connection), ask(connection), return_exceptions=True)
        assert all(isinstance(result, ConnectError) and "too large" in str(result) for result in results)
        assert connection.closed
        with pytest.raises(ConnectError):
            await ask(connection)


@pytest.mark.parametrize("length", [-1, frames.FRAME_SIZE_BYTES_MAX + 1, 0])
async def test_a_frame_of_impossible_length_ends_the_connection(length: int) -> None:
    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        await peer.receive()
        peer.writer.write(struct.pack(">i", length))
        await peer.receive()

    async with serving(script) as address:
        connection = await Connection.open(address, TIMEOUT_S)
        with pytest.raises(ConnectError, match="ended"):
            await ask(connection)
        assert connection.closed


async def test_a_body_that_is_no_message_is_an_error_of_that_request_only() -> None:
    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        peer.answer(await peer.receive(), b"\xff\xff\xff")
        peer.answer(await peer.receive(), exists(True))
        await peer.receive()

    async with serving(script) as address:
        connection = await Connection.open(address, TIMEOUT_S)
        with pytest.raises(FlussError, match="not a valid DatabaseExistsResponse"):
            await ask(connection)
        assert await ask(connection) is True
        connection.close()


async def test_a_connection_cut_inside_an_answer_fails_the_request() -> None:
    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        request = await peer.receive()
        whole = frames.response_header(frames.SUCCESS, request.request_id, 2) + exists(True)
        peer.writer.write(whole[:-1])

    async with serving(script) as address:
        connection = await Connection.open(address, TIMEOUT_S)
        with pytest.raises(ConnectError, match="lost"):
            await ask(connection)
        assert connection.closed


async def test_a_large_answer_arrives_whole() -> None:
    names = [f"database_{number}" for number in range(50_000)]

    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        answer = pb.ListDatabasesResponse(database_name=names)
        peer.answer(await peer.receive(), answer.SerializeToString())
        await peer.receive()

    async with serving(script) as address:
        connection = await Connection.open(address, TIMEOUT_S)
        answer = await connection.request(api_keys.LIST_DATABASES, pb.ListDatabasesRequest(), TIMEOUT_S)
        assert list(answer.database_name) == names
        connection.close()


@pytest.mark.parametrize("versions", [{1012: (0, 0)}, {1004: (5, 9)}])
async def test_a_key_or_version_the_server_lacks_fails_locally(versions: dict[int, tuple[int, int]]) -> None:
    received: list[int] = []

    async def script(peer: Peer) -> None:
        await peer.shake_hands(keys=versions)
        received.append((await peer.receive()).api_key)

    async with serving(script) as address:
        connection = await Connection.open(address, TIMEOUT_S)
        with pytest.raises(FlussError, match="does not support DatabaseExists") as caught:
            await ask(connection)
        assert caught.value.error_code == ErrorCode.UNSUPPORTED_VERSION
        connection.close()
    assert received == []


async def test_the_role_is_checked_where_the_server_names_it() -> None:
    async def tablet(peer: Peer) -> None:
        await peer.shake_hands(server_type=2)
        await peer.receive()

    async def one_port(peer: Peer) -> None:
        await peer.shake_hands()
        await peer.receive()

    async with serving(tablet) as address:
        with pytest.raises(ConnectError, match="TabletServer"):
            await Connection.open(address, TIMEOUT_S, ServerType.COORDINATOR_SERVER)
        (await Connection.open(address, TIMEOUT_S, ServerType.TABLET_SERVER)).close()
        (await Connection.open(address, TIMEOUT_S)).close()
    async with serving(one_port) as address:
        (await Connection.open(address, TIMEOUT_S, ServerType.COORDINATOR_SERVER)).close()


async def test_a_port_where_nobody_listens_and_one_where_nobody_answers() -> None:
    async def silent(peer: Peer) -> None:
        await peer.receive()
        await peer.receive()

    async with serving(silent) as address:
        with pytest.raises(TimeoutError):
            await Connection.open(address, 0.05)
    with pytest.raises(ConnectError, match="Can't connect"):
        await Connection.open(address, TIMEOUT_S)


async def test_cancelled_at_every_await_leaves_no_task_behind() -> None:
    async def script(peer: Peer) -> None:
        await peer.shake_hands()
        while True:
            peer.answer(await peer.receive(), exists(True))

    async def whole(address: Address) -> None:
        connection = await Connection.open(address, TIMEOUT_S)
        try:
            assert await ask(connection)
        finally:
            connection.close()

    async with serving(script) as address:
        for steps in range(40):
            task = asyncio.ensure_future(whole(address))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task], timeout=TIMEOUT_S)
            assert task.done()
        await whole(address)


async def test_a_cut_connection_sends_nothing_more_though_its_loop_stands_still() -> None:
    """What the transport has buffered is not sent, and what the system has buffered is dropped."""
    listener = socket.create_server(("127.0.0.1", 0))
    received = 0

    def serve() -> None:
        nonlocal received
        with listener, listener.accept()[0] as peer:
            hello = peer.recv(4_096)
            answer = pb.ApiVersionsResponse()
            answer.api_versions.add(api_key=api_keys.DATABASE_EXISTS.key, min_version=0, max_version=0)
            body = answer.SerializeToString()
            request = frames.parse_request(memoryview(hello)[4:])
            peer.sendall(frames.response_header(frames.SUCCESS, request.request_id, len(body)) + body)
            assert is_cut.wait(TIMEOUT_S)
            try:
                while data := peer.recv(1 << 20):
                    received += len(data)
            except ConnectionResetError:
                pass

    is_cut = threading.Event()
    thread = threading.Thread(target=serve)
    thread.start()
    connection = await Connection.open(Address("127.0.0.1", listener.getsockname()[1]), TIMEOUT_S)
    waiting = connection.send(api_keys.DATABASE_EXISTS, (bytes(SENT_BYTES),), TIMEOUT_S)
    cutter = threading.Thread(target=connection.cut)
    cutter.start()
    cutter.join()  # this loop stands still
    is_cut.set()
    thread.join()
    assert received < SENT_BYTES
    with pytest.raises(ConnectError):
        await waiting
    connection.cut()  # nothing is left to do
    connection.close()

"""Flushes that are sent from their caller's own event loop, against a scripted server."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fluss.client.net import own_loop
from fluss.client.runtime import run
from fluss.client.write import sender
from fluss.client.write.writer import AppendWriterCore
from fluss.model.errors import ErrorCode, FlussError
from fluss.protocol import messages_pb2 as pb
from tests.kit.scripted import PATH, Cut, Refuse, ScriptedServer, Silence
from tests.unit.client.scripted_clients import client_of, writer_of

NEVER_MS = 600_000
# The first goes out on the I/O loop, the second has the loop's connection opened.
WARM_UP_ROWS = 10


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as scripted:
        yield scripted


@pytest.fixture
def writer(server: ScriptedServer) -> AppendWriterCore:
    return writer_of(server, writer__batch_timeout_ms=NEVER_MS)


async def warm_up(writer: AppendWriterCore, server: ScriptedServer) -> None:
    before = server.connections
    for number in range(WARM_UP_ROWS):
        writer.append([number, "a"])
        await writer.flush()
        await asyncio.sleep(0.01)
    assert server.connections == before + 1


def once(server: ScriptedServer, act: Callable[[pb.ProduceLogRequest], Any]) -> None:
    """Do something else with the next write."""
    produce = server.handlers[1014]

    def handler(request: pb.ProduceLogRequest) -> Any:
        server.handlers[1014] = produce
        return act(request)

    server.handlers[1014] = handler


def refuse(error: Exception) -> Callable[[pb.ProduceLogRequest], Any]:
    def act(_: pb.ProduceLogRequest) -> Any:
        raise error

    return act


@pytest.mark.parametrize("waits_for_handle", [False, True])
def test_who_waits_on_a_loop_waits_for_no_other_thread(
    server: ScriptedServer, writer: AppendWriterCore, waits_for_handle: bool
) -> None:
    answered_in: list[int] = []

    async def flush() -> None:
        await warm_up(writer, server)
        handle = writer.append([WARM_UP_ROWS, "a"])
        handle._outcomes[0]._callbacks.append(lambda: answered_in.append(threading.get_ident()))
        await (handle.wait() if waits_for_handle else writer.flush())

    asyncio.run(flush())
    assert answered_in == [threading.get_ident()]
    assert server.ids() == list(range(WARM_UP_ROWS + 1))


def test_one_flush_opens_no_connection(server: ScriptedServer, writer: AppendWriterCore) -> None:
    writer.append([0, "a"])
    asyncio.run(writer.flush())
    assert server.connections == 1


def test_rows_of_loops_and_threads_arrive_once_and_in_order(server: ScriptedServer, writer: AppendWriterCore) -> None:
    taken: list[int] = []
    lock = threading.Lock()

    def take() -> None:
        with lock:
            writer.append([len(taken), "x" * 100])
            taken.append(len(taken))

    async def on_loop() -> None:
        for _ in range(300):
            take()
            await writer.flush()

    async def loops() -> None:
        await asyncio.gather(on_loop(), on_loop(), on_loop())

    def in_thread() -> None:
        for _ in range(300):
            take()
            writer.flush_blocking()

    threads = [threading.Thread(target=in_thread)]
    threads += [threading.Thread(target=lambda: asyncio.run(loops())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.ids() == taken == list(range(2_100))


@pytest.mark.parametrize("error", [Cut(), Refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER), Refuse(-1, "?")])
def test_a_write_that_fails_on_the_loop_is_tried_again_or_raised(
    server: ScriptedServer, writer: AppendWriterCore, error: Exception
) -> None:
    async def flush() -> None:
        await warm_up(writer, server)
        once(server, refuse(error))
        writer.append([WARM_UP_ROWS, "a"])
        await writer.flush()

    if isinstance(error, Refuse) and error.error_code == -1:
        with pytest.raises(FlussError, match=r"\?"):
            asyncio.run(flush())
    else:
        asyncio.run(flush())
        assert server.ids() == list(range(WARM_UP_ROWS + 1))


def test_a_bucket_that_is_refused_is_tried_again(server: ScriptedServer, writer: AppendWriterCore) -> None:
    def refused(request: pb.ProduceLogRequest) -> pb.ProduceLogResponse:
        answer = pb.ProduceLogResponse()
        answer.buckets_resp.add(
            bucket_id=request.buckets_req[0].bucket_id, error_code=ErrorCode.CORRUPT_RECORD_EXCEPTION
        )
        return answer

    async def flush() -> None:
        await warm_up(writer, server)
        once(server, refused)
        writer.append([WARM_UP_ROWS, "a"])
        await writer.flush()

    asyncio.run(flush())
    assert server.ids() == list(range(WARM_UP_ROWS + 1))


def test_what_a_loop_leaves_behind_is_stored_once(
    server: ScriptedServer, writer: AppendWriterCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_loop, "UNREAD_S_MAX", 0.05)
    produce = server.produce

    def stored_in_silence(request: pb.ProduceLogRequest) -> pb.ProduceLogResponse:
        produce(request)
        raise Silence

    async def flush() -> None:
        await warm_up(writer, server)
        once(server, stored_in_silence)
        writer.append([WARM_UP_ROWS, "a"])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.flush(), 0.02)

    asyncio.run(flush())
    writer.append([WARM_UP_ROWS + 1, "a"])
    writer.flush_blocking()
    assert server.ids() == list(range(WARM_UP_ROWS + 2))


def test_a_client_that_closes_takes_back_what_a_loop_left(server: ScriptedServer) -> None:
    client = client_of(server, writer__batch_timeout_ms=NEVER_MS)
    writer = run(client.table(PATH)).append_writer()

    async def flush() -> None:
        await warm_up(writer, server)
        once(server, refuse(Silence()))
        writer.append([WARM_UP_ROWS, "a"])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.flush(), 0.02)

    asyncio.run(flush())
    began = time.monotonic()
    run(client.close())
    assert server.ids() == list(range(WARM_UP_ROWS + 1))
    assert time.monotonic() - began < own_loop.UNREAD_S_MAX


def test_writes_without_numbers_are_left_to_the_io_loop(server: ScriptedServer) -> None:
    """They can't be taken back: they might be stored twice."""
    writer = writer_of(server, writer__batch_timeout_ms=NEVER_MS, writer__enable_idempotence=False)

    async def flush() -> None:
        for number in range(WARM_UP_ROWS):
            writer.append([number, "a"])
            await writer.flush()

    asyncio.run(flush())
    assert server.connections == 1
    assert server.ids() == list(range(WARM_UP_ROWS))


def test_an_interrupt_leaves_the_rows_to_the_io_loop(
    server: ScriptedServer, writer: AppendWriterCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> bool:
        monkeypatch.undo()
        raise KeyboardInterrupt

    async def flush() -> None:
        await warm_up(writer, server)
        monkeypatch.setattr(sender.Sender, "_try_here", interrupt)
        writer.append([WARM_UP_ROWS, "a"])
        with pytest.raises(KeyboardInterrupt):
            await writer.flush()
        await writer.flush()

    asyncio.run(flush())
    assert server.ids() == list(range(WARM_UP_ROWS + 1))

"""Closing a connection, in all facades: what was taken is settled, failures are told, and then nothing is sent."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

import fluss
import fluss.aio
import fluss.sync
from fluss.client import client, runtime
from fluss.client.net import own_loop
from fluss.protocol import messages_pb2 as pb
from tests.kit.facades import FACADES, Facade
from tests.kit.scripted import PATH, Cut, Refuse, ScriptedServer, Silence

NEVER_MS = 600_000
LONG_MS = 60_000
SHORT_MS = 100
PRODUCE = 1014
METADATA = 1012


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as scripted:
        yield scripted


@pytest.fixture(params=FACADES)
def facade(request: pytest.FixtureRequest) -> Iterator[Facade]:
    made = Facade(request.param)
    yield made
    made.close()


def refuse(_: object) -> pb.ProduceLogResponse:
    raise Refuse(48, "not yours")


def be_silent(_: object) -> pb.ProduceLogResponse:
    raise Silence


def opened(facade: Facade, server: ScriptedServer, **settings: Any) -> tuple[Any, Any]:
    """A connection and a writer whose rows are sent by a flush or a close only."""
    options = {"writer.batch-timeout-ms": NEVER_MS, "close.timeout-ms": LONG_MS} | {
        key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()
    }
    connection = facade.connect(server.address, **options)
    return connection, facade.table(connection, PATH).new_append().create_writer()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


# ---- what was taken ----


def test_all_rows_are_stored_when_close_returns(facade: Facade, server: ScriptedServer) -> None:
    connection, writer = opened(facade, server)
    for number in range(100):
        writer.append([number, "a"])
    facade.close_connection(connection)
    assert server.ids() == list(range(100))
    assert "closed" in repr(connection)


def test_rows_that_are_tried_again_are_waited_for(facade: Facade, server: ScriptedServer) -> None:
    fates: list[type[Exception]] = [Cut, Cut, Cut]

    def produce(request: pb.ProduceLogRequest) -> pb.ProduceLogResponse:
        if fates:
            raise fates.pop()
        return server.produce(request)

    server.handlers[PRODUCE] = produce
    connection, writer = opened(facade, server)
    writer.append([1, "a"])
    facade.close_connection(connection)
    assert server.ids() == [1]


def test_closing_again_does_nothing(facade: Facade, server: ScriptedServer) -> None:
    server.handlers[PRODUCE] = refuse
    connection, writer = opened(facade, server)
    writer.append([1, "a"])
    with pytest.raises(fluss.FlussError, match="not yours"):
        facade.close_connection(connection)
    facade.close_connection(connection)
    facade.close_connection(connection)
    assert server.count(PRODUCE) == 1


def test_rows_after_closing_are_refused(facade: Facade, server: ScriptedServer) -> None:
    connection, writer = opened(facade, server)
    writer.append([1, "a"])
    facade.close_connection(connection)
    for write in (writer.append, lambda _: writer.write_arrow_batch(arrow_batch())):
        with pytest.raises(fluss.FlussError, match="was closed with its connection"):
            write([2, "a"])
    with pytest.raises(fluss.FlussError, match="closed"):
        facade.table(connection, PATH)
    assert server.ids() == [1]


def arrow_batch() -> Any:
    import pyarrow as pa

    return pa.record_batch({"id": [2], "name": ["b"]})


def test_a_thread_that_appends_meanwhile_has_each_row_stored_or_refused(facade: Facade, server: ScriptedServer) -> None:
    connection, writer = opened(facade, server, writer__batch_size=2_000)
    taken: list[int] = []
    refused: list[BaseException] = []

    def append() -> None:
        try:
            for number in count():
                writer.append([number, "some text"])
                taken.append(number)
                time.sleep(0)
        except fluss.FlussError as error:
            refused.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    until(lambda: len(taken) > 100)
    facade.close_connection(connection)
    stored = server.ids()
    thread.join()
    assert "closed with its connection" in str(refused[0])
    assert server.ids() == stored == taken


# ---- failures ----


def test_close_raises_what_nobody_was_told_of(facade: Facade, server: ScriptedServer) -> None:
    server.handlers[PRODUCE] = refuse
    connection, writer = opened(facade, server)
    writer.append([1, "a"])
    writer.append([2, "a"])
    with pytest.raises(fluss.FlussError, match=r"2 rows for bucket 0 of table db\.t failed: not yours$"):
        facade.close_connection(connection)


def test_close_knows_the_failures_of_forgotten_writers(facade: Facade, server: ScriptedServer) -> None:
    server.handlers[PRODUCE] = refuse
    connection, writer = opened(facade, server, writer__batch_timeout_ms=1)
    writer.append([1, "a"])
    until(lambda: server.count(PRODUCE))
    del writer
    until(lambda: not connection._core.sender.unsent())
    gc.collect()
    with pytest.raises(fluss.FlussError, match="not yours"):
        facade.close_connection(connection)


def test_close_tells_all_failures(facade: Facade, server: ScriptedServer) -> None:
    server.handlers[PRODUCE] = refuse
    connection, first = opened(facade, server)
    table = facade.table(connection, PATH)
    writers = [first, table.new_append().create_writer()]
    for number, writer in enumerate(writers):
        for _ in range(number + 1):
            writer.append([number, "a"])
    with pytest.raises(fluss.FlussError, match="not yours") as caught:
        facade.close_connection(connection)
    said = {str(caught.value), *(note.removeprefix("Also: ") for note in caught.value.__notes__)}
    assert said == {f"{rows} for bucket 0 of table db.t failed: not yours" for rows in ("1 row", "2 rows")}


def test_what_flush_or_a_handle_has_raised_is_not_raised_again(facade: Facade, server: ScriptedServer) -> None:
    server.handlers[PRODUCE] = refuse
    connection, writer = opened(facade, server)
    writer.append([1, "a"])
    with pytest.raises(fluss.FlussError, match="not yours"):
        facade.do(writer.flush)
    handle = writer.append([2, "a"])
    with pytest.raises(fluss.FlussError, match="not yours"):
        facade.do(handle.wait)
    facade.close_connection(connection)


def test_a_wait_that_was_cancelled_was_not_told(server: ScriptedServer) -> None:
    gate = threading.Event()

    async def produce(_: object) -> pb.ProduceLogResponse:
        await asyncio.to_thread(gate.wait)
        raise Refuse(48, "not yours")

    server.handlers[PRODUCE] = produce
    facade = Facade("fluss.aio")
    connection, writer = opened(facade, server)
    handle = writer.append([1, "a"])

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle.wait(), 0.05)

    facade.do(give_up)
    gate.set()
    with pytest.raises(fluss.FlussError, match="not yours"):
        facade.close_connection(connection)


def test_of_two_threads_that_close_one_is_told(server: ScriptedServer) -> None:
    server.handlers[PRODUCE] = refuse
    connection, writer = opened(Facade("fluss.sync"), server)
    writer.append([1, "a"])
    told: list[str] = []

    def close() -> None:
        try:
            connection.close()
            told.append("")
        except fluss.FlussError as error:
            told.append(str(error))

    threads = [threading.Thread(target=close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [text[-9:] for text in sorted(told)] == ["", "not yours"]


# ---- the end of a block ----


def test_leaving_a_block_raises_what_failed(facade: Facade, server: ScriptedServer) -> None:
    server.handlers[PRODUCE] = refuse
    connection, writer = opened(facade, server)
    with pytest.raises(fluss.FlussError, match="not yours"):
        facade.within(connection, lambda: (writer.append([1, "a"]), None)[1])
    assert "closed" in repr(connection)


def test_leaving_a_block_of_connect_raises_what_failed(facade: Facade, server: ScriptedServer) -> None:
    server.handlers[PRODUCE] = refuse

    async def awaited() -> None:
        async with facade.module.connect(server.address) as connection:
            (await connection.get_table(PATH)).new_append().create_writer().append([1, "a"])

    def blocking() -> None:
        with facade.module.connect(server.address) as connection:
            connection.get_table(PATH).new_append().create_writer().append([1, "a"])

    with pytest.raises(fluss.FlussError, match="not yours"):
        facade.do(blocking if facade.blocks else awaited)


def test_an_exception_of_the_block_stays_and_gets_a_note(facade: Facade, server: ScriptedServer) -> None:
    server.handlers[PRODUCE] = refuse
    connection, writer = opened(facade, server)

    def body() -> None:
        writer.append([1, "a"])
        raise KeyError("of the body")

    with pytest.raises(KeyError, match="of the body") as caught:
        facade.within(connection, body)
    (note,) = caught.value.__notes__
    assert note == "Closing the connection failed, too: 1 row for bucket 0 of table db.t failed: not yours"


@pytest.mark.parametrize("name", ["fluss", "fluss.aio"])
def test_a_plain_with_block_settles_too(server: ScriptedServer, name: str) -> None:
    facade = Facade(name)
    connection, writer = opened(facade, server)

    def use() -> None:
        with connection:
            writer.append([1, "a"])

    facade.do(use)
    assert server.ids() == [1]


def test_writers_are_flushed_by_their_block(facade: Facade, server: ScriptedServer) -> None:
    connection, writer = opened(facade, server)
    facade.within(writer, lambda: (writer.append([1, "a"]), None)[1])
    assert server.ids() == [1]
    server.handlers[PRODUCE] = refuse
    with pytest.raises(fluss.FlussError, match="not yours"):
        facade.within(writer, lambda: (writer.append([2, "a"]), None)[1])

    def body() -> None:
        writer.append([3, "a"])
        raise KeyError("of the body")

    with pytest.raises(KeyError, match="of the body") as caught:
        facade.within(writer, body)
    assert caught.value.__notes__[0].startswith("Flushing the writer failed, too: 1 row for bucket 0")
    facade.close_connection(connection)


# ---- the time limit ----


def test_when_time_is_up_errors_say_what_may_be_stored(facade: Facade, server: ScriptedServer) -> None:
    server.handlers[PRODUCE] = be_silent
    connection, writer = opened(
        facade, server, close__timeout_ms=SHORT_MS, writer__max_inflight_requests_per_bucket=1, writer__batch_size=1
    )
    sent = writer.append([1, "a"])
    until(lambda: server.count(PRODUCE))
    waiting = writer.append([2, "a"])
    with pytest.raises(fluss.TimeoutError, match=r"closed before they were acknowledged.*close\.timeout-ms"):
        facade.close_connection(connection)
    with pytest.raises(fluss.TimeoutError, match=r"; they may have been stored$"):
        facade.do(sent.wait)
    with pytest.raises(fluss.TimeoutError, match=r"\(close\.timeout-ms\)$"):
        facade.do(waiting.wait)
    until(lambda: not server._writers)
    assert server.count(PRODUCE) == 1


def test_nothing_is_sent_to_a_server_that_comes_back_after_close(facade: Facade, server: ScriptedServer) -> None:
    connection, writer = opened(facade, server, close__timeout_ms=SHORT_MS)
    runtime.run(server.close())
    writer.append([1, "old"])
    with pytest.raises(fluss.FlussError, match="closed before they were acknowledged"):
        facade.close_connection(connection)
    server.requests.clear()
    runtime.run(server.open())
    other, second = opened(facade, server)
    second.append([1, "new"])
    facade.do(second.flush)
    observe(lambda: [row["name"] for row in server.logs[0]] == ["new"])
    facade.close_connection(other)
    assert server.count(PRODUCE) == 1


def observe(condition: Callable[[], bool], seconds: float = 1.5) -> None:
    """Look for a while: longer than the pauses between the tries of a client."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert condition()
        time.sleep(0.02)


def test_a_flush_that_was_given_up_is_settled_by_close(server: ScriptedServer) -> None:
    """The rows are still on the way, so close waits for them; what it returns after is the end of it."""
    facade = Facade("fluss.aio")
    connection, writer = opened(facade, server)
    runtime.run(server.close())
    writer.append([1, "old"])

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.flush(), 0.05)

    facade.do(give_up)
    runtime.run(server.open())
    facade.close_connection(connection)
    assert server.ids() == [1]
    observe(lambda: server.ids() == [1], 0.3)


def test_an_error_of_the_delivery_time_ends_the_row(facade: Facade, server: ScriptedServer) -> None:
    connection, writer = opened(facade, server, writer__delivery_timeout_ms=SHORT_MS)
    runtime.run(server.close())
    writer.append([1, "old"])
    with pytest.raises(fluss.TimeoutError, match=r"delivery-timeout-ms has passed$"):
        facade.do(writer.flush)
    runtime.run(server.open())
    writer.append([1, "new"])
    facade.close_connection(connection)
    assert [row["name"] for row in server.logs[0]] == ["new"]


def test_an_unanswered_row_whose_time_is_over_may_have_been_stored(facade: Facade, server: ScriptedServer) -> None:
    server.handlers[PRODUCE] = be_silent
    connection, writer = opened(facade, server, writer__delivery_timeout_ms=SHORT_MS)
    writer.append([1, "a"])
    with pytest.raises(fluss.TimeoutError, match=r"delivery-timeout-ms has passed; they may have been stored$"):
        facade.do(writer.flush)
    facade.close_connection(connection)


def test_a_long_close_says_what_it_waits_for(
    facade: Facade, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "QUIET_S_MAX", 0.02)
    server.handlers[PRODUCE] = be_silent
    connection, writer = opened(facade, server, close__timeout_ms=SHORT_MS)
    writer.append([1, "a"])
    with caplog.at_level(logging.WARNING, "fluss"), pytest.raises(fluss.TimeoutError):
        facade.close_connection(connection)
    (record,) = caplog.records
    assert "waits for rows that are not acknowledged yet (1 of db.t)" in record.getMessage()


def test_a_call_under_way_is_told_that_the_connection_was_closed(server: ScriptedServer) -> None:
    connection, _ = opened(Facade("fluss.sync"), server)
    asked = threading.Event()

    def metadata(_: object) -> pb.MetadataResponse:
        asked.set()
        raise Silence

    server.handlers[METADATA] = metadata
    told: list[BaseException] = []

    def get_table() -> None:
        try:
            connection.get_table(PATH)
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=get_table)
    thread.start()
    assert asked.wait(10)
    connection.close()
    thread.join(10)
    assert isinstance(told[0], fluss.FlussError)
    assert "closed" in str(told[0])


# ---- interrupts ----


def test_a_cancelled_close_sends_nothing_more(server: ScriptedServer, caplog: pytest.LogCaptureFixture) -> None:
    server.handlers[PRODUCE] = be_silent
    facade = Facade("fluss.aio")
    connection, writer = opened(facade, server)
    handle = writer.append([1, "a"])

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.close(), 0.05)
        assert handle._handle.done()

    with caplog.at_level(logging.WARNING, "fluss"):
        facade.do(give_up)
    assert "without waiting any longer" in caplog.text
    with pytest.raises(fluss.FlussError, match="they may have been stored"):
        facade.do(handle.wait)
    until(lambda: not server._writers)


def test_an_interrupted_close_sends_nothing_more(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.handlers[PRODUCE] = be_silent
    connection, writer = opened(Facade("fluss.sync"), server)
    handle = writer.append([1, "a"])

    def interrupted(coro: Any, limit_s: float | None = None) -> Any:
        monkeypatch.undo()
        future = asyncio.run_coroutine_threadsafe(coro, runtime._runtime().loop)
        until(lambda: server.count(PRODUCE))
        future.cancel()
        raise KeyboardInterrupt

    monkeypatch.setattr(runtime, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        connection.close()
    assert handle._handle.done()
    until(lambda: not server._writers)


@pytest.mark.parametrize(
    "step", ["fluss.client.write.encode_queue.EncodeQueue.submit", "fluss.client.runtime.call_soon"]
)
def test_rows_of_an_interrupted_flush_are_sent_by_the_next_or_by_close(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Ctrl-C in a notebook, between closing a row buffer and handing it to the I/O loop."""
    connection, writer = opened(Facade("fluss.sync"), server)

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    for number, settle in enumerate((writer.flush, connection.close)):
        writer.append([number, "a"])
        monkeypatch.setattr(step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.flush()
        settle()
        assert server.ids() == list(range(number + 1))


# ---- loops ----


async def warm_up(writer: Any, server: ScriptedServer) -> int:
    """Until the loop has a connection of its own; returns how many rows that took."""
    before, number = server.connections, 0
    while server.connections == before or number < 10:
        writer.append([number, "a"])
        await writer.flush()
        await asyncio.sleep(0.01)
        number += 1
    return number


@pytest.mark.parametrize("is_stored", [False, True])
def test_close_in_a_running_loop_takes_over_what_the_loop_was_sending(server: ScriptedServer, is_stored: bool) -> None:
    """The loop stands still while `close` blocks, so nobody hears the answer there."""

    def once(request: pb.ProduceLogRequest) -> pb.ProduceLogResponse:
        server.handlers[PRODUCE] = server.produce
        if is_stored:
            server.produce(request)
        raise Silence

    async def main() -> int:
        connection = await fluss.FlussConnection.create(
            fluss.Config({"bootstrap.servers": server.address, "writer.batch-timeout-ms": NEVER_MS})
        )
        writer = (await connection.get_table(PATH)).new_append().create_writer()
        known = await warm_up(writer, server)
        server.handlers[PRODUCE] = once
        writer.append([known, "a"])
        flushing = asyncio.ensure_future(writer.flush())
        while server.handlers[PRODUCE] is once:
            await asyncio.sleep(0)
        connection.close()
        assert server.ids() == list(range(known + 1))
        await flushing
        return known

    known = asyncio.run(main())
    assert server.ids() == list(range(known + 1))


def test_a_row_whose_error_was_reported_is_not_left_in_a_loop(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a loop that stood still had sent is taken back; if that fails, the loop's connection is cut, too."""
    monkeypatch.setattr(own_loop, "UNREAD_S_MAX", 0.02)
    facade = Facade("fluss.aio")
    connection, writer = opened(facade, server, writer__delivery_timeout_ms=1_000)

    async def main() -> None:
        await warm_up(writer, server)
        connections = set(server._writers)
        server.handlers[PRODUCE] = be_silent
        writer.append([99, "a"])
        flushing = asyncio.ensure_future(writer.flush())
        await asyncio.sleep(0)
        before = server.count(PRODUCE)
        until(lambda: server.count(PRODUCE) > before)  # this loop stands still
        until(lambda: not writer._core.pending_rows)
        until(lambda: not connections & server._writers)
        with pytest.raises(fluss.FlussError, match="they may have been stored"):
            await flushing

    facade.do(main)
    facade.close_connection(connection)


# ---- processes ----


def test_a_forked_child_closes_nothing_of_its_parent(server: ScriptedServer) -> None:
    connection, writer = opened(Facade("fluss.sync"), server)
    writer.append([1, "a"])
    child = os.fork()
    if child == 0:
        try:
            connection.close()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    writer.append([2, "a"])
    connection.close()
    assert server.ids() == [1, 2]

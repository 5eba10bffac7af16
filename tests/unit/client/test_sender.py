"""Writers and the sender against a scripted server."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest

from fluss.client.runtime import run
from fluss.model.errors import (
    ErrorCode,
    FlussError,
    InvalidRequestError,
    NotFoundError,
    SchemaMismatchError,
    TimeoutError,
)
from fluss.protocol import messages_pb2 as pb
from tests.kit.scripted import PATH, TABLE_ID, Cut, Refuse, ScriptedServer, Silence, descriptor
from tests.unit.client.scripted_clients import client_of, writer_of

NEVER_MS = 600_000


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as scripted:
        yield scripted


def test_rows_and_arrow_arrive_in_the_order_of_the_calls(server: ScriptedServer) -> None:
    writer = writer_of(server, writer__batch_timeout_ms=NEVER_MS)
    writer.append([0, "a"])
    writer.append({"id": 1})
    writer.write_batch(pa.record_batch({"id": [2, 3], "name": ["b", None]}))
    writer.write_table(pa.table({"name": pa.array(["c"], pa.large_string()), "id": pa.array([4], pa.int8())}))
    handle = writer.append([5, "d"])
    assert writer.pending_rows >= 1
    assert not handle.done()
    run(writer.flush())
    assert handle.done()
    assert writer.pending_rows == 0
    assert server.ids() == [0, 1, 2, 3, 4, 5]
    assert server.logs[0][1:3] == [{"id": 1, "name": None}, {"id": 2, "name": "b"}]


def test_rows_of_a_batch_share_a_handle(server: ScriptedServer) -> None:
    writer = writer_of(server, writer__batch_timeout_ms=NEVER_MS)
    assert writer.append([0, "a"]) is writer.append([1, "a"])
    run(writer.flush())


def test_a_batch_is_sent_after_its_time(server: ScriptedServer) -> None:
    writer = writer_of(server, writer__batch_timeout_ms=10)
    writer.append([0, "a"])
    _until(lambda: server.ids() == [0])


def test_a_batch_is_sent_at_its_size(server: ScriptedServer) -> None:
    writer = writer_of(server, writer__batch_timeout_ms=NEVER_MS, writer__batch_size=10_000)
    for number in range(2_000):
        writer.append([number, "x" * 50])
    _until(lambda: len(server.ids()) > 1_500)
    run(writer.flush())
    assert server.ids() == list(range(2_000))
    assert server.count(1014) > 5


def test_waiting_for_a_handle_sends_at_once_and_what_comes_meanwhile_travels_together(server: ScriptedServer) -> None:
    writer = writer_of(server, writer__batch_timeout_ms=NEVER_MS)
    produce = server.produce

    async def slow(request: pb.ProduceLogRequest) -> pb.ProduceLogResponse:
        await asyncio.sleep(0.05)
        return produce(request)

    server.handlers[1014] = slow
    writer.append([0, "a"]).result(5)
    threads = [threading.Thread(target=lambda n=n: writer.append([n, "a"]).result(5)) for n in range(1, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(server.ids()) == list(range(50))
    assert server.count(1014) < 10


def test_a_refused_row_names_its_column_and_harms_no_other(server: ScriptedServer) -> None:
    writer = writer_of(server)
    with pytest.raises(SchemaMismatchError, match="'id'"):
        writer.append(["x", "a"])
    with pytest.raises(SchemaMismatchError, match="'name'"):
        writer.write_batch(pa.record_batch({"id": [1], "name": [2]}))
    writer.append([1, "a"])
    run(writer.flush())
    assert server.ids() == [1]


def test_many_buckets_travel_in_one_request() -> None:
    with ScriptedServer(descriptor(8, ["id"])) as server:
        writer = writer_of(server, writer__batch_timeout_ms=NEVER_MS)
        for number in range(1_000):
            writer.append([number, "a"])
        run(writer.flush())
        (request,) = [message for key, message in server.requests if key == 1014]
        assert len(request.buckets_req) == 8  # type: ignore[attr-defined]
        assert sorted(chain.from_iterable(map(server.ids, range(8)))) == list(range(1_000))
        assert all(server.ids(bucket) == sorted(server.ids(bucket)) for bucket in range(8))


def test_requests_keep_their_size_limit() -> None:
    with ScriptedServer(descriptor(8, ["id"], **{"table.log.arrow.compression.type": "NONE"})) as server:
        writer = writer_of(server, writer__batch_timeout_ms=NEVER_MS, writer__request_max_size=20_000)
        rows = pa.record_batch({"id": list(range(5_000)), "name": ["x" * 20] * 5_000})
        writer.write_batch(rows)
        run(writer.flush())
        sizes = [message.ByteSize() for key, message in server.requests if key == 1014]
        assert max(sizes) <= 20_000
        assert sum(len(server.ids(bucket)) for bucket in range(8)) == 5_000


def test_a_row_too_large_for_a_request_fails_with_its_size(server: ScriptedServer) -> None:
    writer = writer_of(server, writer__request_max_size=2_000)
    handle = writer.append([1, random.Random(0).randbytes(5_000).hex()])
    with pytest.raises(InvalidRequestError, match=r"bytes on the wire.*writer\.request-max-size") as caught:
        handle.result(5)
    assert caught.value.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    writer.append([2, "a"]).result(5)
    assert server.ids() == [2]


@pytest.mark.parametrize("code", [12, 21, 44, 10, 28])
def test_a_retriable_answer_is_tried_again_with_the_same_number(server: ScriptedServer, code: int) -> None:
    failures = [code, code]

    def produce(request: pb.ProduceLogRequest) -> pb.ProduceLogResponse:
        if failures:
            answer = pb.ProduceLogResponse()
            answer.buckets_resp.add(bucket_id=0, error_code=failures.pop())
            return answer
        return server.produce(request)

    server.handlers[1014] = produce
    writer = writer_of(server)
    before = server.count(1012)
    writer.append([1, "a"]).result(5)
    assert server.ids() == [1]
    assert server.writers == {(0, 1): [0]}
    assert (server.count(1012) > before) == (code in (12, 21, 44))


def test_an_error_frame_counts_for_all_batches_of_the_request(server: ScriptedServer) -> None:
    def produce(_: object) -> pb.ProduceLogResponse:
        raise Refuse(18, "no such acks")

    server.handlers[1014] = produce
    writer = writer_of(server)
    with pytest.raises(InvalidRequestError, match=r"1 row for bucket 0 of table db\.t failed: no such acks"):
        writer.append([1, "a"]).result(5)


@pytest.mark.parametrize("seed", range(6))
def test_lost_answers_and_refusals_store_every_row_once_in_order(server: ScriptedServer, seed: int) -> None:
    chance = random.Random(seed)

    def produce(request: pb.ProduceLogRequest) -> pb.ProduceLogResponse:
        fate = chance.random()
        if fate < 0.1:
            raise Refuse(12, "moved")
        answer = server.produce(request)
        if fate < 0.4:
            raise Cut
        return answer

    server.handlers[1014] = produce
    writer = writer_of(server, writer__batch_size=2_000, writer__batch_timeout_ms=1)
    for number in range(4_000):
        writer.append([number, "x" * 20])
    run(writer.flush())
    assert server.ids() == list(range(4_000)), f"seed {seed}"


def test_a_server_that_forgot_the_writer_gets_a_new_id(server: ScriptedServer) -> None:
    writer = writer_of(server)
    writer.append([1, "a"]).result(5)
    writer.append([2, "a"]).result(5)
    server.writers.clear()
    writer.append([3, "a"]).result(5)
    assert server.ids() == [1, 2, 3]
    assert server.count(1026) == 2


def test_a_batch_in_doubt_on_a_server_that_forgot_fails_rather_than_be_stored_twice(server: ScriptedServer) -> None:
    writer = writer_of(server)
    writer.append([1, "a"]).result(5)
    fates = [Cut]

    def produce(request: pb.ProduceLogRequest) -> pb.ProduceLogResponse:
        answer = server.produce(request)
        if fates:
            server.writers.clear()
            raise fates.pop()
        return answer

    server.handlers[1014] = produce
    with pytest.raises(FlussError, match="lost track of this writer; they may have been stored"):
        writer.append([2, "a"]).result(5)
    writer.append([3, "a"]).result(5)
    assert server.ids() == [1, 2, 3]


def test_without_idempotence_no_writer_id_is_asked_for(server: ScriptedServer) -> None:
    writer = writer_of(server, writer__enable_idempotence=False, writer__acks="1")
    writer.append([1, "a"]).result(5)
    assert server.count(1026) == 0
    (request,) = [message for key, message in server.requests if key == 1014]
    assert request.acks == 1  # type: ignore[attr-defined]
    assert server.writers == {}


def test_a_duplicate_is_a_success(server: ScriptedServer) -> None:
    def produce(request: pb.ProduceLogRequest) -> pb.ProduceLogResponse:
        answer = server.produce(request)
        answer.buckets_resp[0].error_code = 32
        return answer

    server.handlers[1014] = produce
    writer_of(server).append([1, "a"]).result(5)
    assert server.ids() == [1]


def test_delivery_ends_at_its_timeout_and_names_table_bucket_and_rows(server: ScriptedServer) -> None:
    def produce(_: object) -> pb.ProduceLogResponse:
        raise Silence

    server.handlers[1014] = produce
    writer = writer_of(server, writer__delivery_timeout_ms=200, request_timeout_ms=60)
    writer.append([1, "a"])
    handle = writer.append([2, "a"])
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"2 rows for bucket 0 of table db\.t failed") as caught:
        handle.result(5)
    assert time.monotonic() - began < 2
    assert caught.value.is_retriable


def test_after_a_timed_out_batch_the_next_ones_are_stored(server: ScriptedServer) -> None:
    silent = [True]

    def produce(request: pb.ProduceLogRequest) -> pb.ProduceLogResponse:
        if silent[0]:
            raise Silence
        return server.produce(request)

    server.handlers[1014] = produce
    writer = writer_of(server, writer__delivery_timeout_ms=150, request_timeout_ms=50)
    with pytest.raises(TimeoutError):
        writer.append([1, "a"]).result(5)
    silent[0] = False
    writer.append([2, "a"]).result(5)
    assert server.ids() == [2]


def test_a_failure_nobody_awaited_is_raised_by_flush_once(server: ScriptedServer) -> None:
    def produce(_: object) -> pb.ProduceLogResponse:
        raise Refuse(48, "not yours")

    server.handlers[1014] = produce
    writer = writer_of(server)
    writer.append([1, "a"])
    with pytest.raises(FlussError, match="not yours"):
        run(writer.flush())
    run(writer.flush())


def test_a_failure_nobody_awaited_is_raised_by_the_next_append(server: ScriptedServer) -> None:
    def produce(_: object) -> pb.ProduceLogResponse:
        raise Refuse(48, "not yours")

    server.handlers[1014] = produce
    writer = writer_of(server, writer__batch_timeout_ms=1)
    writer.append([1, "a"])
    _until(lambda: writer.pending_rows == 0)
    with pytest.raises(FlussError, match="not yours"):
        writer.append([2, "a"])


def test_a_failure_that_was_awaited_is_not_raised_again(server: ScriptedServer) -> None:
    def produce(_: object) -> pb.ProduceLogResponse:
        raise Refuse(48, "not yours")

    server.handlers[1014] = produce
    writer = writer_of(server)
    with pytest.raises(FlussError, match="not yours"):
        writer.append([1, "a"]).result(5)
    run(writer.flush())


def test_a_full_buffer_makes_append_wait_and_time_out_without_taking_the_row(server: ScriptedServer) -> None:
    gate = threading.Event()

    async def produce(request: pb.ProduceLogRequest) -> pb.ProduceLogResponse:
        while not gate.is_set():
            await asyncio.sleep(0.005)
        return server.produce(request)

    server.handlers[1014] = produce
    writer = writer_of(
        server,
        writer__batch_timeout_ms=NEVER_MS,
        writer__batch_size=100_000,
        writer__buffer__memory_size=200_000,
        writer__buffer__wait_timeout_ms=100,
    )
    taken = 0
    with pytest.raises(TimeoutError, match="stayed full"):
        for number in range(1_000):
            writer.append([number, random.Random(number).randbytes(2_000).hex()])
            taken = number + 1
    assert 20 < taken < 200
    drained = threading.Event()
    waiting = threading.Thread(target=lambda: (run(writer.drain()), drained.set()))
    waiting.start()
    assert not drained.wait(0.05)
    gate.set()
    waiting.join(5)
    assert drained.is_set()
    run(writer.flush())
    assert server.ids() == list(range(taken))


def test_rows_that_wait_for_room_are_not_sent_one_by_one(server: ScriptedServer) -> None:
    async def produce(request: pb.ProduceLogRequest) -> pb.ProduceLogResponse:
        await asyncio.sleep(0.005)
        return server.produce(request)

    server.handlers[1014] = produce
    writer = writer_of(
        server, writer__batch_timeout_ms=NEVER_MS, writer__batch_size=20_000, writer__buffer__memory_size=100_000
    )
    for number in range(5_000):
        row = [number, "x" * 200]
        assert writer.gate.take(row) or writer.append(row)
    run(writer.flush())
    assert server.ids() == list(range(5_000))
    assert server.count(1014) < 100


def test_threads_share_a_writer(server: ScriptedServer) -> None:
    writer = writer_of(server, writer__batch_size=20_000, writer__buffer__memory_size=200_000)

    def write(thread: int) -> None:
        for number in range(2_000):
            row = [thread * 10_000 + number, "x"]
            assert writer.gate.take(row) or writer.append(row)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run(writer.flush())
    ids = server.ids()
    for thread in range(4):
        mine = [number % 10_000 for number in ids if number // 10_000 == thread]
        assert mine == list(range(2_000))


def test_two_writers_of_a_client_share_the_sequence_of_a_bucket(server: ScriptedServer) -> None:
    client = client_of(server)
    first, second = (run(client.table(PATH)).append_writer() for _ in range(2))
    for number in range(20):
        (first if number % 2 else second).append([number, "a"]).result(5)
    assert server.ids() == list(range(20))
    assert server.count(1026) == 1


def test_a_dropped_table_fails_its_rows(server: ScriptedServer) -> None:
    writer = writer_of(server)

    def gone(_: object) -> pb.ProduceLogResponse:
        raise Refuse(21, "unknown bucket")

    def no_table(request: pb.MetadataRequest) -> pb.MetadataResponse:
        raise Refuse(7, "no such table")

    server.handlers[1014], server.handlers[1012] = gone, no_table
    with pytest.raises(NotFoundError):
        writer.append([1, "a"]).result(5)


def test_a_table_made_anew_does_not_get_the_rows_of_the_old_one(server: ScriptedServer) -> None:
    writer = writer_of(server)

    def moved(_: object) -> pb.ProduceLogResponse:
        raise Refuse(21, "unknown bucket")

    def other(request: pb.MetadataRequest) -> pb.MetadataResponse:
        answer = ScriptedServer.metadata(server, request)
        for item in answer.table_metadata:
            item.table_id = TABLE_ID + 1
        return answer

    server.handlers[1014], server.handlers[1012] = moved, other
    with pytest.raises(NotFoundError, match="made anew"):
        writer.append([1, "a"]).result(5)


def test_closing_sends_what_is_left(server: ScriptedServer) -> None:
    client = client_of(server, writer__batch_timeout_ms=NEVER_MS)
    writer = run(client.table(PATH)).append_writer()
    writer.append([1, "a"])
    run(client.close())
    run(client.close())
    client.close_blocking()
    assert server.ids() == [1]
    assert client.closed
    with pytest.raises(FlussError, match="closed"):
        writer.append([2, "a"])
    with pytest.raises(FlussError, match="closed"):
        run(client.table(PATH))


def test_closing_fails_what_is_not_answered_in_time(server: ScriptedServer) -> None:
    def silent(_: object) -> pb.ProduceLogResponse:
        raise Silence

    server.handlers[1014] = silent
    client = client_of(server, close__timeout_ms=50, writer__batch_timeout_ms=0)
    handle = run(client.table(PATH)).append_writer().append([1, "a"])
    _until(lambda: server.count(1014))
    with pytest.raises(TimeoutError, match=r"closed before.*close\.timeout-ms.*they may have been stored"):
        run(client.close())
    with pytest.raises(TimeoutError, match="closed before"):
        handle.result(1)


def test_the_number_of_tries_is_bounded_by_pauses(server: ScriptedServer) -> None:
    def moved(_: object) -> pb.ProduceLogResponse:
        raise Refuse(12, "moved")

    server.handlers[1014] = moved
    writer = writer_of(server, writer__delivery_timeout_ms=1_000)
    with pytest.raises(FlussError):
        writer.append([1, "a"]).result(5)
    assert 3 <= server.count(1014) <= 12
    assert server.count(1012) <= 20


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)

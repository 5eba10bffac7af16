"""Upsert writers against a scripted server: what travels, in which requests and in which order."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.client.table import TableCore
from fluss.client.write.row_buffer import RowBuffer
from fluss.client.write.upsert import KvEncoder, UpsertColumns, UpsertWriterCore
from fluss.formats.batches import kv_batch
from fluss.formats.rows.keys import buckets_for
from fluss.model.config import Config
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, SchemaMismatchError
from fluss.model.merge_mode import MergeMode
from fluss.model.schema import Schema
from fluss.protocol import messages_pb2 as pb
from tests.kit.scripted import PATH, Cut, Refuse, ScriptedServer

NEVER_MS = 600_000
COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("age", pa.int32())])


def descriptor(buckets: int = 1, keys: tuple[str, ...] = ("id",), **options: Any) -> TableDescriptor:
    return TableDescriptor(Schema(COLUMNS, list(keys)), bucket_count=buckets, **options)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(descriptor()) as scripted:
        yield scripted


def table_of(server: ScriptedServer, **settings: Any) -> TableCore:
    options = {key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()}
    return run(run(ClientCore.connect(Config({"bootstrap.servers": server.address, **options}))).table(PATH))


def writer_of(server: ScriptedServer, **settings: Any) -> UpsertWriterCore:
    return table_of(server, **settings).upsert_writer()


def puts(server: ScriptedServer) -> list[pb.PutKvRequest]:
    return [message for key, message in server.requests if isinstance(message, pb.PutKvRequest)]


def row(number: int, name: str | None = "a", age: int | None = None) -> dict[str, Any]:
    return {"id": number, "name": name, "age": age}


def deleted(number: int) -> dict[str, Any]:
    return {"deleted": {"id": number}}


def test_operations_arrive_in_the_order_of_the_calls(server: ScriptedServer) -> None:
    writer = writer_of(server, writer__batch_timeout_ms=NEVER_MS)
    writer.delete([0])
    writer.upsert(row(1))
    writer.upsert([1, "b", 2])
    writer.delete({"id": 1})
    writer.delete({"id": 2, "name": "whatever"})
    handle = writer.upsert((1, None, 3))
    assert writer.pending_rows == 6
    run(writer.flush())
    assert handle.done()
    assert server.logs[0] == [deleted(0), row(1), row(1, "b", 2), deleted(1), deleted(2), row(1, None, 3)]
    assert len(puts(server)) == 1


def test_the_writer_id_is_asked_for_while_rows_gather(server: ScriptedServer) -> None:
    writer = writer_of(server, writer__batch_timeout_ms=NEVER_MS)
    writer.upsert(row(1))
    deadline = time.monotonic() + 10
    while not server.count(1026) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert server.count(1026) == 1
    assert puts(server) == []
    run(writer.flush())
    assert server.count(1026) == 1


def test_the_first_full_buffer_is_encoded_by_its_caller(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the others by workers, while it is under way."""
    encode = KvEncoder.prepare
    threads = []

    def prepare(encoder: KvEncoder, buffer: RowBuffer) -> None:
        threads.append(threading.current_thread())
        encode(encoder, buffer)

    monkeypatch.setattr(KvEncoder, "prepare", prepare)
    writer = writer_of(server, writer__batch_size=100_000, writer__batch_timeout_ms=NEVER_MS)

    async def late(request: pb.PutKvRequest) -> pb.PutKvResponse:
        await asyncio.sleep(0.2)
        return server.put_kv(request)

    server.handlers[1016] = late
    for number in range(40):
        writer.upsert(row(number, "x" * 10_000))
    run(writer.flush())
    assert server.ids() == list(range(40))
    assert threads[0] is threading.current_thread()
    assert threading.current_thread() not in threads[1:]


def test_arrow_and_rows_keep_their_order(server: ScriptedServer) -> None:
    writer = writer_of(server, writer__batch_timeout_ms=NEVER_MS)
    writer.upsert(row(1))
    writer.write_batch(pa.record_batch({"age": pa.array([5, 6], pa.int8()), "id": [2, 1]}))
    writer.delete_table(pa.table({"id": pa.array([2], pa.int32()), "name": ["ignored"]}))
    writer.delete_table(pa.table({"id": [1]}))
    writer.write_table(pa.table({"id": [2], "name": pa.array(["z"], pa.large_string())}))
    writer.delete([9])
    run(writer.flush())
    expected = [row(1), row(2, None, 5), row(1, None, 6), deleted(2), deleted(1), row(2, "z"), deleted(9)]
    assert server.logs[0] == expected


@pytest.mark.parametrize("kv_format", ["COMPACTED", "INDEXED"])
@pytest.mark.parametrize("seed", range(3))
def test_random_operations_on_many_buckets(kv_format: str, seed: int) -> None:
    chance = random.Random(seed)
    table = descriptor(5, bucket_keys=["id"], kv_format=kv_format)
    with ScriptedServer(table) as server:
        writer = writer_of(server, writer__batch_size=1_000, writer__batch_timeout_ms=1)
        expected: dict[int, list[dict[str, Any]]] = {bucket: [] for bucket in range(5)}
        numbers = [chance.randrange(300) for _ in range(4_000)]
        buckets = buckets_for(pa.record_batch({"id": numbers}), table.schema.columns[:1], 5).to_pylist()
        for number, bucket in zip(numbers, buckets, strict=True):
            if chance.random() < 0.3:
                writer.delete([number])
                expected[bucket].append(deleted(number))
            else:
                new = row(number, "x" * chance.randrange(30), chance.choice([None, number]))
                writer.upsert(new)
                expected[bucket].append(new)
        run(writer.flush())
        assert server.logs == expected, f"seed {seed}"
        assert server.count(1016) > 10


def test_a_batch_has_no_more_records_than_a_server_takes(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KvEncoder, "record_count_max", 7)
    writer = writer_of(server)
    writer.write_table(pa.table({"id": list(range(50))}))
    run(writer.flush())
    counts = [kv_batch.parse_header(put.buckets_req[0].records).record_count for put in puts(server)]
    assert max(counts) <= 7
    assert server.ids() == list(range(50))


def test_a_row_too_large_for_a_request_fails_with_its_size(server: ScriptedServer) -> None:
    writer = writer_of(server, writer__request_max_size=2_000)
    with pytest.raises(InvalidRequestError, match=r"bytes on the wire.*writer\.request-max-size"):
        writer.upsert(row(1, "x" * 5_000)).result(5)
    writer.upsert(row(2)).result(5)
    assert server.logs[0] == [row(2)]


def test_whole_rows_say_nothing_of_columns_or_merging(server: ScriptedServer) -> None:
    writer_of(server).upsert(row(1)).result(5)
    (request,) = puts(server)
    assert list(request.target_columns) == []
    assert not request.HasField("agg_mode")
    assert (request.acks, server.versions[1016]) == (-1, 2)


def test_an_older_server_is_asked_in_its_version(server: ScriptedServer) -> None:
    def versions(request: pb.ApiVersionsRequest) -> pb.ApiVersionsResponse:
        answer = server.api_versions(request)
        for item in answer.api_versions:
            item.max_version = min(item.max_version, 1)
        return answer

    server.handlers[1000] = versions
    writer_of(server).upsert(row(1)).result(5)
    assert server.versions[1016] == 1


def test_a_partial_update_has_its_columns_and_full_rows(server: ScriptedServer) -> None:
    table = table_of(server, writer__batch_timeout_ms=NEVER_MS)
    columns = UpsertColumns.named(table.info, ["age", "id"])
    writer = table.upsert_writer(columns, MergeMode.OVERWRITE)
    writer.upsert({"id": 1, "age": 10})
    writer.upsert([20, 2])
    writer.upsert([3, None, 30])
    writer.write_batch(pa.record_batch({"id": [4], "age": [40]}))
    writer.delete([5])
    run(writer.flush())
    assert server.logs[0] == [*(row(number, None, 10 * number) for number in range(1, 5)), deleted(5)]
    assert {(tuple(request.target_columns), request.agg_mode) for request in puts(server)} == {((2, 0), 1)}


def test_writers_of_a_client_share_a_buckets_sequence_and_not_their_requests(server: ScriptedServer) -> None:
    table = table_of(server, writer__batch_timeout_ms=NEVER_MS)
    whole, partial = table.upsert_writer(), table.upsert_writer(UpsertColumns.numbered(table.info, [0, 2]))
    for number in range(10):
        (whole if number % 2 else partial).upsert({"id": number, "age": number})
        run(whole.flush())
        run(partial.flush())
    assert server.ids() == list(range(10))
    assert server.writers == {(0, 1): list(range(10))}
    assert [len(request.target_columns) for request in puts(server)] == [2, 0] * 5


@pytest.mark.parametrize("seed", range(4))
def test_lost_answers_and_refusals_do_every_operation_once_in_order(server: ScriptedServer, seed: int) -> None:
    chance = random.Random(seed)

    def put(request: pb.PutKvRequest) -> pb.PutKvResponse:
        fate = chance.random()
        if fate < 0.1:
            raise Refuse(12, "moved")
        if fate < 0.2:
            answer = pb.PutKvResponse()
            answer.buckets_resp.add(bucket_id=0, error_code=ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION)
            return answer
        answer = server.put_kv(request)
        if fate < 0.4:
            raise Cut
        return answer

    server.handlers[1016] = put
    writer = writer_of(server, writer__batch_size=1_000, writer__batch_timeout_ms=1)
    expected = []
    for number in range(3_000):
        if number % 3:
            writer.upsert(row(number, "x" * 20))
            expected.append(row(number, "x" * 20))
        else:
            writer.delete([number])
            expected.append(deleted(number))
    run(writer.flush())
    assert server.logs[0] == expected, f"seed {seed}"


def test_a_refused_batch_fails_with_its_reason_and_others_go_on(server: ScriptedServer) -> None:
    fates = [57]

    def put(request: pb.PutKvRequest) -> pb.PutKvResponse:
        if fates:
            answer = pb.PutKvResponse()
            answer.buckets_resp.add(bucket_id=0, error_code=fates.pop(), error_message="no deletes here")
            return answer
        return server.put_kv(request)

    server.handlers[1016] = put
    writer = writer_of(server)
    with pytest.raises(InvalidRequestError, match=r"1 row for bucket 0 of table db\.t failed: no deletes here"):
        writer.delete([1]).result(5)
    writer.upsert(row(2)).result(5)
    assert server.logs[0] == [row(2)]


BAD_ROWS = [
    ({"name": "a"}, r"lacks the non-nullable field 'id' \(bigint NOT NULL"),
    ({"id": None}, "'id'.*NOT NULL"),
    ({"id": "1"}, "'id' expects bigint"),
    ({"id": 1, "nmae": "a"}, "no column 'nmae'"),
    ([1, "a"], "2 values for 3 columns"),
    (7, "dict, list or tuple"),
]


@pytest.mark.parametrize(("bad", "text"), BAD_ROWS)
def test_a_bad_row_is_refused_and_leaves_no_trace(server: ScriptedServer, bad: Any, text: str) -> None:
    writer = writer_of(server, writer__batch_timeout_ms=NEVER_MS)
    writer.upsert(row(1))
    with pytest.raises(SchemaMismatchError, match=text):
        writer.upsert(bad)
    writer.delete([2])
    run(writer.flush())
    assert server.logs[0] == [row(1), deleted(2)]


BAD_KEYS = [
    ({}, "lacks the non-nullable field 'id'"),
    ({"name": "a"}, "lacks the non-nullable field 'id'"),
    ({"id": None}, "'id'.*NOT NULL"),
    ({"id": 1.5}, "'id' expects bigint"),
    ({"id": 1, "key": 1}, "no column 'key'; its key columns are id"),
    ([1, 2], "2 values for 1 columns"),
    ([None], "'id'.*NOT NULL"),
    (1, "dict, list or tuple"),
]


@pytest.mark.parametrize(("bad", "text"), BAD_KEYS)
def test_a_bad_key_is_refused_and_leaves_no_trace(server: ScriptedServer, bad: Any, text: str) -> None:
    writer = writer_of(server, writer__batch_timeout_ms=NEVER_MS)
    with pytest.raises(SchemaMismatchError, match=text):
        writer.delete(bad)
    writer.upsert(row(1))
    with pytest.raises(SchemaMismatchError, match=text):
        writer.delete(bad)
    writer.delete([2])
    run(writer.flush())
    assert server.logs[0] == [row(1), deleted(2)]


BAD_TABLES: list[tuple[str, dict[str, Any], str]] = [
    ("write_table", {"name": ["a"]}, "'id'.*lacks it"),
    ("write_table", {"id": [1, None]}, r"'id'.*not null \(row 1\)"),
    ("write_table", {"id": ["a"]}, "'id' expects"),
    ("write_table", {"id": [1], "other": [1]}, "no column 'other'"),
    ("delete_table", {"name": ["a"]}, "'id'.*lacks it"),
    ("delete_table", {"id": [None]}, "'id'.*not null"),
    ("delete_table", {"id": [1], "other": [1]}, "no column 'other'"),
]


@pytest.mark.parametrize(("method", "columns", "text"), BAD_TABLES)
def test_bad_arrow_is_refused_as_a_whole(server: ScriptedServer, method: str, columns: Any, text: str) -> None:
    writer = writer_of(server, writer__batch_timeout_ms=NEVER_MS)
    with pytest.raises(SchemaMismatchError, match=text):
        getattr(writer, method)(pa.table(columns))
    run(writer.flush())
    assert server.logs[0] == []


def test_deletes_are_refused_where_the_table_says_so() -> None:
    with ScriptedServer(descriptor(properties={"table.delete.behavior": "disable"})) as server:
        writer = writer_of(server)
        for delete, keys in ((writer.delete, [1]), (writer.delete_table, pa.table({"id": [1]}))):
            with pytest.raises(InvalidRequestError, match=r"table\.delete\.behavior = DISABLE") as caught:
                delete(keys)
            assert caught.value.error_code == ErrorCode.DELETION_DISABLED_EXCEPTION
        writer.upsert(row(1)).result(5)


def test_a_writer_whose_connection_is_closed_says_so(server: ScriptedServer) -> None:
    client = run(ClientCore.connect(Config({"bootstrap.servers": server.address})))
    writer = run(client.table(PATH)).upsert_writer()
    run(client.close())
    for write in (writer.upsert, writer.delete):
        with pytest.raises(FlussError, match="was closed with its connection"):
            write([1, None, None])

"""Many requests of one connection: others are served in between, and none runs once its connection is lost."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fluss.model.paths import TablePath
from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb
from fluss.server.handlers import connection
from fluss.server.net import session
from fluss.server.net.context import Answer, ConnectionContext, Deferred, Handled
from fluss.server.net.limits import Limits
from fluss.storage.catalog.catalog import TableEntry
from tests.kit.thread_server import (
    TIMEOUT_S,
    RunningServer,
    Wire,
    WireError,
    batch,
    create_table,
    descriptor,
    eventually,
    fetch,
    fetch_request,
    path,
    produce,
    produce_request,
)

REQUESTS = 40


class Executed:
    """Which connections' requests were begun, in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.contexts: list[ConnectionContext] = []
        self._dispatch = session.dispatch
        monkeypatch.setattr(session, "dispatch", self._note)

    def _note(self, context: ConnectionContext, request: frames.Request) -> Handled | Answer | Deferred:
        self.contexts.append(context)
        return self._dispatch(context, request)

    @property
    def longest_run(self) -> int:
        """Most requests of one connection in a row."""
        longest = run = 0
        for before, context in zip([None, *self.contexts], self.contexts, strict=False):
            run = run + 1 if context is before else 1
            longest = max(longest, run)
        return longest


@contextmanager
def loop_stands_still(server: RunningServer) -> Iterator[None]:
    """What arrives within the block is found at once after it."""
    entered, release = threading.Event(), threading.Event()

    def stand() -> None:
        entered.set()
        release.wait(TIMEOUT_S)

    server.loop.call_soon_threadsafe(stand)
    assert entered.wait(TIMEOUT_S)
    try:
        yield
    finally:
        release.set()


def pipelined(api: api_keys.Api, message: pb.MetadataRequest | pb.ListDatabasesRequest, count: int) -> bytes:
    body = message.SerializeToString()
    return b"".join(frames.request_header(api.key, 0, number, len(body)) + body for number in range(count))


def read_answers(wire: Wire, count: int) -> None:
    assert sorted(wire.receive().request_id or 0 for _ in range(count)) == list(range(count))


@pytest.mark.parametrize("uvloop", [True, False])
def test_connections_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uvloop: bool) -> None:
    with RunningServer(tmp_path, uvloop=uvloop) as server, ExitStack() as stack:
        wires = [stack.enter_context(server.connect()) for _ in range(3)]
        for wire in wires:
            wire.call(api_keys.LIST_DATABASES, pb.ListDatabasesRequest())
        executed = Executed(monkeypatch)
        with loop_stands_still(server):
            for wire in wires:
                wire.socket.sendall(pipelined(api_keys.LIST_DATABASES, pb.ListDatabasesRequest(), REQUESTS))
        for wire in wires:
            read_answers(wire, REQUESTS)
        assert len(executed.contexts) == 3 * REQUESTS
        # The first connection may be read before the others, the last one may be left alone.
        middle = executed.contexts[REQUESTS // 2 : 2 * REQUESTS]
        executed.contexts = middle
        assert executed.longest_run <= 2


def test_a_single_request_does_not_wait_for_all_of_another_connection(
    server: RunningServer, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_id = create_table(wire)
    with server.connect() as flooding:
        flooding.call(api_keys.LIST_DATABASES, pb.ListDatabasesRequest())
        executed = Executed(monkeypatch)
        with loop_stands_still(server):
            flooding.socket.sendall(pipelined(api_keys.LIST_DATABASES, pb.ListDatabasesRequest(), 1_000))
            wire.send(api_keys.PRODUCE_LOG, produce_request(table_id, (0, batch())))
        wire.receive()
        read_answers(flooding, 1_000)
        of_one = [number for number, context in enumerate(executed.contexts) if context is not executed.contexts[-1]]
        assert len(of_one) == 1
        assert of_one[0] < 500


def test_requests_of_a_lost_connection_that_have_not_begun_are_dropped(
    server: RunningServer, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    table_id = create_table(wire)
    with server.connect() as lost:
        lost.send(api_keys.PRODUCE_LOG, produce_request(table_id, (0, batch())))
        eventually(lambda: fetch(wire, table_id).high_watermark == 3)
        executed = Executed(monkeypatch)
        with loop_stands_still(server):
            request = pb.MetadataRequest(table_path=[path()])
            lost.socket.sendall(pipelined(api_keys.METADATA, request, REQUESTS))
            lost.socket.close()
    eventually(lambda: server.look(lambda: len(server.server._connections)) == 1)
    assert not executed.contexts
    assert server.look(lambda: server.server.context.request_budget.used_bytes) == 0
    # What it had appended before stays.
    assert fetch(wire, table_id).high_watermark == 3


def answers_under_way(server: RunningServer) -> list[str]:
    names = [getattr(task.get_coro(), "__name__", "") for task in asyncio.all_tasks(server.loop)]
    return [name for name in names if name == connection._describe_many.__name__]


def test_a_lost_connections_long_answer_is_not_made_to_its_end(
    server: RunningServer, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_table(wire)
    made: list[str] = []
    began, is_closed = threading.Event(), threading.Event()
    catalog_table = server.server.context.storage.catalog.table

    def table(path: TablePath) -> TableEntry:
        made.append(path.table)
        if len(made) == 1:
            began.set()
            is_closed.wait(TIMEOUT_S)
        return catalog_table(path)

    monkeypatch.setattr(server.server.context.storage.catalog, "table", table)
    request = pb.MetadataRequest(table_path=[path()] * 10_000)
    with server.connect() as lost:
        lost.send(api_keys.METADATA, request)
        assert began.wait(TIMEOUT_S)
        lost.socket.close()
        is_closed.set()
    eventually(lambda: not server.look(lambda: answers_under_way(server)))
    assert len(made) < 5_000


def test_metadata_of_a_table_follows_its_changes(server: RunningServer, wire: Wire) -> None:
    fields = [
        {"name": "id", "data_type": {"type": "INTEGER"}, "id": 0},
        {"name": "p", "data_type": {"type": "STRING"}, "id": 1},
    ]
    schema = {"version": 1, "columns": fields, "highest_field_id": 1}
    create_table(wire, "parts", 3, schema=schema, partition_key=["p"])
    spec = pb.PbPartitionSpec(partition_key_values=[pb.PbKeyValue(key="p", value="x")])
    ask = pb.MetadataRequest(
        partitions_path=[pb.PbPhysicalTablePath(database_name="fluss", table_name="parts", partition_name="x")]
    )

    def create() -> int:
        wire.call(
            api_keys.CREATE_PARTITION,
            pb.CreatePartitionRequest(table_path=path("parts"), partition_spec=spec, ignore_if_exists=False),
        )
        (partition,) = wire.call(api_keys.METADATA, ask).partition_metadata
        assert [bucket.bucket_id for bucket in partition.bucket_metadata] == [0, 1, 2]
        assert all(bucket.leader_id == 0 for bucket in partition.bucket_metadata)
        return partition.partition_id

    first = create()
    wire.call(
        api_keys.DROP_PARTITION,
        pb.DropPartitionRequest(table_path=path("parts"), partition_spec=spec, ignore_if_not_exists=False),
    )
    with pytest.raises(WireError):
        wire.call(api_keys.METADATA, ask)
    assert create() > first
    changes = [pb.PbAlterConfig(config_key="table.log.ttl", config_value="1 d", op_type=0)]
    wire.call(
        api_keys.ALTER_TABLE,
        pb.AlterTableRequest(table_path=path("parts"), config_changes=changes, ignore_if_not_exists=False),
    )
    (table,) = wire.call(api_keys.METADATA, ask).table_metadata
    assert b'"table.log.ttl":"1 d"' in table.table_json
    assert not table.bucket_metadata
    wire.call(api_keys.DROP_TABLE, pb.DropTableRequest(table_path=path("parts"), ignore_if_not_exists=False))
    with pytest.raises(WireError):
        wire.call(api_keys.METADATA, ask)


def test_metadata_answers_are_bounded(tmp_path: Path) -> None:
    with RunningServer(tmp_path, limits=Limits(metadata_bytes_max=10_000)) as server, server.connect() as wire:
        for name in ("a", "b"):
            create_table(wire, name, buckets=400)
        assert len(wire.call(api_keys.METADATA, pb.MetadataRequest(table_path=[path("a")])).table_metadata) == 1
        with pytest.raises(WireError, match="ask for fewer tables") as raised:
            wire.call(api_keys.METADATA, pb.MetadataRequest(table_path=[path("a"), path("b")]))
        assert raised.value.code == 13


def test_a_flood_of_metadata_requests_delays_nobody_for_long(tmp_path: Path) -> None:
    """Requests that took 5 ms each, a thousand of them; the longest answer to somebody else is far below their sum."""
    with RunningServer(tmp_path) as server, server.connect() as wire, ExitStack() as stack:
        create_table(wire, "wide", buckets=4_096)
        table_id = create_table(wire)
        produce(wire, table_id, batch())
        flood = [stack.enter_context(server.connect()) for _ in range(40)]
        with loop_stands_still(server):
            for connected in flood:
                request = pb.MetadataRequest(table_path=[path("wide")])
                connected.socket.sendall(pipelined(api_keys.METADATA, request, 25))
            begin = time.monotonic()
        for _ in range(20):
            fetch(wire, table_id, 0)
        assert time.monotonic() - begin < 1
        for connected in flood:
            connected.socket.close()
        begin = time.monotonic()
        fetch(wire, table_id, 0)
        assert time.monotonic() - begin < 1


class LongestStep:
    """The most processor time that a server's loop spent without looking at its sockets."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._last_s: float | None = None
        self._is_on = True
        self.longest_s = 0.0

    def __enter__(self) -> LongestStep:
        # A full collection walks what all tests of this process have left, for up to half a second.
        gc.disable()
        self._server.loop.call_soon_threadsafe(self._tick)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_on = False
        gc.enable()

    def _tick(self) -> None:
        # Of this thread alone: other programs on the machine do not count.
        now_s = time.thread_time()
        if self._last_s is not None:
            self.longest_s = max(self.longest_s, now_s - self._last_s)
        self._last_s = now_s
        if self._is_on:
            self._server.loop.call_soon(self._tick)


def test_requests_that_name_thousands_of_buckets_are_worked_on_in_steps(tmp_path: Path) -> None:
    """In one go the first write took more than a second of the loop, the others a tenth of one and more."""
    buckets = range(2_000)
    with RunningServer(tmp_path, durability="os") as server, server.connect() as wire:
        table_id = create_table(wire, buckets=len(buckets))
        with LongestStep(server) as step:
            records = bytes(batch())
            request = produce_request(table_id, *[(bucket, records) for bucket in buckets], timeout_ms=60_000)
            wire.socket.settimeout(60)
            answer = wire.call(api_keys.PRODUCE_LOG, request)
            assert [entry.bucket_id for entry in answer.buckets_resp] == list(buckets)
            assert not any(entry.HasField("error_code") for entry in answer.buckets_resp)
            offsets = pb.ListOffsetsRequest(
                follower_server_id=-1, table_id=table_id, offset_type=1, bucket_id=[*buckets, 5_000]
            )
            listed = wire.call(api_keys.LIST_OFFSETS, offsets).buckets_resp
            assert [entry.offset for entry in listed[:-1]] == [3] * len(buckets)
            assert listed[-1].error_code
            stats = pb.GetTableStatsRequest(table_id=table_id)
            for bucket in buckets:
                stats.buckets_req.add(bucket_id=bucket)
            assert {entry.row_count for entry in wire.call(api_keys.GET_TABLE_STATS, stats).buckets_resp} == {3}
            fetched = wire.call(api_keys.FETCH_LOG, fetch_request(table_id, *[(bucket, 0) for bucket in buckets]))
            assert len(fetched.tables_resp[0].buckets_resp) == len(buckets)
        assert step.longest_s < 0.3


def test_definitions_of_thousands_of_columns_are_read_beside_other_requests(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, server.connect() as wire:
        columns = [(f"a_column_with_a_long_name_{number}", "STRING") for number in range(4_000)]
        request = pb.CreateTableRequest(
            table_path=path(), table_json=descriptor(columns, bucket_count=1, bucket_key=[]), ignore_if_exists=False
        )
        alter = pb.AlterTableRequest(table_path=path(), ignore_if_not_exists=False)
        alter.add_columns.add(column_name="more", data_type_json=b'{"type":"STRING"}', column_position_type=0)
        with LongestStep(server) as step:
            wire.call(api_keys.CREATE_TABLE, request)
            wire.call(api_keys.ALTER_TABLE, alter)
        assert step.longest_s < 0.05
        assert wire.call(api_keys.GET_TABLE_SCHEMA, pb.GetTableSchemaRequest(table_path=path())).schema_id == 2

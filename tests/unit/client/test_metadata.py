"""Finding servers, tables and leaders."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from fluss.client.client import ClientCore
from fluss.client.cluster.retry import PAUSE_MS_MAX, PAUSE_MS_MIN, Backoff, pause_s
from fluss.client.runtime import run
from fluss.model.config import Config
from fluss.model.errors import ConnectError, InvalidRequestError, NotFoundError, TimeoutError
from fluss.model.paths import TablePath
from fluss.model.trust import Address, parse_bootstrap
from fluss.protocol import messages_pb2 as pb
from tests.kit.scripted import PATH, Refuse, ScriptedServer, Silence


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as scripted:
        yield scripted


def connect(bootstrap: str, **settings: object) -> ClientCore:
    return run(ClientCore.connect(Config({"bootstrap.servers": bootstrap, **settings})))


def test_the_bootstrap_list_is_tried_one_by_one(server: ScriptedServer) -> None:
    client = connect(f"127.0.0.1:1, {server.address}")
    assert [node.port for node in run(client.admin.get_server_nodes())] == [server.port, server.port]
    run(client.close())


def test_nobody_there_says_what_was_tried_and_what_to_do() -> None:
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1.*fluss serve"):
        connect("127.0.0.1:1")


def test_a_real_server_s_stack_trace_for_a_missing_table_becomes_not_found(server: ScriptedServer) -> None:
    def metadata(request: pb.MetadataRequest) -> pb.MetadataResponse:
        if request.table_path:
            raise Refuse(-1, "java.lang.RuntimeException: failed\n\tat org.example")
        return server.metadata(request)

    def table_info(_: pb.GetTableInfoRequest) -> pb.GetTableInfoResponse:
        raise Refuse(7, "Table does not exist")

    server.handlers[1012], server.handlers[1007] = metadata, table_info
    client = connect(server.address)
    with pytest.raises(NotFoundError, match=r"db\.missing") as caught:
        run(client.table(TablePath("db", "missing")))
    assert caught.value.error_code == 7
    run(client.close())


def test_a_table_known_to_the_coordinator_only_is_waited_for(server: ScriptedServer) -> None:
    refusals = [1, 2, 3]

    def metadata(request: pb.MetadataRequest) -> pb.MetadataResponse:
        if request.table_path and refusals:
            refusals.pop()
            raise Refuse(-1, "java.lang.NullPointerException")
        return server.metadata(request)

    server.handlers[1012] = metadata
    client = connect(server.address)
    assert run(client.table(PATH)).info.table_path == PATH
    run(client.close())


def test_leaders_are_waited_for_up_to_the_deadline(server: ScriptedServer) -> None:
    answers = [0]

    def metadata(request: pb.MetadataRequest) -> pb.MetadataResponse:
        answer = server.metadata(request)
        if request.table_path:
            answers[0] += 1
            if answers[0] < 4 or answers[0] > 4:
                for item in answer.table_metadata[0].bucket_metadata:
                    item.ClearField("leader_id")
        return answer

    server.handlers[1012] = metadata
    client = connect(server.address, **{"request-timeout-ms": 500})
    run(client.table(PATH))
    assert answers[0] == 4
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="no leader"):
        run(client.table(PATH))
    assert 0.4 < time.monotonic() - began < 3
    run(client.close())


def test_one_refresh_is_shared_by_all_who_want_it(server: ScriptedServer) -> None:
    client = connect(server.address)
    before = server.count(1012)

    async def many() -> None:
        await asyncio.gather(*(client.metadata.refresh(PATH) for _ in range(50)))

    run(many())
    assert server.count(1012) == before + 1
    run(client.close())


def test_a_read_is_repeated_after_a_lost_connection_and_a_change_is_not(server: ScriptedServer) -> None:
    from tests.kit.scripted import Cut

    cuts = [1]

    def exists(_: pb.DatabaseExistsRequest) -> pb.DatabaseExistsResponse:
        if cuts:
            cuts.pop()
            raise Cut
        return pb.DatabaseExistsResponse(exists=True)

    def create(_: pb.CreateDatabaseRequest) -> pb.CreateDatabaseResponse:
        raise Cut

    server.handlers[1004], server.handlers[1001] = exists, create
    client = connect(server.address)
    assert run(client.admin.database_exists("db")) is True
    with pytest.raises(ConnectError, match="not known whether CreateDatabase was done"):
        run(client.admin.create_database("db", None, False))
    assert server.count(1001) == 1
    run(client.close())


def test_a_read_of_a_silent_server_ends_at_its_deadline(server: ScriptedServer) -> None:
    def silent(_: object) -> pb.DatabaseExistsResponse:
        raise Silence

    server.handlers[1004] = silent
    client = connect(server.address, **{"request-timeout-ms": 200})
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        run(client.admin.database_exists("db"))
    assert time.monotonic() - began < 2
    run(client.close())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:9123", [Address("localhost", 9123)]),
        (" a:1 ,b:2,", [Address("a", 1), Address("b", 2)]),
        ("[::1]:9123", [Address("::1", 9123)]),
    ],
)
def test_addresses(text: str, expected: list[Address]) -> None:
    assert parse_bootstrap(text) == expected


@pytest.mark.parametrize("text", ["", ",", "localhost", "localhost:", ":9123", "a:0", "a:65536", "a:x", "a:-1"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"bootstrap\.servers"):
        parse_bootstrap(text)


def test_pauses_grow_with_jitter_up_to_a_limit() -> None:
    assert PAUSE_MS_MIN * 0.7 / 1000 <= pause_s(1) <= PAUSE_MS_MIN * 1.3 / 1000
    assert all(pause_s(n) <= PAUSE_MS_MAX * 1.3 / 1000 for n in (10, 100, 10**6))
    assert len({pause_s(3) for _ in range(10)}) > 1


async def test_backoff_ends_at_its_deadline() -> None:
    backoff = Backoff(50)
    began = time.monotonic()
    pauses = 0
    while await backoff.pause():
        pauses += 1
    assert 1 <= pauses <= 4
    assert 0.04 <= time.monotonic() - began < 1

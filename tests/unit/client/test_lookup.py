"""Lookups against a scripted server: how they travel together, and what happens when they can't."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from fluss.client import runtime
from fluss.client.client import ClientCore
from fluss.client.lookup import table_lookups
from fluss.client.lookup.lookuper import LookuperCore
from fluss.client.lookup.pending import Lookup
from fluss.client.runtime import run
from fluss.model.config import Config
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, NotFoundError, TimeoutError
from fluss.model.schema import Column, Schema
from fluss.model.types import DataTypes
from fluss.protocol import messages_pb2 as pb
from tests.kit.scripted import PATH, Cut, Refuse, ScriptedServer, Silence
from tests.unit.client.scripted_kv import LOOKUP, METADATA, SCHEMA, ScriptedKvServer, kv_descriptor

REQUESTS_IN_FLIGHT_MAX: int = Config().lookup_max_inflight_requests


@pytest.fixture
def server() -> Iterator[ScriptedKvServer]:
    with ScriptedKvServer() as scripted:
        scripted.put_all((number, "a", f"n{number}") for number in range(3_000))
        yield scripted


_clients: list[ClientCore] = []


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    yield
    while _clients:
        run(_clients.pop().close())


def client_of(server: ScriptedServer, **settings: Any) -> ClientCore:
    _clients.append(run(ClientCore.connect(Config({"bootstrap.servers": server.address, **settings}))))
    return _clients[-1]


def lookuper_of(server: ScriptedKvServer, **settings: Any) -> LookuperCore:
    return run(client_of(server, **settings).table(PATH)).lookuper()


def row(number: int) -> dict[str, Any]:
    return {"id": number, "sub": "a", "name": f"n{number}"}


def held(server: ScriptedKvServer) -> Callable[[], None]:
    """Lookups are answered only after this was called."""
    go = asyncio.Event()

    async def lookup(request: pb.LookupRequest) -> pb.LookupResponse:
        await go.wait()
        return server.lookup(request)

    server.handlers[LOOKUP] = lookup
    return lambda: runtime.call_soon(go.set)


async def gathered(lookuper: LookuperCore, numbers: range) -> list[Any]:
    async def one(number: int) -> Any:
        return await lookuper.begin([number, "a"])

    return await asyncio.gather(*map(one, numbers))


def test_a_thousand_lookups_are_few_requests_without_a_change_of_threads(server: ScriptedKvServer) -> None:
    lookuper = lookuper_of(server)

    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        handed_over: list[int] = []
        call_soon_threadsafe = loop.call_soon_threadsafe

        def counted(callback: Any, *args: Any, **options: Any) -> Any:
            handed_over.append(1)
            return call_soon_threadsafe(callback, *args, **options)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        found = await gathered(lookuper, range(2_500, 3_500))
        assert not handed_over
        return found

    assert asyncio.run(main()) == [*map(row, range(2_500, 3_000)), *[None] * 500]
    assert server.key_counts == [1_000 // REQUESTS_IN_FLIGHT_MAX] * REQUESTS_IN_FLIGHT_MAX


def test_lookupers_of_a_table_share_requests(server: ScriptedKvServer) -> None:
    table = run(client_of(server).table(PATH))

    async def main() -> list[Any]:
        async def one(number: int) -> Any:
            return await table.lookuper().begin([number, "a"])

        return await asyncio.gather(*map(one, range(100)))

    assert asyncio.run(main()) == list(map(row, range(100)))
    assert server.key_counts == [100]


@pytest.mark.parametrize("in_flight_max", [1, 2])
def test_what_waits_is_shared_by_the_requests_that_may_be_under_way(
    server: ScriptedKvServer, in_flight_max: int
) -> None:
    lookuper = lookuper_of(server, **{"lookup.max-inflight-requests": in_flight_max})
    assert asyncio.run(gathered(lookuper, range(1_000))) == list(map(row, range(1_000)))
    assert server.key_counts == [1_000 // in_flight_max] * in_flight_max


def test_large_requests_are_cut_and_few_are_under_way(server: ScriptedKvServer) -> None:
    options = {"lookup.max-batch-size": 100}
    under_way: list[int] = [0, 0]

    async def lookup(request: pb.LookupRequest) -> pb.LookupResponse:
        under_way[0] += 1
        under_way[1] = max(under_way)
        await asyncio.sleep(0)
        under_way[0] -= 1
        return server.lookup(request)

    server.handlers[LOOKUP] = lookup
    assert asyncio.run(gathered(lookuper_of(server, **options), range(1_050))) == list(map(row, range(1_050)))
    assert sorted(server.key_counts) == [50, *[100] * 10]
    assert under_way[1] <= REQUESTS_IN_FLIGHT_MAX
    server.requests.clear()
    found = run(lookuper_of(server, **options).lookup_many([(number, "a") for number in range(450)]))
    assert found["id"].to_pylist() == list(range(450))
    assert max(server.key_counts) <= 100


@pytest.mark.parametrize("retries_max", [0, 2])
def test_lookups_are_tried_again_as_often_as_they_may(server: ScriptedKvServer, retries_max: int) -> None:
    def refuse(_: pb.LookupRequest) -> pb.LookupResponse:
        raise Refuse(44, "no leader")

    server.handlers[LOOKUP] = refuse
    with pytest.raises(FlussError, match="no leader"):
        lookuper_of(server, **{"lookup.max-retries": retries_max}).lookup([1, "a"])
    assert len(server.key_counts) == retries_max + 1


def test_what_comes_while_requests_are_under_way_travels_together(server: ScriptedKvServer) -> None:
    release = held(server)
    lookuper = lookuper_of(server)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda number=number: found.append(lookuper.lookup([number, "a"])))  # type: ignore[misc]
        for number in range(200)
    ]
    for thread in threads:
        thread.start()
    while sum(server.key_counts) < 1 or len(lookuper._lookups.io._queue):
        time.sleep(0.001)
    release()
    for thread in threads:
        thread.join(30)
    assert sorted(each["id"] for each in found) == list(range(200))
    assert len(server.key_counts) < 200
    assert sum(server.key_counts) == 200


def test_a_cancelled_lookup_disturbs_nobody(server: ScriptedKvServer) -> None:
    release = held(server)
    lookuper = lookuper_of(server)

    async def main() -> list[Any]:
        futures = [lookuper.begin([number, "a"]) for number in range(10)]
        await asyncio.sleep(0)
        futures[3].cancel()
        release()
        return await asyncio.gather(*futures, return_exceptions=True)

    found = asyncio.run(main())
    assert lookuper._lookups.io._under_way == 0
    assert isinstance(found[3], asyncio.CancelledError)
    assert [each for number, each in enumerate(found) if number != 3] == [row(n) for n in range(10) if n != 3]


def test_a_lookup_that_was_cancelled_at_once_is_not_sent(server: ScriptedKvServer) -> None:
    lookuper = lookuper_of(server)

    async def main() -> list[Any]:
        futures = [lookuper.begin([number, "a"]) for number in range(10)]
        futures[3].cancel()
        return await asyncio.gather(*futures, return_exceptions=True)

    assert [each for number, each in enumerate(asyncio.run(main())) if number != 3] == [
        row(n) for n in range(10) if n != 3
    ]
    assert server.key_counts == [9]


async def test_a_lookup_that_all_have_left_ends_without_an_answer() -> None:
    # Seeds 25 and 32 of the simulation: it raised, and took those that were rerouted with it.
    left: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    left.cancel()
    queue: Any = SimpleNamespace(timeout_s=1.0)
    Lookup((queue, lambda *_: [], None, 0), [b"key"], [left]).resolve()


def test_keys_that_take_many_bytes_are_sent_in_parts(server: ScriptedKvServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_lookups, "KEY_BYTES_PER_REQUEST_MAX", 40)
    assert asyncio.run(gathered(lookuper_of(server), range(100))) == [*map(row, range(100))]
    assert max(server.key_counts) <= 40 // 3
    assert sum(server.key_counts) == 100


def test_no_more_than_so_many_wait(server: ScriptedKvServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_lookups, "WAITING_LOOKUPS_MAX", 5)
    release = held(server)
    lookuper = lookuper_of(server)

    async def main() -> list[Any]:
        futures = [lookuper.begin([number, "a"]) for number in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(FlussError, match="lookup_many"):
            lookuper.begin([5, "a"])
        release()
        return await asyncio.gather(*futures)

    assert asyncio.run(main()) == list(map(row, range(5)))
    assert lookuper.lookup([5, "a"]) == row(5)


def test_a_caller_whose_loop_is_gone_disturbs_nobody(server: ScriptedKvServer) -> None:
    release = held(server)
    lookuper = lookuper_of(server)
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        lookuper.begin([1, "a"])
        while server.count(LOOKUP) == 0:  # a loop that is closed before would leave coroutines that never began
            await asyncio.sleep(0.01)

    loop.run_until_complete(begin())
    loop.close()
    del loop
    gc.collect()
    thread = threading.Thread(target=lambda: found.append(lookuper.lookup([2, "a"])))
    found: list[Any] = []
    thread.start()
    release()
    thread.join(30)
    assert found == [row(2)]
    assert asyncio.run(gathered(lookuper, range(3, 6))) == [*map(row, range(3, 6))]


def test_loops_one_after_the_other_and_side_by_side(server: ScriptedKvServer) -> None:
    lookuper = lookuper_of(server)
    for start in (0, 10, 20):
        assert asyncio.run(gathered(lookuper, range(start, start + 10))) == [*map(row, range(start, start + 10))]
    with ThreadPoolExecutor(4) as threads:
        ranges = [range(start, start + 50) for start in range(0, 1_000, 50)]
        found = threads.map(lambda numbers: asyncio.run(gathered(lookuper, numbers)), ranges)
        assert [*found] == [[*map(row, numbers)] for numbers in ranges]


def test_closing_the_client_ends_the_lookups_of_a_loop(server: ScriptedKvServer) -> None:
    client = client_of(server)
    held(server)
    lookuper = run(client.table(PATH)).lookuper()

    async def main() -> None:
        waiting = asyncio.ensure_future(gathered(lookuper, range(3)))
        while not server.count(LOOKUP):
            await asyncio.sleep(0.01)
        client.close_blocking()
        with pytest.raises(FlussError, match=r"clos"):
            await asyncio.wait_for(waiting, 30)
        with pytest.raises(FlussError, match=r"clos"):
            await lookuper.begin([1, "a"])

    asyncio.run(main())


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KV_STORAGE_EXCEPTION])
def test_what_may_pass_is_tried_again_after_a_look_at_the_metadata(server: ScriptedKvServer, code: int) -> None:
    lookuper = lookuper_of(server)
    failures = [True, True]

    def lookup(request: pb.LookupRequest) -> pb.LookupResponse:
        answer = server.lookup(request)
        if failures:
            failures.pop()
            answer.buckets_resp[0].error_code = code
        return answer

    server.handlers[LOOKUP] = lookup
    asked = server.count(METADATA)
    assert lookuper.lookup([5, "a"]) == row(5)
    assert server.count(METADATA) == asked + 2


def test_a_cut_connection_is_made_again(server: ScriptedKvServer) -> None:
    lookuper = lookuper_of(server)
    cuts = [True]

    def lookup(request: pb.LookupRequest) -> pb.LookupResponse:
        if cuts:
            cuts.pop()
            raise Cut
        return server.lookup(request)

    server.handlers[LOOKUP] = lookup
    assert lookuper.lookup([5, "a"]) == row(5)
    assert server.connections == 2


def test_an_error_that_does_not_pass_is_raised_to_each_on_its_own(server: ScriptedKvServer) -> None:
    server.handlers[LOOKUP] = lambda _: (_ for _ in ()).throw(Refuse(20, "no primary key"))
    lookuper = lookuper_of(server)

    async def main() -> list[Any]:
        return await asyncio.gather(*(lookuper.begin([n, "a"]) for n in range(3)), return_exceptions=True)

    errors = asyncio.run(main())
    assert {type(error) for error in errors} == {InvalidRequestError}
    assert len({id(error) for error in errors}) == 3
    with pytest.raises(InvalidRequestError, match="no primary key"):
        lookuper.lookup([1, "a"])
    assert server.count(LOOKUP) == 2


@pytest.mark.parametrize("blocking", [True, False])
def test_a_lookup_ends_at_its_deadline(server: ScriptedKvServer, blocking: bool) -> None:
    def silent(_: pb.LookupRequest) -> pb.LookupResponse:
        raise Silence

    server.handlers[LOOKUP] = silent
    lookuper = lookuper_of(server, **{"request-timeout-ms": 300})
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        if blocking:
            lookuper.lookup([1, "a"])
        else:
            asyncio.run(gathered(lookuper, range(1)))
    assert 0.25 < time.monotonic() - started < 5
    server.handlers[LOOKUP] = server.lookup
    assert lookuper.lookup([1, "a"]) == row(1)


def test_answers_that_are_too_large_are_asked_for_in_parts(server: ScriptedKvServer) -> None:
    def lookup(request: pb.LookupRequest) -> pb.LookupResponse:
        answer = server.lookup(request)
        if len(request.buckets_req[0].keys) > 10 or b"\x07\x01a" in request.buckets_req[0].keys:
            answer.buckets_resp[0].ClearField("values")
            answer.buckets_resp[0].error_code = ErrorCode.RECORD_TOO_LARGE_EXCEPTION
        return answer

    server.handlers[LOOKUP] = lookup
    lookuper = lookuper_of(server)

    async def main() -> list[Any]:
        return await asyncio.gather(*(lookuper.begin([n, "a"]) for n in range(100)), return_exceptions=True)

    found = asyncio.run(main())
    assert [each for n, each in enumerate(found) if n != 7] == [row(n) for n in range(100) if n != 7]
    assert found[7].error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION


def test_answers_that_do_not_match_the_question_are_errors(server: ScriptedKvServer) -> None:
    lookuper = lookuper_of(server)
    server.handlers[LOOKUP] = lambda _: pb.LookupResponse()
    with pytest.raises(FlussError, match="leaves bucket 0 out"):
        lookuper.lookup([1, "a"])

    def surplus(request: pb.LookupRequest) -> pb.LookupResponse:
        answer = server.lookup(request)
        answer.buckets_resp[0].values.add()
        return answer

    server.handlers[LOOKUP] = surplus
    with pytest.raises(FlussError, match="2 answers for 1 keys"):
        lookuper.lookup([1, "a"])


def test_a_damaged_row_fails_its_own_lookup_only(server: ScriptedKvServer) -> None:
    key = server.encoder.encode_row([4, "a"])
    server.values[key] = server.values[key][:-1]
    lookuper = lookuper_of(server)

    async def main() -> list[Any]:
        return await asyncio.gather(*(lookuper.begin([n, "a"]) for n in range(6)), return_exceptions=True)

    found = asyncio.run(main())
    assert [each for n, each in enumerate(found) if n != 4] == [row(n) for n in range(6) if n != 4]
    assert "bucket 0 of table db.t" in str(found[4])


def test_rows_of_schemas_that_came_later_are_read_through_the_known_one(server: ScriptedKvServer) -> None:
    lookuper = lookuper_of(server)
    schema_id = server.add_column(Column("more", DataTypes.int()))
    server.put(9_000, "a", "new", 5, schema_id=schema_id)
    for _ in range(2):
        assert lookuper.lookup([9_000, "a"]) == {"id": 9_000, "sub": "a", "name": "new"}
    assert server.count(SCHEMA) == 1
    found = run(lookuper.lookup_many([[9_000, "a"], [1, "a"]]))
    assert found.to_pylist() == [{"id": 9_000, "sub": "a", "name": "new"}, row(1)]
    server.values[server.encoder.encode_row([9_001, "a"])] = b"\x63\x00\x00"
    server.handlers[SCHEMA] = lambda _: (_ for _ in ()).throw(Refuse(9, "no schema 99"))
    with pytest.raises(NotFoundError, match="no schema 99"):
        lookuper_of(server, **{"request-timeout-ms": 500}).lookup([9_001, "a"])


def test_many_keys_in_their_order(server: ScriptedKvServer) -> None:
    lookuper = lookuper_of(server)
    numbers = [n * 7 % 4_000 for n in range(4_000)] * 2
    expected = [row(n) if n < 3_000 else dict.fromkeys(("id", "sub", "name")) for n in numbers]
    keys = pa.table({"sub": pa.array(["a"] * len(numbers), pa.large_string()), "id": pa.array(numbers, pa.int32())})
    for form in (keys, keys.to_batches()[0], keys.to_reader(), keys.to_pylist(), [(n, "a") for n in numbers]):
        found = run(lookuper.lookup_many(form))
        assert found.to_pylist() == expected
    assert sum(server.key_counts) == 5 * len(numbers)
    assert max(server.key_counts) <= Config().lookup_max_batch_size
    assert run(lookuper.lookup_many([])).num_rows == run(lookuper.lookup_many(keys.slice(0, 0))).num_rows == 0


def test_a_prefix(server: ScriptedKvServer) -> None:
    table = TableDescriptor(server.table.schema, bucket_count=3, bucket_keys=["id"])
    with ScriptedKvServer(table) as other:
        for sub in "abc":
            other.put(1, sub, sub * 2)
        lookuper = run(client_of(other).table(PATH)).prefix_lookuper(["id"])
        assert lookuper.lookup([1]) == [{"id": 1, "sub": sub, "name": sub * 2} for sub in "abc"]
        assert lookuper.lookup({"id": 2}) == []
        assert lookuper.lookup_arrow([1]).column("sub").to_pylist() == ["a", "b", "c"]
        assert lookuper.lookup_arrow([2]).schema.names == ["id", "sub", "name"]


def test_partitions_come_and_go() -> None:
    columns = pa.schema([("day", pa.string()), ("id", pa.int64())])
    table = TableDescriptor(Schema(columns, ["day", "id"]), bucket_count=1, partition_keys=["day"])
    with ScriptedKvServer(table) as server:
        server.put("mon", 1)
        lookuper = lookuper_of(server)
        inserting = run(_clients[-1].table(PATH)).lookuper(insert_if_not_exists=True)
        asked = server.count(METADATA)
        assert lookuper.lookup(["mon", 1]) is None
        assert server.count(LOOKUP) == 0
        assert server.count(METADATA) - asked <= 3
        assert lookuper.lookup(["no/name", 1]) is None
        with pytest.raises(NotFoundError, match=r"'mon' .*does not exist"):
            inserting.lookup(["mon", 1])
        server.partitions = {"mon": 5, "tue": 6}
        assert lookuper.lookup(["mon", 1]) == {"day": "mon", "id": 1}
        found = run(lookuper.lookup_many([["sun", 1], ["mon", 1], ["tue", 2]])).to_pylist()
        assert found == [{"day": None, "id": None}, {"day": "mon", "id": 1}, {"day": None, "id": None}]
        server.partitions = {"tue": 6}
        assert lookuper.lookup(["mon", 1]) is None
        server.partitions = {"mon": 7}
        assert lookuper.lookup(["mon", 1]) == {"day": "mon", "id": 1}
        request = server.requests[-1][1]
        assert isinstance(request, pb.LookupRequest)
        assert request.buckets_req[0].partition_id == 7


def test_lookups_that_insert_say_so(server: ScriptedKvServer) -> None:
    table = run(client_of(server).table(PATH))
    assert table.lookuper(insert_if_not_exists=True).lookup([1, "a"]) == row(1)
    request = server.requests[-1][1]
    assert isinstance(request, pb.LookupRequest)
    assert (request.insert_if_not_exists, request.acks) == (True, -1)
    assert 25_000 < request.timeout_ms <= 30_000


def test_what_is_no_prefix(server: ScriptedKvServer) -> None:
    columns = pa.schema([("day", pa.string()), ("a", pa.int32()), ("b", pa.int32()), ("c", pa.int32())])
    lake = {"table.datalake.format": "paimon", "table.kv.format-version": "1"}
    options: dict[str, Any] = {"partition_keys": ["day"], "bucket_count": 2}
    for bucket_keys, properties, names, rule in (
        (["a"], None, ["a"], "has to be day, a"),
        (["a"], None, ["day"], "has to be day, a: the partition fields, then the bucket keys"),
        (["a"], None, ["day", "z"], "Unknown column name 'z'.*the columns of table .* are day, a, b, c"),
        (["a"], None, ["day", "a", "a"], "has to be day, a"),
        (["a"], None, ["day", "a", "c"], "has to be day, a"),
        (["b"], None, ["day", "b"], "does not begin with its bucket key"),
        (None, None, ["day", "a", "b"], "whole primary key"),
        (["a"], lake, ["day", "a"], "have no prefixes"),
    ):
        schema = Schema(columns, ["a", "day", "b"])
        table = TableDescriptor(schema, bucket_keys=bucket_keys, properties=properties, **options)
        with ScriptedKvServer(table) as other, pytest.raises(InvalidRequestError, match=rule):
            run(client_of(other).table(PATH)).prefix_lookuper(names)


def test_closing_ends_what_waits(server: ScriptedKvServer) -> None:
    held(server)
    lookuper = lookuper_of(server)
    errors: list[BaseException] = []

    def look() -> None:
        try:
            lookuper.lookup([1, "a"])
        except FlussError as error:
            errors.append(error)

    threads = [threading.Thread(target=look) for _ in range(10)]
    for thread in threads:
        thread.start()
    while not server.key_counts:
        time.sleep(0.001)
    run(_clients[-1].close())
    for thread in threads:
        thread.join(10)
    assert len(errors) == 10
    with pytest.raises(FlussError, match="closed"):
        lookuper.lookup([1, "a"])


def test_a_table_that_was_made_anew_is_another_one(server: ScriptedKvServer) -> None:
    lookuper = lookuper_of(server)

    def lookup(_: pb.LookupRequest) -> pb.LookupResponse:
        raise Refuse(21, "unknown table")

    def metadata(request: pb.MetadataRequest) -> pb.MetadataResponse:
        answer = ScriptedKvServer.metadata(server, request)
        for item in answer.table_metadata:
            item.table_id += 1
        return answer

    server.handlers |= {LOOKUP: lookup, METADATA: metadata}
    with pytest.raises(NotFoundError, match="made anew"):
        lookuper.lookup([1, "a"])


def test_a_blocking_lookup_on_the_io_thread_is_refused(server: ScriptedKvServer) -> None:
    lookuper = lookuper_of(server)

    async def look() -> Any:
        return lookuper.lookup([1, "a"])

    with pytest.raises(RuntimeError, match="I/O thread"):
        run(look())

    async def await_it() -> Any:
        return await lookuper.begin([1, "a"])

    assert run(await_it()) == row(1)


def test_what_can_not_be_looked_up(server: ScriptedKvServer) -> None:
    client = client_of(server)
    table = run(client.table(PATH))
    with pytest.raises(InvalidRequestError, match="whole primary key"):
        table.prefix_lookuper(["id"])
    strict = Schema.of([*kv_descriptor().schema.columns, Column("n", DataTypes.int().not_null())], ["id", "sub"])
    with (
        ScriptedKvServer(TableDescriptor(strict)) as other,
        pytest.raises(InvalidRequestError, match="'n' is NOT NULL"),
    ):
        run(client_of(other).table(PATH)).lookuper(insert_if_not_exists=True)
    log = TableDescriptor(Schema(pa.schema([("id", pa.int64())])), bucket_count=1)
    with ScriptedServer(log) as plain, pytest.raises(InvalidRequestError, match="log table"):
        run(client_of(plain).table(PATH)).lookuper()

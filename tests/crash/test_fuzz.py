"""Structure-aware fuzzing of a server under load (R19, R20): each request is answered, others go on, memory stays.

The seed is printed; a longer run with the same seed begins with the same input.
"""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pyarrow as pa
import pytest

import fluss
from fluss.formats.arrow.payload import encode
from fluss.formats.batches.log_batch import encode_batch
from fluss.model.errors import FlussError
from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.limits import Limits
from tests.crash.fuzzing import (
    ANSWER_S_MAX,
    BATCHES_AT_ONCE,
    DURATIONS,
    MEMORY_GROWTH_BYTES_MAX,
    ask_all,
    rounds,
    watched,
)
from tests.crash.servers import new_server
from tests.crash.target import Target, target
from tests.kit.batch_samples import CODECS, FLAT, FLAT_ROWS, NESTED, NESTED_ROWS, good_batches
from tests.kit.mutations import Pools, mutated, mutated_batch, random_message, random_predicate, sealed
from tests.kit.wire import ConnectionLostError, Wire, parsed, produce_request, produced

__all__ = ["target"]

DATABASE = "fuzz"
READING = [api.key for api in (api_keys.METADATA, api_keys.FETCH_LOG, api_keys.LIST_OFFSETS, api_keys.GET_TABLE_INFO)]


class Table:
    """A table, and good batches for it."""

    def __init__(self, wire: Wire, name: str, rows: pa.RecordBatch, log_format: str, codec: str) -> None:
        properties = {"table.statistics.columns": "*"} if log_format == "ARROW" else {}
        path = fluss.TablePath(DATABASE, name)
        schema = fluss.Schema(rows.schema)
        descriptor = fluss.TableDescriptor(schema, bucket_count=2, log_format=log_format, properties=properties)
        self.name = name
        self.table_id = wire.create_table(path, descriptor)
        self.field_count = len(rows.schema)
        self.batches = good_batches(rows, log_format, codec)


class Tables:
    """One table for each way of storing rows."""

    def __init__(self, address: str) -> None:
        with Wire(address) as wire:
            wire.call(api_keys.CREATE_DATABASE, pb.CreateDatabaseRequest(database_name=DATABASE, ignore_if_exists=True))
            self.all = [
                Table(wire, "flat", FLAT_ROWS, "ARROW", "none"),
                Table(wire, "nested_plain", NESTED_ROWS, "ARROW", "none"),
                Table(wire, "nested_zstd", NESTED_ROWS, "ARROW", "zstd"),
                Table(wire, "nested_lz4", NESTED_ROWS, "ARROW", "lz4"),
                Table(wire, "rows", FLAT_ROWS, "INDEXED", "none"),
                Table(wire, "nested_rows", NESTED_ROWS, "INDEXED", "none"),
            ]
            for table in self.all:
                for batch in table.batches:
                    produced = wire.produce(table.table_id, 0, batch)
                    assert not produced.error_code, (table.name, produced)
        names = [table.name for table in self.all]
        partitioned = fluss.TableDescriptor(fluss.Schema(FLAT), partition_keys=["name"])
        descriptors = [fluss.TableDescriptor(fluss.Schema(schema)) for schema in (FLAT, NESTED)]
        self.pools = Pools(
            {
                "database_name": [DATABASE],
                "table_name": [*names, "new", "newer", "partitioned"],
                "table_json": [descriptor.to_json() for descriptor in (*descriptors, partitioned)],
                "database_json": [b'{"version":1,"comment":"c","custom_properties":{}}'],
                "table_id": [table.table_id for table in self.all],
                "bucket_id": [0, 1],
                "records": [batch for table in self.all for batch in table.batches],
                "acks": [-1, 1, 0],
                "max_bytes": [1 << 20],
                "max_fetch_bytes": [10_000],
                "fetch_offset": [0, 30],
                "schema_id": [1],
                "limit": [10],
                "partition_name": ["a"],
                "key": ["name", "table.log.ttl"],
                "config_key": ["table.log.ttl", "my.key"],
                "config_value": ["1d"],
                "offset_type": [0, 1, 2],
            }
        )


@pytest.fixture(scope="module")
def tables(target: Target) -> Tables:
    return Tables(target.server.bootstrap_servers)


def ask(wire: Wire, api_key: int, body: bytes) -> frames.Response:
    """Every request gets one answer."""
    request_id = wire.send(api_key, body)
    response = wire.receive()
    assert response.request_id == request_id
    return response


@DURATIONS
def test_messages_of_every_type(target: Target, tables: Tables, chance: random.Random, seconds: float) -> None:
    # Without these two the tables would not live long; they are part of the short runs in test_hostile.py.
    apis = [api for api in api_keys.ALL if api not in (api_keys.DROP_DATABASE, api_keys.DROP_TABLE)]
    answered = {api.name: 0 for api in apis}
    with watched(target), Wire(target.server.bootstrap_servers, ANSWER_S_MAX) as wire:
        for _ in rounds(seconds):
            requests: list[tuple[int, bytes]] = []
            for api in apis:
                body = random_message(api.request, tables.pools, chance).SerializePartialToString()
                requests.append((api.key, mutated(body, chance) if chance.random() < 0.3 else body))
            for api, response in zip(apis, ask_all(wire, requests), strict=True):
                answered[api.name] += response.kind == frames.SUCCESS
    print(answered)
    assert sum(map(bool, answered.values())) > len(apis) / 3, "hardly anything gets past the first check"


@DURATIONS
def test_batches(target: Target, tables: Tables, chance: random.Random, seconds: float) -> None:
    """Changed batches, appended if they pass, then read in every way: whole, projected, filtered, limited."""
    taken = refused = 0
    with watched(target), Wire(target.server.bootstrap_servers, ANSWER_S_MAX) as wire:
        for _ in rounds(seconds):
            table = chance.choice(tables.all)
            batches = [mutated_batch(chance.choice(table.batches), chance) for _ in range(BATCHES_AT_ONCE)]
            requests = [produce_request(table.table_id, 1, batch).SerializeToString() for batch in batches]
            for response in ask_all(wire, [(api_keys.PRODUCE_LOG.key, body) for body in requests]):
                answer = parsed(pb.ProduceLogResponse, response)
                refused += bool(produced(answer).error_code)
                taken += not produced(answer).error_code
            read_every_way(wire, table, chance)
    print(f"{taken} taken, {refused} refused")
    assert taken
    assert refused


def read_every_way(wire: Wire, table: Table, chance: random.Random) -> None:
    latest = wire.latest(table.table_id, 1)
    for projected in (False, True):
        request = fetch_request(table.table_id, chance.randrange(latest + 1))
        if projected:
            request.tables_req[0].projection_pushdown_enabled = True
            wanted = chance.sample(range(table.field_count), chance.randint(1, table.field_count))
            request.tables_req[0].projected_fields.extend(sorted(wanted))
        ask(wire, api_keys.FETCH_LOG.key, request.SerializeToString())
    limit = pb.LimitScanRequest(table_id=table.table_id, bucket_id=1, limit=chance.choice((1, 10, 1_000)))
    ask(wire, api_keys.LIMIT_SCAN.key, limit.SerializeToString())


def fetch_request(table_id: int, offset: int) -> pb.FetchLogRequest:
    request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=4 << 20, max_wait_ms=0, min_bytes=0)
    table = request.tables_req.add(table_id=table_id, projection_pushdown_enabled=False)
    table.buckets_req.add(bucket_id=1, fetch_offset=offset, max_fetch_bytes=1 << 20)
    return request


@DURATIONS
def test_predicates(target: Target, tables: Tables, chance: random.Random, seconds: float) -> None:
    """Filters over good and bad statistics, nearly right, nested, with literals of other types."""
    succeeded = 0
    with watched(target), Wire(target.server.bootstrap_servers, ANSWER_S_MAX) as wire:
        for table in tables.all:
            for batch in table.batches:
                wire.produce(table.table_id, 1, batch)
        for _ in rounds(seconds):
            requests = [filtered_fetch(chance.choice(tables.all), chance) for _ in range(BATCHES_AT_ONCE)]
            for response in ask_all(wire, [(api_keys.FETCH_LOG.key, body) for body in requests]):
                if response.kind == frames.SUCCESS:
                    answer = parsed(pb.FetchLogResponse, response)
                    succeeded += not any(b.HasField("error_code") for t in answer.tables_resp for b in t.buckets_resp)
    assert succeeded


def filtered_fetch(table: Table, chance: random.Random) -> bytes:
    request = fetch_request(table.table_id, 0)
    entry = request.tables_req[0]
    entry.buckets_req[0].max_fetch_bytes = 10_000
    entry.filter_predicate.CopyFrom(random_predicate(list(range(table.field_count)), chance))
    entry.filter_schema_id = chance.choice((1, 1, 1, 1, 0, 2, -1))
    return request.SerializePartialToString()


@DURATIONS
def test_streams_of_frames(target: Target, tables: Tables, chance: random.Random, seconds: float) -> None:
    """Several requests in one stream, its bytes changed and sent in odd pieces: answers, or the end; never a hang."""
    with watched(target):
        for _ in rounds(seconds):
            with Wire(target.server.bootstrap_servers, ANSWER_S_MAX) as wire, contextlib.suppress(ConnectionLostError):
                stream = b"".join(some_frame(wire, tables, chance) for _ in range(chance.randint(1, 6)))
                stream = mutated(stream, chance)
                while stream:
                    size = chance.choice((1, 3, 11, 500, 1 << 20))
                    wire.send_bytes(stream[:size])
                    stream = stream[size:]
                # Its length may now promise more than was sent: then there is nothing to wait for.
                if chance.random() < 0.5:
                    wire.send_bytes(bytes(1 << 10))
    target.await_connections_gone()


def some_frame(wire: Wire, tables: Tables, chance: random.Random) -> bytes:
    table = chance.choice(tables.all)
    if chance.random() < 0.4:
        body = produce_request(table.table_id, 1, chance.choice(table.batches)).SerializeToString()
        return wire.frame(api_keys.PRODUCE_LOG.key, body)[1]
    api = api_keys.BY_KEY[chance.choice(READING)]
    return wire.frame(api.key, random_message(api.request, tables.pools, chance).SerializePartialToString())[1]


def test_decompression_bombs(target: Target, tables: Tables, chance: random.Random) -> None:
    """Kilobytes that promise gigabytes, and lengths that can't be: the server does not unpack them, nor the client."""
    (table,) = (table for table in tables.all if table.name == "flat")
    zeros = pa.record_batch(
        [pa.nulls(1_000_000, field.type) for field in FLAT],
        schema=FLAT,
    )
    with watched(target), Wire(target.server.bootstrap_servers, ANSWER_S_MAX) as wire:
        for codec in ("zstd", "lz4"):
            bomb = bytes(encode_batch(encode(zeros, CODECS[codec]), schema_id=1, record_count=zeros.num_rows))
            for _ in range(5):
                wire.produce(table.table_id, 1, bomb)
                read_every_way(wire, table, chance)
            # The size before compression stands in front of each buffer: make it absurd.
            for claim in (2**31, 2**40, 2**62, -2):
                raw = (24_000_000).to_bytes(8, "little")
                lie = sealed(bomb.replace(raw, claim.to_bytes(8, "little", signed=True)))
                wire.produce(table.table_id, 1, lie)
                read_every_way(wire, table, chance)


def test_sasl_tokens(tmp_path: Path, chance: random.Random) -> None:
    """No token that is not the password's gets in, each is answered, and none is in the log."""
    from fluss.server.net.logins import parse_plain

    good = b"\0alice\0correct horse"
    refusals: list[FlussError] = []
    for _ in range(20_000):
        token = mutated(good, chance)
        try:
            user, password = parse_plain(token)
        except FlussError as error:
            refusals.append(error)
        else:
            assert b"\0".join((token.split(b"\0")[0], user.encode(), password.encode())) == token
    assert not [error for error in refusals if "horse" in str(error) or error.__cause__ is not None]
    users = tmp_path / "users"
    server = new_server(tmp_path, args=["--sasl-users", str(users)])
    add_user(users, "alice", "correct horse")
    with server, Wire(server.bootstrap_servers, ANSWER_S_MAX) as wire:
        for _ in range(200):
            token = mutated(good, chance)
            try:
                parse_plain(token)
            except FlussError:
                request = pb.AuthenticateRequest(protocol=chance.choice(("PLAIN", "plain")), token=token)
                assert ask(wire, api_keys.AUTHENTICATE.key, request.SerializeToString()).kind == frames.ERROR
                assert ask(wire, api_keys.LIST_DATABASES.key, b"").kind == frames.ERROR
        with Wire(server.bootstrap_servers, ANSWER_S_MAX) as wrong:
            request = pb.AuthenticateRequest(protocol="PLAIN", token=good + b"x")
            assert ask(wrong, api_keys.AUTHENTICATE.key, request.SerializeToString()).kind == frames.ERROR
        wire.call(api_keys.AUTHENTICATE, pb.AuthenticateRequest(protocol="PLAIN", token=good))
        assert wire.call(api_keys.LIST_DATABASES, pb.ListDatabasesRequest()).database_name
        log = server.log_file.read_text()
    assert "Traceback" not in log
    assert "horse" not in log


def add_user(path: Path, name: str, password: str) -> None:
    from click.testing import CliRunner

    from fluss.cli.main import main

    done = CliRunner().invoke(main, ["user", "add", str(path), name], input=f"{password}\n{password}\n")
    assert done.exit_code == 0, done.output


def test_the_memory_bound_of_these_tests_is_twice_a_limit() -> None:
    """What one connection may make the server hold: the largest batch. Twice that is the bound used above."""
    assert 2 * Limits().batch_bytes_max == MEMORY_GROWTH_BYTES_MAX

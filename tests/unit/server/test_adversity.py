"""Hostile and broken input: always an answer with the right code, never harm to others (R19, R21)."""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from fluss.model.errors import RETRIABLE_CODES
from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.limits import Limits
from tests.kit.thread_server import (
    RunningServer,
    Wire,
    WireError,
    batch,
    create_table,
    descriptor,
    fetch,
    path,
    produce_request,
)

BAD_NAMES = [
    "../x",
    "a/b",
    "..",
    ".",
    "",
    "x" * 201,
    "__x",
    "ä",
    "a\0b",
    "a b",
    "a\\b",
    "a.b",
    "a\n",
    "\u202e",
    "%2e%2e",
]


def still_serves(server: RunningServer, wire: Wire) -> None:
    """The same connection goes on, and so does another client."""
    assert wire.call(api_keys.METADATA, pb.MetadataRequest()).tablet_servers
    with server.connect() as other:
        assert other.call(api_keys.METADATA, pb.MetadataRequest()).tablet_servers


@pytest.mark.parametrize("api_key", [0, 1, 999, 1013, 1018, 1065, 2000, -1, 32767, -32768])
def test_unknown_api_keys_are_answered(server: RunningServer, wire: Wire, api_key: int) -> None:
    error = wire.receive_error(wire.send_raw(api_key, b"whatever"))
    assert error.code == 2
    assert str(api_key) in error.text
    assert "ApiVersions (1000)" in error.text
    still_serves(server, wire)


@pytest.mark.parametrize("version", [1, 99, -1])
def test_unknown_versions_are_answered(server: RunningServer, wire: Wire, version: int) -> None:
    error = wire.receive_error(wire.send_raw(api_keys.METADATA.key, b"", version))
    assert (error.code, "versions 0 to 0" in error.text) == (2, True)
    still_serves(server, wire)


@pytest.mark.parametrize("api", api_keys.ALL, ids=lambda api: api.name)
def test_unreadable_bodies_are_answered_with_a_code_that_is_not_retried(
    server: RunningServer, wire: Wire, api: api_keys.Api
) -> None:
    bodies = [b"\xff\xff\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0b" * 300, b"\x08"]
    if not api.request().IsInitialized():
        bodies.append(b"")
    for body in bodies:
        error = wire.receive_error(wire.send_raw(api.key, body))
        assert error.code == 2
        assert error.code not in RETRIABLE_CODES
        assert api.name in error.text
    still_serves(server, wire)


def test_random_bodies_always_get_an_answer(server: RunningServer, wire: Wire) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    create_table(wire)
    samples = [
        produce_request(0, (0, batch())).SerializeToString(),
        pb.CreateTableRequest(table_path=path("x"), table_json=descriptor(), ignore_if_exists=True).SerializeToString(),
        pb.MetadataRequest(table_path=[path()]).SerializeToString(),
    ]
    for _ in range(600):
        api = chance.choice(api_keys.ALL)
        body = bytearray(chance.choice(samples) if chance.random() < 0.7 else chance.randbytes(chance.randrange(200)))
        for _ in range(chance.randrange(6)):
            if body:
                body[chance.randrange(len(body))] = chance.randrange(256)
        request_id = wire.send_raw(api.key, bytes(body[: chance.randrange(len(body) + 1)]))
        response = wire.receive()
        assert response.request_id == request_id
        assert response.kind in (frames.SUCCESS, frames.ERROR)
    still_serves(server, wire)


def test_mutated_descriptors_are_refused_or_stored(server: RunningServer, wire: Wire) -> None:
    """Every shape of JSON gets a code of ours: -1 would mean that a check is missing."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    odd = [None, "\ud800", True, 0, -1, 1.5, "", "x", [], {}, [None], {"a": 1}, [[]], "INTEGER"]

    def mutate(value: object) -> object:
        if chance.random() < 0.08:
            return chance.choice(odd)
        if isinstance(value, dict):
            return {key: mutate(item) for key, item in value.items() if chance.random() > 0.03}
        if isinstance(value, list):
            return [mutate(item) for item in value]
        return value

    rich = json.loads(descriptor(comment="c", bucket_key=["id"], bucket_count=2))
    rich["schema"]["columns"][1]["data_type"] = {
        "type": "MAP",
        "key_type": {"type": "STRING"},
        "value_type": {
            "type": "ROW",
            "fields": [{"name": "x", "field_type": {"type": "DECIMAL", "precision": 5, "scale": 2}}],
        },
    }
    for number in range(400):
        table_json = json.dumps(mutate(rich)).encode()
        request = pb.CreateTableRequest(table_path=path(f"t{number}"), table_json=table_json, ignore_if_exists=False)
        wire.send(api_keys.CREATE_TABLE, request)
        response = wire.receive()
        if response.kind == frames.ERROR:
            assert pb.ErrorResponse.FromString(bytes(response.body)).error_code > 0, table_json
        else:
            wire.call(api_keys.METADATA, pb.MetadataRequest(table_path=[path(f"t{number}")]))
    still_serves(server, wire)


def _oversize(length: int) -> bytes:
    return struct.pack(">ihhi", length, api_keys.PRODUCE_LOG.key, 0, 55) + b"x" * 100


@pytest.mark.parametrize("length", [(100 << 20) + 1, 2**31 - 1, -1, -(2**31)])
def test_a_frame_of_impossible_length_is_answered_and_its_connection_closed(
    server: RunningServer, wire: Wire, length: int
) -> None:
    with server.connect() as hostile:
        hostile.socket.sendall(_oversize(length))
        error = hostile.receive_error(55)
        assert error.code == 13
        assert str(length) in error.text
        assert hostile.is_closed_by_server()
    still_serves(server, wire)


def test_requests_before_an_impossible_frame_are_answered(server: RunningServer) -> None:
    with server.connect() as hostile:
        hostile.socket.sendall(frames.request_header(api_keys.METADATA.key, 0, 54, 0) + _oversize(-1))
        assert hostile.receive_answer(54, api_keys.METADATA).tablet_servers
        assert hostile.receive_error(55).code == 13
        assert hostile.is_closed_by_server()


def test_an_oversize_request_that_is_sent_in_full_still_gets_its_answer(tmp_path: Path) -> None:
    limits = Limits(frame_bytes_max=1 << 20, control_request_bytes_max=1 << 20)
    with RunningServer(tmp_path, limits=limits) as server, server.connect() as wire:
        body = b"x" * (3 << 20)
        wire.socket.sendall(frames.request_header(api_keys.PRODUCE_LOG.key, 0, 9, len(body)) + body)
        assert wire.receive_error(9).code == 13


def test_control_requests_have_a_smaller_limit(server: RunningServer, wire: Wire) -> None:
    error = wire.receive_error(wire.send_raw(api_keys.METADATA.key, b"\0" * (3 << 20)))
    assert error.code == 13
    still_serves(server, wire)


def test_requests_that_name_too_much(tmp_path: Path) -> None:
    with RunningServer(tmp_path, limits=Limits(request_items_max=3)) as server, server.connect() as wire:
        table_id = create_table(wire)
        with pytest.raises(WireError, match="send several") as raised:
            wire.call(api_keys.METADATA, pb.MetadataRequest(table_path=[path()] * 4))
        assert raised.value.code == 13
        request = produce_request(table_id, *[(0, batch())] * 4)
        with pytest.raises(WireError, match="send several"):
            wire.call(api_keys.PRODUCE_LOG, request)
        assert fetch(wire, table_id).high_watermark == 0


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + b"\0" * 60,
        b"\0" * 64,
        b"\xff" * 64,
        b"\0\0\0\x03abc",
    ],
)
def test_other_protocols_are_hung_up_on(server: RunningServer, wire: Wire, garbage: bytes) -> None:
    with server.connect() as stranger:
        stranger.socket.sendall(garbage)
        stranger.socket.shutdown(socket.SHUT_WR)
        while stranger.socket.recv(4096):
            pass
    still_serves(server, wire)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 11, 12, 40])
def test_connections_cut_within_a_frame(server: RunningServer, wire: Wire, size: int) -> None:
    table_id = create_table(wire)
    body = produce_request(table_id, (0, batch())).SerializeToString()
    frame = frames.request_header(api_keys.PRODUCE_LOG.key, 0, 1, len(body)) + body
    with server.connect() as cut:
        cut.socket.sendall(frame[:size])
        cut.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert fetch(wire, table_id).high_watermark == 0
    still_serves(server, wire)


NAME_REQUESTS: list[tuple[api_keys.Api, Callable[[str], object], int]] = [
    (api_keys.CREATE_DATABASE, lambda name: pb.CreateDatabaseRequest(database_name=name, ignore_if_exists=True), 16),
    (
        api_keys.DROP_DATABASE,
        lambda name: pb.DropDatabaseRequest(database_name=name, ignore_if_not_exists=True, cascade=True),
        16,
    ),
    (api_keys.DATABASE_EXISTS, lambda name: pb.DatabaseExistsRequest(database_name=name), 16),
    (api_keys.GET_DATABASE_INFO, lambda name: pb.GetDatabaseInfoRequest(database_name=name), 16),
    (api_keys.LIST_TABLES, lambda name: pb.ListTablesRequest(database_name=name), 16),
    (
        api_keys.CREATE_TABLE,
        lambda name: pb.CreateTableRequest(table_path=path(name), table_json=descriptor(), ignore_if_exists=True),
        15,
    ),
    (
        api_keys.CREATE_TABLE,
        lambda name: pb.CreateTableRequest(table_path=path("t", name), table_json=descriptor(), ignore_if_exists=True),
        16,
    ),
    (api_keys.DROP_TABLE, lambda name: pb.DropTableRequest(table_path=path(name), ignore_if_not_exists=True), 15),
    (api_keys.TABLE_EXISTS, lambda name: pb.TableExistsRequest(table_path=path(name)), 15),
    (api_keys.GET_TABLE_INFO, lambda name: pb.GetTableInfoRequest(table_path=path(name)), 15),
    (api_keys.GET_TABLE_SCHEMA, lambda name: pb.GetTableSchemaRequest(table_path=path(name)), 15),
    (api_keys.METADATA, lambda name: pb.MetadataRequest(table_path=[path(name)]), 15),
    (api_keys.INIT_WRITER, lambda name: pb.InitWriterRequest(table_path=[path(name)]), 15),
]


@pytest.mark.parametrize(("api", "make", "code"), NAME_REQUESTS, ids=lambda value: getattr(value, "name", ""))
def test_names_can_not_leave_the_data_directory(
    server: RunningServer, wire: Wire, api: api_keys.Api, make: Callable[[str], pb.MetadataRequest], code: int
) -> None:
    before = _files(server.config.data_dir)
    for name in BAD_NAMES:
        with pytest.raises(WireError, match=r"Invalid .* name") as raised:
            wire.call(api, make(name))
        assert raised.value.code == code, name
    still_serves(server, wire)
    assert _files(server.config.data_dir) == before
    assert [entry.name for entry in server.config.data_dir.parent.iterdir()] == ["data"]


def test_names_that_are_not_text(server: RunningServer, wire: Wire) -> None:
    body = pb.DatabaseExistsRequest(database_name="abc").SerializeToString().replace(b"abc", b"a\xffc")
    assert wire.receive_error(wire.send_raw(api_keys.DATABASE_EXISTS.key, body)).code == 16
    still_serves(server, wire)


def _files(root: Path) -> set[str]:
    ignored = ("catalog.db-wal", "catalog.db-shm")
    return {str(file.relative_to(root)) for file in root.rglob("*") if file.name not in ignored}

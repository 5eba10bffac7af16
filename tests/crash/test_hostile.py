"""Malformed, cut, oversize and dripping input: the server answers or hangs up, and serves others meanwhile."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from fluss.model.errors import ErrorCode
from fluss.protocol import api_keys, frames
from fluss.protocol import messages_pb2 as pb
from tests.crash.target import Target, target
from tests.kit.loads.workload import DATABASE
from tests.kit.rows import Row, descriptor, wire_batch
from tests.kit.wire import ConnectionLostError, Wire, error_of, produce_request

__all__ = ["target"]  # a fixture

MEMORY_GROWTH_BYTES_MAX = 64 << 20
ROUNDS = 20
DRIPPING = 50
GIANTS = 100
TINY_FRAMES = 5_000
UNKNOWN_ID = 1 << 40

Attack: TypeAlias = Callable[[str, int, random.Random], None]


def refused(wire: Wire, api_key: int, body: bytes, api_version: int = 0) -> int:
    """Send a request that must get an error frame; returns the code."""
    request_id = wire.send(api_key, body, api_version)
    response = wire.receive()
    assert (response.kind, response.request_id) == (frames.ERROR, request_id)
    return error_of(response).error_code


def unknown_api_keys(address: str, table_id: int, chance: random.Random) -> None:
    with Wire(address) as wire:
        for _ in range(ROUNDS):
            key = chance.choice([0, -1, 999, 1_013, 9_999, 32_767])
            assert refused(wire, key, chance.randbytes(chance.randrange(50))) == ErrorCode.UNSUPPORTED_VERSION


def unknown_versions(address: str, table_id: int, chance: random.Random) -> None:
    with Wire(address) as wire:
        for version in (-1, 99, 32_767):
            assert refused(wire, api_keys.METADATA.key, b"", version) == ErrorCode.UNSUPPORTED_VERSION


def unreadable_bodies(address: str, table_id: int, chance: random.Random) -> None:
    """Noise for every api: an answer of any kind, but one answer each."""
    with Wire(address) as wire:
        for api in api_keys.ALL:
            for size in (1, 7, 300):
                request_id = wire.send(api.key, b"\xff" * 3 + chance.randbytes(size))
                assert wire.receive().request_id == request_id


def bit_flips_in_batches(address: str, table_id: int, chance: random.Random) -> None:
    """A good batch with a few bits flipped: refused, or taken where the checksum does not reach. Always answered."""
    with Wire(address) as wire:
        for _ in range(10 * ROUNDS):
            batch = wire_batch([Row(9, 0)])
            for _ in range(chance.randint(1, 3)):
                batch[chance.randrange(len(batch))] ^= 1 << chance.randrange(8)
            wire.produce(table_id, 0, batch)


def bad_checksums(address: str, table_id: int, chance: random.Random) -> None:
    with Wire(address) as wire:
        for _ in range(ROUNDS):
            batch = wire_batch([Row(9, 1), Row(9, 2)])
            batch[-chance.randint(1, 40)] ^= 0xFF
            assert wire.produce(table_id, 0, batch).error_code == ErrorCode.CORRUPT_RECORD_EXCEPTION


def unknown_tables(address: str, table_id: int, chance: random.Random) -> None:
    batch = wire_batch([Row(9, 3)])
    with Wire(address) as wire:
        for table, bucket in ((UNKNOWN_ID, 0), (-1, 0), (table_id, 1_000), (table_id, -1)):
            assert wire.produce(table, bucket, batch).error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION
            (answer,) = wire.fetch_buckets(table, [(bucket, 0)])
            assert answer.error_code == ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION


def names_that_leave_the_directory(address: str, table_id: int, chance: random.Random) -> None:
    with Wire(address) as wire:
        for name in ("../../x", "/etc", "..", "a/b", "a\\b", "a\x00b", "__x", "", "x" * 201, "\u0430\u0435", "C:"):
            path = pb.PbTablePath(database_name=DATABASE, table_name=name)
            request = pb.CreateTableRequest(table_path=path, table_json=descriptor(1).to_json(), ignore_if_exists=False)
            body = request.SerializeToString()
            assert refused(wire, api_keys.CREATE_TABLE.key, body) == ErrorCode.INVALID_TABLE_EXCEPTION
            database = pb.CreateDatabaseRequest(database_name=name, ignore_if_exists=False).SerializeToString()
            assert refused(wire, api_keys.CREATE_DATABASE.key, database) == ErrorCode.INVALID_DATABASE_EXCEPTION


def oversize_frames(address: str, table_id: int, chance: random.Random) -> None:
    """A length beyond the limit is told to its request, and the connection ends."""
    for length in (2**31 - 1, frames.FRAME_SIZE_BYTES_MAX + 1, -1, -(2**31)):
        with Wire(address) as wire:
            wire.send_bytes(struct.pack(">ihhi", length, api_keys.PRODUCE_LOG.key, 0, 77))
            response = wire.receive()
            assert (response.kind, response.request_id) == (frames.ERROR, 77)
            assert error_of(response).error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
            assert_ends(wire)


def frames_without_header(address: str, table_id: int, chance: random.Random) -> None:
    for size in range(8):
        with Wire(address) as wire:
            wire.send_bytes(struct.pack(">i", size) + bytes(size))
            assert_ends(wire)


def half_frames(address: str, table_id: int, chance: random.Random) -> None:
    """Cut at a random byte, then gone, with and without a reset."""
    for _ in range(5 * ROUNDS):
        with Wire(address) as wire:
            _, frame = wire.frame(
                api_keys.PRODUCE_LOG.key, produce_request(table_id, 0, wire_batch([Row(9, 4)])).SerializeToString()
            )
            wire.send_bytes(frame[: chance.randrange(1, len(frame))])


def garbage(address: str, table_id: int, chance: random.Random) -> None:
    for _ in range(5 * ROUNDS):
        with Wire(address) as wire, contextlib.suppress(ConnectionLostError):
            wire.send_bytes(chance.choice([b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b""]))
            wire.send_bytes(chance.randbytes(chance.randrange(1, 10_000)))


def tiny_frames(address: str, table_id: int, chance: random.Random) -> None:
    """Thousands of requests before the first answer is read; each gets its own."""
    with Wire(address) as wire:
        sent = [wire.frame(api_keys.LIST_DATABASES.key, b"") for _ in range(TINY_FRAMES)]
        wire.send_bytes(b"".join(frame for _, frame in sent))
        assert [wire.receive().request_id for _ in sent] == [request_id for request_id, _ in sent]


def assert_ends(wire: Wire) -> None:
    with pytest.raises(ConnectionLostError):
        wire.receive()


@contextlib.contextmanager
def dripping(address: str, table_id: int) -> Iterator[Callable[[], None]]:
    """Connections in the middle of a frame; each call sends one more byte on every one."""
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(Wire(address)) for _ in range(DRIPPING)]
        body = produce_request(table_id, 0, wire_batch([Row(9, 5)])).SerializeToString()
        rest = [iter(wire.frame(api_keys.PRODUCE_LOG.key, body)[1]) for wire in wires]

        def drip() -> None:
            for wire, data in zip(wires, rest, strict=True):
                wire.send_bytes(bytes([next(data)]))

        yield drip


ATTACKS: tuple[Attack, ...] = (
    unknown_api_keys,
    unknown_versions,
    unreadable_bodies,
    bit_flips_in_batches,
    bad_checksums,
    unknown_tables,
    names_that_leave_the_directory,
    oversize_frames,
    frames_without_header,
    half_frames,
    garbage,
    tiny_frames,
)


@pytest.mark.parametrize("attack", ATTACKS)
def test_others_are_served_during(target: Target, chance: random.Random, attack: Attack) -> None:
    before = target.memory_bytes
    attack(target.server.bootstrap_servers, target.table_id, chance)
    target.check()
    assert target.memory_bytes - before < MEMORY_GROWTH_BYTES_MAX


def test_dripping_connections_delay_nobody(target: Target) -> None:
    before = target.memory_bytes
    with dripping(target.server.bootstrap_servers, target.table_id) as drip:
        for _ in range(ROUNDS):
            drip()
        target.check()
        drip()
    assert target.memory_bytes - before < MEMORY_GROWTH_BYTES_MAX


def test_half_frames_leave_nothing_behind(target: Target, chance: random.Random) -> None:
    before = target.memory_bytes
    half_frames(target.server.bootstrap_servers, target.table_id, chance)
    target.await_connections_gone()
    target.check()
    assert target.memory_bytes - before < MEMORY_GROWTH_BYTES_MAX


def test_promised_giants_leave_nothing_behind(target: Target) -> None:
    """Connections that announce the largest frame cost what they sent of it, also once they are gone."""
    before = target.memory_bytes
    header = frames.request_header(api_keys.PRODUCE_LOG.key, 0, 1, frames.FRAME_SIZE_BYTES_MAX - 8)
    with contextlib.ExitStack() as stack:
        for _ in range(GIANTS):
            stack.enter_context(Wire(target.server.bootstrap_servers)).send_bytes(header + bytes(1_000))
        target.check()
        assert target.memory_bytes - before < MEMORY_GROWTH_BYTES_MAX
    target.await_connections_gone()
    target.check()
    assert target.memory_bytes - before < MEMORY_GROWTH_BYTES_MAX

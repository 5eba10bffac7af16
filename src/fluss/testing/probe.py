"""A small client of two requests, written without the package that it helps to test."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_DATABASE_EXISTS = 1004
_GET_METADATA = 1012
_REQUEST = struct.Struct(">ihhi")  # length, api key, api version, request id
_RESPONSE = struct.Struct(">iBi")  # length, type, request id
_SUCCESS = 0
_TIMEOUT_S = 5.0

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Fields = list[tuple[int, int | bytes]]


@dataclass(frozen=True)
class ProbedServers:
    """Servers as one of them lists them."""

    coordinators: int
    tablets: tuple[tuple[str, int], ...]


def probe_cluster(host: str, port: int) -> ProbedServers | None:
    """What the server at this address knows of its cluster; None when it does not answer, or not with success."""
    fields = _ask(host, port, _GET_METADATA, b"")
    if fields is None:
        return None
    tablets = tuple(_node_address(node) for node in _messages(fields, 2))
    return ProbedServers(coordinators=len(_messages(fields, 1)), tablets=tablets)


def has_leaders(host: str, port: int, database: str, table: str, partition: str | None = None) -> bool:
    """Whether the server at this address knows a leader for every bucket of a table, or of one partition of it."""
    path = _text(1, database) + _text(2, table)
    if partition is None:
        body, answers, buckets = _tagged(1, path), 3, 5
    else:
        body, answers, buckets = _tagged(2, path + _text(3, partition)), 4, 4
    response = _ask(host, port, _GET_METADATA, body)
    found = [bucket for answer in _messages(response or [], answers) for bucket in _messages(_parse(answer), buckets)]
    return bool(found) and all(any(number == 2 for number, _ in _parse(bucket)) for bucket in found)


def has_database(host: str, port: int, name: str) -> bool:
    """Whether the server at this address knows a database."""
    return (1, 1) in (_ask(host, port, _DATABASE_EXISTS, _text(1, name)) or [])


def _ask(host: str, port: int, api_key: int, body: bytes) -> Fields | None:
    try:
        with socket.create_connection((host, port), _TIMEOUT_S) as connection:
            connection.sendall(_REQUEST.pack(8 + len(body), api_key, 0, 1) + body)
            length, kind, _ = _RESPONSE.unpack(_read(connection, _RESPONSE.size))
            payload = _read(connection, length - 5)
    except (OSError, EOFError):
        return None
    return list(_parse(payload)) if kind == _SUCCESS else None


def _read(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise EOFError
        received += chunk
    return bytes(received)


def _parse(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: numbers as int, everything else as bytes."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield number, value
            continue
        if kind == _BYTES:
            size, position = _varint(message, position)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}[kind]
        yield number, message[position : position + size]
        position += size


def _messages(fields: Iterable[tuple[int, int | bytes]], wanted: int) -> list[bytes]:
    return [value for number, value in fields if number == wanted and isinstance(value, bytes)]


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


def _text(number: int, value: str) -> bytes:
    return _tagged(number, value.encode())


def _tagged(number: int, value: bytes) -> bytes:
    """A length-delimited field shorter than 16 KiB: names and paths."""
    size = len(value)
    length = bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])
    return bytes([number << 3 | _BYTES]) + length + value


def _node_address(node: bytes) -> tuple[str, int]:
    fields = dict(_parse(node))
    host, port = fields[2], fields[3]
    assert isinstance(host, bytes)
    assert isinstance(port, int)
    return host.decode(), port

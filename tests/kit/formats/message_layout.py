"""Where the numbers of an Arrow message lie, for tests that change them."""

from __future__ import annotations

import struct
from typing import NamedTuple

_PREFIX_BYTES = 8
# Slots of the flatbuffers tables of Arrow's Message.fbs.
_MESSAGE_HEADER, _MESSAGE_BODY_LENGTH = 2, 3
_BATCH_LENGTH, _BATCH_NODES, _BATCH_BUFFERS = 0, 1, 2


class MessageLayout(NamedTuple):
    """Counted from the start of a message that is as it should be."""

    body_start: int
    row_count_at: int
    body_size_at: int
    nodes_at: int
    buffers_at: int
    buffer_count: int

    @classmethod
    def of(cls, message: bytes | bytearray | memoryview) -> MessageLayout:
        body_start = _PREFIX_BYTES + _uint(message, 4, 4)
        table = _target(message, _PREFIX_BYTES)
        batch = _target(message, _field(message, table, _MESSAGE_HEADER))
        nodes = _target(message, _field(message, batch, _BATCH_NODES))
        buffers = _target(message, _field(message, batch, _BATCH_BUFFERS))
        return cls(
            body_start,
            _field(message, batch, _BATCH_LENGTH),
            _field(message, table, _MESSAGE_BODY_LENGTH),
            nodes + 4,
            buffers + 4,
            _uint(message, buffers, 4),
        )


def _uint(message: bytes | bytearray | memoryview, at: int, width: int) -> int:
    return int.from_bytes(message[at : at + width], "little")


def _field(message: bytes | bytearray | memoryview, table: int, slot: int) -> int:
    vtable = table - struct.unpack_from("<i", message, table)[0]
    relative = _uint(message, vtable + 4 + 2 * slot, 2)
    assert relative, f"the table at {table} has no field {slot}"
    return int(table + relative)


def _target(message: bytes | bytearray | memoryview, at: int) -> int:
    return at + _uint(message, at, 4)

"""The metadata of one encapsulated Arrow record batch message, read before pyarrow touches bytes from the network.

What is read: where the body is, its field nodes, which buffers it holds and how large they become. pyarrow would trust
the announced sizes, and a few bytes can announce terabytes. `arrow_layout` says whether they fit a schema.

Messages of a codec may hold buffers that are stored raw; pyarrow can't write such, so `RawTemplate` does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from fluss.formats import kernel
from fluss.model.errors import CorruptDataError

NODE_SIZE_BYTES: Final = 16

_STORED_RAW: Final = -1

# Slots of the flatbuffers tables of Arrow's Message.fbs.
_MESSAGE_HEADER: Final = 2
_MESSAGE_BODY_LENGTH: Final = 3
_BATCH_LENGTH: Final = 0
_BATCH_NODES: Final = 1
_BATCH_BUFFERS: Final = 2

_PREFIX: Final = struct.Struct("<Ii")  # continuation marker and metadata size
_PREFIX_BYTES: Final = _PREFIX.size
_I64: Final = struct.Struct("<q")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_U16: Final = struct.Struct("<H")
_RAW_PREFIX: Final = _I64.pack(_STORED_RAW)
_PADDING: Final = [bytes(size) for size in range(8)]


class MessageMetadata(NamedTuple):
    row_count: int
    body_start: int
    body_size_bytes: int
    nodes: tuple[int, ...]  # lengths and null counts, alternating
    buffers: tuple[int, ...]  # offsets and lengths, alternating; all lie in the body, and not on each other
    codec: int | None  # Arrow's number for it, None when nothing is compressed


class RecordBatchMessage(NamedTuple):
    metadata: MessageMetadata
    decoded_sizes: list[int]  # of the buffers
    decoded_size_bytes: int
    has_raw_buffers: bool  # some buffers are used where they lie, so their alignment matters

    @property
    def compressed(self) -> bool:
        return self.metadata.codec is not None


def parse_metadata(view: memoryview) -> MessageMetadata:
    """Read and check the metadata of the message at the start of `view`; raises `CorruptDataError`."""
    return MessageMetadata._make(kernel.read_message(view))


def parse_record_batch_message(view: memoryview) -> RecordBatchMessage:
    """The metadata of the message at the start of `view`, and what its body would take; raises `CorruptDataError`."""
    metadata = parse_metadata(view)
    sizes = kernel.decoded_sizes(view, metadata.body_start, metadata.buffers, metadata.codec is not None)
    return RecordBatchMessage(metadata, *sizes)


class MessageLayout(NamedTuple):
    """Where the numbers of a message lie, counted from its start. Only for messages of our own: nothing is checked."""

    body_start: int
    row_count_at: int
    body_size_at: int
    nodes_at: int
    nodes_size_bytes: int
    buffers_at: int
    buffer_count: int

    @classmethod
    def of(cls, view: memoryview) -> MessageLayout:
        body_start = _PREFIX_BYTES + _PREFIX.unpack_from(view, 0)[1]
        message = _target(view, _PREFIX_BYTES)
        batch = _target(view, _field(view, message, _MESSAGE_HEADER))
        nodes = _target(view, _field(view, batch, _BATCH_NODES))
        buffers = _target(view, _field(view, batch, _BATCH_BUFFERS))
        return cls(
            body_start,
            _field(view, batch, _BATCH_LENGTH),
            _field(view, message, _MESSAGE_BODY_LENGTH),
            nodes + 4,
            _U32.unpack_from(view, nodes)[0] * 2 * _I64.size,
            buffers + 4,
            _U32.unpack_from(view, buffers)[0],
        )

    @property
    def shape(self) -> tuple[int, int]:
        """What all batches of a schema have in common."""
        return self.nodes_size_bytes, self.buffer_count


class RawTemplate:
    """Makes messages of a codec in which every buffer is stored raw, from plain messages of the same shape.

    A buffer of some bytes becomes larger by compression, and setting up the codec for it takes longer than all else.
    """

    __slots__ = ("_head", "_layout", "_numbers")

    def __init__(self, compressed: memoryview) -> None:
        """`compressed` is any message of the codec that has rows and a body."""
        self._layout = MessageLayout.of(compressed)
        self._head = bytes(compressed[: self._layout.body_start])
        self._numbers = struct.Struct(f"<{2 * self._layout.buffer_count}q")

    def fill(self, plain: memoryview, layout: MessageLayout) -> bytearray:
        """The message with the rows of a plain one."""
        (row_count,) = _I64.unpack_from(plain, layout.row_count_at)
        nodes = plain[layout.nodes_at : layout.nodes_at + layout.nodes_size_bytes]
        numbers = self._numbers.unpack_from(plain, layout.buffers_at)
        body = plain[layout.body_start :]
        buffers = [body[start : start + size] for start, size in zip(numbers[::2], numbers[1::2], strict=True)]
        return self.message(row_count, nodes, buffers)

    def message(
        self, row_count: int, nodes: bytes | memoryview, buffers: Iterable[bytes | bytearray | memoryview]
    ) -> bytearray:
        """The message with these field nodes and buffers; one that is not there is empty."""
        own = self._layout
        message = bytearray(self._head)
        _I64.pack_into(message, own.row_count_at, row_count)
        message[own.nodes_at : own.nodes_at + own.nodes_size_bytes] = nodes
        numbers: list[int] = []
        for buffer in buffers:
            size = len(buffer)
            numbers.append(len(message) - own.body_start)
            numbers.append(size and size + _I64.size)
            if size:
                message += _RAW_PREFIX
                message += buffer
                message += _PADDING[-size % 8]
        self._numbers.pack_into(message, own.buffers_at, *numbers)
        _I64.pack_into(message, own.body_size_at, len(message) - own.body_start)
        return message


def _field(metadata: memoryview, table: int, slot: int) -> int:
    """Position of a table's field, 0 when the table does not have it."""
    vtable = table - _I32.unpack_from(metadata, table)[0]
    if vtable < 0:
        raise CorruptDataError(f"Arrow message: a field table lies at {vtable}")
    at = 4 + 2 * slot
    if at >= _U16.unpack_from(metadata, vtable)[0]:
        return 0
    relative: int = _U16.unpack_from(metadata, vtable + at)[0]
    return table + relative if relative else 0


def _target(metadata: memoryview, at: int) -> int:
    if not at:
        raise CorruptDataError("Arrow message: a required field is missing")
    offset: int = _U32.unpack_from(metadata, at)[0]
    return at + offset

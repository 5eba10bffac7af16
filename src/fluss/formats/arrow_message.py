"""The metadata of one encapsulated Arrow record batch message, read before pyarrow touches bytes from the network.

Only what the checks need is read: where the body is, which buffers it holds and how large they become. pyarrow would
trust the announced sizes, and a few bytes can announce terabytes.

Messages of a codec may hold buffers that are stored raw; pyarrow can't write such, so `RawTemplate` does.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from fluss.model.errors import CorruptDataError

# A batch is a few MiB; this leaves room for very compressible ones and stops a made-up size.
DECODED_SIZE_MAX_BYTES: Final = 1 << 30
BUFFER_COUNT_MAX: Final = 1 << 16

_CONTINUATION: Final = 0xFFFFFFFF
_HEADER_TYPE_RECORD_BATCH: Final = 3
_STORED_RAW: Final = -1

# Slots of the flatbuffers tables of Arrow's Message.fbs.
_MESSAGE_HEADER_TYPE: Final = 1
_MESSAGE_HEADER: Final = 2
_MESSAGE_BODY_LENGTH: Final = 3
_BATCH_LENGTH: Final = 0
_BATCH_NODES: Final = 1
_BATCH_BUFFERS: Final = 2
_BATCH_COMPRESSION: Final = 3

_PREFIX: Final = struct.Struct("<Ii")  # continuation marker and metadata size
_PREFIX_BYTES: Final = _PREFIX.size
_I64: Final = struct.Struct("<q")
_I32: Final = struct.Struct("<i")
_U32: Final = struct.Struct("<I")
_U16: Final = struct.Struct("<H")
_RAW_PREFIX: Final = _I64.pack(_STORED_RAW)
_PADDING: Final = [bytes(size) for size in range(8)]


class RecordBatchMessage(NamedTuple):
    row_count: int
    body_start: int
    body_size_bytes: int
    decoded_size_bytes: int
    compressed: bool
    has_raw_buffers: bool  # some buffers are used where they lie, so their alignment matters


def parse_record_batch_message(view: memoryview) -> RecordBatchMessage:
    """Read and check the message at the start of `view`; raises `CorruptDataError`."""
    try:
        return _parse(view)
    except (struct.error, IndexError) as error:
        raise CorruptDataError(f"Arrow message: the metadata points outside the message ({error})") from error


def _parse(view: memoryview) -> RecordBatchMessage:
    marker, metadata_size = _PREFIX.unpack_from(view, 0)
    if marker != _CONTINUATION:
        raise CorruptDataError(f"Arrow message: starts with {marker:08x}, not with {_CONTINUATION:08x}")
    body_start = _PREFIX_BYTES + metadata_size
    if metadata_size <= 0 or body_start > len(view):
        raise CorruptDataError(f"Arrow message: metadata of {metadata_size} bytes in {len(view)} bytes")
    metadata = view[_PREFIX_BYTES:body_start]
    message = _U32.unpack_from(metadata, 0)[0]
    type_at = _field(metadata, message, _MESSAGE_HEADER_TYPE)
    if not type_at or metadata[type_at] != _HEADER_TYPE_RECORD_BATCH:
        raise CorruptDataError("Arrow message: not a record batch")
    batch = _target(metadata, _field(metadata, message, _MESSAGE_HEADER))
    body_size = _int64(metadata, _field(metadata, message, _MESSAGE_BODY_LENGTH))
    if not 0 <= body_size <= len(view) - body_start:
        raise CorruptDataError(f"Arrow message: body of {body_size} bytes, {len(view) - body_start} are there")
    row_count = _int64(metadata, _field(metadata, batch, _BATCH_LENGTH))
    compressed = _field(metadata, batch, _BATCH_COMPRESSION) != 0
    body = view[body_start : body_start + body_size]
    decoded_size, has_raw = _check_buffers(body, _buffers(metadata, batch), compressed)
    if decoded_size > DECODED_SIZE_MAX_BYTES:
        raise CorruptDataError(f"Arrow message: would take {decoded_size} bytes, more than {DECODED_SIZE_MAX_BYTES}")
    return RecordBatchMessage(row_count, body_start, body_size, decoded_size, compressed, has_raw)


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
        own = self._layout
        message = bytearray(self._head)
        message[own.row_count_at : own.row_count_at + 8] = plain[layout.row_count_at : layout.row_count_at + 8]
        nodes_end = layout.nodes_at + layout.nodes_size_bytes
        message[own.nodes_at : own.nodes_at + own.nodes_size_bytes] = plain[layout.nodes_at : nodes_end]
        numbers = list(self._numbers.unpack_from(plain, layout.buffers_at))
        for at in range(0, len(numbers), 2):
            size = numbers[at + 1]
            start = layout.body_start + numbers[at]
            numbers[at] = len(message) - own.body_start
            if size:
                numbers[at + 1] = size + _I64.size
                message += _RAW_PREFIX
                message += plain[start : start + size]
                message += _PADDING[-size % 8]
        self._numbers.pack_into(message, own.buffers_at, *numbers)
        _I64.pack_into(message, own.body_size_at, len(message) - own.body_start)
        return message


def _buffers(metadata: memoryview, batch: int) -> tuple[int, ...]:
    """Offsets and lengths, alternating."""
    at = _field(metadata, batch, _BATCH_BUFFERS)
    if not at:
        return ()
    vector = _target(metadata, at)
    (count,) = _U32.unpack_from(metadata, vector)
    if count > BUFFER_COUNT_MAX:
        raise CorruptDataError(f"Arrow message: {count} buffers, more than {BUFFER_COUNT_MAX}")
    return struct.unpack_from(f"<{2 * count}q", metadata, vector + 4)


def _check_buffers(body: memoryview, buffers: tuple[int, ...], compressed: bool) -> tuple[int, bool]:
    """The size of all buffers once decoded, and whether any is used in place."""
    decoded_size = 0
    has_raw = False
    for offset, length in zip(buffers[::2], buffers[1::2], strict=True):
        if offset < 0 or length < 0 or offset + length > len(body):
            raise CorruptDataError(f"Arrow message: buffer of {length} bytes at {offset} in a body of {len(body)}")
        if not length:
            continue
        if not compressed:
            has_raw = True
            decoded_size += length
            continue
        if length < _I64.size:
            raise CorruptDataError(f"Arrow message: compressed buffer of {length} bytes has no room for its size")
        (announced,) = _I64.unpack_from(body, offset)
        if announced == _STORED_RAW:
            has_raw = True
            decoded_size += length - _I64.size
        elif announced < 0:
            raise CorruptDataError(f"Arrow message: compressed buffer announces {announced} bytes")
        else:
            decoded_size += announced
    return decoded_size, has_raw


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


def _int64(metadata: memoryview, at: int) -> int:
    if not at:
        return 0
    value: int = _I64.unpack_from(metadata, at)[0]
    return value

"""Arrow record batch messages: their metadata read and written, and columns taken out of them without decoding.

The metadata of a message is read before pyarrow touches bytes from the network: where the body is, its field nodes,
which buffers it holds and how large they become. pyarrow would trust the announced sizes, and a few bytes can announce
terabytes. `layout` says whether they fit a schema.

Columns are taken out by new metadata and slices of the old body. The codec stays the one the buffers were written with.
A column that the message's schema does not have yet is made of nulls, because readers expect every column they asked
for.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from fluss.formats import kernel
from fluss.formats.arrow.layout import ArrowLayout
from fluss.model.errors import CorruptDataError


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


LZ4_FRAME: Final = 0  # as Arrow numbers codecs
ZSTD: Final = 1

_I64: Final = struct.Struct("<q")
RAW_PREFIX: Final = _I64.pack(-1)  # in place of the size of a buffer that a codec left as it was
PADDING: Final = [bytes(size) for size in range(8)]


class MessageTemplate:
    """The metadata of record batch messages with so many nodes and buffers, as flatbuffers lay it out."""

    __slots__ = ("_head", "_numbers")

    _ROW_COUNT_AT: Final = 8 + 56
    _BODY_SIZE_AT: Final = 8 + 24

    def __init__(self, node_count: int, buffer_count: int, codec: int | None) -> None:
        # Numbers after the marks are positions, which pointers and vtables count from.
        buffers_at = 96 + 16 * node_count + 4
        size = buffers_at + 4 + 16 * buffer_count
        compression = 20 if codec is not None else 0
        self._head = b"".join(
            (
                struct.pack("<Ii", 0xFFFFFFFF, size),
                struct.pack("<I", 16),  # 0: the message
                struct.pack("<6H", 12, 24, 16, 18, 4, 8),  # 4: its vtable: version, header type, header, body size
                struct.pack("<iIqhBx4x", 12, 52 - 20, 0, 4, 3),  # 16: the message, version V5
                struct.pack("<6H", 12, 24, 4, 12, 16, compression),  # 40: vtable: rows, nodes, buffers, compression
                struct.pack("<iqIII", 12, 0, 92 - 64, buffers_at - 68, 84 - 72),  # 52: the record batch
                struct.pack("<4H", 8, 6, 4, 5),  # 76: vtable: codec, method
                struct.pack("<ibb2x", 8, codec or 0, 0),  # 84: the compression
                struct.pack("<I", node_count),  # 92: nodes
            )
        )
        # Nodes, and behind them the buffers' count and the buffers.
        self._numbers = struct.Struct(f"<{2 * node_count}q4xI{2 * buffer_count}q")

    def fill(self, row_count: int, nodes: Sequence[int], buffers: Sequence[int], body_size_bytes: int) -> bytearray:
        """The metadata of one message; `nodes` and `buffers` have two numbers each."""
        metadata = bytearray(self._head)
        _I64.pack_into(metadata, self._ROW_COUNT_AT, row_count)
        _I64.pack_into(metadata, self._BODY_SIZE_AT, body_size_bytes)
        metadata += self._numbers.pack(*nodes, len(buffers) // 2, *buffers)
        return metadata

    def raw_message(
        self, row_count: int, nodes: Sequence[int], buffers: Iterable[bytes | bytearray | memoryview]
    ) -> bytearray:
        """A whole message of a codec with every buffer stored raw; one that is not there is empty.

        A buffer of some bytes becomes larger by compression, and setting up the codec for it takes longer than all
        else.
        """
        numbers: list[int] = []
        body = bytearray()
        for buffer in buffers:
            size = len(buffer)
            numbers += (len(body), size and size + _I64.size)
            if size:
                body += RAW_PREFIX
                body += buffer
                body += PADDING[-size % 8]
        return self.fill(row_count, nodes, numbers, len(body)) + body


# A client writes to few tables at a time.
message_template = functools.lru_cache(maxsize=256)(MessageTemplate)


Piece: TypeAlias = bytes | bytearray | memoryview

# All-null columns of one batch, before compression.
NULLS_SIZE_MAX_BYTES: Final = 64 << 20

_ALIGNMENT_BYTES: Final = 8
_GAP_MAX_BYTES: Final = 64  # writers align buffers to 8 or to 64 bytes
_ZSTD_FRAME: Final = struct.Struct("<IBQ")
_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_ONE_SEGMENT_SIZE_IN_8_BYTES: Final = 0xE0
_ZSTD_BLOCK_SIZE_BYTES: Final = 128 << 10


class ColumnSlicer:
    """Takes the same columns out of messages of one schema."""

    def __init__(self, layout: ArrowLayout, columns: Sequence[int], missing: ArrowLayout) -> None:
        """`columns` are those the messages have, ascending; `missing` are those behind them that they do not have."""
        self._layout = layout
        self._spans = [layout.columns[column] for column in columns]
        self._missing = missing
        self._templates: dict[int | None, MessageTemplate] = {}

    def slice(self, payload: memoryview) -> tuple[list[Piece], int]:
        """A message with these columns, in pieces, and its size; raises `CorruptDataError`."""
        message = parse_metadata(payload)
        if len(message.nodes) != 2 * len(self._layout.nodes) or len(message.buffers) != 2 * self._layout.buffer_count:
            raise CorruptDataError("Arrow message: its nodes and buffers are not those of its schema")
        nodes: list[int] = []
        old_buffers: list[int] = []
        for span in self._spans:
            nodes += message.nodes[2 * span.node_start : 2 * span.node_end]
            old_buffers += message.buffers[2 * span.buffer_start : 2 * span.buffer_end]
        body = _Body(payload[message.body_start : message.body_start + message.body_size_bytes])
        for at in range(0, len(old_buffers), 2):
            body.take(old_buffers[at], old_buffers[at + 1])
        if self._missing.nodes:
            nodes += _null_nodes(self._missing, message.row_count)
            for size in _null_sizes(self._missing, message.row_count):
                body.add(_zeros(size, message.codec) if size else b"")
        body.finish()
        metadata = self._template(message.codec).fill(message.row_count, nodes, body.buffers, body.size_bytes)
        return [metadata, *body.pieces], len(metadata) + body.size_bytes

    def _template(self, codec: int | None) -> MessageTemplate:
        template = self._templates.get(codec)
        if template is None:
            node_count = sum(span.node_end - span.node_start for span in self._spans) + len(self._missing.nodes)
            buffer_count = sum(span.buffer_end - span.buffer_start for span in self._spans)
            template = MessageTemplate(node_count, buffer_count + self._missing.buffer_count, codec)
            self._templates[codec] = template
        return template


class _Body:
    """A new body out of buffers of an old one; neighbours stay together."""

    __slots__ = ("_end", "_old", "_start", "buffers", "pieces", "size_bytes")

    def __init__(self, old: memoryview) -> None:
        self._old = old
        self._start = self._end = 0  # the run of old bytes that is not in `pieces` yet
        self.buffers: list[int] = []
        self.pieces: list[Piece] = []
        self.size_bytes = 0

    def take(self, offset: int, length: int) -> None:
        """Add a buffer of the old body."""
        gap = offset - self._end
        if length and (self._end == 0 or not 0 <= gap < _GAP_MAX_BYTES or (offset - self._start) % _ALIGNMENT_BYTES):
            self.finish()
            self._start = offset
        if length:
            self._end = offset + length
        self.buffers += (self.size_bytes + (offset - self._start if length else 0), length)

    def add(self, piece: bytes) -> None:
        """Add a buffer that is not from the old body."""
        self.finish()
        self.buffers += (self.size_bytes, len(piece))
        self._append(piece)

    def finish(self) -> None:
        """Put the open run into `pieces`."""
        if self._end:
            self._append(self._old[self._start : self._end])
        self._start = self._end = 0

    def _append(self, piece: Piece) -> None:
        if len(piece):
            self.pieces.append(piece)
        padding = -len(piece) % _ALIGNMENT_BYTES
        if padding:
            self.pieces.append(PADDING[padding])
        self.size_bytes += len(piece) + padding


def _null_nodes(layout: ArrowLayout, row_count: int) -> list[int]:
    lengths = layout.null_lengths(row_count)
    return [number for length in lengths for number in (length, length)]


def _null_sizes(layout: ArrowLayout, row_count: int) -> list[int]:
    sizes = layout.least_sizes(layout.null_lengths(row_count))
    if sum(sizes) > NULLS_SIZE_MAX_BYTES:
        raise CorruptDataError(
            f"Arrow message: {row_count} rows of new columns would take {sum(sizes)} bytes, "
            f"more than {NULLS_SIZE_MAX_BYTES}"
        )
    return sizes


def _zeros(size_bytes: int, codec: int | None) -> bytes:
    """A buffer of zeros as the codec has it; with ZSTD that is a few bytes for every 128 KiB."""
    if codec is None:
        return bytes(size_bytes)
    if codec != ZSTD:
        return RAW_PREFIX + bytes(size_bytes)
    frame = bytearray(_I64.pack(size_bytes))
    frame += _ZSTD_FRAME.pack(_ZSTD_MAGIC, _ZSTD_ONE_SEGMENT_SIZE_IN_8_BYTES, size_bytes)
    for at in range(0, size_bytes, _ZSTD_BLOCK_SIZE_BYTES):
        block_size = min(_ZSTD_BLOCK_SIZE_BYTES, size_bytes - at)
        is_last = at + block_size == size_bytes
        # A block of one byte that repeats.
        frame += (block_size << 3 | 1 << 1 | is_last).to_bytes(3, "little") + b"\0"
    return bytes(frame)

"""Arrow record batch messages: layouts, metadata, and columns taken out of them without decoding.

A column is one node, a nested one several in pre-order; each node has its own buffers, validity first.

The metadata of a message is read before pyarrow touches bytes from the network: where the body is, its field nodes,
which buffers it holds and how large they become. pyarrow would trust the announced sizes, and a few bytes can announce
terabytes. `ArrowLayout` says whether they fit a schema.

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
from fluss.kernels.codes import NODE_LIST_CHILD, NODE_TOP
from fluss.model.errors import CorruptDataError
from fluss.model.types import DataType, TypeRoot

_FIXED_BITS: Final = {
    TypeRoot.BOOLEAN: 1,
    TypeRoot.TINYINT: 8,
    TypeRoot.SMALLINT: 16,
    TypeRoot.INTEGER: 32,
    TypeRoot.BIGINT: 64,
    TypeRoot.FLOAT: 32,
    TypeRoot.DOUBLE: 64,
    TypeRoot.DECIMAL: 128,
    TypeRoot.DATE: 32,
    TypeRoot.TIMESTAMP: 64,
    TypeRoot.TIMESTAMP_LTZ: 64,
}
_VARIABLE: Final = (TypeRoot.CHAR, TypeRoot.STRING, TypeRoot.BYTES)
_TIME_32_PRECISION_MAX: Final = 3
_OFFSET_BYTES: Final = 4
_NO_VALUES: Final = 0  # a struct
_OFFSETS: Final = -1  # into the data behind them, or into the child of a list


class FieldNode(NamedTuple):
    buffers: int  # how many, validity included
    bits: int  # of a value, or _OFFSETS, or _NO_VALUES
    parent: int  # index of the struct it is a field of, or NODE_TOP, or NODE_LIST_CHILD


class Span(NamedTuple):
    """The nodes and buffers of one column."""

    node_start: int
    node_end: int
    buffer_start: int
    buffer_end: int


class ArrowLayout:
    """The nodes and buffers of all columns of a schema."""

    __slots__ = ("_numbers", "buffer_count", "columns", "nodes")

    def __init__(self, types: Sequence[DataType]) -> None:
        nodes: list[FieldNode] = []
        columns: list[Span] = []
        buffers = 0
        for data_type in types:
            first, first_buffer = len(nodes), buffers
            _add(nodes, data_type, NODE_TOP)
            buffers += sum(node.buffers for node in nodes[first:])
            columns.append(Span(first, len(nodes), first_buffer, buffers))
        self.nodes = tuple(nodes)
        self.columns = tuple(columns)
        self.buffer_count = buffers
        self._numbers = tuple(number for node in nodes for number in _numbers(node))

    def check(self, row_count: int, nodes: Sequence[int], sizes: Sequence[int]) -> None:
        """Raise `CorruptDataError` unless a batch fits; `nodes` alternates lengths and null counts.

        `sizes` are those of the buffers once decompressed. What lies in them is checked by its readers.
        """
        kernel.check_layout(self._numbers, row_count, nodes, sizes)

    def check_message(self, view: memoryview, record_count: int) -> None:
        """Raise `CorruptDataError` unless the message at the start of `view` fits and has so many rows."""
        kernel.check_message(self._numbers, view, record_count)

    def null_lengths(self, row_count: int) -> list[int]:
        """The length of each node when every column is null; all of its values are, too."""
        lengths: list[int] = []
        for node in self.nodes:
            if node.parent == NODE_LIST_CHILD:
                lengths.append(0)
            else:
                lengths.append(row_count if node.parent == NODE_TOP else lengths[node.parent])
        return lengths

    def least_sizes(self, lengths: Sequence[int]) -> list[int]:
        """The size of each buffer, with validity and without data behind offsets."""
        sizes: list[int] = []
        for node, length in zip(self.nodes, lengths, strict=True):
            sizes.append((length + 7) >> 3)
            if node.bits != _NO_VALUES:
                sizes.append(_values_size(node.bits, length))
            sizes += [0] * (node.buffers - 2)
        return sizes


def _numbers(node: FieldNode) -> tuple[int, int, int, int]:
    """A node as the kernel knows it: offsets are one value more than rows."""
    if node.bits == _OFFSETS:
        return node.buffers, 8 * _OFFSET_BYTES, 1, node.parent
    return node.buffers, node.bits, 0, node.parent


def _values_size(bits: int, length: int) -> int:
    if not length:
        return 0
    return (length + 1) * _OFFSET_BYTES if bits == _OFFSETS else (length * bits + 7) >> 3


def _add(nodes: list[FieldNode], data_type: DataType, parent: int) -> None:
    root = data_type.root
    if root in _VARIABLE:
        nodes.append(FieldNode(3, _OFFSETS, parent))
    elif root is TypeRoot.ARRAY:
        assert data_type.element is not None
        nodes.append(FieldNode(2, _OFFSETS, parent))
        _add(nodes, data_type.element, NODE_LIST_CHILD)
    elif root is TypeRoot.MAP:
        assert data_type.key is not None
        assert data_type.value is not None
        nodes.append(FieldNode(2, _OFFSETS, parent))
        entries = len(nodes)
        nodes.append(FieldNode(1, _NO_VALUES, NODE_LIST_CHILD))
        _add(nodes, data_type.key, entries)
        _add(nodes, data_type.value, entries)
    elif root is TypeRoot.ROW:
        row = len(nodes)
        nodes.append(FieldNode(1, _NO_VALUES, parent))
        for field in data_type.fields:
            _add(nodes, field.data_type, row)
    else:
        nodes.append(FieldNode(2, _bits(data_type), parent))


def _bits(data_type: DataType) -> int:
    if data_type.root is TypeRoot.BINARY:
        return 8 * data_type.length
    if data_type.root is TypeRoot.TIME:
        return 32 if data_type.precision <= _TIME_32_PRECISION_MAX else 64
    return _FIXED_BITS[data_type.root]


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

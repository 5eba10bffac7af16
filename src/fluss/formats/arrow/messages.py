"""Taking columns out of Arrow record batch messages without decoding them: new metadata, and slices of the old body.

The codec stays the one the buffers were written with. A column that the message's schema does not have yet is made of
nulls, because readers expect every column they asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

from fluss.formats.arrow.arrow_message import parse_metadata
from fluss.formats.arrow.arrow_template import PADDING, RAW_PREFIX, ZSTD, MessageTemplate
from fluss.formats.arrow.layout import ArrowLayout
from fluss.model.errors import CorruptDataError

Piece: TypeAlias = bytes | bytearray | memoryview

# All-null columns of one batch, before compression.
NULLS_SIZE_MAX_BYTES: Final = 64 << 20

_ALIGNMENT_BYTES: Final = 8
_GAP_MAX_BYTES: Final = 64  # writers align buffers to 8 or to 64 bytes
_I64: Final = struct.Struct("<q")
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

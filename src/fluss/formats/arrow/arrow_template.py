"""Writing the metadata of Arrow record batch messages: pyarrow writes neither slices of messages nor raw buffers."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Sequence
from typing import Final

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

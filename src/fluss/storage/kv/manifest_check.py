"""The checksums of a RocksDB manifest, compared before RocksDB reads it.

RocksDB reads a manifest with bytes behind its last record for ever, and holds the GIL meanwhile: the whole server would
stand still. The file is a few KB, in blocks of 32 KiB with records that do not cross them.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from fluss.formats.batches.checksum import crc32c

CURRENT_NAME: Final = "CURRENT"  # names the manifest; a RocksDB database is there when this is
_BLOCK_BYTES: Final = 32 << 10
_HEADER: Final = struct.Struct("<IHB")  # masked CRC-32C of type and content, size of the content, type
_CRC_FROM: Final = 6
_TYPES: Final = range(1, 5)  # a whole record, or its first, middle and last part
_MASK_DELTA: Final = 0xA282EAD8


def manifest_problem(directory: Path) -> str | None:
    """What is wrong with the manifest of a database; None: nothing, or RocksDB will say it."""
    try:
        name = (directory / CURRENT_NAME).read_text(errors="replace").strip()
        data = (directory / Path(name).name).read_bytes()
    except (OSError, ValueError):
        return None
    position = _first_bad(data)
    return None if position is None else f"Corruption: {name} has a bad record at byte {position}"


def _first_bad(data: bytes) -> int | None:
    position = 0
    while position < len(data):
        left = _BLOCK_BYTES - position % _BLOCK_BYTES
        if left < _HEADER.size:
            position += left
            continue
        if position + _HEADER.size > len(data):
            return position
        crc, size_bytes, kind = _HEADER.unpack_from(data, position)
        end = position + _HEADER.size + size_bytes
        if kind not in _TYPES or end > len(data) or masked_crc(crc32c(data[position + _CRC_FROM : end])) != crc:
            return position
        position = end
    return None


def masked_crc(crc: int) -> int:
    """A CRC-32C as RocksDB's files have it."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF

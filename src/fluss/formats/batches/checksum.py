"""CRC-32C, the checksum of batches and of the server's own files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

_Checksum: TypeAlias = Callable[[bytes | bytearray | memoryview, int], int]

_loaded: _Checksum | None = None


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """The checksum of bytes, or of those before them, whose checksum is `crc`, and these."""
    return (_loaded or _load())(data, crc)


def _load() -> _Checksum:
    # Loaded for the first checksum: the package loads what reads package metadata and command lines, 2.5 MB that an
    # idle server does without. Kept here: to import it again takes longer than the checksum of a small batch.
    global _loaded
    from crc32c import crc32c as checksum

    _loaded = checksum
    return checksum

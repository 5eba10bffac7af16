"""CRC-32C, the checksum of batches and of the server's own files."""

from __future__ import annotations


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """The checksum of bytes, or of those before them, whose checksum is `crc`, and these."""
    # Loaded for the first checksum: the package loads what reads package metadata and command lines, 2.5 MB that an
    # idle server does without.
    from crc32c import crc32c as checksum

    return checksum(data, crc)

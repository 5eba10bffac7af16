"""Numbers as protobuf writes them, for the two messages that are put together and read around their records."""

from __future__ import annotations

_SHIFT_MAX = 63


def encode_varint(value: int) -> bytes:
    """A number that is not negative."""
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def decode_varint(message: memoryview, position: int) -> tuple[int, int]:
    """The number at `position`, and where it ends; IndexError if it is cut, OverflowError beyond ten bytes."""
    value = shift = 0
    while shift <= _SHIFT_MAX:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise OverflowError("a number is longer than ten bytes")

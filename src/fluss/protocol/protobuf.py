"""Protobuf messages: parsing with errors that say whose bytes are wrong, and what the halves written by hand need.

Most messages are made and read by the protobuf library. It copies every byte field, so those that carry rows are put
together and read around them, see `writes`, `fetches` and `lookups`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from fluss.model.errors import CorruptDataError, ErrorCode
from fluss.model.paths import TableBucket
from fluss.protocol.api_keys import Api, Req, Resp

_SHIFT_MAX = 63

M = TypeVar("M", bound=Message)

Part: TypeAlias = bytes | bytearray | memoryview
"""Bytes of a message that are sent from where they are."""


class Encoded(NamedTuple):
    """A message that is already bytes; large ones stay in pieces, so that their data is not copied together."""

    parts: list[Part]
    size_bytes: int


# Most messages name a bucket that was named before: making one takes longer, and so does comparing two.
table_bucket = lru_cache(maxsize=4096)(TableBucket)


def parse_request(api: Api[Req, Resp], body: memoryview) -> Req:
    """A request from its body."""
    message = api.request()
    try:
        message.ParseFromString(body)  # type: ignore[arg-type]  # takes any buffer
    except DecodeError as error:
        raise unreadable(api.name, str(error)) from None
    if not message.IsInitialized():
        raise unreadable(api.name, "it lacks required fields")
    return message


def unreadable(api_name: str, reason: str) -> CorruptDataError:
    """The error for a request's body that is not the message it should be.

    Not CORRUPT_MESSAGE: that code is retriable, and real clients would send the same bytes for ever. They all raise
    UNSUPPORTED_VERSION to the user, and it says what is wrong: the two sides do not agree on the message.
    """
    text = f"The body of this {api_name} request can't be read: {reason}."
    return CorruptDataError(text, ErrorCode.UNSUPPORTED_VERSION)


def parse_answer(message_type: type[M], body: Part, sender: object) -> M:
    """A message from an answer's body."""
    message = message_type()
    try:
        message.ParseFromString(body)  # type: ignore[arg-type]  # takes any buffer
    except DecodeError as error:
        raise CorruptDataError(
            f"The answer of {sender} is not a valid {message_type.__name__}: {error}.", ErrorCode.CORRUPT_MESSAGE
        ) from error
    return message


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

"""The answer to a fetch, read around its records: they stay where the socket put them, only views are cut.

The protobuf library would copy every byte field; records are nearly all of an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fluss.model.errors import CorruptDataError, ErrorCode
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import decode_varint, parse_answer

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZE_BYTES = {_FIXED64: 8, _FIXED32: 4}
_PATH_TO_RECORDS = (
    pb.FetchLogResponse.TABLES_RESP_FIELD_NUMBER,
    pb.PbFetchLogTableResponse.BUCKETS_RESP_FIELD_NUMBER,
    pb.PbFetchLogBucketResponse.RECORDS_FIELD_NUMBER,
)


class BucketAnswer(NamedTuple):
    """What a fetch brought for one bucket."""

    table_id: int
    item: pb.PbFetchLogBucketResponse
    """All fields but the records."""
    records: memoryview


def parse_fetch_response(body: memoryview, sender: object) -> list[BucketAnswer]:
    """The answers for all buckets."""
    answers: list[BucketAnswer] = []
    try:
        for number, table in _byte_fields(body):
            if number == pb.FetchLogResponse.TABLES_RESP_FIELD_NUMBER:
                _parse_table(table, sender, answers)
    except IndexError:
        raise CorruptDataError(f"The answer of {sender} to a fetch is cut short.", ErrorCode.CORRUPT_MESSAGE) from None
    return answers


def records_position(body: memoryview) -> int | None:
    """Where the first records begin in an answer of which only the beginning is there; None if that can't be seen."""
    position = 0
    try:
        for wanted in _PATH_TO_RECORDS:
            while True:
                tag, position = _varint(body, position)
                if tag >> 3 == wanted and tag & 7 == _BYTES:
                    _, position = _varint(body, position)
                    break
                _, position = _skip(body, tag & 7, position)
    except (IndexError, CorruptDataError):
        return None
    return position


def _parse_table(table: memoryview, sender: object, answers: list[BucketAnswer]) -> None:
    number_of_buckets = pb.PbFetchLogTableResponse.BUCKETS_RESP_FIELD_NUMBER
    buckets, rest = _split(table, number_of_buckets)
    table_id = parse_answer(pb.PbFetchLogTableResponse, rest, sender).table_id
    for bucket in buckets:
        records, fields = _split(bucket, pb.PbFetchLogBucketResponse.RECORDS_FIELD_NUMBER)
        item = parse_answer(pb.PbFetchLogBucketResponse, fields, sender)
        answers.append(BucketAnswer(table_id, item, records[-1] if records else memoryview(b"")))


def _split(message: memoryview, number: int) -> tuple[list[memoryview], bytes]:
    """The contents of one byte field, and the message without it."""
    contents: list[memoryview] = []
    rest = bytearray()
    position = 0
    while position < len(message):
        start = position
        tag, position = _varint(message, position)
        begin, position = _skip(message, tag & 7, position)
        if tag >> 3 == number and tag & 7 == _BYTES:
            contents.append(message[begin:position])
        else:
            rest += message[start:position]
    return contents, bytes(rest)


def _byte_fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        begin, position = _skip(message, tag & 7, position)
        if tag & 7 == _BYTES:
            yield tag >> 3, message[begin:position]


def _skip(message: memoryview, wire_type: int, position: int) -> tuple[int, int]:
    """Begin and end of a field's content."""
    if wire_type == _VARINT:
        return position, _varint(message, position)[1]
    if wire_type == _BYTES:
        size, position = _varint(message, position)
    elif wire_type in _FIXED_SIZE_BYTES:
        size = _FIXED_SIZE_BYTES[wire_type]
    else:
        raise CorruptDataError(f"Unknown protobuf wire type {wire_type}.", ErrorCode.CORRUPT_MESSAGE)
    if position + size > len(message):
        raise IndexError(position)
    return position, position + size


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    try:
        return decode_varint(message, position)
    except OverflowError:
        raise CorruptDataError("A protobuf number is too long.", ErrorCode.CORRUPT_MESSAGE) from None

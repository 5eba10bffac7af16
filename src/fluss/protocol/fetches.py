"""The answer to FetchLog: records are sent from where they were read, and stay where the socket puts them.

1 tables_resp*{1 table_id:int64!  2 buckets_resp*{… 8 records:bytes}}

The protobuf library would copy every byte field, and records are nearly all of an answer. So the server puts it
together around them, `encode_fetch_response`, and the client cuts views out of it, `parse_fetch_response`. Requests are
small and the library's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from fluss.model.errors import CorruptDataError, ErrorCode
from fluss.model.paths import TableBucket
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import Encoded, Part, decode_varint, encode_varint, parse_answer

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZE_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}

_TABLES: Final = pb.FetchLogResponse.TABLES_RESP_FIELD_NUMBER
_TABLE_ID: Final = pb.PbFetchLogTableResponse.TABLE_ID_FIELD_NUMBER
_BUCKETS: Final = pb.PbFetchLogTableResponse.BUCKETS_RESP_FIELD_NUMBER
_RECORDS: Final = pb.PbFetchLogBucketResponse.RECORDS_FIELD_NUMBER
_PATH_TO_RECORDS: Final = (_TABLES, _BUCKETS, _RECORDS)

_TABLES_TAG: Final = bytes([_TABLES << 3 | _BYTES])
_TABLE_ID_TAG: Final = bytes([_TABLE_ID << 3 | _VARINT])
_BUCKETS_TAG: Final = bytes([_BUCKETS << 3 | _BYTES])
_RECORDS_TAG: Final = bytes([_RECORDS << 3 | _BYTES])
_UINT64_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF

# ---- written by the server


class BucketRead(Protocol):
    """What was read of one bucket, as an answer has it."""

    bucket: TableBucket
    error: Exception | None
    high_watermark: int
    log_start_offset: int
    filtered_end_offset: int | None
    parts: list[Part]
    """The records"""
    size_bytes: int
    """Of the records"""


def encode_fetch_response(
    tables: Iterable[tuple[int, Iterable[BucketRead]]], code_and_text: Callable[[Exception], tuple[int, str]]
) -> Encoded:
    """The answer with what was read of each table's buckets; `code_and_text` says what is told of an error."""
    parts: list[Part] = []
    total_bytes = 0
    for table_id, buckets in tables:
        table: list[Part] = [_TABLE_ID_TAG + encode_varint(table_id & _UINT64_MASK)]
        for read in buckets:
            _add_bucket(table, read, code_and_text)
        size_bytes = sum(map(len, table))
        head = _TABLES_TAG + encode_varint(size_bytes)
        parts.append(head)
        parts.extend(table)
        total_bytes += len(head) + size_bytes
    return Encoded(parts, total_bytes)


def _add_bucket(parts: list[Part], read: BucketRead, code_and_text: Callable[[Exception], tuple[int, str]]) -> None:
    message = pb.PbFetchLogBucketResponse(bucket_id=read.bucket.bucket_id)
    if read.bucket.partition_id is not None:
        message.partition_id = read.bucket.partition_id
    if read.error is not None:
        # Only then: clients take a present error code for a failure, whatever it says.
        message.error_code, message.error_message = code_and_text(read.error)
        body = message.SerializeToString()
        parts.append(_BUCKETS_TAG + encode_varint(len(body)) + body)
        return
    message.high_watermark = read.high_watermark
    message.log_start_offset = read.log_start_offset
    if read.filtered_end_offset is not None:
        message.filtered_end_offset = read.filtered_end_offset
    body = message.SerializeToString() + _RECORDS_TAG + encode_varint(read.size_bytes)
    parts.append(_BUCKETS_TAG + encode_varint(len(body) + read.size_bytes) + body)
    parts.extend(read.parts)


# ---- read by the client


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
            if number == _TABLES:
                _parse_table(table, sender, answers)
    except IndexError:
        raise CorruptDataError(f"The answer of {sender} to a fetch is cut short.", ErrorCode.CORRUPT_MESSAGE) from None
    return answers


def records_position(body: memoryview) -> int | None:
    """The position of the first records in the beginning of an answer; None if that can't be seen."""
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
    buckets, rest = _split(table, _BUCKETS)
    table_id = parse_answer(pb.PbFetchLogTableResponse, rest, sender).table_id
    for bucket in buckets:
        records, fields = _split(bucket, _RECORDS)
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

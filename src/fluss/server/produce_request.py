"""The ProduceLog request, read by hand so that records are views of the received frame and not copies.

1 acks:int32!  2 table_id:int64!  3 timeout_ms:int32!  4 buckets_req*{1 partition_id:int64  2 bucket_id:int32!
3 records:bytes!}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from fluss.protocol.varints import decode_varint
from fluss.server.malformed import unreadable

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_MASK_64: Final = (1 << 64) - 1


class BucketBatch(NamedTuple):
    partition_id: int | None
    bucket_id: int
    records: memoryview


class ProduceLogRequest(NamedTuple):
    acks: int
    table_id: int
    timeout_ms: int
    buckets: list[BucketBatch]


def parse_produce_log(body: memoryview) -> ProduceLogRequest:
    """The request in a frame's body; `records` are views of it."""
    numbers: dict[int, int] = {}
    buckets: list[BucketBatch] = []
    for field, value in _fields(body):
        if isinstance(value, int):
            numbers[field] = value
        elif field == 4:
            buckets.append(_bucket(value))
    try:
        return ProduceLogRequest(_int32(numbers[1]), _int64(numbers[2]), _int32(numbers[3]), buckets)
    except KeyError:
        raise unreadable("ProduceLog", "it lacks acks, table_id or timeout_ms") from None


def _bucket(body: memoryview) -> BucketBatch:
    partition_id: int | None = None
    bucket_id: int | None = None
    records: memoryview | None = None
    for field, value in _fields(body):
        if isinstance(value, int):
            if field == 1:
                partition_id = _int64(value)
            elif field == 2:
                bucket_id = _int32(value)
        elif field == 3:
            records = value
    if bucket_id is None or records is None:
        raise unreadable("ProduceLog", "a bucket lacks bucket_id or records")
    return BucketBatch(partition_id, bucket_id, records)


def _fields(body: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field; those of fixed width are skipped, as the message has none."""
    position, end = 0, len(body)
    while position < end:
        tag, position = _varint(body, position)
        kind = tag & 7
        if kind == _VARINT:
            number, position = _varint(body, position)
            yield tag >> 3, number
            continue
        if kind == _BYTES:
            size, position = _varint(body, position)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise unreadable("ProduceLog", f"wire type {kind} is not known")
        if size > end - position:
            raise unreadable("ProduceLog", f"a field of {size} bytes begins {end - position} bytes before the end")
        if kind == _BYTES:
            yield tag >> 3, body[position : position + size]
        position += size


def _varint(body: memoryview, position: int) -> tuple[int, int]:
    try:
        value, position = decode_varint(body, position)
    except IndexError:
        raise unreadable("ProduceLog", "it ends within a number") from None
    except OverflowError as error:
        raise unreadable("ProduceLog", str(error)) from None
    return value & _MASK_64, position


def _int64(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _int32(value: int) -> int:
    # A negative int32 travels as ten bytes; protobuf keeps the low half of whatever comes.
    value &= 0xFFFF_FFFF
    return value - (1 << 32) if value >> 31 else value

"""ProduceLog and PutKv, read by hand so that records are views of the received frame and not copies.

ProduceLog: 1 acks:int32!  2 table_id:int64!  3 timeout_ms:int32!  4 buckets_req*
PutKv: the same with 4 target_columns:int32* (packed or not)  5 buckets_req*  6 agg_mode:int32
A bucket: 1 partition_id:int64  2 bucket_id:int32!  3 records:bytes!
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol.varints import decode_varint
from fluss.server.malformed import unreadable

_VARINT: Final = 0
_FIXED64: Final = 1
_BYTES: Final = 2
_FIXED32: Final = 5
_MASK_64: Final = (1 << 64) - 1

_PRODUCE_BUCKETS: Final = 4
_PUT_TARGET_COLUMNS: Final = 4
_PUT_BUCKETS: Final = 5
_PUT_AGG_MODE: Final = 6


class BucketBatch(NamedTuple):
    bucket: TableBucket
    records: memoryview


class WriteRequest(NamedTuple):
    acks: int
    timeout_ms: int
    table_id: int
    batches: list[BucketBatch]
    target_columns: list[int]  # of PutKv; none: whole rows
    agg_mode: int  # of PutKv


def parse_produce_log(body: memoryview) -> WriteRequest:
    """A ProduceLog request; `records` are views of `body`."""
    return _parse(_Reader(api_keys.PRODUCE_LOG.name), body, _PRODUCE_BUCKETS)


def parse_put_kv(body: memoryview) -> WriteRequest:
    """A PutKv request; `records` are views of `body`."""
    return _parse(_Reader(api_keys.PUT_KV.name), body, _PUT_BUCKETS)


def _parse(reader: _Reader, body: memoryview, buckets_field: int) -> WriteRequest:
    numbers: dict[int, int] = {}
    targets: list[int] = []
    found: list[memoryview] = []
    is_put = buckets_field == _PUT_BUCKETS
    for field, value in reader.fields(body):
        if is_put and field == _PUT_TARGET_COLUMNS:
            targets += [value] if isinstance(value, int) else reader.packed(value)
        elif isinstance(value, int):
            numbers[field] = value
        elif field == buckets_field:
            found.append(value)
    try:
        acks, table_id, timeout_ms = _int32(numbers[1]), _int64(numbers[2]), _int32(numbers[3])
    except KeyError:
        raise reader.unreadable("it lacks acks, table_id or timeout_ms") from None
    batches = [_bucket(reader, item, table_id) for item in found]
    agg_mode = _int32(numbers.get(_PUT_AGG_MODE, 0)) if is_put else 0
    return WriteRequest(acks, timeout_ms, table_id, batches, [*map(_int32, targets)], agg_mode)


def _bucket(reader: _Reader, body: memoryview, table_id: int) -> BucketBatch:
    partition_id: int | None = None
    bucket_id: int | None = None
    records: memoryview | None = None
    for field, value in reader.fields(body):
        if isinstance(value, int):
            if field == 1:
                partition_id = _int64(value)
            elif field == 2:
                bucket_id = _int32(value)
        elif field == 3:
            records = value
    if bucket_id is None or records is None:
        raise reader.unreadable("a bucket lacks bucket_id or records")
    return BucketBatch(TableBucket(table_id, bucket_id, partition_id), records)


class _Reader:
    """Reads fields of a message; knows its name for errors."""

    def __init__(self, api_name: str) -> None:
        self._api_name = api_name

    def unreadable(self, reason: str) -> Exception:
        return unreadable(self._api_name, reason)

    def fields(self, body: memoryview) -> Iterator[tuple[int, int | memoryview]]:
        """Number and value of each field; those of fixed width are skipped, as the messages have none."""
        position, end = 0, len(body)
        while position < end:
            tag, position = self._varint(body, position)
            kind = tag & 7
            if kind == _VARINT:
                number, position = self._varint(body, position)
                yield tag >> 3, number
                continue
            if kind == _BYTES:
                size, position = self._varint(body, position)
            elif kind in (_FIXED32, _FIXED64):
                size = 4 if kind == _FIXED32 else 8
            else:
                raise self.unreadable(f"wire type {kind} is not known")
            if size > end - position:
                raise self.unreadable(f"a field of {size} bytes begins {end - position} bytes before the end")
            if kind == _BYTES:
                yield tag >> 3, body[position : position + size]
            position += size

    def packed(self, body: memoryview) -> list[int]:
        """The numbers of a packed field."""
        numbers = []
        position = 0
        while position < len(body):
            number, position = self._varint(body, position)
            numbers.append(number)
        return numbers

    def _varint(self, body: memoryview, position: int) -> tuple[int, int]:
        try:
            value, position = decode_varint(body, position)
        except IndexError:
            raise self.unreadable("it ends within a number") from None
        except OverflowError as error:
            raise self.unreadable(str(error)) from None
        return value & _MASK_64, position


def _int64(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _int32(value: int) -> int:
    # A negative int32 travels as ten bytes; protobuf keeps the low half of whatever comes.
    value &= 0xFFFF_FFFF
    return value - (1 << 32) if value >> 31 else value

"""ProduceLog, PutKv and StageWrite, read by hand so that records are views of the received frame and not copies.

ProduceLog: 1 acks:int32!  2 table_id:int64!  3 timeout_ms:int32!  4 buckets_req*
PutKv: the same with 4 target_columns:int32* (packed or not)  5 buckets_req*  6 agg_mode:int32
StageWrite: 1 table_id:int64!  2 query_id:string!  3 batch_id:int64!  4 task:int32!  5 attempt:int64!  6 sequence:int32!
7 timeout_ms:int32!  8 target_columns:int32* (packed or not)  9 agg_mode:int32  10 buckets_req*
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
_STAGE_QUERY_ID: Final = 2
_STAGE_NUMBERS: Final = (1, 3, 4, 5, 6, 7)
_STAGE_TARGET_COLUMNS: Final = 8
_STAGE_AGG_MODE: Final = 9
_STAGE_BUCKETS: Final = 10


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


class StageRequest(NamedTuple):
    table_id: int
    query_id: str
    batch_id: int
    task: int
    attempt: int
    sequence: int
    timeout_ms: int
    batches: list[BucketBatch]
    target_columns: list[int]  # of a primary-key table; none: whole rows
    agg_mode: int  # of a primary-key table


def parse_produce_log(body: memoryview) -> WriteRequest:
    """A ProduceLog request; `records` are views of `body`."""
    return _parse(_Reader(api_keys.PRODUCE_LOG.name), body, _PRODUCE_BUCKETS)


def parse_put_kv(body: memoryview) -> WriteRequest:
    """A PutKv request; `records` are views of `body`."""
    return _parse(_Reader(api_keys.PUT_KV.name), body, _PUT_BUCKETS)


def parse_stage_write(body: memoryview) -> StageRequest:
    """A StageWrite request; `records` are views of `body`."""
    reader = _Reader(api_keys.STAGE_WRITE.name)
    numbers: dict[int, int] = {}
    targets: list[int] = []
    found: list[memoryview] = []
    query_id: str | None = None
    for field, value in reader.fields(body):
        if field == _STAGE_TARGET_COLUMNS:
            targets += [value] if isinstance(value, int) else reader.packed(value)
        elif isinstance(value, int):
            numbers[field] = value
        elif field == _STAGE_BUCKETS:
            found.append(value)
        elif field == _STAGE_QUERY_ID:
            query_id = reader.text(value)
    if query_id is None or not numbers.keys() >= set(_STAGE_NUMBERS):
        raise reader.unreadable("it lacks required fields")
    table_id, batch_id, task, attempt, sequence, timeout_ms = map(numbers.__getitem__, _STAGE_NUMBERS)
    return StageRequest(
        _int64(table_id),
        query_id,
        _int64(batch_id),
        _int32(task),
        _int64(attempt),
        _int32(sequence),
        _int32(timeout_ms),
        [_bucket(reader, item, _int64(table_id)) for item in found],
        [*map(_int32, targets)],
        _int32(numbers.get(_STAGE_AGG_MODE, 0)),
    )


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

    def text(self, body: memoryview) -> str:
        try:
            return str(body, "utf-8")
        except UnicodeDecodeError:
            raise self.unreadable("a text is not UTF-8") from None

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

"""ProduceLog, PutKv and StageWrite, read by hand so that records are views of the received frame and not copies.

ProduceLog: 1 acks:int32!  2 table_id:int64!  3 timeout_ms:int32!  4 buckets_req*
PutKv: the same with 4 target_columns:int32* (packed or not)  5 buckets_req*  6 agg_mode:int32
StageWrite: 1 table_id:int64!  2 query_id:string!  3 batch_id:int64!  4 task:int32!  5 attempt:int64!  6 sequence:int32!
7 timeout_ms:int32!  8 target_columns:int32* (packed or not)  9 agg_mode:int32  10 buckets_req*
A bucket: 1 partition_id:int64  2 bucket_id:int32!  3 records:bytes!
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fluss.formats import kernel
from fluss.model.errors import CorruptDataError, ErrorCode
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol.protobuf import table_bucket, unreadable

_NO_FIELD: Final = 0
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


def parse_produce_log(body: memoryview, items_max: int) -> WriteRequest:
    """A ProduceLog request; `records` are views of `body`."""
    return _parse(api_keys.PRODUCE_LOG.name, body, _PRODUCE_BUCKETS, _NO_FIELD, items_max)


def parse_put_kv(body: memoryview, items_max: int) -> WriteRequest:
    """A PutKv request; `records` are views of `body`."""
    return _parse(api_keys.PUT_KV.name, body, _PUT_BUCKETS, _PUT_TARGET_COLUMNS, items_max)


def _parse(api_name: str, body: memoryview, buckets_field: int, targets_field: int, items_max: int) -> WriteRequest:
    numbers, _, targets, found = _split(api_name, body, buckets_field, targets_field, _NO_FIELD, items_max)
    try:
        acks, table_id, timeout_ms = _int32(numbers[1]), numbers[2], _int32(numbers[3])
    except KeyError:
        raise unreadable(api_name, "it lacks acks, table_id or timeout_ms") from None
    agg_mode = _int32(numbers.get(_PUT_AGG_MODE, 0)) if targets_field else 0
    return WriteRequest(acks, timeout_ms, table_id, _batches(table_id, found), targets, agg_mode)


def parse_stage_write(body: memoryview, items_max: int) -> StageRequest:
    """A StageWrite request; `records` are views of `body`."""
    name = api_keys.STAGE_WRITE.name
    fields = (_STAGE_BUCKETS, _STAGE_TARGET_COLUMNS, _STAGE_QUERY_ID)
    numbers, text, targets, found = _split(name, body, *fields, items_max)
    if text is None or not numbers.keys() >= set(_STAGE_NUMBERS):
        raise unreadable(name, "it lacks required fields")
    try:
        query_id = str(text, "utf-8")
    except UnicodeDecodeError:
        raise unreadable(name, "a text is not UTF-8") from None
    table_id, batch_id, task, attempt, sequence, timeout_ms = map(numbers.__getitem__, _STAGE_NUMBERS)
    return StageRequest(
        table_id,
        query_id,
        batch_id,
        _int32(task),
        attempt,
        _int32(sequence),
        _int32(timeout_ms),
        _batches(table_id, found),
        targets,
        _int32(numbers.get(_STAGE_AGG_MODE, 0)),
    )


def _split(
    api_name: str, body: memoryview, buckets_field: int, targets_field: int, text_field: int, items_max: int
) -> tuple[dict[int, int], memoryview | None, list[int], list[tuple[int | None, int, memoryview]]]:
    try:
        return kernel.split_write(body, buckets_field, targets_field, text_field, items_max)
    except CorruptDataError as error:
        if error.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION:
            raise
        raise unreadable(api_name, error.message) from None


def _batches(table_id: int, found: list[tuple[int | None, int, memoryview]]) -> list[BucketBatch]:
    return [
        BucketBatch(table_bucket(table_id, bucket_id, partition_id), records)
        for partition_id, bucket_id, records in found
    ]


def _int32(value: int) -> int:
    # A negative int32 travels as ten bytes; protobuf keeps the low half of whatever comes.
    value &= 0xFFFF_FFFF
    return value - (1 << 32) if value >> 31 else value

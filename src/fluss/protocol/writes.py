"""ProduceLog, PutKv and StageWrite: batches on their way to the server, written and read without copying them.

ProduceLog: 1 acks:int32!  2 table_id:int64!  3 timeout_ms:int32!  4 buckets_req*
PutKv: the same with 4 target_columns:int32* (packed or not)  5 buckets_req*  6 agg_mode:int32
StageWrite: 1 table_id:int64!  2 query_id:string!  3 batch_id:int64!  4 task:int32!  5 attempt:int64!  6 sequence:int32!
7 timeout_ms:int32!  8 target_columns:int32* (packed or not)  9 agg_mode:int32  10 buckets_req*
A bucket: 1 partition_id:int64  2 bucket_id:int32!  3 records:bytes!

The client's half puts requests together around batches, `WriteRequest`, and knows what their answers mean for a batch.
The server's half cuts them out as views of the received frame, `ReceivedWrite`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from fluss.formats import kernel
from fluss.formats.batches import log_batch
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError
from fluss.model.merge_mode import MergeMode
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.api_keys import Api
from fluss.protocol.protobuf import Part, encode_varint, table_bucket, unreadable

ACKS: Final = {"all": -1, "-1": -1, "1": 1, "0": 0}

# What a request has around the batch of a bucket, at most: three tags and lengths, partition and bucket.
BUCKET_OVERHEAD_BYTES: Final = 32

# Protobuf tags: field number << 3 | 2, "length-delimited", or 0, "varint". All are the same for all of these requests.
_RECORDS_TAG: Final = bytes([pb.PbProduceLogBucketRequest.RECORDS_FIELD_NUMBER << 3 | 2])
_BUCKET_TAG: Final = pb.ProduceLogResponse.BUCKETS_RESP_FIELD_NUMBER << 3 | 2
_OFFSET_TAG: Final = pb.PbProduceLogBucketResponse.BASE_OFFSET_FIELD_NUMBER << 3
VARINT_BYTES_MAX: Final = 10
HEADS_KEPT_MAX: Final = 256
PLACES_KEPT_MAX: Final = 4_096

# ---- requests, written by the client

PlacedBatch: TypeAlias = tuple[int | None, int, Part, Part]
"""(partition id or None, bucket, header, payload)"""


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """How batches travel; those with equal requests travel together."""

    api: Api[Any, Any]
    set_writer: Callable[[bytearray, int, int, memoryview], None]
    """Stamps a batch (header, writer id, sequence, payload)."""
    target_columns: tuple[int, ...] = ()
    merge_mode: MergeMode = MergeMode.DEFAULT

    def parts(self, table_id: int, acks: int, timeout_ms: int, batches: Iterable[PlacedBatch]) -> list[Part]:
        """The request's body, in parts."""
        head = _head(self.api, acks, table_id, timeout_ms, self.target_columns, self.merge_mode)
        return [head, *bucket_parts(self.api.request.BUCKETS_REQ_FIELD_NUMBER, batches)]


PRODUCE_LOG: Final = WriteRequest(api_keys.PRODUCE_LOG, log_batch.set_writer)


def put_kv(target_columns: tuple[int, ...], merge_mode: MergeMode) -> WriteRequest:
    """The request of upserts and deletes; no target columns: whole rows."""
    from fluss.formats.batches import kv_batch  # with pyarrow, which a server does without at first

    return WriteRequest(api_keys.PUT_KV, kv_batch.set_writer, target_columns, merge_mode)


def bucket_parts(field_number: int, batches: Iterable[PlacedBatch]) -> Iterator[Part]:
    """The repeated field of a write request that has its batches, in parts."""
    tag = bytes([field_number << 3 | 2])
    for partition_id, bucket, header, payload in batches:
        size_bytes = len(header) + len(payload)
        place = _place(partition_id, bucket) + _RECORDS_TAG + encode_varint(size_bytes)
        yield tag + encode_varint(len(place) + size_bytes) + place
        yield header
        yield payload


@lru_cache(HEADS_KEPT_MAX)
def _head(
    api: Api[Any, Any],
    acks: int,
    table_id: int,
    timeout_ms: int,
    target_columns: tuple[int, ...],
    merge_mode: MergeMode,
) -> bytes:
    """All of a request but its batches; the same for most requests to a table."""
    head = api.request(acks=acks, table_id=table_id, timeout_ms=timeout_ms)
    if target_columns:
        head.target_columns.extend(target_columns)
    if merge_mode is not MergeMode.DEFAULT:
        head.agg_mode = merge_mode
    serialized: bytes = head.SerializeToString()
    return serialized


@lru_cache(PLACES_KEPT_MAX)
def _place(partition_id: int | None, bucket: int) -> bytes:
    """The bucket of a batch: the same two fields begin a bucket in a request and in its answer."""
    return pb.PbProduceLogBucketRequest(partition_id=partition_id, bucket_id=bucket).SerializePartialToString()


# ---- requests, read by the server


class BucketBatch(NamedTuple):
    """A batch, and where it goes."""

    bucket: TableBucket
    records: memoryview


class ReceivedWrite(NamedTuple):
    """A ProduceLog or PutKv request."""

    acks: int
    timeout_ms: int
    table_id: int
    batches: list[BucketBatch]
    target_columns: list[int]  # of PutKv; none: whole rows
    agg_mode: int  # of PutKv


class ReceivedStage(NamedTuple):
    """A StageWrite request."""

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
    size_bytes: int  # of the body


_NO_FIELD: Final = 0
_PRODUCE_FIELDS: Final = (pb.ProduceLogRequest.BUCKETS_REQ_FIELD_NUMBER, _NO_FIELD, _NO_FIELD)
_PUT_FIELDS: Final = (pb.PutKvRequest.BUCKETS_REQ_FIELD_NUMBER, pb.PutKvRequest.TARGET_COLUMNS_FIELD_NUMBER, _NO_FIELD)
_PUT_AGG_MODE: Final = pb.PutKvRequest.AGG_MODE_FIELD_NUMBER
_STAGE_FIELDS: Final = (
    pb.StageWriteRequest.BUCKETS_REQ_FIELD_NUMBER,
    pb.StageWriteRequest.TARGET_COLUMNS_FIELD_NUMBER,
    pb.StageWriteRequest.QUERY_ID_FIELD_NUMBER,
)
_STAGE_NUMBERS: Final = (1, 3, 4, 5, 6, 7)  # its required fields that are numbers, in their order
_STAGE_AGG_MODE: Final = pb.StageWriteRequest.AGG_MODE_FIELD_NUMBER


def parse_produce_log(body: memoryview, items_max: int) -> ReceivedWrite:
    """A ProduceLog request; `records` are views of `body`."""
    return _parse(api_keys.PRODUCE_LOG.name, body, _PRODUCE_FIELDS, items_max)


def parse_put_kv(body: memoryview, items_max: int) -> ReceivedWrite:
    """A PutKv request; `records` are views of `body`."""
    return _parse(api_keys.PUT_KV.name, body, _PUT_FIELDS, items_max)


def parse_stage_write(body: memoryview, items_max: int) -> ReceivedStage:
    """A StageWrite request; `records` are views of `body`."""
    name = api_keys.STAGE_WRITE.name
    numbers, text, targets, found = _split(name, body, _STAGE_FIELDS, items_max)
    if text is None or not numbers.keys() >= set(_STAGE_NUMBERS):
        raise unreadable(name, "it lacks required fields")
    try:
        query_id = str(text, "utf-8")
    except UnicodeDecodeError:
        raise unreadable(name, "a text is not UTF-8") from None
    table_id, batch_id, task, attempt, sequence, timeout_ms = map(numbers.__getitem__, _STAGE_NUMBERS)
    return ReceivedStage(
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
        len(body),
    )


_Found: TypeAlias = list[tuple[int | None, int, memoryview]]


def _parse(api_name: str, body: memoryview, fields: tuple[int, int, int], items_max: int) -> ReceivedWrite:
    numbers, _, targets, found = _split(api_name, body, fields, items_max)
    try:
        acks, table_id, timeout_ms = _int32(numbers[1]), numbers[2], _int32(numbers[3])
    except KeyError:
        raise unreadable(api_name, "it lacks acks, table_id or timeout_ms") from None
    agg_mode = _int32(numbers.get(_PUT_AGG_MODE, 0)) if fields is _PUT_FIELDS else 0
    return ReceivedWrite(acks, timeout_ms, table_id, _batches(table_id, found), targets, agg_mode)


def _split(
    api_name: str, body: memoryview, fields: tuple[int, int, int], items_max: int
) -> tuple[dict[int, int], memoryview | None, list[int], _Found]:
    """Numbers by field, text, target columns and buckets; `fields` are the numbers of the last three, buckets first."""
    buckets, targets, text = fields
    try:
        return kernel.split_write(body, buckets, targets, text, items_max)
    except CorruptDataError as error:
        if error.error_code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION:
            raise
        raise unreadable(api_name, error.message) from None


def _batches(table_id: int, found: _Found) -> list[BucketBatch]:
    return [
        BucketBatch(table_bucket(table_id, bucket_id, partition_id), records)
        for partition_id, bucket_id, records in found
    ]


def _int32(value: int) -> int:
    # A negative int32 travels as ten bytes; protobuf keeps the low half of whatever comes.
    value &= 0xFFFF_FFFF
    return value - (1 << 32) if value >> 31 else value


# ---- answers, read by the client

DUPLICATE: Final = ErrorCode.DUPLICATE_SEQUENCE_EXCEPTION
LOST_SEQUENCE_CODES: Final = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION, ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION}
)
# Answers that say for certain that the batch was not stored; after any other failure it may have been.
REFUSAL_CODES: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.CORRUPT_RECORD_EXCEPTION,
        ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_EXCEPTION,
        ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION,
        ErrorCode.DISK_WRITE_LOCKED,
        ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION,
    }
)


def leaves_doubt(error: FlussError) -> bool:
    """Whether a batch may have been stored although its request, which was sent, failed so for good."""
    code = error.error_code
    is_unclear = error.is_retriable or code in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.CLIENT_ERROR)
    return is_unclear and code not in REFUSAL_CODES


def says_stored(answer: memoryview, partition_id: int | None, bucket: int) -> bool:
    """Whether an answer has just the place and offset of one batch, as that to a lone one mostly has.

    Nothing else is certain: what says more, or says it differently, is to be parsed.
    """
    place = _place(partition_id, bucket)
    at = 2 + len(place)
    size = len(answer)
    if not at + 1 < size <= at + 1 + VARINT_BYTES_MAX or answer[0] != _BUCKET_TAG or answer[1] != size - 2:
        return False
    if answer[at] != _OFFSET_TAG or answer[2:at] != place:
        return False
    return min(answer[at + 1 : -1], default=0x80) >= 0x80 > answer[-1]

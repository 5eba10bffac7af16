"""The write requests, put together around batches that are not copied, and what their error codes mean for a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from fluss.client.connection import BytesLike
from fluss.formats import kv_batch, log_batch
from fluss.model.errors import ErrorCode, FlussError
from fluss.model.merge_mode import MergeMode
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.api_keys import Api
from fluss.protocol.protobuf import encode_varint

ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}

DUPLICATE = ErrorCode.DUPLICATE_SEQUENCE_EXCEPTION
LOST_SEQUENCE_CODES = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION, ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION})
# Answers that say for certain that the batch was not stored; after any other failure it may have been.
REFUSAL_CODES = frozenset(
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


# What a request has around the batch of a bucket, at most: three tags and lengths, partition and bucket.
BUCKET_OVERHEAD_BYTES = 32

# Protobuf tags: field number << 3 | 2, "length-delimited", or 0, "varint". All are the same for both requests.
_RECORDS_TAG = bytes([pb.PbProduceLogBucketRequest.RECORDS_FIELD_NUMBER << 3 | 2])
_BUCKET_TAG = pb.ProduceLogResponse.BUCKETS_RESP_FIELD_NUMBER << 3 | 2
_OFFSET_TAG = pb.PbProduceLogBucketResponse.BASE_OFFSET_FIELD_NUMBER << 3
VARINT_BYTES_MAX = 10
HEADS_KEPT_MAX = 256
PLACES_KEPT_MAX = 4_096

PlacedBatch: TypeAlias = tuple[int | None, int, BytesLike, BytesLike]
"""(partition id or None, bucket, header, payload)"""


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """How batches travel; those with equal requests travel together."""

    api: Api[Any, Any]
    set_writer: Callable[[bytearray, int, int, memoryview], None]
    """Stamps a batch (header, writer id, sequence, payload)."""
    target_columns: tuple[int, ...] = ()
    merge_mode: MergeMode = MergeMode.DEFAULT

    def parts(
        self,
        table_id: int,
        acks: int,
        timeout_ms: int,
        batches: Iterable[PlacedBatch],
    ) -> list[BytesLike]:
        """The request's body, in parts."""
        head = _head(self.api, acks, table_id, timeout_ms, self.target_columns, self.merge_mode)
        return [head, *bucket_parts(self.api.request.BUCKETS_REQ_FIELD_NUMBER, batches)]


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
    """Where a batch goes, and where it went: the same two fields begin a bucket in a request and in its answer."""
    return pb.PbProduceLogBucketRequest(partition_id=partition_id, bucket_id=bucket).SerializePartialToString()


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


def bucket_parts(field_number: int, batches: Iterable[PlacedBatch]) -> Iterator[BytesLike]:
    """The repeated field of a write request that has its batches, in parts."""
    tag = bytes([field_number << 3 | 2])
    for partition_id, bucket, header, payload in batches:
        size_bytes = len(header) + len(payload)
        place = _place(partition_id, bucket) + _RECORDS_TAG + encode_varint(size_bytes)
        yield tag + encode_varint(len(place) + size_bytes) + place
        yield header
        yield payload


PRODUCE_LOG = WriteRequest(api_keys.PRODUCE_LOG, log_batch.set_writer)


def put_kv(target_columns: tuple[int, ...], merge_mode: MergeMode) -> WriteRequest:
    """The request of upserts and deletes; no target columns: whole rows."""
    return WriteRequest(api_keys.PUT_KV, kv_batch.set_writer, target_columns, merge_mode)

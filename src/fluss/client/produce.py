"""The write request, put together around batches that are not copied, and what its error codes mean for a batch."""

from __future__ import annotations

from collections.abc import Iterable

from fluss.client.connection import BytesLike
from fluss.model.errors import ErrorCode
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.varints import encode_varint

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

# Protobuf tags: field number << 3 | 2, "length-delimited".
_BUCKETS_REQ_TAG = bytes([pb.ProduceLogRequest.BUCKETS_REQ_FIELD_NUMBER << 3 | 2])
_RECORDS_TAG = bytes([pb.PbProduceLogBucketRequest.RECORDS_FIELD_NUMBER << 3 | 2])


def request_parts(
    table_id: int, acks: int, timeout_ms: int, batches: Iterable[tuple[int | None, int, BytesLike, BytesLike]]
) -> list[BytesLike]:
    """The body of a ProduceLog request for batches (partition id, bucket, header, payload), in parts."""
    parts: list[BytesLike] = [
        pb.ProduceLogRequest(acks=acks, table_id=table_id, timeout_ms=timeout_ms).SerializeToString()
    ]
    for partition_id, bucket, header, payload in batches:
        size_bytes = len(header) + len(payload)
        head = pb.PbProduceLogBucketRequest(partition_id=partition_id, bucket_id=bucket).SerializePartialToString()
        head += _RECORDS_TAG + encode_varint(size_bytes)
        parts += (_BUCKETS_REQ_TAG + encode_varint(len(head) + size_bytes) + head, header, payload)
    return parts

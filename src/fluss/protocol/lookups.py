"""Lookup, PrefixLookup, LimitScan and ScanKv: answers that are rows.

Lookup: 1 buckets_resp*{1 partition_id:int64  2 bucket_id:int32!  3 error_code:int32  4 error_message:string  5 entry*}
PrefixLookup: the same; an entry has a value or none there, and all values of a prefix here.
LimitScan: 1 error_code:int32  2 error_message:string  3 is_log_table:bool  4 records:bytes
ScanKv: 1-4, 6 as in its message  5 records:bytes

Lookups are asked for thousands of keys at a time, so both halves of their answers are put together and taken apart by
kernels, without an object for each key. The answers of scans are one piece of records, which the server sends from
where they are; the client leaves them to the protobuf library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final, NamedTuple, TypeAlias

from fluss.formats import kernel
from fluss.model.errors import CorruptDataError, ErrorCode
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.api_keys import Api
from fluss.protocol.protobuf import Encoded, Part, encode_varint

ALL_REPLICAS: Final = -1

_BUCKETS_TAG: Final = bytes([pb.LookupResponse.BUCKETS_RESP_FIELD_NUMBER << 3 | 2])
_IS_LOG_TABLE_TAG: Final = pb.LimitScanResponse.IS_LOG_TABLE_FIELD_NUMBER << 3
_LIMIT_RECORDS_TAG: Final = pb.LimitScanResponse.RECORDS_FIELD_NUMBER << 3 | 2
_SCAN_RECORDS_TAG: Final = bytes([pb.ScanKvResponse.RECORDS_FIELD_NUMBER << 3 | 2])


class LookupKind(Enum):
    """What is asked for each key."""

    ROW = auto()
    ROW_OR_INSERT = auto()
    """The row; where there is none, one with just its key is made first."""
    PREFIX = auto()


BucketKey: TypeAlias = tuple[int | None, int]
"""(partition id or None, bucket)"""

# ---- lookups, asked by the client


def lookup_request(
    kind: LookupKind, table_id: int, keys: Mapping[BucketKey, Sequence[bytes]], timeout_s: float
) -> tuple[Api[Any, Any], bytes]:
    """The request for keys by bucket: its api, and its body."""
    request: pb.LookupRequest | pb.PrefixLookupRequest
    if kind is LookupKind.PREFIX:
        request = pb.PrefixLookupRequest(table_id=table_id)
    else:
        request = pb.LookupRequest(table_id=table_id)
        if kind is LookupKind.ROW_OR_INSERT:
            request.insert_if_not_exists = True
            request.acks, request.timeout_ms = ALL_REPLICAS, int(timeout_s * 1000)
    for (partition_id, bucket), asked in keys.items():
        request.buckets_req.add(bucket_id=bucket, partition_id=partition_id, keys=asked)
    api: Api[Any, Any] = api_keys.PREFIX_LOOKUP if kind is LookupKind.PREFIX else api_keys.LOOKUP
    return api, request.SerializeToString()


# ---- lookups, answered by the server

# What a bucket has for each of its keys: a value or None, or for each prefix its values.
encode_entries: Final = kernel.join_entries
encode_entry_lists: Final = kernel.join_entry_lists


class LookupResponse:
    """The answer of Lookup and PrefixLookup in the making."""

    def __init__(self) -> None:
        self._parts: list[Part] = []

    def add(self, bucket: TableBucket, entries: bytearray) -> None:
        """What a bucket has, as `encode_entries` or `encode_entry_lists` wrote it."""
        head = _bucket_head(bucket).SerializeToString()
        self._parts += [_BUCKETS_TAG + encode_varint(len(head) + len(entries)) + head, entries]

    def fail(self, bucket: TableBucket, error_code: int, error_text: str) -> None:
        """Why a bucket can't tell."""
        message = _bucket_head(bucket)
        # Back-pressure on inserted rows: no version of these requests knows its code.
        is_pressure = error_code == ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION
        message.error_code = ErrorCode.KV_STORAGE_EXCEPTION if is_pressure else error_code
        message.error_message = error_text
        body = message.SerializeToString()
        self._parts.append(_BUCKETS_TAG + encode_varint(len(body)) + body)

    def encoded(self) -> Encoded:
        """The whole answer."""
        return Encoded(self._parts, sum(map(len, self._parts)))


def _bucket_head(bucket: TableBucket) -> pb.PbLookupBucketResponse:
    return pb.PbLookupBucketResponse(bucket_id=bucket.bucket_id, partition_id=bucket.partition_id)


# ---- lookups, read by the client


class BucketFound(NamedTuple):
    """What a bucket has for each key: a value or None, or a list of values; or why it can't tell."""

    bucket: BucketKey
    entries: list[Any]
    refusal: tuple[int, str] | None
    """Code and text of an error"""


def parse_lookup_response(kind: LookupKind, body: memoryview, sender: object) -> Iterator[BucketFound]:
    """The buckets of an answer."""
    try:
        buckets = kernel.split_found(body, kind is LookupKind.PREFIX)
    except CorruptDataError as error:
        raise CorruptDataError(
            f"The answer of {sender} is not a valid one to a lookup: {error.message}.", ErrorCode.CORRUPT_MESSAGE
        ) from error
    for partition_id, bucket, error_code, text, entries in buckets:
        refusal = (error_code, text.decode(errors="replace")) if error_code else None
        yield BucketFound((partition_id, bucket), entries, refusal)


# ---- scans, answered by the server


def encode_limit_scan(records: Sequence[Part], *, is_log_table: bool) -> Encoded:
    """The answer of LimitScan: log batches, or one batch of values."""
    size_bytes = sum(map(len, records))
    head = bytes([_IS_LOG_TABLE_TAG, is_log_table, _LIMIT_RECORDS_TAG]) + encode_varint(size_bytes)
    return Encoded([head, *records], len(head) + size_bytes)


def encode_scan_kv(answer: pb.ScanKvResponse, records: Part) -> Encoded:
    """The answer of ScanKv with its records behind it, which are not copied once more."""
    head = answer.SerializeToString() + _SCAN_RECORDS_TAG + encode_varint(len(records))
    return Encoded([head, records], len(head) + len(records))

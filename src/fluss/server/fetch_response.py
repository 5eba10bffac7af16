"""The FetchLog response, put together by hand so that records are sent from where they were read.

1 tables_resp*{1 table_id:int64!  2 buckets_resp*{… 8 records:bytes}}
"""

from __future__ import annotations

from typing import Final

from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import Encoded, Part, encode_varint
from fluss.server.answers import code_and_text
from fluss.server.fetch_plan import BucketFetch, FetchPlan

_TABLES_RESP: Final = bytes([1 << 3 | 2])
_TABLE_ID: Final = bytes([1 << 3 | 0])
_BUCKETS_RESP: Final = bytes([2 << 3 | 2])
_RECORDS: Final = bytes([8 << 3 | 2])


def encode_fetch_response(plan: FetchPlan) -> Encoded:
    """The response for a plan that was read."""
    parts: list[Part] = []
    total_bytes = 0
    for table_id, buckets in plan.tables:
        table: list[Part] = [_TABLE_ID + encode_varint(table_id & 0xFFFF_FFFF_FFFF_FFFF)]
        for fetch in buckets:
            _add_bucket(table, fetch)
        size_bytes = sum(map(len, table))
        head = _TABLES_RESP + encode_varint(size_bytes)
        parts.append(head)
        parts.extend(table)
        total_bytes += len(head) + size_bytes
    return Encoded(parts, total_bytes)


def _add_bucket(parts: list[Part], fetch: BucketFetch) -> None:
    message = pb.PbFetchLogBucketResponse(bucket_id=fetch.bucket.bucket_id)
    if fetch.bucket.partition_id is not None:
        message.partition_id = fetch.bucket.partition_id
    if fetch.error is not None:
        # Only then: clients take a present error code for a failure, whatever it says.
        message.error_code, message.error_message = code_and_text(fetch.error)
        body = message.SerializeToString()
        parts.append(_BUCKETS_RESP + encode_varint(len(body)) + body)
        return
    message.high_watermark = fetch.high_watermark
    message.log_start_offset = fetch.log_start_offset
    if fetch.filtered_end_offset is not None:
        message.filtered_end_offset = fetch.filtered_end_offset
    body = message.SerializeToString() + _RECORDS + encode_varint(fetch.size_bytes)
    parts.append(_BUCKETS_RESP + encode_varint(len(body) + fetch.size_bytes) + body)
    parts.extend(fetch.parts)

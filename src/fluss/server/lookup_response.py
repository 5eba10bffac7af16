"""The answers of Lookup and PrefixLookup, put together from rows without an object for each.

1 buckets_resp*{1 partition_id:int64  2 bucket_id:int32!  3 error_code:int32  4 error_message:string  5 entry*}
"""

from __future__ import annotations

from typing import Final

from fluss.model.errors import ErrorCode
from fluss.model.paths import TableBucket
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import Encoded, Part, encode_varint
from fluss.server.answers import code_and_text

_BUCKETS_RESP: Final = bytes([1 << 3 | 2])


class LookupResponse:
    def __init__(self) -> None:
        self._parts: list[Part] = []

    def add(self, bucket: TableBucket, entries: bytearray) -> None:
        """What a bucket has for each of its keys, see `kernel.join_entries`."""
        head = _message(bucket).SerializeToString()
        self._parts += [_BUCKETS_RESP + encode_varint(len(head) + len(entries)) + head, entries]

    def fail(self, bucket: TableBucket, error: BaseException) -> None:
        """Why a bucket can't tell."""
        code, text = code_and_text(error)
        # Back-pressure on inserted rows: no version of these requests knows its code.
        code = ErrorCode.KV_STORAGE_EXCEPTION if code == ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION else code
        message = _message(bucket)
        message.error_code, message.error_message = code, text
        body = message.SerializeToString()
        self._parts.append(_BUCKETS_RESP + encode_varint(len(body)) + body)

    def encoded(self) -> Encoded:
        return Encoded(self._parts, sum(map(len, self._parts)))


def _message(bucket: TableBucket) -> pb.PbLookupBucketResponse:
    return pb.PbLookupBucketResponse(bucket_id=bucket.bucket_id, partition_id=bucket.partition_id)

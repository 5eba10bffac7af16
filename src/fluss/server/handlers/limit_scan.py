"""LimitScan: the batches with the last rows of a bucket. They may hold more rows than asked for; clients cut them.

The response is put together by hand so that records are sent from where they were read:
1 error_code:int32  2 error_message:string  3 is_log_table:bool  4 records:bytes
"""

from __future__ import annotations

import asyncio
from typing import Final

from fluss.formats.log_batch import walk
from fluss.model.errors import ErrorCode, InvalidRequestError, TimeoutError
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.varints import encode_varint
from fluss.server.answers import Answer, Encoded, Part, code_and_text
from fluss.server.context import ConnectionContext, Handler
from fluss.server.malformed import unreadable

_CHUNK_BYTES: Final = 4 << 20  # read in one turn of the loop
_IS_LOG_TABLE: Final = bytes([3 << 3 | 0, 1])
_RECORDS: Final = bytes([4 << 3 | 2])


async def _limit_scan(context: ConnectionContext, request: pb.LimitScanRequest) -> Answer:
    try:
        records = await _read(context, request)
    except Exception as error:
        code, text = code_and_text(error)
        return pb.LimitScanResponse(error_code=code, error_message=text)
    size_bytes = sum(map(len, records))
    head = _IS_LOG_TABLE + _RECORDS + encode_varint(size_bytes)
    return Encoded([head, *records], len(head) + size_bytes)


async def _read(context: ConnectionContext, request: pb.LimitScanRequest) -> list[Part]:
    if request.limit < 1:
        raise unreadable("LimitScan", f"the limit must be at least 1, not {request.limit}")
    partition_id = request.partition_id if request.HasField("partition_id") else None
    bucket = TableBucket(request.table_id, request.bucket_id, partition_id)
    if (opening := context.storage.opening([bucket])) is not None:
        await opening
    log = context.storage.bucket(bucket)
    end = log.high_watermark
    offset = max(log.log_start_offset, end - request.limit)
    records: list[Part] = []
    size_bytes = 0
    while offset < end:
        data = context.storage.bucket(bucket).read(offset, _CHUNK_BYTES)
        size_bytes += len(data)
        _check_size(context, size_bytes)
        records.append(data)
        for _, header in walk(data):
            offset = header.next_offset
        await asyncio.sleep(0)
    return records


def _check_size(context: ConnectionContext, size_bytes: int) -> None:
    limit_bytes = context.limits.limit_scan_bytes_max
    if size_bytes > limit_bytes:
        raise InvalidRequestError(
            f"The batches of this limit scan have more than {limit_bytes} bytes; ask for fewer rows, or scan the log.",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )
    if size_bytes > context.server.response_budget.allowance_bytes():
        raise TimeoutError("The server waits for its clients to take their answers; try again later.")


HANDLERS: Final[dict[int, Handler]] = {api_keys.LIMIT_SCAN.key: _limit_scan}

"""LimitScan: some rows of a bucket.

Of a log table, the batches with its last rows: they may hold more rows than asked for, clients cut them. Of a
primary-key table, the rows with the lowest keys. The response is put together by hand so that records are sent from
where they were read:
1 error_code:int32  2 error_message:string  3 is_log_table:bool  4 records:bytes
"""

from __future__ import annotations

import asyncio
from typing import Final

from fluss.formats.log_batch import walk
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import Encoded, Part, encode_varint, unreadable
from fluss.server.answer_size import AnswerSize
from fluss.server.answers import Answer, code_and_text
from fluss.server.context import ConnectionContext, Handler
from fluss.server.kv_access import kv_bucket
from fluss.server.names import check_count
from fluss.server.table_formats import table_format

_CHUNK_BYTES: Final = 4 << 20  # read in one turn of the loop
_IS_LOG_TABLE: Final = 3 << 3 | 0
_RECORDS: Final = 4 << 3 | 2


async def _limit_scan(context: ConnectionContext, request: pb.LimitScanRequest) -> Answer:
    budget, bytes_max = context.server.response_budget, context.limits.limit_scan_bytes_max
    try:
        with AnswerSize(budget, bytes_max, "ask for fewer rows, or scan the table") as size:
            return await _read(context, request, size)
    except Exception as error:
        code, text = code_and_text(error)
        return pb.LimitScanResponse(error_code=code, error_message=text)


async def _read(context: ConnectionContext, request: pb.LimitScanRequest, size: AnswerSize) -> Encoded:
    if request.limit < 1:
        raise unreadable("LimitScan", f"the limit must be at least 1, not {request.limit}")
    partition_id = request.partition_id if request.HasField("partition_id") else None
    bucket = TableBucket(request.table_id, request.bucket_id, partition_id)
    if (opening := context.storage.opening([bucket])) is not None:
        await opening
    entry = context.storage.catalog.table_by_id(bucket.table_id)
    is_log_table = entry is None or not table_format(entry.table_json).has_primary_key
    read = _last_batches if is_log_table else _first_rows
    records = await read(context, bucket, request.limit, size)
    records_bytes = sum(map(len, records))
    head = bytes([_IS_LOG_TABLE, is_log_table, _RECORDS]) + encode_varint(records_bytes)
    return Encoded([head, *records], len(head) + records_bytes)


async def _first_rows(context: ConnectionContext, bucket: TableBucket, limit: int, size: AnswerSize) -> list[Part]:
    from fluss.formats.values import encode_value_batch

    rows_max = context.limits.limit_scan_rows_max
    values = await kv_bucket(context.storage, bucket).first_values(min(limit, rows_max + 1), size.left_bytes)
    check_count(len(values), rows_max, "rows")
    records = encode_value_batch(values)
    size.add(len(records))
    return [records]


async def _last_batches(context: ConnectionContext, bucket: TableBucket, limit: int, size: AnswerSize) -> list[Part]:
    log = context.storage.bucket(bucket)
    end = log.high_watermark
    offset = max(log.log_start_offset, end - limit)
    records: list[Part] = []
    while offset < end:
        data = context.storage.bucket(bucket).read(offset, _CHUNK_BYTES)
        size.add(len(data))
        records.append(data)
        for _, header in walk(data):
            offset = header.next_offset
        await asyncio.sleep(0)
    return records


HANDLERS: Final[dict[int, Handler]] = {api_keys.LIMIT_SCAN.key: _limit_scan}

"""LimitScan, some rows of a bucket, and ScanKv, all of them.

LimitScan gives of a log table the batches with its last rows, which may hold more rows than asked for: clients cut
them. Of a primary-key table it gives the rows with the lowest keys. ScanKv gives the rows of a primary-key table as of
one offset of its changelog, batch by batch.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fluss.formats.batches.log_batch import walk
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.lookups import encode_limit_scan, encode_scan_kv
from fluss.protocol.protobuf import Encoded, Part, unreadable
from fluss.server.net.answers import Answer, AnswerSize, code_and_text
from fluss.server.net.context import ConnectionContext
from fluss.server.read.kv_access import kv_bucket
from fluss.server.read.kv_scanners import Scanner
from fluss.server.tables.formats import table_format
from fluss.server.tables.rules import check_count

_CHUNK_BYTES: Final = 4 << 20  # read in one turn of the loop


async def limit_scan(context: ConnectionContext, request: pb.LimitScanRequest) -> Answer:
    budget, bytes_max = context.server.response_budget, context.limits.limit_scan_bytes_max
    try:
        with AnswerSize(budget, bytes_max, "ask for fewer rows, or scan the table") as size:
            return await _limited(context, request, size)
    except Exception as error:
        code, text = code_and_text(error)
        return pb.LimitScanResponse(error_code=code, error_message=text)


async def _limited(context: ConnectionContext, request: pb.LimitScanRequest, size: AnswerSize) -> Encoded:
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
    return encode_limit_scan(records, is_log_table=is_log_table)


async def _first_rows(context: ConnectionContext, bucket: TableBucket, limit: int, size: AnswerSize) -> list[Part]:
    from fluss.formats.rows.values import encode_value_batch

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


async def scan_kv(context: ConnectionContext, request: pb.ScanKvRequest) -> Answer:
    try:
        return await _scan(context, request)
    except Exception as error:
        code, text = code_and_text(error)
        return pb.ScanKvResponse(error_code=code, error_message=text)


async def _scan(context: ConnectionContext, request: pb.ScanKvRequest) -> Answer:
    begins = request.HasField("bucket_scan_req")
    if begins == request.HasField("scanner_id"):
        raise _invalid("it must name either a bucket to begin with, or a scanner_id to go on with")
    if request.close_scanner:
        if begins:
            raise _invalid("close_scanner needs a scanner_id")
        return _close(context, request.scanner_id)
    if request.batch_size_bytes < 1:
        raise _invalid("batch_size_bytes must be there and at least 1")
    scanner = await _open(context, request.bucket_scan_req) if begins else context.scanners.take(request.scanner_id)
    try:
        values = await _read(context, request, scanner)
    except BaseException:
        context.scanners.end(scanner)
        raise
    answer = pb.ScanKvResponse(has_more_results=not scanner.at_end)
    if begins:
        answer.log_offset = scanner.scan.log_offset
    if scanner.at_end:
        context.scanners.end(scanner)
    else:
        answer.scanner_id = scanner.scanner_id
        context.scanners.give_back(scanner)
    if not values:
        return answer
    from fluss.formats.rows.values import encode_value_batch

    return encode_scan_kv(answer, encode_value_batch(values))


async def _open(context: ConnectionContext, request: pb.PbScanKvBucketRequest) -> Scanner:
    partition_id = request.partition_id if request.HasField("partition_id") else None
    bucket = TableBucket(request.table_id, request.bucket_id, partition_id)
    if (opening := context.storage.opening([bucket])) is not None:
        await opening
    kv = kv_bucket(context.storage, bucket)
    context.scanners.reserve()
    try:
        scan = await kv.open_scan()
    except BaseException:
        context.scanners.unreserve()
        raise
    # No limit, or one below 1: all rows.
    scanner = Scanner(bucket, scan, request.limit if request.limit > 0 else None)
    context.scanners.add(scanner)
    return scanner


async def _read(context: ConnectionContext, request: pb.ScanKvRequest, scanner: Scanner) -> list[bytes]:
    expected = scanner.call_seq_id + 1
    if not request.HasField("call_seq_id") or request.call_seq_id != expected:
        given = request.call_seq_id if request.HasField("call_seq_id") else "none"
        raise _invalid(f"call_seq_id must be {expected}, not {given}; begin a new scan")
    scanner.call_seq_id = expected
    limits = context.limits
    size_bytes_max = min(request.batch_size_bytes, limits.scan_kv_bytes_max)
    return await scanner.read(size_bytes_max, limits.scan_kv_rows_max)


def _close(context: ConnectionContext, scanner_id: bytes) -> pb.ScanKvResponse:
    """Also of a scan that is over: clients close what they have read to the end."""
    context.scanners.end_by_id(scanner_id)
    return pb.ScanKvResponse(scanner_id=scanner_id, has_more_results=False)


def _invalid(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"This ScanKv request can't be done: {reason}.", ErrorCode.INVALID_SCAN_REQUEST)

"""ScanKv: all rows of a bucket as of one offset of its changelog, batch by batch."""

from __future__ import annotations

from typing import Final

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.protobuf import Encoded, encode_varint
from fluss.server.answers import Answer, code_and_text
from fluss.server.context import ConnectionContext, Handler
from fluss.server.kv_access import kv_bucket
from fluss.server.kv_scanners import Scanner

_RECORDS: Final = bytes([5 << 3 | 2])


async def _scan_kv(context: ConnectionContext, request: pb.ScanKvRequest) -> Answer:
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
    return _with_records(answer, values) if values else answer


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


def _with_records(answer: pb.ScanKvResponse, values: list[bytes]) -> Encoded:
    """The answer with its records behind it, which are not copied once more."""
    from fluss.formats.values import encode_value_batch

    records = encode_value_batch(values)
    head = answer.SerializeToString() + _RECORDS + encode_varint(len(records))
    return Encoded([head, records], len(head) + len(records))


def _invalid(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"This ScanKv request can't be done: {reason}.", ErrorCode.INVALID_SCAN_REQUEST)


HANDLERS: Final[dict[int, Handler]] = {api_keys.SCAN_KV.key: _scan_kv}

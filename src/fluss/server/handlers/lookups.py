"""Rows of primary-key tables: Lookup and PrefixLookup by key, LimitScan and ScanKv over a bucket.

LimitScan gives of a log table the batches with its last rows, which may hold more rows than asked for: clients cut
them. Of a primary-key table it gives the rows with the lowest keys. ScanKv gives the rows of a primary-key table as of
one offset of its changelog, batch by batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fluss.formats.batches.log_batch import walk
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.lookups import LookupResponse, encode_entries, encode_entry_lists, encode_limit_scan, encode_scan_kv
from fluss.protocol.protobuf import Encoded, Part, table_bucket, unreadable
from fluss.server.handlers.writes import check_acks, write_wait_ms
from fluss.server.net.budgets import RESPONSE_BYTES_MIN
from fluss.server.net.context import (
    Answer,
    AnswerSize,
    Concurrent,
    ConnectionContext,
    code_and_text,
    reply_concurrently,
)
from fluss.server.read.kv_access import check_access, kv_bucket
from fluss.server.read.kv_scanners import Scanner
from fluss.server.tables.rules import check_count, table_format
from fluss.storage.kv.store import VALUE_OVERHEAD_BYTES

if TYPE_CHECKING:
    from fluss.storage.kv.bucket import KvBucket
    from fluss.storage.kv.engine import KvEngine


# Keys read in one go: what is read before the answer's size is looked at again.
_KEYS_PER_READ: Final = 1_024
_KEYS_AT_ONCE: Final = 8  # of a request that is answered without threads, if that is quick

_Request: TypeAlias = pb.LookupRequest | pb.PrefixLookupRequest
_Read: TypeAlias = Callable[["KvBucket", list[bytes], AnswerSize], Coroutine[Any, Any, bytearray]]


def lookup(context: ConnectionContext, request: pb.LookupRequest, version: int) -> Concurrent:
    """The row of each key, in order; nothing where there is none."""
    keys = _check_keys(context, request)
    if not request.insert_if_not_exists:
        at_once = _answer_at_once(context, request, version, _few) if keys <= _KEYS_AT_ONCE else None
        return at_once or reply_concurrently(context, partial(_answer, context, request, version, _read_entries))
    if not request.HasField("acks") or not request.HasField("timeout_ms"):
        raise unreadable(api_keys.LOOKUP.name, "insert_if_not_exists needs acks and timeout_ms")
    check_acks(request.acks)
    work = partial(_answer, context, request, version, _read_or_insert)
    return reply_concurrently(context, work, write_wait_ms(request.timeout_ms))


def prefix_lookup(context: ConnectionContext, request: pb.PrefixLookupRequest, version: int) -> Concurrent:
    """The rows whose keys begin with each prefix."""
    prefixes = _check_keys(context, request)
    at_once = _answer_at_once(context, request, version, _few_lists) if prefixes <= _KEYS_AT_ONCE else None
    return at_once or reply_concurrently(context, partial(_answer, context, request, version, _read_prefixes))


def _check_keys(context: ConnectionContext, request: _Request) -> int:
    check_count(len(request.buckets_req), context.limits.request_items_max, "buckets")
    keys = sum(len(item.keys) for item in request.buckets_req)
    check_count(keys, context.limits.lookup_keys_max, "keys")
    context.server.metrics.lookup_keys += keys
    return keys


def _bucket(table_id: int, item: pb.PbLookupBucketRequest) -> TableBucket:
    return table_bucket(table_id, item.bucket_id, item.partition_id if item.HasField("partition_id") else None)


def _few(kv: KvEngine, bucket: TableBucket, keys: list[bytes]) -> bytearray | None:
    values = kv.get_few(bucket, keys)
    return None if values is None else encode_entries(values)


def _few_lists(kv: KvEngine, bucket: TableBucket, prefixes: list[bytes]) -> bytearray | None:
    lists = kv.get_few_by_prefix(bucket, prefixes)
    return None if lists is None else encode_entry_lists(lists)


def _answer_at_once(
    context: ConnectionContext,
    request: _Request,
    version: int,
    read: Callable[[KvEngine, TableBucket, list[bytes]], bytearray | None],
) -> Encoded | None:
    """The answer to a request for a few keys; None when it may take long or be large, or when something is wrong."""
    response = LookupResponse()
    left_bytes = min(RESPONSE_BYTES_MIN, context.limits.lookup_bytes_max)
    for item in request.buckets_req:
        bucket = _bucket(request.table_id, item)
        try:
            check_access(context.storage, bucket, version)
        except FlussError:
            return None
        entries = read(context.storage.kv, bucket, list(item.keys))
        if entries is None:
            return None
        response.add(bucket, entries)
        left_bytes -= len(entries)
        if left_bytes < 0:
            return None
    return response.encoded()


async def _answer(context: ConnectionContext, request: _Request, version: int, read: _Read) -> Encoded:
    storage, response = context.storage, LookupResponse()
    buckets = [_bucket(request.table_id, item) for item in request.buckets_req]
    if (opening := storage.opening(buckets)) is not None:
        await opening
    budget, bytes_max = context.server.response_budget, context.limits.lookup_bytes_max
    with AnswerSize(budget, bytes_max, "look up fewer keys at a time") as size:
        for bucket, item in zip(buckets, request.buckets_req, strict=True):
            try:
                response.add(bucket, await read(kv_bucket(storage, bucket, version), list(item.keys), size))
            except Exception as error:
                response.fail(bucket, *code_and_text(error))
    return response.encoded()


async def _read_entries(kv: KvBucket, keys: list[bytes], size: AnswerSize) -> bytearray:
    found: list[bytes | None] = []
    for start in range(0, len(keys), _KEYS_PER_READ):
        values = await kv.get_many(keys[start : start + _KEYS_PER_READ], size.left_bytes)
        size.add(sum(map(len, filter(None, values))))
        found += values
    return encode_entries(found)


async def _read_or_insert(kv: KvBucket, keys: list[bytes], size: AnswerSize) -> bytearray:
    for start in range(0, len(keys), _KEYS_PER_READ):
        part = keys[start : start + _KEYS_PER_READ]
        values = await kv.get_many(part)
        missing = [key for key, value in zip(part, values, strict=True) if value is None]
        if missing:
            await kv.room()
            await kv.insert_missing(list(dict.fromkeys(missing)))
    return await _read_entries(kv, keys, size)


async def _read_prefixes(kv: KvBucket, prefixes: list[bytes], size: AnswerSize) -> bytearray:
    found = await kv.get_prefixes(prefixes, size.left_bytes)
    size.add(sum(sum(map(len, values)) + VALUE_OVERHEAD_BYTES * len(values) for values in found))
    return encode_entry_lists(found)


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
        data = await context.storage.bucket(bucket).read_indexed(offset, _CHUNK_BYTES)
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
    """Close a scan, even one that is over: clients close what they have read to the end."""
    context.scanners.end_by_id(scanner_id)
    return pb.ScanKvResponse(scanner_id=scanner_id, has_more_results=False)


def _invalid(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"This ScanKv request can't be done: {reason}.", ErrorCode.INVALID_SCAN_REQUEST)

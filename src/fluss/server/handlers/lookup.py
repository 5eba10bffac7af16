"""Lookup and PrefixLookup: rows of primary-key tables by whole keys, or by the first bytes of keys."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.lookups import LookupResponse, encode_entries, encode_entry_lists
from fluss.protocol.protobuf import Encoded, table_bucket, unreadable
from fluss.server.handlers.writes import check_acks, write_wait_ms
from fluss.server.net.answers import AnswerSize, code_and_text
from fluss.server.net.budgets import RESPONSE_BYTES_MIN
from fluss.server.net.concurrent_reply import Concurrent, reply_concurrently
from fluss.server.net.context import ConnectionContext
from fluss.server.read.kv_access import check_access, kv_bucket
from fluss.server.tables.rules import check_count
from fluss.storage.kv.reads import VALUE_OVERHEAD_BYTES

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

"""Lookup and PrefixLookup: rows of primary-key tables by whole keys, or by the first bytes of keys."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.answer_size import AnswerSize
from fluss.server.answers import code_and_text
from fluss.server.budgets import RESPONSE_BYTES_MIN
from fluss.server.context import ConnectionContext, Handled
from fluss.server.kv_access import check_access, kv_bucket
from fluss.server.later import beside_others
from fluss.server.malformed import unreadable
from fluss.server.names import check_count
from fluss.server.write_wait import check_acks, write_wait_ms

if TYPE_CHECKING:
    from fluss.storage.kv_bucket import KvBucket

# Keys read in one go: what is read before the answer's size is looked at again.
_KEYS_PER_READ: Final = 1_024
_KEYS_AT_ONCE: Final = 8  # of a request that is answered without threads, if that is quick
_VALUE_OVERHEAD_BYTES: Final = 64  # of an object that holds a value

_Request: TypeAlias = pb.LookupRequest | pb.PrefixLookupRequest
_Response: TypeAlias = pb.LookupResponse | pb.PrefixLookupResponse
_Entry: TypeAlias = pb.PbLookupBucketResponse | pb.PbPrefixLookupBucketResponse
_Read: TypeAlias = Callable[["KvBucket", list[bytes], AnswerSize], Coroutine[Any, Any, list[Any]]]


def lookup(context: ConnectionContext, request: pb.LookupRequest, version: int) -> Handled:
    """The row of each key, in order; nothing where there is none."""
    keys = _check_keys(context, request)
    if not request.insert_if_not_exists:
        at_once = _answer_at_once(context, request, version) if keys <= _KEYS_AT_ONCE else None
        if at_once is not None:
            return at_once
        return beside_others(context, partial(_answer, context, request, version, pb.LookupResponse(), _read))
    if not request.HasField("acks") or not request.HasField("timeout_ms"):
        raise unreadable(api_keys.LOOKUP.name, "insert_if_not_exists needs acks and timeout_ms")
    check_acks(request.acks)
    work = partial(_answer, context, request, version, pb.LookupResponse(), _read_or_insert)
    return beside_others(context, work, write_wait_ms(request.timeout_ms))


def prefix_lookup(context: ConnectionContext, request: pb.PrefixLookupRequest, version: int) -> Handled:
    """The rows whose keys begin with each prefix."""
    _check_keys(context, request)
    work = partial(_answer, context, request, version, pb.PrefixLookupResponse(), _read_prefixes)
    return beside_others(context, work)


def _check_keys(context: ConnectionContext, request: _Request) -> int:
    check_count(len(request.buckets_req), context.limits.request_items_max, "buckets")
    keys = sum(len(item.keys) for item in request.buckets_req)
    check_count(keys, context.limits.lookup_keys_max, "keys")
    context.server.metrics.lookup_keys += keys
    return keys


def _bucket(table_id: int, item: pb.PbLookupBucketRequest) -> TableBucket:
    return TableBucket(table_id, item.bucket_id, item.partition_id if item.HasField("partition_id") else None)


def _answer_at_once(context: ConnectionContext, request: pb.LookupRequest, version: int) -> pb.LookupResponse | None:
    """The answer to a request for a few keys; None when it may take long or be large, or when something is wrong."""
    response = pb.LookupResponse()
    size_bytes = 0
    for item in request.buckets_req:
        bucket = _bucket(request.table_id, item)
        try:
            check_access(context.storage, bucket, version)
        except FlussError:
            return None
        values = context.storage.kv.get_few(bucket, list(item.keys))
        if values is None:
            return None
        entry = response.buckets_resp.add(bucket_id=bucket.bucket_id, partition_id=bucket.partition_id)
        for value in values:
            entry.values.add(values=value)
            size_bytes += len(value or b"")
        if size_bytes > RESPONSE_BYTES_MIN:
            return None
    return response


async def _answer(
    context: ConnectionContext, request: _Request, version: int, response: _Response, read: _Read
) -> _Response:
    storage = context.storage
    buckets = [_bucket(request.table_id, item) for item in request.buckets_req]
    if (opening := storage.opening(buckets)) is not None:
        await opening
    budget, bytes_max = context.server.response_budget, context.limits.lookup_bytes_max
    with AnswerSize(budget, bytes_max, "look up fewer keys at a time") as size:
        for bucket, item in zip(buckets, request.buckets_req, strict=True):
            entry = response.buckets_resp.add(bucket_id=bucket.bucket_id, partition_id=bucket.partition_id)
            try:
                found = await read(kv_bucket(storage, bucket, version), list(item.keys), size)
            except Exception as error:
                _fail(entry, error)
                continue
            add = entry.values.add if isinstance(entry, pb.PbLookupBucketResponse) else entry.value_lists.add
            for values in found:
                add(values=values)  # None stays unset
    return response


async def _read(kv: KvBucket, keys: list[bytes], size: AnswerSize) -> list[bytes | None]:
    found: list[bytes | None] = []
    for start in range(0, len(keys), _KEYS_PER_READ):
        values = await kv.get_many(keys[start : start + _KEYS_PER_READ], size.left_bytes)
        size.add(sum(map(len, filter(None, values))))
        found += values
    return found


async def _read_or_insert(kv: KvBucket, keys: list[bytes], size: AnswerSize) -> list[bytes | None]:
    for start in range(0, len(keys), _KEYS_PER_READ):
        part = keys[start : start + _KEYS_PER_READ]
        values = await kv.get_many(part)
        missing = [key for key, value in zip(part, values, strict=True) if value is None]
        if missing:
            await kv.room()
            await kv.insert_missing(list(dict.fromkeys(missing)))
    return await _read(kv, keys, size)


async def _read_prefixes(kv: KvBucket, prefixes: list[bytes], size: AnswerSize) -> list[list[bytes]]:
    found = await kv.get_prefixes(prefixes, size.left_bytes)
    size.add(sum(sum(map(len, values)) + _VALUE_OVERHEAD_BYTES * len(values) for values in found))
    return found


def _fail(entry: _Entry, error: BaseException) -> None:
    code, entry.error_message = code_and_text(error)
    # Back-pressure on inserted rows: no version of these requests knows its code.
    entry.error_code = ErrorCode.KV_STORAGE_EXCEPTION if code == ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION else code

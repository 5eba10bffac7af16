"""Logs: FetchLog, batches from an offset on; ListOffsets and GetTableStats, where a bucket begins and ends.

GetTableStats has no statistics of columns: they are not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.model.tables.options import CHANGELOG_IMAGE
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.fetches import encode_fetch_response
from fluss.protocol.protobuf import Encoded, unreadable
from fluss.server.net.context import (
    BUCKETS_AT_ONCE,
    ConnectionContext,
    Handled,
    InTurn,
    Replier,
    code_and_text,
    each_open,
    with_open_logs,
)
from fluss.server.read.fetch_plan import FetchPlan
from fluss.server.read.kv_access import kv_bucket
from fluss.server.tables.rules import check_count, table_format

WAIT_MS_DEFAULT: Final = 100  # when a request says how much to wait for and not how long


def fetch_log(context: ConnectionContext, request: pb.FetchLogRequest) -> Handled:
    buckets = sum(len(table.buckets_req) for table in request.tables_req)
    check_count(buckets + len(request.tables_req), context.limits.request_items_max, "buckets")
    plan = FetchPlan.of(context, request)
    if buckets > BUCKETS_AT_ONCE:
        return _begin_wide(context, request, plan)
    return with_open_logs(
        context.storage, [fetch.bucket for fetch in plan.buckets], lambda: _begin(context, request, plan)
    )


async def _begin_wide(
    context: ConnectionContext, request: pb.FetchLogRequest, plan: FetchPlan
) -> Encoded | DeferredFetch:
    async with context.storage.keeping_open():
        async for _ in each_open(context, [fetch.bucket for fetch in plan.buckets]):
            pass
        return _begin(context, request, plan)


def _begin(context: ConnectionContext, request: pb.FetchLogRequest, plan: FetchPlan) -> Encoded | DeferredFetch:
    wait_ms = _wait_ms(context, request)
    if wait_ms == 0 or plan.is_ready(request.min_bytes, patient=True):
        return _read(context, plan)
    return DeferredFetch(context, plan, request.min_bytes, wait_ms)


def _wait_ms(context: ConnectionContext, request: pb.FetchLogRequest) -> int:
    if request.min_bytes <= 0 or context.fetches_waiting >= context.limits.fetches_waiting_per_connection_max:
        return 0
    wait_ms = request.max_wait_ms if request.HasField("max_wait_ms") else WAIT_MS_DEFAULT
    return max(0, min(wait_ms, context.limits.fetch_wait_ms_max))


def _read(context: ConnectionContext, plan: FetchPlan) -> Encoded:
    context.fetches += 1
    plan.read(context.server.response_budget.allowance_bytes(), first=context.fetches)
    return encode_fetch_response(plan.tables, code_and_text)


class DeferredFetch:
    """A fetch that waits for data, or for the client to take what it got before."""

    def __init__(self, context: ConnectionContext, plan: FetchPlan, min_bytes: int, wait_ms: int) -> None:
        self.wait_ms = wait_ms
        self._context = context
        self._plan = plan
        self._min_bytes = min_bytes
        self._replier: Replier | None = None
        self._cancels: list[Callable[[], None]] = []
        self._waiting = False

    def start(self, replier: Replier) -> None:
        self._replier = replier
        self._waiting = True
        self._context.fetches_waiting += 1
        self._cancels = self._plan.subscribe(self._wake)

    def expire(self) -> None:
        """Answer with what there is."""
        if self._waiting and self._replier is not None:
            self._end_wait()
            self._replier.when_writable(self._answer)

    def hurry(self) -> None:
        self.expire()

    def abandon(self) -> None:
        self._end_wait()
        self._replier = None

    def _wake(self) -> None:
        # Not patient: an error that was not there at the start is news, such as that the table was dropped.
        if self._waiting and self._plan.is_ready(self._min_bytes, patient=False):
            self.expire()

    def _end_wait(self) -> None:
        if self._waiting:
            self._waiting = False
            self._context.fetches_waiting -= 1
        for cancel in self._cancels:
            cancel()
        self._cancels = []

    def _answer(self) -> None:
        if self._replier is not None:
            self._replier.reply(_read(self._context, self._plan))


EARLIEST: Final = 0
LATEST: Final = 1
TIMESTAMP: Final = 2
LEADER_END: Final = 3  # the same as LATEST where there are no followers


def list_offsets(context: ConnectionContext, request: pb.ListOffsetsRequest) -> InTurn:
    check_count(len(request.bucket_id), context.limits.request_items_max, "buckets")
    if not EARLIEST <= request.offset_type <= LEADER_END:
        raise unreadable("ListOffsets", f"offset_type {request.offset_type} is not known")
    buckets = [_bucket(request, bucket_id) for bucket_id in request.bucket_id]
    if len(buckets) > BUCKETS_AT_ONCE:
        return _many_offsets(context, request, buckets)
    return with_open_logs(context.storage, buckets, lambda: _offsets(context, request))


def _bucket(request: pb.ListOffsetsRequest, bucket_id: int) -> TableBucket:
    partition_id = request.partition_id if request.HasField("partition_id") else None
    return TableBucket(request.table_id, bucket_id, partition_id)


def _offsets(context: ConnectionContext, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
    response = pb.ListOffsetsResponse()
    for bucket_id in request.bucket_id:
        _add_offset(response, context, request, _bucket(request, bucket_id))
    return response


async def _many_offsets(
    context: ConnectionContext, request: pb.ListOffsetsRequest, buckets: list[TableBucket]
) -> pb.ListOffsetsResponse:
    response = pb.ListOffsetsResponse()
    async for number in each_open(context, buckets):
        _add_offset(response, context, request, buckets[number])
    return response


def _add_offset(
    response: pb.ListOffsetsResponse, context: ConnectionContext, request: pb.ListOffsetsRequest, bucket: TableBucket
) -> None:
    entry = response.buckets_resp.add(bucket_id=bucket.bucket_id)
    try:
        entry.offset = _offset(context, request, bucket)
    except Exception as error:
        entry.error_code, entry.error_message = code_and_text(error)


def _offset(context: ConnectionContext, request: pb.ListOffsetsRequest, bucket: TableBucket) -> int:
    log = context.storage.bucket(bucket)
    if request.offset_type == EARLIEST:
        return log.log_start_offset
    if request.offset_type in (LATEST, LEADER_END):
        return log.high_watermark
    if not request.HasField("start_timestamp"):
        raise InvalidRequestError(
            "Listing offsets by time needs start_timestamp, in milliseconds.", ErrorCode.INVALID_TIMESTAMP_EXCEPTION
        )
    return log.offset_for_timestamp(request.start_timestamp, context.storage.clock.now_ms())


async def get_table_stats(context: ConnectionContext, request: pb.GetTableStatsRequest) -> pb.GetTableStatsResponse:
    check_count(len(request.buckets_req), context.limits.request_items_max, "buckets")
    buckets = [
        TableBucket(request.table_id, item.bucket_id, item.partition_id if item.HasField("partition_id") else None)
        for item in request.buckets_req
    ]
    response = pb.GetTableStatsResponse()
    async for number in each_open(context, buckets):
        bucket = buckets[number]
        entry = response.buckets_resp.add(bucket_id=bucket.bucket_id, partition_id=bucket.partition_id)
        try:
            entry.row_count = await _row_count(context, bucket)
        except Exception as error:
            entry.error_code, entry.error_message = code_and_text(error)
    return response


async def _row_count(context: ConnectionContext, bucket: TableBucket) -> int:
    table = context.storage.catalog.table_by_id(bucket.table_id)
    if table is None or not table_format(table.table_json).has_primary_key:
        log = context.storage.bucket(bucket)
        return log.high_watermark - log.log_start_offset
    row_count = await kv_bucket(context.storage, bucket).row_count()
    if row_count is None:
        raise InvalidRequestError(
            f"{table.path} does not count its rows: its {CHANGELOG_IMAGE} is WAL, which does not tell new rows.",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
    return row_count

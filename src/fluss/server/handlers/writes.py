"""Writes: ProduceLog and PutKv, ids for writers, checks of batches, answers that wait until batches are safe.

The checksum is checked by the log itself. CORRUPT_RECORD (14), the code for a bad one, is retriable: the bytes may have
been damaged on their way. A batch whose checksum holds and which still can't be accepted would be sent again for ever,
so its codes are ones that clients raise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from fluss.formats import kernel
from fluss.formats.batches.log_batch import HEADER_SIZE_BYTES, BatchHeader, parse_header, payload_of, verify_crc
from fluss.model.descriptor import LogFormat
from fluss.model.errors import CorruptDataError, ErrorCode, FlussError, InvalidRequestError, TimeoutError
from fluss.model.paths import TableBucket
from fluss.model.schema import COLUMN_COUNT_MAX
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.writes import BucketBatch, ReceivedWrite
from fluss.server.net.context import (
    BUCKETS_AT_ONCE,
    ConnectionContext,
    Handled,
    Replier,
    code_and_text,
    each_open,
    with_open_logs,
)
from fluss.server.read.kv_access import kv_bucket
from fluss.server.tables.rules import TableFormat, check_count, schema_columns, table_format, table_path
from fluss.storage.catalog.catalog import Catalog

if TYPE_CHECKING:
    from fluss.storage.kv.put import Put


def check_batch(records: memoryview, table_id: int, catalog: Catalog, batch_bytes_max: int) -> BatchHeader:
    """The header of the one batch in `records`, or why it is refused."""
    entry = catalog.table_by_id(table_id)
    table = None if entry is None else table_format(entry.table_json)
    if entry is not None and table is not None and table.has_primary_key:
        # It would put rows into the changelog that the table does not have.
        raise InvalidRequestError(
            f"{entry.path} has a primary key: rows are upserted into it and not appended.",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )
    check_size(records, batch_bytes_max)
    if len(records) < HEADER_SIZE_BYTES:
        raise _refused(f"a batch has at least {HEADER_SIZE_BYTES} bytes, not {len(records)}")
    try:
        header = parse_header(records)
    except CorruptDataError as error:
        raise _refused(error.message) from None
    if header.size_bytes != len(records):
        raise _refused(
            f"the batch announces {header.size_bytes} bytes, {len(records)} were sent; "
            "send exactly one whole batch for a bucket"
        )
    try:
        _check_content(records, header, _schema_json(header.schema_id, table_id, catalog), table)
    except FlussError:
        # With damaged bytes anything can look wrong: then the checksum is the error to name.
        verify_crc(records, 0, header)
        raise
    return header


def check_size(records: memoryview, batch_bytes_max: int) -> None:
    """Code 13 for a batch above the limit."""
    if len(records) > batch_bytes_max:
        raise InvalidRequestError(
            f"A batch may have {batch_bytes_max} bytes, not {len(records)}; write smaller batches.",
            ErrorCode.RECORD_TOO_LARGE_EXCEPTION,
        )


def _check_content(records: memoryview, header: BatchHeader, schema_json: bytes, table: TableFormat | None) -> None:
    if not header.append_only:
        raise _refused("a log table takes append-only batches, without change types")
    _, payload = payload_of(records, 0, header)
    if header.record_count == 0:
        if len(payload):
            raise _refused("a batch without records has no payload")
        return
    if table is None or table.log_format is LogFormat.ARROW:
        try:
            schema_columns(schema_json).layout.check_message(payload, header.record_count)
        except CorruptDataError as error:
            raise _refused(error.message) from None
    elif not kernel.are_records_sound(payload, header.record_count):
        raise _refused(f"its {len(payload)} bytes are not {header.record_count} appended records of rows")


def _schema_json(schema_id: int, table_id: int, catalog: Catalog) -> bytes:
    try:
        return catalog.schema_json(table_id, schema_id)
    except FlussError:
        # Not the catalog's SCHEMA_NOT_EXIST, which clients answer by sending the batch again, for ever.
        raise InvalidRequestError(
            f"The batch was written with schema id {schema_id}, which this table does not have; "
            "load the table's metadata again.",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        ) from None


def _refused(reason: str) -> InvalidRequestError:
    # UNSUPPORTED_VERSION: the sides do not agree on the bytes, and no client tries again.
    return InvalidRequestError(f"The batch can't be accepted: {reason}.", ErrorCode.UNSUPPORTED_VERSION)


NO_ACKS: Final = 0
_ACKS: Final = (NO_ACKS, 1, -1)
_WAIT_MS_UNLIMITED: Final = 2**31 - 1

WriteResponse: TypeAlias = pb.ProduceLogResponse | pb.PutKvResponse


def check_acks(acks: int) -> None:
    """Refuse an unknown kind of acknowledgement, with code 18."""
    if acks not in _ACKS:
        raise InvalidRequestError(f"acks must be 0, 1 or -1 (all), not {acks}.", ErrorCode.INVALID_REQUIRED_ACKS)


def write_wait_ms(timeout_ms: int) -> int:
    """How long a write may take by its request; the server's own limit may be shorter."""
    return timeout_ms if timeout_ms > 0 else _WAIT_MS_UNLIMITED


class BucketWait(NamedTuple):
    """A batch until it is safe, and who writes its outcome into the response."""

    safe: asyncio.Future[Any]
    succeed: Callable[[Any], None]
    fail: Callable[[BaseException], None]


def answered(response: WriteResponse, waits: list[BucketWait], timeout_ms: int) -> WriteResponse | DeferredWrite:
    """The response, now or when all batches are safe."""
    return DeferredWrite(response, waits, timeout_ms) if waits else response


class DeferredWrite:
    """Batches that are taken and not safe yet."""

    def __init__(self, response: WriteResponse, waits: list[BucketWait], timeout_ms: int) -> None:
        self.wait_ms = write_wait_ms(timeout_ms)
        self._pending = 0
        self._response = response
        self._waits = waits
        self._replier: Replier | None = None

    def start(self, replier: Replier) -> None:
        self._replier = replier
        for wait in self._waits:
            if not wait.safe.done():
                self._pending += 1
                wait.safe.add_done_callback(self._safe)
        if not self._pending:
            self._finish()

    def expire(self) -> None:
        """Buckets that are late are told so; what becomes of their batches is open, so clients send them again."""
        for wait in self._waits:
            wait.safe.remove_done_callback(self._safe)
        self._finish()

    def hurry(self) -> None:
        """All is under way already."""

    def abandon(self) -> None:
        self._replier = None
        for wait in self._waits:
            wait.safe.remove_done_callback(self._safe)

    def _settled(self) -> WriteResponse:
        """The response with what is known of each batch."""
        for wait in self._waits:
            error = wait.safe.exception() if wait.safe.done() else _late()
            if error is not None:
                wait.fail(error)
            else:
                wait.succeed(wait.safe.result())
        return self._response

    def _safe(self, _: asyncio.Future[Any]) -> None:
        self._pending -= 1
        if not self._pending:
            self._finish()

    def _finish(self) -> None:
        # Forgotten first: it knows this object, too, and cycles are work for the collector.
        replier, self._replier = self._replier, None
        if replier is not None:
            replier.reply(self._settled())


def _late() -> TimeoutError:
    return TimeoutError("The batch was not safe within the request's timeout; send it again to learn its fate.")


def init_writer(context: ConnectionContext, request: pb.InitWriterRequest) -> pb.InitWriterResponse:
    """An id for a writer. Java names no table; a table named here may be gone, which its writes will say."""
    for path in request.table_path:
        table_path(path)
    return pb.InitWriterResponse(writer_id=context.storage.catalog.next_writer_id())


def produce_log(context: ConnectionContext, request: ReceivedWrite) -> Handled:
    """Append in the order of arrival; the reply is deferred until all batches are durable."""
    check_acks(request.acks)
    buckets = [batch.bucket for batch in request.batches]
    if len(buckets) > BUCKETS_AT_ONCE:
        return _append_many(context, request, buckets)
    return with_open_logs(context.storage, buckets, partial(_append_all, context, request))


def _append_all(context: ConnectionContext, request: ReceivedWrite) -> WriteResponse | DeferredWrite:
    context.check_connected()
    response = pb.ProduceLogResponse()
    waits: list[BucketWait] = []
    for batch in request.batches:
        _append_one(context, batch, request.acks, response, waits)
    return answered(response, waits, request.timeout_ms)


async def _append_many(
    context: ConnectionContext, request: ReceivedWrite, buckets: list[TableBucket]
) -> WriteResponse | DeferredWrite:
    response = pb.ProduceLogResponse()
    waits: list[BucketWait] = []
    async with context.storage.keeping_open():
        async for number in each_open(context, buckets):
            # Each time: others have had their turns since the last.
            context.check_connected()
            _append_one(context, request.batches[number], request.acks, response, waits)
    return answered(response, waits, request.timeout_ms)


def _append_one(
    context: ConnectionContext, batch: BucketBatch, acks: int, response: pb.ProduceLogResponse, waits: list[BucketWait]
) -> None:
    bucket, records = batch
    storage = context.storage
    entry = response.buckets_resp.add(bucket_id=bucket.bucket_id, partition_id=bucket.partition_id)
    try:
        log = storage.bucket(bucket)
        header = check_batch(records, bucket.table_id, storage.catalog, context.limits.batch_bytes_max)
        appended = log.append(records, header, storage.clock.now_ms())
    except Exception as error:
        _not_appended(entry, error)
        return
    if acks == NO_ACKS or appended.durable.is_complete:
        entry.base_offset = appended.base_offset
    else:
        succeed = partial(_appended, entry, appended.base_offset)
        waits.append(BucketWait(appended.durable, succeed, partial(_not_appended, entry)))


def _appended(entry: pb.PbProduceLogBucketResponse, base_offset: int, _: None) -> None:
    entry.base_offset = base_offset


def _not_appended(entry: pb.PbProduceLogBucketResponse, error: BaseException) -> None:
    entry.error_code, entry.error_message = code_and_text(error)


_AGG_MODES: Final = (0, 1)
_OVERWRITE: Final = 1
_BACKPRESSURE_VERSION: Final = 2  # clients of this version know its code
_FOR_OLD_CLIENTS: Final = {ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION: ErrorCode.KV_STORAGE_EXCEPTION}


async def put_kv(context: ConnectionContext, request: ReceivedWrite, version: int) -> WriteResponse | DeferredWrite:
    """Put in the order of arrival; the reply is deferred until all batches are applied.

    The connection's next request waits only while a bucket has no room for more.
    """
    check_acks(request.acks)
    overwrite = check_merge(request.target_columns, request.agg_mode)
    opening = context.storage.opening([batch.bucket for batch in request.batches])
    if opening is not None:
        await opening
    response = pb.PutKvResponse()
    waits: list[BucketWait] = []
    recoded = {} if version >= _BACKPRESSURE_VERSION else _FOR_OLD_CLIENTS
    for batch in request.batches:
        bucket = batch.bucket
        entry = response.buckets_resp.add(bucket_id=bucket.bucket_id, partition_id=bucket.partition_id)
        fail = partial(_put_failed, entry, recoded)
        try:
            put = await _put(context, request, batch, version, overwrite=overwrite)
        except Exception as error:
            fail(error)
            continue
        safe = put.appended if request.acks == NO_ACKS else put.applied
        waits.append(BucketWait(safe, partial(_put_succeeded, entry), fail))
    return answered(response, waits, request.timeout_ms)


def check_merge(target_columns: Sequence[int], agg_mode: int) -> bool:
    """Whether rows are stored as they come, whatever the merge engine; code 2 for an unknown mode."""
    check_count(len(target_columns), COLUMN_COUNT_MAX, "target columns")
    if agg_mode not in _AGG_MODES:
        raise InvalidRequestError(
            f"agg_mode must be 0 (by the merge engine) or 1 (overwrite), not {agg_mode}.",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    return agg_mode == _OVERWRITE


async def _put(
    context: ConnectionContext, request: ReceivedWrite, batch: BucketBatch, version: int, *, overwrite: bool
) -> Put:
    kv = kv_bucket(context.storage, batch.bucket, version)
    check_size(batch.records, context.limits.batch_bytes_max)
    await kv.room()
    context.check_connected()
    put = kv.put(batch.records, request.target_columns, overwrite=overwrite)
    # The records stay in memory until they are applied.
    budget, size_bytes = context.server.request_budget, len(batch.records)
    budget.add(size_bytes)
    context.server.metrics.put_batches += 1
    context.server.metrics.put_bytes += size_bytes
    put.applied.add_done_callback(lambda _: budget.release(size_bytes))
    return put


def _put_succeeded(entry: pb.PbPutKvBucketResponse, log_end_offset: int) -> None:
    entry.log_end_offset = log_end_offset


def _put_failed(entry: pb.PbPutKvBucketResponse, recoded: dict[int, int], error: BaseException) -> None:
    code, entry.error_message = code_and_text(error)
    entry.error_code = recoded.get(code, code)

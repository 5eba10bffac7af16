"""StageWrite, CommitStaged, DropStaged: writes that become visible together, and once.

ListStaged, AcceptStaged and ResetStaged are for operators: they show staged writes, and settle what to do with a batch
that came again and was refused.
"""

from __future__ import annotations

from functools import partial

from fluss.formats.batches.log_batch import MAGIC_WITH_STATISTICS, verify_crc
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError
from fluss.model.staging import StagedTask
from fluss.protocol import messages_pb2 as pb
from fluss.protocol.writes import BucketBatch, ReceivedStage
from fluss.server.handlers.writes import check_batch, check_merge, check_size, write_wait_ms
from fluss.server.net.context import Concurrent, ConnectionContext, reply_concurrently
from fluss.server.tables.rules import check_count, table_format
from fluss.storage.staging.commit import StagedKey, StagedRequest, query_name
from fluss.storage.staging.staging import REQUESTS_MAX


def stage_write(context: ConnectionContext, request: ReceivedStage) -> Concurrent:
    """Answered when the batches are checked and on disk, where nobody sees them."""
    _check_numbers(batch_id=request.batch_id, task=request.task, attempt=request.attempt, sequence=request.sequence)
    return reply_concurrently(context, partial(_stage, context, request), write_wait_ms(request.timeout_ms))


async def _stage(context: ConnectionContext, request: ReceivedStage) -> pb.StageWriteResponse:
    budget = context.server.request_budget
    budget.add(request.size_bytes)
    try:
        context.storage.staging.check(request.table_id, request.query_id)
        overwrite = check_merge(request.target_columns, request.agg_mode)
        for batch in request.batches:
            await _check(context, request, batch, overwrite=overwrite)
        query = query_name(request.query_id)
        key = StagedKey(request.table_id, query, request.batch_id, request.task, request.attempt, request.sequence)
        staged = StagedRequest(request.batches, request.target_columns, overwrite)
        await context.storage.staging.stage(key, request.query_id, staged)
    finally:
        budget.release(request.size_bytes)
    return pb.StageWriteResponse()


async def _check(context: ConnectionContext, request: ReceivedStage, batch: BucketBatch, *, overwrite: bool) -> None:
    """Refuse now what the append would refuse: a decided commit has to succeed."""
    storage, records = context.storage, batch.records
    if not storage.exists(batch.bucket):
        raise FlussError(f"{batch.bucket} does not exist.", ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION)
    entry = storage.catalog.table_by_id(request.table_id)
    if entry is not None and table_format(entry.table_json).has_primary_key:
        check_size(records, context.limits.batch_bytes_max)
        await storage.kv.check(batch.bucket, records, request.target_columns, overwrite=overwrite)
        return
    if request.target_columns or overwrite:
        raise _refused("rows of a log table are whole, and stored as they come")
    header = check_batch(records, request.table_id, storage.catalog, context.limits.batch_bytes_max)
    if header.magic > MAGIC_WITH_STATISTICS:
        raise _refused(f"a staged batch is of magic 0 or 1, not {header.magic}")
    verify_crc(records, 0, header)


def commit_staged(context: ConnectionContext, request: pb.CommitStagedRequest) -> Concurrent:
    _check_text(request.query_id)
    _check_numbers(batch_id=request.batch_id)
    check_count(len(request.tasks), context.limits.request_items_max, "tasks")
    check_count(sum(task.request_count for task in request.tasks), REQUESTS_MAX, "staged requests")
    for task in request.tasks:
        _check_numbers(task=task.task, attempt=task.attempt, request_count=task.request_count, rows=task.row_count)
    return reply_concurrently(context, partial(_commit, context, request), write_wait_ms(request.timeout_ms))


async def _commit(context: ConnectionContext, request: pb.CommitStagedRequest) -> pb.CommitStagedResponse:
    tasks = [_task(task) for task in request.tasks]
    staging = context.storage.staging
    is_repeated = await staging.commit(request.table_id, request.query_id, request.batch_id, tasks)
    return pb.CommitStagedResponse(is_repeated=is_repeated)


def _task(task: pb.PbStagedTask) -> StagedTask:
    numbers = task.task, task.attempt, task.request_count
    known = task.HasField("row_count") and task.HasField("digest")
    return StagedTask(*numbers, task.row_count, task.digest) if known else StagedTask(*numbers)


async def drop_staged(context: ConnectionContext, request: pb.DropStagedRequest) -> pb.DropStagedResponse:
    _check_text(request.query_id)
    _check_numbers(batch_id=request.batch_id)
    await context.storage.staging.drop(request.table_id, request.query_id, request.batch_id)
    return pb.DropStagedResponse()


def list_staged(context: ConnectionContext, request: pb.ListStagedRequest) -> pb.ListStagedResponse:
    response = pb.ListStagedResponse()
    for query in context.storage.staging.queries():
        path, *values = query
        fields = dict(zip(query._fields[1:], values, strict=True))
        response.queries.add(database_name=path.database_name, table_name=path.table_name, **fields)
    return response


async def accept_staged(context: ConnectionContext, request: pb.AcceptStagedRequest) -> pb.AcceptStagedResponse:
    _check_text(request.query_id)
    _check_numbers(batch_id=request.batch_id)
    await context.storage.staging.accept(request.table_id, request.query_id, request.batch_id)
    return pb.AcceptStagedResponse()


async def reset_staged(context: ConnectionContext, request: pb.ResetStagedRequest) -> pb.ResetStagedResponse:
    _check_text(request.query_id)
    _check_numbers(batch_id=request.batch_id)
    batch_id = request.batch_id if request.HasField("batch_id") else None
    await context.storage.staging.reset(request.table_id, request.query_id, batch_id, gives_up=request.gives_up)
    return pb.ResetStagedResponse()


def _check_text(query_id: object) -> None:
    if not isinstance(query_id, str):
        raise _refused("query_id is not UTF-8")  # protobuf then leaves bytes


def _check_numbers(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 0:
            raise _refused(f"{name} must not be negative, but is {number}")


def _refused(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"The staged write can't be accepted: {reason}.", ErrorCode.INVALID_TABLE_EXCEPTION)

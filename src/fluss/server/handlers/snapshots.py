"""Snapshots of primary-key tables with their leases, snapshots in the lake, heartbeats of tiering jobs.

ReportLakeRound, GetLakeError and ForgetLakeSnapshots are not Apache Fluss's: the first two tell people why a round
failed, the third is for a lake that was dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, error_from_code
from fluss.model.paths import TableBucket
from fluss.model.staging import LAKE_ERROR_CHARACTERS_MAX
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.context import ConnectionContext, code_and_text
from fluss.server.tables.rules import check_count, table_path
from fluss.storage.catalog.catalog import PartitionEntry, TableEntry
from fluss.storage.catalog.view import has_primary_key
from fluss.storage.kv.snapshot_files import Snapshot, files_of, list_snapshots
from fluss.storage.lake_snapshots import offsets_of


async def get_latest_kv_snapshots(
    context: ConnectionContext, request: pb.GetLatestKvSnapshotsRequest
) -> pb.GetLatestKvSnapshotsResponse:
    table, partition = _table_and_partition(context, request)
    partition_id = None if partition is None else partition.partition_id
    paths = [
        context.storage.bucket_path(TableBucket(table.table_id, bucket_id, partition_id))
        for bucket_id in range(table.num_buckets)
    ]
    response = pb.GetLatestKvSnapshotsResponse(table_id=table.table_id, partition_id=partition_id)
    for bucket_id, newest in enumerate(await context.storage.run_blocking(partial(_newest, paths))):
        entry = response.latest_snapshots.add(bucket_id=bucket_id)
        if newest is not None:
            entry.snapshot_id, entry.log_offset = newest.snapshot_id, newest.log_offset
    return response


def _table_and_partition(
    context: ConnectionContext, request: pb.GetLatestKvSnapshotsRequest
) -> tuple[TableEntry, PartitionEntry | None]:
    catalog = context.storage.catalog
    table = catalog.table(table_path(request.table_path))
    if not has_primary_key(table.table_json):
        raise error_from_code(
            ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION,
            f"Table {table.path} has no primary key, so it has no KV snapshots; read its log.",
        )
    if request.HasField("partition_name"):
        return table, catalog.partition(table, request.partition_name)
    if table.partition_keys:
        raise error_from_code(
            ErrorCode.PARTITION_NOT_EXISTS, f"Table {table.path} has partitions; name the one that is asked for."
        )
    return table, None


def _newest(paths: Sequence[Path]) -> list[Snapshot | None]:
    return [next(iter(list_snapshots(path)), None) for path in paths]


async def list_kv_snapshots(
    context: ConnectionContext, request: pb.ListKvSnapshotsRequest
) -> pb.ListKvSnapshotsResponse:
    """All snapshots that are kept, those of leases, too; those of a bucket from the newest on."""
    table, partition_id = _by_ids(context, request)
    paths = [
        context.storage.bucket_path(TableBucket(table.table_id, bucket_id, partition_id))
        for bucket_id in range(table.num_buckets)
    ]
    response = pb.ListKvSnapshotsResponse(table_id=table.table_id, partition_id=partition_id)
    found = await context.storage.run_blocking(lambda: [list_snapshots(path) for path in paths])
    for bucket_id, kept in enumerate(found):
        for snapshot in kept:
            response.active_snapshots.add(
                bucket_id=bucket_id, snapshot_id=snapshot.snapshot_id, log_offset=snapshot.log_offset
            )
    return response


def list_remote_log_manifests(
    context: ConnectionContext, request: pb.ListRemoteLogManifestsRequest
) -> pb.ListRemoteLogManifestsResponse:
    """None: this server keeps whole logs itself."""
    _by_ids(context, request)
    return pb.ListRemoteLogManifestsResponse()


def _by_ids(
    context: ConnectionContext, request: pb.ListKvSnapshotsRequest | pb.ListRemoteLogManifestsRequest
) -> tuple[TableEntry, int | None]:
    """The table, and the id of its partition if it has partitions."""
    catalog = context.storage.catalog
    table = catalog.table_by_id(request.table_id)
    if table is None:
        raise error_from_code(ErrorCode.TABLE_NOT_EXIST, f"There is no table with id {request.table_id}.")
    partition_id = request.partition_id if request.HasField("partition_id") else None
    if partition_id is None and not table.partition_keys:
        return table, None
    partition = None if partition_id is None else catalog.partition_by_id(partition_id)
    if partition is None or partition.table_id != table.table_id:
        raise error_from_code(
            ErrorCode.PARTITION_NOT_EXISTS, f"Table {table.path} has no partition with id {partition_id}."
        )
    return table, partition_id


async def get_kv_snapshot_metadata(
    context: ConnectionContext, request: pb.GetKvSnapshotMetadataRequest
) -> pb.GetKvSnapshotMetadataResponse:
    bucket = _bucket(request.table_id, request)
    path = context.storage.bucket_path(bucket)
    found = await context.storage.run_blocking(partial(_with_files, path, request.snapshot_id))
    if found is None:
        raise FlussError(
            f"{bucket} has no snapshot {request.snapshot_id}; ask for the latest ones.", ErrorCode.KV_SNAPSHOT_NOT_EXIST
        )
    snapshot, files = found
    response = pb.GetKvSnapshotMetadataResponse(log_offset=snapshot.log_offset)
    for file in files:
        response.snapshot_files.add(remote_path=str(file), local_file_name=file.name)
    return response


def _with_files(bucket_path: Path, snapshot_id: int) -> tuple[Snapshot, list[Path]] | None:
    for snapshot in list_snapshots(bucket_path):
        if snapshot.snapshot_id == snapshot_id and (files := files_of(snapshot)):
            return snapshot, files
    return None


async def acquire_kv_snapshot_lease(
    context: ConnectionContext, request: pb.AcquireKvSnapshotLeaseRequest
) -> pb.AcquireKvSnapshotLeaseResponse:
    items = [(table.table_id, item) for table in request.snapshots_to_lease for item in table.bucket_snapshots]
    check_count(len(items), context.limits.request_items_max, "snapshots")
    wanted = {_bucket(table_id, item): item.snapshot_id for table_id, item in items}
    unavailable = await context.server.kv_snapshots.lease(request.lease_id, request.lease_duration_ms, wanted)
    response = pb.AcquireKvSnapshotLeaseResponse()
    for table_id in sorted({bucket.table_id for bucket in unavailable}):
        table = response.unavailable_snapshots.add(table_id=table_id)
        for bucket, snapshot_id in unavailable.items():
            if bucket.table_id == table_id:
                table.bucket_snapshots.add(
                    partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, snapshot_id=snapshot_id
                )
    return response


async def release_kv_snapshot_lease(
    context: ConnectionContext, request: pb.ReleaseKvSnapshotLeaseRequest
) -> pb.ReleaseKvSnapshotLeaseResponse:
    check_count(len(request.buckets_to_release), context.limits.request_items_max, "buckets")
    buckets = [_bucket(item.table_id, item) for item in request.buckets_to_release]
    await context.server.kv_snapshots.leases.release(request.lease_id, buckets)
    return pb.ReleaseKvSnapshotLeaseResponse()


async def drop_kv_snapshot_lease(
    context: ConnectionContext, request: pb.DropKvSnapshotLeaseRequest
) -> pb.DropKvSnapshotLeaseResponse:
    await context.server.kv_snapshots.leases.drop(request.lease_id)
    return pb.DropKvSnapshotLeaseResponse()


def _bucket(
    table_id: int, item: pb.GetKvSnapshotMetadataRequest | pb.PbBucketSnapshot | pb.PbTableBucket
) -> TableBucket:
    return TableBucket(table_id, item.bucket_id, item.partition_id if item.HasField("partition_id") else None)


def get_lake_snapshot(context: ConnectionContext, request: pb.GetLakeSnapshotRequest) -> pb.GetLakeSnapshotResponse:
    catalog = context.storage.catalog
    table = catalog.table(table_path(request.table_path))
    snapshot_id = request.snapshot_id if request.HasField("snapshot_id") else None
    if snapshot_id is not None and request.readable:
        raise _refused("ask for one lake snapshot by its id, or for the latest that is readable, not for both")
    entry = context.storage.lake.find(table, snapshot_id, readable=request.readable)
    response = pb.GetLakeSnapshotResponse(table_id=table.table_id, snapshot_id=entry.snapshot_id)
    for bucket, offset in offsets_of(entry).items():
        item = response.bucket_snapshots.add(bucket_id=bucket.bucket_id, log_offset=offset)
        if bucket.partition_id is not None:
            item.partition_id = bucket.partition_id
            partition = catalog.partition_by_id(bucket.partition_id)
            if partition is not None:
                item.partition_name = partition.name
    return response


async def prepare_lake_table_snapshot(
    context: ConnectionContext, request: pb.PrepareLakeTableSnapshotRequest
) -> pb.PrepareLakeTableSnapshotResponse:
    count = len(request.bucket_offsets) + sum(len(item.bucket_offsets) for item in request.bucket_offsets)
    check_count(count, context.limits.lake_buckets_max, "tables and buckets")
    response = pb.PrepareLakeTableSnapshotResponse()
    for item in request.bucket_offsets:
        answer = response.prepare_lake_table_resp.add(table_id=item.table_id)
        try:
            merge = not request.ignore_previous_table_offsets
            answer.lake_table_offsets_path = await _prepare_table(context, item, merge=merge)
        except Exception as error:
            answer.error_code, answer.error_message = code_and_text(error)
    return response


async def _prepare_table(context: ConnectionContext, item: pb.PbTableOffsets, *, merge: bool) -> str:
    table = context.storage.catalog.table(table_path(item.table_path))
    if table.table_id != item.table_id:
        raise error_from_code(
            ErrorCode.TABLE_NOT_EXIST, f"Table {table.path} with id {item.table_id} was dropped; there is a new one."
        )
    offsets = {}
    for bucket in item.bucket_offsets:
        if not bucket.HasField("log_end_offset"):
            raise _refused(f"bucket {bucket.bucket_id} has no offset")
        partition_id = bucket.partition_id if bucket.HasField("partition_id") else None
        offsets[TableBucket(item.table_id, bucket.bucket_id, partition_id)] = bucket.log_end_offset
    return await context.storage.lake.prepare(table, offsets, merge=merge)


async def commit_lake_table_snapshot(
    context: ConnectionContext, request: pb.CommitLakeTableSnapshotRequest
) -> pb.CommitLakeTableSnapshotResponse:
    check_count(
        len(request.lake_table_snapshot_metadata) + len(request.tables_req), context.limits.request_items_max, "tables"
    )
    response = pb.CommitLakeTableSnapshotResponse()
    for item in request.lake_table_snapshot_metadata:
        answer = response.table_resp.add(table_id=item.table_id)
        try:
            await _commit_table(context, item)
        except Exception as error:
            answer.error_code, answer.error_message = code_and_text(error)
    done = {item.table_id for item in response.table_resp}
    for table in request.tables_req:
        # Offsets for the tablet servers of a cluster; they are in the file, too.
        if table.table_id not in done:
            answer = response.table_resp.add(table_id=table.table_id)
            answer.error_code, answer.error_message = code_and_text(_too_old())
    return response


async def _commit_table(context: ConnectionContext, item: pb.PbLakeTableSnapshotMetadata) -> None:
    tiered = item.tiered_bucket_offsets_file_path
    readable = item.readable_bucket_offsets_file_path
    if readable not in ("", tiered):
        raise _refused("a snapshot in Iceberg is readable as far as it is tiered; name the same offsets file for both")
    keep = item.earliest_snapshot_id_to_keep if item.HasField("earliest_snapshot_id_to_keep") else None
    await context.storage.lake.commit(
        item.table_id, item.snapshot_id, tiered, readable=bool(readable), earliest_to_keep=keep
    )


def lake_tiering_heartbeat(
    context: ConnectionContext, request: pb.LakeTieringHeartbeatRequest
) -> pb.LakeTieringHeartbeatResponse:
    reported = len(request.tiering_tables) + len(request.finished_tables) + len(request.failed_tables)
    check_count(reported + len(request.force_finished_tables), context.limits.request_items_max, "tables")
    tiering = context.server.tiering
    response = pb.LakeTieringHeartbeatResponse(coordinator_epoch=tiering.coordinator_epoch)
    again = set(request.force_finished_tables)
    for item in request.failed_tables:
        _report(response.failed_table_resp.add(table_id=item.table_id), item, tiering.fail)
    for item in request.tiering_tables:
        _report(response.tiering_table_resp.add(table_id=item.table_id), item, tiering.renew)
    for item in request.finished_tables:
        finish = tiering.finish_early if item.table_id in again else tiering.finish
        _report(response.finished_table_resp.add(table_id=item.table_id), item, finish)
    assigned = tiering.request() if request.request_table else None
    if assigned is not None:
        table = response.tiering_table
        table.table_id, table.tiering_epoch = assigned.table_id, assigned.tiering_epoch
        table.table_path.database_name, table.table_path.table_name = (
            assigned.table_path.database,
            assigned.table_path.table,
        )
    return response


def _report(
    answer: pb.PbHeartbeatRespForTable, item: pb.PbHeartbeatReqForTable, what: Callable[[int, int, int], None]
) -> None:
    try:
        what(item.table_id, item.coordinator_epoch, item.tiering_epoch)
    except Exception as error:
        answer.error.error_code, answer.error.error_message = code_and_text(error)


async def report_lake_round(
    context: ConnectionContext, request: pb.ReportLakeRoundRequest
) -> pb.ReportLakeRoundResponse:
    error = request.error if request.HasField("error") else None
    if error is not None and not isinstance(error, str):
        raise _refused("the error is not UTF-8")  # protobuf then leaves bytes
    await context.storage.catalog.set_lake_error(request.table_id, error and error[:LAKE_ERROR_CHARACTERS_MAX])
    return pb.ReportLakeRoundResponse()


def get_lake_error(context: ConnectionContext, request: pb.GetLakeErrorRequest) -> pb.GetLakeErrorResponse:
    found = context.storage.catalog.lake_error(request.table_id)
    return (
        pb.GetLakeErrorResponse()
        if found is None
        else pb.GetLakeErrorResponse(error=found.error, time_ms=found.time_ms)
    )


async def forget_lake_snapshots(
    context: ConnectionContext, request: pb.ForgetLakeSnapshotsRequest
) -> pb.ForgetLakeSnapshotsResponse:
    await context.storage.lake.forget(request.table_id)
    return pb.ForgetLakeSnapshotsResponse()


def _too_old() -> InvalidRequestError:
    return InvalidRequestError(
        "A lake snapshot is registered with the offsets file that PrepareLakeTableSnapshot gave; upgrade the job.",
        ErrorCode.UNSUPPORTED_VERSION,
    )


def _refused(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"The request can't be answered: {reason}.", ErrorCode.INVALID_CONFIG_EXCEPTION)

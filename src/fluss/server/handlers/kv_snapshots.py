"""KV snapshots: which there are, what files they have, and leases that keep them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fluss.model.errors import ErrorCode, FlussError, error_from_code
from fluss.model.paths import TableBucket
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.context import ConnectionContext
from fluss.server.tables.rules import check_count, table_path
from fluss.storage.catalog.catalog import PartitionEntry, TableEntry
from fluss.storage.catalog.view import has_primary_key
from fluss.storage.kv.snapshot_files import Snapshot, files_of, list_snapshots


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

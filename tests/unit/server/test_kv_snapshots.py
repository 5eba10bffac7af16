"""Requests about KV snapshots and leases of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fluss.model.errors import ErrorCode
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.storage.kv import snapshot_files as on_disk
from fluss.storage.kv.rocks import open_store
from fluss.storage.kv.rocks_settings import Resources
from fluss.storage.kv.snapshots import LEASE_MS_MAX
from fluss.storage.kv.store import MEMORY_BYTES_MIN, KvState
from tests.kit.thread_server import RunningServer, Wire, WireError, descriptor, path

HOUR_MS = 3_600_000


def create(wire: Wire, name: str = "t", buckets: int = 1, partition_key: str | None = None) -> int:
    value = json.loads(descriptor(bucket_count=buckets, bucket_key=["id"]))
    keys = ["id"] if partition_key is None else ["id", partition_key]
    value["schema"]["primary_key"] = keys
    value["partition_key"] = [] if partition_key is None else [partition_key]
    for column in value["schema"]["columns"]:
        column["data_type"]["nullable"] = column["name"] not in keys
    request = pb.CreateTableRequest(
        table_path=path(name), table_json=json.dumps(value).encode(), ignore_if_exists=False
    )
    wire.call(api_keys.CREATE_TABLE, request)
    return wire.call(api_keys.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path(name))).table_id


def make_snapshot(server: RunningServer, bucket: TableBucket, log_offset: int) -> on_disk.Snapshot:
    """A snapshot of a store of its own, with one row for each offset."""
    bucket_path = server.look(lambda: server.server.context.storage.bucket_path(bucket))
    bucket_path.mkdir(parents=True, exist_ok=True)
    store = open_store(bucket_path / "kv", Resources(MEMORY_BYTES_MIN))
    keys = [b"%d" % number for number in range(log_offset)]
    store.write(keys, keys, [], KvState(log_offset, log_offset))
    draft = on_disk.begin(bucket_path)
    store.checkpoint(draft)
    store.close()
    return on_disk.finish(draft, log_offset, 0)


def latest(wire: Wire, table: str = "t", partition: str | None = None) -> pb.GetLatestKvSnapshotsResponse:
    request = pb.GetLatestKvSnapshotsRequest(table_path=path(table), partition_name=partition)
    return wire.call(api_keys.GET_LATEST_KV_SNAPSHOTS, request)


def metadata(wire: Wire, bucket: TableBucket, snapshot_id: int) -> pb.GetKvSnapshotMetadataResponse:
    request = pb.GetKvSnapshotMetadataRequest(
        table_id=bucket.table_id,
        partition_id=bucket.partition_id,
        bucket_id=bucket.bucket_id,
        snapshot_id=snapshot_id,
    )
    return wire.call(api_keys.GET_KV_SNAPSHOT_METADATA, request)


def acquire(
    wire: Wire, lease_id: str, duration_ms: int, *wanted: tuple[TableBucket, int]
) -> list[tuple[TableBucket, int]]:
    request = pb.AcquireKvSnapshotLeaseRequest(lease_id=lease_id, lease_duration_ms=duration_ms)
    for bucket, snapshot_id in wanted:
        table = request.snapshots_to_lease.add(table_id=bucket.table_id)
        table.bucket_snapshots.add(
            partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, snapshot_id=snapshot_id
        )
    answer = wire.call(api_keys.ACQUIRE_KV_SNAPSHOT_LEASE, request)
    return [
        (
            TableBucket(table.table_id, item.bucket_id, item.partition_id if item.HasField("partition_id") else None),
            item.snapshot_id,
        )
        for table in answer.unavailable_snapshots
        for item in table.bucket_snapshots
    ]


def leased(server: RunningServer) -> dict[TableBucket, set[int]]:
    return server.look(server.server.context.kv_snapshots.leases.leased)


def code(wire: Wire, table: str = "t", partition: str | None = None) -> int:
    with pytest.raises(WireError) as caught:
        latest(wire, table, partition)
    return caught.value.code


def test_each_bucket_is_listed_with_its_newest_snapshot(server: RunningServer, wire: Wire) -> None:
    table_id = create(wire, buckets=3)
    make_snapshot(server, TableBucket(table_id, 1), 4)
    make_snapshot(server, TableBucket(table_id, 1), 9)
    answer = latest(wire)
    assert (answer.table_id, answer.HasField("partition_id")) == (table_id, False)
    found = [
        (item.bucket_id, item.snapshot_id, item.log_offset) if item.HasField("snapshot_id") else item.bucket_id
        for item in answer.latest_snapshots
    ]
    assert found == [0, (1, 1, 9), 2]
    assert not answer.latest_snapshots[0].HasField("log_offset")


def test_a_partition_has_its_own(server: RunningServer, wire: Wire) -> None:
    table_id = create(wire, partition_key="name")
    for name in ("a", "b"):
        spec = pb.PbPartitionSpec(partition_key_values=[pb.PbKeyValue(key="name", value=name)])
        request = pb.CreatePartitionRequest(table_path=path(), partition_spec=spec, ignore_if_exists=False)
        wire.call(api_keys.CREATE_PARTITION, request)
    partition_id = latest(wire, partition="b").partition_id
    bucket = TableBucket(table_id, 0, partition_id)
    make_snapshot(server, bucket, 2)
    (item,) = latest(wire, partition="b").latest_snapshots
    assert (item.snapshot_id, item.log_offset) == (0, 2)
    assert not latest(wire, partition="a").latest_snapshots[0].HasField("snapshot_id")
    assert metadata(wire, bucket, 0).log_offset == 2
    assert acquire(wire, "a", HOUR_MS, (bucket, 0), (TableBucket(table_id, 0), 0)) == [(TableBucket(table_id, 0), 0)]
    assert leased(server) == {bucket: {0}}
    assert code(wire, partition="c") == ErrorCode.PARTITION_NOT_EXISTS
    assert code(wire) == ErrorCode.PARTITION_NOT_EXISTS


def test_what_has_no_snapshots_is_told_apart(wire: Wire) -> None:
    create(wire)
    wire.call(
        api_keys.CREATE_TABLE,
        pb.CreateTableRequest(
            table_path=path("log"), table_json=descriptor(bucket_count=1, bucket_key=[]), ignore_if_exists=False
        ),
    )
    assert code(wire, "nowhere") == ErrorCode.TABLE_NOT_EXIST
    assert code(wire, "log") == ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION
    assert code(wire, "t", "p") == ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION


def test_the_files_are_what_a_reader_needs(server: RunningServer, wire: Wire, tmp_path: Path) -> None:
    bucket = TableBucket(create(wire), 0)
    snapshot = make_snapshot(server, bucket, 100)
    answer = metadata(wire, bucket, 0)
    assert answer.log_offset == 100
    names = [item.local_file_name for item in answer.snapshot_files]
    kinds = [
        name.partition("-")[0] if "-" in name else name.removeprefix("0000").lstrip("0123456789") for name in names
    ]
    assert kinds[0] == "CURRENT"
    assert set(kinds) == {"CURRENT", "MANIFEST", "OPTIONS", ".sst"}
    assert kinds == sorted(kinds, key=["CURRENT", "MANIFEST", "OPTIONS", ".sst"].index)
    assert [item.remote_path for item in answer.snapshot_files] == [str(snapshot.path / name) for name in names]
    # With nothing but these files it opens, and has all rows.
    copy = tmp_path / "copy"
    copy.mkdir()
    for item in answer.snapshot_files:
        (copy / item.local_file_name).write_bytes(Path(item.remote_path).read_bytes())
    store = open_store(copy, Resources(MEMORY_BYTES_MIN))
    assert len(store.scan().keys) == 100
    store.close()


@pytest.mark.parametrize(
    "bucket", [TableBucket(0, 0), TableBucket(0, 7), TableBucket(9, 0), TableBucket(0, 0, 3), TableBucket(-1, -1, -1)]
)
def test_a_missing_snapshot_is_code_41(wire: Wire, bucket: TableBucket) -> None:
    assert create(wire) == 0
    with pytest.raises(WireError) as caught:
        metadata(wire, bucket, 0)
    assert caught.value.code == ErrorCode.KV_SNAPSHOT_NOT_EXIST


def test_leases_come_and_go_and_survive_a_restart(tmp_path: Path) -> None:
    with RunningServer(tmp_path / "data") as server, server.connect() as wire:
        first = TableBucket(create(wire, buckets=2), 0)
        second = TableBucket(first.table_id, 1)
        for bucket in (first, second):
            make_snapshot(server, bucket, 3)
        assert acquire(wire, "a", HOUR_MS, (first, 0), (second, 1)) == [(second, 1)]
        assert acquire(wire, "b", HOUR_MS, (first, 0), (second, 0)) == []
    with RunningServer(tmp_path / "data") as server, server.connect() as wire:
        assert leased(server) == {first: {0}, second: {0}}
        request = pb.ReleaseKvSnapshotLeaseRequest(
            lease_id="b", buckets_to_release=[pb.PbTableBucket(table_id=first.table_id, bucket_id=1)]
        )
        wire.call(api_keys.RELEASE_KV_SNAPSHOT_LEASE, request)
        assert leased(server) == {first: {0}}
        for lease_id in ("a", "b", "nobody's"):
            wire.call(api_keys.DROP_KV_SNAPSHOT_LEASE, pb.DropKvSnapshotLeaseRequest(lease_id=lease_id))
        assert leased(server) == {}


@pytest.mark.parametrize(("lease_id", "duration_ms"), [("", 1), ("a", 0), ("a", LEASE_MS_MAX + 1)])
def test_a_lease_out_of_bounds_is_refused(wire: Wire, lease_id: str, duration_ms: int) -> None:
    with pytest.raises(WireError, match="lease") as caught:
        acquire(wire, lease_id, duration_ms)
    assert caught.value.code == ErrorCode.INVALID_CONFIG_EXCEPTION


def test_all_snapshots_are_listed_and_no_remote_logs(server: RunningServer, wire: Wire) -> None:
    table_id = create(wire, buckets=2)
    made = [make_snapshot(server, TableBucket(table_id, 1), offset) for offset in (1, 2)]
    answer = wire.call(api_keys.LIST_KV_SNAPSHOTS, pb.ListKvSnapshotsRequest(table_id=table_id))
    found = [(item.bucket_id, item.snapshot_id, item.log_offset) for item in answer.active_snapshots]
    assert sorted(found) == sorted((1, snapshot.snapshot_id, snapshot.log_offset) for snapshot in made)
    assert (answer.table_id, answer.HasField("partition_id")) == (table_id, False)
    wire.call(api_keys.LIST_REMOTE_LOG_MANIFESTS, pb.ListRemoteLogManifestsRequest(table_id=table_id))
    for api in (api_keys.LIST_KV_SNAPSHOTS, api_keys.LIST_REMOTE_LOG_MANIFESTS):
        for ids, code in (
            ({"table_id": 99}, ErrorCode.TABLE_NOT_EXIST),
            ({"table_id": table_id, "partition_id": 1}, ErrorCode.PARTITION_NOT_EXISTS),
        ):
            with pytest.raises(WireError) as raised:
                wire.call(api, api.request(**ids))
            assert raised.value.code == code

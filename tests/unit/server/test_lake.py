"""Lake snapshots on a real server, through the calls that tiering jobs make."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss.sync
from fluss import Config, FlussError, Schema, TableBucket, TableDescriptor, TablePath
from fluss.api.operations import LakeRegistry
from fluss.model.infos import TableInfo
from fluss.model.staging import LAKE_ERROR_CHARACTERS_MAX
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.net.limits import Limits
from tests.kit.thread_server import RunningServer, Wire, WireError, path

T = TablePath("fluss", "t")
SCHEMA = pa.schema([("id", pa.int32()), ("name", pa.string())])
LAKE = {"table.datalake.enabled": "true"}


class Job:
    """A connection with its registry."""

    def __init__(self, server: RunningServer) -> None:
        address = f"{server.address[0]}:{server.address[1]}"
        self.connection = fluss.sync.FlussConnection.create(Config({"bootstrap.servers": address}))
        self.admin = self.connection.get_admin()
        self.registry = LakeRegistry(self.connection)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def make(self, table: TablePath = T, *, rows: int = 10, buckets: int = 1, **options: Any) -> TableInfo:
        options = {"properties": LAKE, **options}
        self.admin.create_table(table, TableDescriptor(Schema(SCHEMA), bucket_count=buckets, **options))
        if rows:
            self.append(table, rows)
        return self.admin.get_table_info(table)

    def append(self, table: TablePath, rows: int) -> None:
        writer = self.connection.get_table(table).new_append().create_writer()
        writer.write_arrow(pa.table({"id": range(rows), "name": ["a"] * rows}, SCHEMA))
        writer.flush()

    def tier(self, info: TableInfo, snapshot_id: int, end: int, **keep: Any) -> str:
        offsets = {TableBucket(info.table_id, 0): end}
        prepared = self.registry.prepare(info, offsets)
        self.registry.commit(info, snapshot_id, prepared, offsets, **keep)
        return prepared


@pytest.fixture
def job(server: RunningServer) -> Iterator[Job]:
    with Job(server) as connected:
        yield connected


def refused(code: int, text: str) -> Any:
    return pytest.raises(FlussError, match=text, check=lambda error: error.error_code == code)


def offsets_files(server: RunningServer) -> list[Path]:
    return sorted(server.config.data_dir.glob("tables/*/lake-offsets/*"))


def test_a_snapshot_is_prepared_registered_and_found(job: Job, server: RunningServer) -> None:
    info = job.make(buckets=3, rows=0, bucket_keys=["id"])
    job.append(T, 30)
    ends = job.admin.list_offsets(T, [0, 1, 2], fluss.OffsetSpec.latest())
    assert job.registry.latest(T) is None
    offsets = {TableBucket(info.table_id, bucket): ends[bucket] for bucket in (0, 2)}
    prepared = job.registry.prepare(info, offsets)
    content = json.loads(Path(prepared).read_bytes())
    assert content.pop("crc32c")
    assert content == {"version": 1, "table_id": info.table_id, "bucket_offsets": [ends[0], -1, ends[2]]}
    assert job.registry.latest(T) is None
    job.registry.commit(info, 7_000_000_000_000, prepared, offsets)
    found = job.admin.get_latest_lake_snapshot(T)
    assert found == job.registry.latest(T) == job.registry.snapshot(T, 7_000_000_000_000)
    assert found.snapshot_id == 7_000_000_000_000
    assert found.table_buckets_offset == offsets
    assert found.get_bucket_offset(TableBucket(info.table_id, 1)) is None
    assert found.get_table_buckets() == list(offsets)
    assert job.registry.snapshot(T, 1) is None


def test_prepared_offsets_are_those_of_before_and_the_new_ones(job: Job, server: RunningServer) -> None:
    info = job.make(buckets=2, rows=40, bucket_keys=["id"])
    first, second = TableBucket(info.table_id, 0), TableBucket(info.table_id, 1)
    job.registry.commit(info, 1, job.registry.prepare(info, {first: 1}), {})
    prepared = job.registry.prepare(info, {second: 2})
    job.registry.commit(info, 2, prepared, {})
    latest = job.registry.latest(T)
    assert latest is not None
    assert latest.table_buckets_offset == {first: 1, second: 2}
    with server.connect() as wire:
        request = pb.PrepareLakeTableSnapshotRequest(ignore_previous_table_offsets=True)
        item = request.bucket_offsets.add(table_id=info.table_id, table_path=path())
        item.bucket_offsets.add(bucket_id=1, log_end_offset=3)
        (answer,) = wire.call(api_keys.PREPARE_LAKE_TABLE_SNAPSHOT, request).prepare_lake_table_resp
    alone = answer.lake_table_offsets_path
    assert json.loads(Path(alone).read_bytes())["bucket_offsets"] == [-1, 3]
    with refused(50, "up to 1 is registered"):
        job.registry.commit(info, 3, alone, {})


@pytest.mark.parametrize(
    ("offsets", "code", "text"),
    [
        ({TableBucket(0, 0): 11}, 19, "can't reach 11"),
        ({TableBucket(0, 0): -1}, 19, "can't reach -1"),
        ({TableBucket(0, 0): 5, TableBucket(0, 1): 0}, 15, "not a bucket of table"),
        ({TableBucket(0, -1): 0}, 15, "not a bucket of table"),
        ({TableBucket(0, 0, 9): 0}, 15, "no partitions"),
    ],
)
def test_offsets_that_can_not_be(
    job: Job, server: RunningServer, offsets: Mapping[TableBucket, int], code: int, text: str
) -> None:
    info = job.make()
    with refused(code, text):
        job.registry.prepare(info, offsets)
    assert not offsets_files(server)


def test_tables_that_can_not_be(job: Job, server: RunningServer) -> None:
    plain = job.make(TablePath("fluss", "plain"), properties={})
    with refused(39, "set table.datalake.enabled"):
        job.registry.prepare(plain, {})
    old = job.make()
    job.admin.drop_table(T)
    with refused(7, "does not exist"):
        job.registry.prepare(old, {})
    job.make()
    with refused(7, "there is a new one"):
        job.registry.prepare(old, {})
    with refused(7, "any more"):
        job.registry.commit(old, 1, f"/x/tables/{old.table_id}/lake-offsets/{'0' * 32}.offsets", {})
    with refused(53, "it is not tiered"):
        job.admin.get_latest_lake_snapshot(plain.table_path)
    with refused(53, "run a tiering job"):
        job.admin.get_latest_lake_snapshot(T)
    assert not offsets_files(server)


def test_only_the_tables_own_prepared_files_are_read(job: Job, server: RunningServer, tmp_path: Path) -> None:
    info, other = job.make(), job.make(TablePath("fluss", "other"))
    offsets = {TableBucket(info.table_id, 0): 1}
    good = Path(job.registry.prepare(info, offsets))
    elsewhere = tmp_path / good.name
    elsewhere.write_bytes(good.read_bytes())
    for bad in (
        str(elsewhere),
        "",
        "x.offsets",
        str(good) + "/..",
        f"{good.parent}/../{good.name}",
        str(good).removesuffix(".offsets"),
        job.registry.prepare(other, {}),
    ):
        with refused(39, "not an offsets file of table"):
            job.registry.commit(info, 1, bad, offsets)
    with server.connect() as wire:
        request = pb.CommitLakeTableSnapshotRequest()
        request.lake_table_snapshot_metadata.add(
            table_id=info.table_id, snapshot_id=1, tiered_bucket_offsets_file_path="=" * 8
        )
        body = request.SerializeToString().replace(b"=" * 8, b"\xff" * 8)
        request_id = wire.send_raw(api_keys.COMMIT_LAKE_TABLE_SNAPSHOT.key, body)
        (answer,) = wire.receive_answer(request_id, api_keys.COMMIT_LAKE_TABLE_SNAPSHOT).table_resp
        assert answer.error_code == 39, "not UTF-8"
    with refused(53, "begin a new round"):
        job.registry.commit(info, 1, str(good.with_name("0" * 32 + ".offsets")), offsets)
    good.write_bytes(good.read_bytes().replace(b'"version":1', b'"version":2'))
    with refused(-1, "damaged"):
        job.registry.commit(info, 1, str(good), offsets)
    assert job.registry.latest(T) is None


def test_a_path_of_a_directory_that_was_moved_is_still_known(job: Job) -> None:
    info = job.make()
    prepared = Path(job.registry.prepare(info, {TableBucket(info.table_id, 0): 4}))
    job.registry.commit(info, 1, f"file:/mnt/elsewhere/tables/{info.table_id}/lake-offsets/{prepared.name}", {})
    assert job.registry.latest(T) is not None


def registered(wire: Wire, info: TableInfo, snapshot_id: int, prepared: str, keep: int | None = None) -> int:
    """As the wire has it: the error code."""
    request = pb.CommitLakeTableSnapshotRequest()
    request.lake_table_snapshot_metadata.add(
        table_id=info.table_id,
        snapshot_id=snapshot_id,
        tiered_bucket_offsets_file_path=prepared,
        readable_bucket_offsets_file_path=prepared,
        earliest_snapshot_id_to_keep=keep,
    )
    (answer,) = wire.call(api_keys.COMMIT_LAKE_TABLE_SNAPSHOT, request).table_resp
    return answer.error_code


def test_to_register_again_changes_nothing(job: Job, wire: Wire) -> None:
    info = job.make()
    first = job.tier(info, 1, 3)
    second = job.tier(info, 2, 6, keep_all=True)
    for snapshot_id, prepared in ((1, first), (2, second)):
        job.registry.commit(info, snapshot_id, prepared, {})
        assert not registered(wire, info, snapshot_id, prepared)
    latest = job.registry.latest(T)
    assert latest is not None
    assert latest.snapshot_id == 2
    assert registered(wire, info, 1, second) == 50
    # A client that was not told how its request ended names the snapshot itself as the one to keep.
    third = job.registry.prepare(info, {TableBucket(info.table_id, 0): 7})
    for _ in range(2):
        assert not registered(wire, info, 3, third, keep=3)
    assert job.registry.snapshot(T, 2) is None
    assert job.registry.snapshot(T, 3) == job.registry.latest(T)


def test_a_job_that_was_overtaken_can_not_register(job: Job) -> None:
    info = job.make()
    bucket = TableBucket(info.table_id, 0)
    stale = job.registry.prepare(info, {bucket: 5})
    job.tier(info, 1, 8)
    with refused(50, "up to 8 is registered"):
        job.registry.commit(info, 2, stale, {})
    with refused(50, "begin a new round"):
        job.registry.prepare(info, {bucket: 7})
    latest = job.registry.latest(T)
    assert latest is not None
    assert latest.table_buckets_offset == {bucket: 8}


def test_which_earlier_snapshots_stay(job: Job, server: RunningServer) -> None:
    info = job.make()

    def kept() -> list[int]:
        found = [number for number in range(100, 120) if job.registry.snapshot(T, number)]
        assert len(offsets_files(server)) == len(found)
        return found

    job.tier(info, 105, 1)
    job.tier(info, 103, 2, keep_all=True)
    job.tier(info, 107, 3, earliest_to_keep=999)
    assert kept() == [103, 105, 107]
    job.tier(info, 101, 4, earliest_to_keep=103)
    assert kept() == [101, 103, 107]
    job.tier(info, 110, 5)
    assert kept() == [110]


def test_only_readable_snapshots_for_readers(job: Job, server: RunningServer) -> None:
    info = job.make()
    readable = job.tier(info, 1, 2)
    prepared = job.registry.prepare(info, {TableBucket(info.table_id, 0): 3})
    with server.connect() as wire:
        request = pb.CommitLakeTableSnapshotRequest()
        item = request.lake_table_snapshot_metadata.add(
            table_id=info.table_id,
            snapshot_id=2,
            tiered_bucket_offsets_file_path=prepared,
            readable_bucket_offsets_file_path=readable,
            earliest_snapshot_id_to_keep=-1,
        )
        (answer,) = wire.call(api_keys.COMMIT_LAKE_TABLE_SNAPSHOT, request).table_resp
        assert answer.error_code == 39
        item.ClearField("readable_bucket_offsets_file_path")
        (answer,) = wire.call(api_keys.COMMIT_LAKE_TABLE_SNAPSHOT, request).table_resp
        assert not answer.HasField("error_code")
        ask = pb.GetLakeSnapshotRequest(table_path=path())
        assert wire.call(api_keys.GET_LAKE_SNAPSHOT, ask).snapshot_id == 2
        ask.readable = True
        assert wire.call(api_keys.GET_LAKE_SNAPSHOT, ask).snapshot_id == 1
        ask.snapshot_id = 1
        with pytest.raises(WireError, match="not for both"):
            wire.call(api_keys.GET_LAKE_SNAPSHOT, ask)


def test_a_job_of_the_first_version_is_told_so(job: Job, server: RunningServer) -> None:
    info = job.make()
    with server.connect() as wire:
        request = pb.CommitLakeTableSnapshotRequest()
        request.tables_req.add(table_id=info.table_id, snapshot_id=1)
        (answer,) = wire.call(api_keys.COMMIT_LAKE_TABLE_SNAPSHOT, request).table_resp
    assert (answer.table_id, answer.error_code) == (info.table_id, 2)
    assert "upgrade" in answer.error_message


def test_partitions(job: Job, server: RunningServer) -> None:
    info = job.make(partition_keys=["name"], rows=0, buckets=2)
    for name in ("a", "b", "c"):
        job.admin.create_partition(T, {"name": name})
    job.append(T, 5)
    ids = {partition.partition_name: partition.partition_id for partition in job.admin.list_partition_infos(T)}
    ends = job.admin.list_partition_offsets(T, "a", [0, 1], fluss.OffsetSpec.latest())
    offsets = {TableBucket(info.table_id, bucket, ids["a"]): ends[bucket] for bucket in (0, 1)}
    offsets[TableBucket(info.table_id, 1, ids["b"])] = 0
    prepared = job.registry.prepare(info, offsets)
    assert json.loads(Path(prepared).read_bytes())["partition_offsets"] == [
        {"partition_id": ids["a"], "bucket_offsets": [ends[0], ends[1]]},
        {"partition_id": ids["b"], "bucket_offsets": [-1, 0]},
    ]
    job.registry.commit(info, 1, prepared, offsets)
    latest = job.registry.latest(T)
    assert latest is not None
    assert latest.table_buckets_offset == offsets
    job.admin.drop_partition(T, {"name": "b"})
    with server.connect() as wire:
        answer = wire.call(api_keys.GET_LAKE_SNAPSHOT, pb.GetLakeSnapshotRequest(table_path=path()))
    names = {item.partition_id: item.partition_name for item in answer.bucket_snapshots}
    assert names == {ids["a"]: "a", ids["b"]: ""}
    with refused(36, "begin a new round"):
        job.registry.prepare(info, {TableBucket(info.table_id, 0, ids["b"]): 0})
    with refused(15, "in each partition"):
        job.registry.prepare(info, {TableBucket(info.table_id, 0): 0})
    last = TableBucket(info.table_id, 0, ids["c"])
    job.registry.commit(info, 2, job.registry.prepare(info, {last: 0}), {})
    latest = job.registry.latest(T)
    assert latest is not None
    assert set(latest.table_buckets_offset) == {bucket for bucket in offsets if bucket.partition_id == ids["a"]} | {
        last
    }


def test_a_restart_keeps_snapshots_and_prepared_files(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, Job(server) as job:
        info = job.make()
        job.tier(info, 1, 3)
        job.tier(info, 2, 4, keep_all=True)
        before = job.registry.latest(T)
        prepared = job.registry.prepare(info, {TableBucket(info.table_id, 0): 9})
    with RunningServer(tmp_path) as server, Job(server) as job:
        assert job.registry.latest(T) == before
        assert job.registry.snapshot(T, 1) is not None
        job.registry.commit(info, 3, prepared, {})
        latest = job.registry.latest(T)
        assert latest is not None
        assert latest.table_buckets_offset == {TableBucket(info.table_id, 0): 9}


def test_a_dropped_table_is_forgotten(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, Job(server) as job:
        for table in (T, TablePath("fluss", "kept")):
            job.tier(job.make(table), 1, 3)
        job.admin.drop_table(T)
        job.make()
        assert job.registry.latest(T) is None
    with RunningServer(tmp_path) as server, Job(server) as job:
        assert job.registry.latest(T) is None
        assert job.registry.latest(TablePath("fluss", "kept")) is not None
        assert len(offsets_files(server)) == 1


def test_snapshots_are_forgotten_and_the_table_begins_anew(tmp_path: Path) -> None:
    """What a client asks for whose lake was dropped; offsets may be smaller then than they were."""
    with RunningServer(tmp_path) as server, Job(server) as job:
        info = job.make()
        job.tier(info, 1, 8)
        job.tier(info, 2, 9, keep_all=True)
        assert job.registry.can_forget()
        for _ in range(2):
            job.registry.forget(info)
            assert job.registry.latest(T) is None
        assert not offsets_files(server)
    with RunningServer(tmp_path) as server, Job(server) as job:
        assert job.registry.latest(T) is None
        job.tier(info, 3, 1)
        latest = job.registry.latest(T)
        assert latest is not None
        assert latest.table_buckets_offset == {TableBucket(info.table_id, 0): 1}
        job.admin.drop_table(T)
        with refused(7, "no table with id"):
            job.registry.forget(info)


def test_why_a_round_failed_is_kept_until_one_does_not(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, Job(server) as job:
        info, other = job.make(), job.make(TablePath("fluss", "other"))
        assert job.registry.last_error(info) is None
        job.registry.report(info, "the disk is full")
        job.registry.report(info, "a\x1b[31m\udcff" + "x" * 5_000)
    with RunningServer(tmp_path) as server, Job(server) as job:
        found = job.registry.last_error(info)
        assert found is not None
        assert found.error == "a\x1b[31m?" + "x" * (LAKE_ERROR_CHARACTERS_MAX - 7)
        assert abs(found.time_ms / 1_000 - time.time()) < 3_600
        assert job.registry.last_error(other) is None
        job.registry.report(info, None)
        assert job.registry.last_error(info) is None
        job.registry.report(info, "again")
        job.admin.drop_table(T)
        assert job.registry.last_error(info) is None
        with refused(7, "no table with id"):
            job.registry.report(info, "too late")


def _generation(server: RunningServer) -> int:
    return server.server._context.storage.catalog._database.generation


def test_the_same_error_again_costs_no_disk(job: Job, server: RunningServer) -> None:
    info = job.make()
    job.registry.report(info, "no bucket")
    before = _generation(server)
    for _ in range(5):
        job.registry.report(info, "no bucket")
    assert _generation(server) == before
    job.registry.report(info, "no rights")
    assert _generation(server) == before + 1


def test_an_error_that_is_no_text(job: Job, server: RunningServer) -> None:
    info = job.make()
    body = pb.ReportLakeRoundRequest(table_id=info.table_id, error="??").SerializeToString().replace(b"??", b"\xff\xfe")
    with server.connect() as wire:
        error = wire.receive_error(wire.send_raw(api_keys.REPORT_LAKE_ROUND.key, body))
    assert "not UTF-8" in error.text


def test_too_many_buckets_in_a_request(tmp_path: Path) -> None:
    with RunningServer(tmp_path, limits=Limits(lake_buckets_max=3)) as server, Job(server) as job:
        info = job.make(buckets=3)
        job.registry.prepare(info, dict.fromkeys([TableBucket(info.table_id, number) for number in range(2)], 0))
        with refused(13, "may name 3"):
            job.registry.prepare(info, dict.fromkeys([TableBucket(info.table_id, number) for number in range(3)], 0))


def test_a_table_is_handed_out_and_finished(job: Job) -> None:
    info = job.make(properties={**LAKE, "table.datalake.freshness": "0 s"})
    assigned = job.registry.heartbeat(request_table=True).assigned
    assert assigned is not None
    assert (assigned.table_id, assigned.table_path) == (info.table_id, T)
    assert job.registry.heartbeat(tiering=[assigned], request_table=True) == (None, {})
    stale = assigned._replace(tiering_epoch=assigned.tiering_epoch - 1)
    unknown = assigned._replace(table_id=99)
    restarted = assigned._replace(coordinator_epoch=assigned.coordinator_epoch ^ 1)
    for wrong, code in ((stale, 50), (unknown, 7), (restarted, 23)):
        for report in ({"tiering": [wrong]}, {"finished": [wrong]}, {"failed": [wrong]}):
            answer = job.registry.heartbeat(**report)
            assert {table_id: error.error_code for table_id, error in answer.errors.items()} == {wrong.table_id: code}
    assert not job.registry.heartbeat(finished=[assigned]).errors
    again = job.registry.heartbeat(request_table=True).assigned
    assert again is not None
    assert again.tiering_epoch > assigned.tiering_epoch
    assert not job.registry.heartbeat(failed=[again]).errors
    assert job.registry.heartbeat(tiering=[again]).errors[info.table_id].error_code == 50


def test_a_round_cut_short_is_due_again(job: Job, server: RunningServer) -> None:
    job.make(properties={**LAKE, "table.datalake.freshness": "0 s"})
    assigned = job.registry.heartbeat(request_table=True).assigned
    assert assigned is not None
    job.admin.alter_table(T, set_properties={"table.datalake.freshness": "1 h"})
    with server.connect() as wire:
        request = pb.LakeTieringHeartbeatRequest(request_table=True, force_finished_tables=[assigned.table_id])
        request.finished_tables.add(
            table_id=assigned.table_id,
            coordinator_epoch=assigned.coordinator_epoch,
            tiering_epoch=assigned.tiering_epoch,
        )
        answer = wire.call(api_keys.LAKE_TIERING_HEARTBEAT, request)
    assert answer.tiering_table.table_id == assigned.table_id

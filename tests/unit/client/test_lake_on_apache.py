"""Lake snapshots registered with a real Apache Fluss 0.9.1, once and again."""

from __future__ import annotations

import pyarrow as pa
import pytest

import fluss.sync as fluss
from fluss.api.operations import LakeRegistry
from fluss.client.cluster.cluster import ask
from fluss.client.runtime import run
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.testing import ApacheFluss

pytestmark = pytest.mark.compat

PATH = fluss.TablePath("fluss", "lake_snapshots")


def test_a_snapshot_registered_twice_stays_readable(apache_fluss: ApacheFluss) -> None:
    config = fluss.Config({"bootstrap.servers": apache_fluss.bootstrap_servers})
    with fluss.FlussConnection.create(config) as connection:
        admin, registry = connection.get_admin(), LakeRegistry(connection)
        schema = fluss.Schema(pa.schema([("id", pa.int64())]))
        admin.create_table(PATH, fluss.TableDescriptor(schema, bucket_count=2))
        info = admin.get_table_info(PATH)
        first, second = fluss.TableBucket(info.table_id, 0), fluss.TableBucket(info.table_id, 1)
        assert registry.latest(PATH) is None
        assert registry.snapshot(PATH, 7) is None
        path = registry.prepare(info, {first: 3})
        for _ in range(2):
            registry.commit(info, 7, path, {first: 3})
        # What is sent again after a lost answer: the snapshot may be there, and must not be removed.
        request = pb.CommitLakeTableSnapshotRequest()
        request.lake_table_snapshot_metadata.add(
            table_id=info.table_id,
            snapshot_id=7,
            tiered_bucket_offsets_file_path=path,
            readable_bucket_offsets_file_path=path,
            earliest_snapshot_id_to_keep=7,
        )
        (answer,) = run(ask(connection._core.cluster, api_keys.COMMIT_LAKE_TABLE_SNAPSHOT, request)).table_resp
        assert not answer.error_code
        latest = admin.get_latest_lake_snapshot(PATH)
        assert (latest.snapshot_id, latest.table_buckets_offset) == (7, {first: 3})
        registry.commit(info, 8, registry.prepare(info, {second: 1}), {second: 1}, keep_all=True)
        latest = admin.get_latest_lake_snapshot(PATH)
        assert (latest.snapshot_id, latest.table_buckets_offset) == (8, {first: 3, second: 1})
        assert registry.snapshot(PATH, 7) is not None
        assert registry.heartbeat() == (None, {})

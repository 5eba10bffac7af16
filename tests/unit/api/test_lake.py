"""Lake snapshots as users see them, in the three facades."""

from __future__ import annotations

import pyarrow as pa

import fluss
import fluss.sync
from fluss.api.operations import LakeRegistry

from .conftest import Client

SCHEMA = pa.schema([("id", pa.int64())])


def test_the_latest_lake_snapshot(client: Client) -> None:
    table = client.table(SCHEMA, properties={"table.datalake.enabled": "true"})
    client.append(table, pa.record_batch({"id": pa.array(range(5), pa.int64())}))
    info = table.get_table_info()
    bucket = fluss.TableBucket(info.table_id, 0)
    with fluss.sync.connect(client.connection.config.bootstrap_servers) as connection:
        registry = LakeRegistry(connection)
        registry.commit(info, 77, registry.prepare(info, {bucket: 4}), {bucket: 4})
    found = client.do(client.admin.get_latest_lake_snapshot(info.table_path))
    assert isinstance(found, fluss.LakeSnapshot)
    assert (found.snapshot_id, found.table_buckets_offset) == (77, {bucket: 4})
    assert found.get_bucket_offset(bucket) == 4
    assert found.get_table_buckets() == [bucket]
    properties = client.do(client.admin.get_table_info(info.table_path)).properties
    assert properties["table.datalake.iceberg.warehouse"] == info.properties["table.datalake.iceberg.warehouse"]

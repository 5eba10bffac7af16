"""Partitions, schema changes and the rest of the admin on a real Apache Fluss cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.client.table import TableCore
from fluss.model.config import Config
from fluss.model.errors import FlussError, InvalidRequestError, NotFoundError
from fluss.model.offsets import OffsetSpec
from fluss.model.partitions import PartitionSpec
from fluss.model.paths import TablePath
from fluss.model.types import DataTypes
from fluss.testing import ApacheFluss
from tests.kit.client_tables import everything, make_table
from tests.unit.client.partitioned import SCHEMA, create, drop, ids

pytestmark = pytest.mark.compat


@pytest.fixture
def client(apache_fluss: ApacheFluss) -> Iterator[ClientCore]:
    connected = run(ClientCore.connect(Config({"bootstrap.servers": apache_fluss.bootstrap_servers})))
    yield connected
    run(connected.close())


@pytest.fixture
def make(client: ClientCore) -> Callable[..., TableCore]:
    return partial(make_table, client, schema=SCHEMA)


def test_mixed_partitions_and_a_missing_one(make: Callable[..., TableCore], client: ClientCore) -> None:
    table = make(2, partition_keys=["region"], bucket_keys=["id"])
    for region in ("US", "EU"):
        create(client, table, region)
    writer = table.append_writer()
    regions = ["US" if number % 3 else "EU" for number in range(2_000)]
    writer.write_batch(pa.record_batch({"id": list(range(2_000)), "region": regions}))
    lost, kept = writer.append([5_000, "Mars", None]), writer.append([5_001, "US", None])
    with pytest.raises(NotFoundError, match="'Mars'") as caught:
        lost.result(30)
    assert caught.value.error_code == 36
    kept.result(30)
    run(writer.flush())
    found = ids(client, table, "US")
    assert all(bucket == sorted(bucket) for bucket in found)
    assert sum(map(len, found)) == regions.count("US") + 1
    path = table.info.table_path
    latest = run(client.admin.list_partition_offsets(path, "EU", [0, 1], OffsetSpec.latest()))
    assert sum(latest.values()) == regions.count("EU")


def test_a_partition_dropped_and_made_anew_under_a_writer(make: Callable[..., TableCore], client: ClientCore) -> None:
    table = make(partition_keys=["region"])
    create(client, table, "US")
    writer = table.append_writer()
    writer.append([1, "US", None]).result(30)
    drop(client, table, "US")
    deadline = time.monotonic() + 30
    with pytest.raises(NotFoundError, match="'US'"):
        while time.monotonic() < deadline:  # a real server takes rows for a moment longer
            writer.append([2, "US", None]).result(30)
    create(client, table, "US")
    writer.append([3, "US", None]).result(30)
    assert ids(client, table, "US") == [[3]]


def test_partitions_are_made_where_the_option_is_on(
    make: Callable[..., TableCore], client: ClientCore, apache_fluss: ApacheFluss
) -> None:
    table = make(partition_keys=["region", "day"])
    settings = {
        "bootstrap.servers": apache_fluss.bootstrap_servers,
        "writer.dynamic-create-partition.enabled": True,
    }
    other = run(ClientCore.connect(Config(settings)))
    writer = run(other.table(table.info.table_path)).append_writer()
    days = pa.array([20_000, 20_001, 20_000], pa.int32()).cast(pa.date32())
    writer.write_batch(pa.record_batch({"id": [1, 2, 3], "region": ["US", "EU", "US"], "day": days}))
    run(writer.flush())
    infos = run(client.admin.list_partition_infos(table.info.table_path, PartitionSpec({"region": "US"})))
    assert [info.partition_name for info in infos] == ["US$2024-10-04"]
    assert ids(client, table, "US$2024-10-04") == [[1, 3]]
    run(other.close())


def test_a_column_is_added(make: Callable[..., TableCore], client: ClientCore) -> None:
    table = make()
    path = table.info.table_path
    old = table.append_writer()
    old.append([1, "a", None]).result(30)
    run(client.admin.alter_table(path, add_columns=[("score", DataTypes.double(), "how good")]))
    old.append([2, "b", None]).result(30)
    new = run(client.table(path))
    assert new.info.schema.column_names == ["id", "region", "day", "score"]
    new.append_writer().append({"id": 3, "score": 1.5}).result(30)
    assert everything(new).select(["id", "score"]).to_pylist() == [
        {"id": 1, "score": None},
        {"id": 2, "score": None},
        {"id": 3, "score": 1.5},
    ]
    first, latest = (run(client.admin.get_table_schema(path, schema_id)) for schema_id in (1, None))
    assert (first.schema_id, len(first.schema.columns)) == (1, 3)
    assert (latest.schema_id, latest.schema.columns[3].comment) == (2, "how good")


def test_properties_are_set_and_reset(make: Callable[..., TableCore], client: ClientCore) -> None:
    path = make(custom_properties={"kept": "1", "gone": "2"}).info.table_path
    run(client.admin.alter_table(path, set_properties={"mine": "x"}, reset_properties=["gone"]))
    assert run(client.admin.get_table_info(path)).custom_properties == {"kept": "1", "mine": "x"}


def test_statistics_snapshots_and_settings(make: Callable[..., TableCore], client: ClientCore) -> None:
    table = make(2)
    path = table.info.table_path
    writer = table.append_writer()
    writer.write_batch(pa.record_batch({"id": list(range(10))}))
    run(writer.flush())
    stats = run(client.admin.get_table_stats(path))
    assert stats.row_count == sum(stats.bucket_row_counts.values()) == 10
    with pytest.raises(NotFoundError) as caught:
        run(client.admin.get_latest_lake_snapshot(path))
    assert caught.value.error_code == 53
    assert "\n" not in caught.value.message
    assert all(entry.key and entry.source for entry in run(client.admin.describe_cluster_configs()))


def test_rows_of_an_indexed_table(make: Callable[..., TableCore]) -> None:
    table = make(log_format="INDEXED")
    writer = table.append_writer()
    writer.write_batch(pa.record_batch({"id": list(range(1_000)), "region": ["x", None] * 500}))
    writer.append({"id": 1_000, "region": "last"})
    run(writer.flush())
    assert everything(table)["id"].to_pylist() == list(range(1_001))


def test_errors_are_clear(make: Callable[..., TableCore], client: ClientCore) -> None:
    path, nowhere = make().info.table_path, TablePath("fluss", "nowhere")
    with pytest.raises(InvalidRequestError) as caught:
        run(client.admin.list_offsets(path, [0], OffsetSpec.timestamp(int(time.time() * 1000) + 10**7)))
    assert caught.value.error_code == 38
    for call in (client.admin.get_table_stats(nowhere), client.admin.list_offsets(nowhere, [0], OffsetSpec.latest())):
        with pytest.raises(NotFoundError, match=r"fluss\.nowhere") as missing:
            run(call)
        assert missing.value.error_code == 7
    unpartitioned: list[Coroutine[Any, Any, Any]] = [
        client.admin.create_partition(path, PartitionSpec({"region": "US"})),
        client.admin.list_partition_infos(path),
        client.admin.list_partition_offsets(path, "US", [0], OffsetSpec.latest()),
    ]
    for refused in unpartitioned:
        with pytest.raises(FlussError) as error:
            run(refused)
        assert error.value.error_code == 37
        assert "\n" not in error.value.message

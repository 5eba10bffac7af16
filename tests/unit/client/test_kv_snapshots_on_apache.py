"""Whole-table reads and changes on a real Apache Fluss 0.9.1, which has no ScanKv: KV snapshots and changelogs."""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss
import fluss.sync
from fluss.client.client import ClientCore
from fluss.client.current import current_rows
from fluss.client.runtime import run
from fluss.model.config import Config
from fluss.model.paths import TableBucket
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.testing import ApacheFluss
from tests.kit.followers import COLUMNS, Follower, apply, new_table, row, upsert

pytestmark = pytest.mark.compat

DEADLINE_S = 60.0

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheFluss]:
    """A cluster that makes snapshots often; that of the session makes none while tests run."""
    config = {"kv.snapshot.interval": "2s"}
    with ApacheFluss(tmp_path_factory.mktemp("kv-snapshots"), config=config) as running:
        yield running


@pytest.fixture(scope="module")
def connection(cluster: ApacheFluss) -> Iterator[Any]:
    connected = fluss.sync.FlussConnection.create(fluss.Config({"bootstrap.servers": cluster.bootstrap_servers}))
    yield connected
    connected.close()


@pytest.fixture
def make(connection: Any) -> Callable[..., Any]:
    return lambda **options: new_table(connection, f"kv_{next(_numbers)}", **options)


def snapshot_offsets(cluster: ApacheFluss, table: Any) -> dict[int, int]:
    """The offsets of the newest snapshots by bucket, of those that have one."""

    async def ask() -> dict[int, int]:
        client = await ClientCore.connect(Config({"bootstrap.servers": cluster.bootstrap_servers}))
        try:
            request = pb.GetLatestKvSnapshotsRequest()
            path = table.get_table_path()
            request.table_path.database_name, request.table_path.table_name = path.database_name, path.table_name
            connection = await client.metadata.coordinator(10)
            answer = await connection.request(api_keys.GET_LATEST_KV_SNAPSHOTS, request, 10)
            return {item.bucket_id: item.log_offset for item in answer.latest_snapshots if item.HasField("snapshot_id")}
        finally:
            await client.close()

    return run(ask())


def await_snapshots(cluster: ApacheFluss, table: Any) -> None:
    """Wait until every bucket has a snapshot of all that was written."""
    _, ends = table.new_scan().to_arrow_with_offsets()
    wanted = {bucket.bucket: offset for bucket, offset in ends.items() if offset}
    deadline = time.monotonic() + DEADLINE_S
    while snapshot_offsets(cluster, table) != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def rows_of(table: pa.Table) -> dict[int, Any]:
    found = {each["id"]: each for each in table.to_pylist()}
    assert len(found) == table.num_rows
    return found


@pytest.mark.parametrize("properties", [{}, {"table.kv.format": "INDEXED"}, {"table.changelog.image": "WAL"}])
def test_changelog_then_snapshot_then_both(
    cluster: ApacheFluss,
    make: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    properties: dict[str, str],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(current_rows, "CHUNK_ROWS_MAX", 7)
    table = make(properties=properties)
    assert table.new_scan().to_arrow().num_rows == 0
    upsert(table, [row(key) for key in range(100)])
    upsert(table, [row(key, "b") for key in range(0, 100, 3)], [[key] for key in range(0, 100, 7)])
    expected = {key: row(key, "a" if key % 3 else "b") for key in range(100) if key % 7}
    assert rows_of(table.new_scan().to_arrow()) == expected
    await_snapshots(cluster, table)
    assert rows_of(table.new_scan().to_arrow()) == expected
    upsert(table, [row(key, "c") for key in (-5, 1, 500)], [[2], [1_000]])
    expected |= {key: row(key, "c") for key in (-5, 1, 500)}
    del expected[2]
    found, offsets = table.new_scan().to_arrow_with_offsets()
    assert rows_of(found) == expected
    assert found.schema == table.arrow_schema
    scanner = table.new_scan().create_changelog_batch_scanner()
    scanner.subscribe_buckets({bucket.bucket: offset for bucket, offset in offsets.items()})
    assert scanner.to_arrow().num_rows == 0
    names = table.new_scan().project([1]).filter(fluss.col("id") < 1).to_arrow()
    assert names.to_pylist() == [{"name": "c"}]
    assert os.listdir(tmp_path) == []


def test_what_a_reader_got_is_the_table_wherever_it_stopped(
    cluster: ApacheFluss, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_rows, "CHUNK_ROWS_MAX", 7)
    for with_snapshot in (False, True):
        seed = random.randrange(1 << 30)
        print(f"seed {seed}")
        follower = Follower(make(), seed)
        for _ in range(20):
            follower.write()
        if with_snapshot:
            await_snapshots(cluster, follower.table)
        follower.run(150)
        assert follower.resumed_within_rows


def test_older_and_newer_schemas(cluster: ApacheFluss, connection: Any, make: Callable[..., Any]) -> None:
    table = make(bucket_count=1)
    path = table.get_table_path()
    upsert(table, [row(1)])
    connection.get_admin().alter_table(path, add_columns=[("city", pa.string())])
    newer = connection.get_table(path)
    upsert(newer, [{**row(2), "city": "Ulm"}])
    await_snapshots(cluster, table)
    upsert(newer, [{**row(3), "city": "Bonn"}])
    assert rows_of(table.new_scan().to_arrow()) == {key: row(key) for key in (1, 2, 3)}
    cities = {1: None, 2: "Ulm", 3: "Bonn"}
    assert rows_of(newer.new_scan().to_arrow()) == {key: {**row(key), "city": city} for key, city in cities.items()}
    bucket = TableBucket(table.get_table_info().table_id, 0)
    for reader, columns in ((table, 3), (newer, 4)):
        limited = reader.new_scan().limit(2).create_bucket_batch_scanner(bucket).to_arrow()
        assert (limited.num_rows, limited.num_columns) == (2, columns)


def test_partitions(cluster: ApacheFluss, connection: Any) -> None:
    path = fluss.TablePath("fluss", f"kv_{next(_numbers)}")
    columns = pa.schema([("id", pa.int32()), ("region", pa.string())])
    schema = fluss.Schema(columns, ["id", "region"])
    admin = connection.get_admin()
    admin.create_table(path, fluss.TableDescriptor(schema, partition_keys=["region"], bucket_count=2))
    table = connection.get_table(path)
    changes = table.changes()
    rows = []
    for region in ("eu", "us"):
        admin.create_partition(path, {"region": region})
        cluster.await_table(path.database_name, path.table_name, region)
        rows += [{"id": key, "region": region} for key in range(20)]
        upsert(table, rows[-20:])
    found, offsets = table.new_scan().to_arrow_with_offsets()
    order = [("region", "ascending"), ("id", "ascending")]
    assert found.sort_by(order).to_pylist() == rows
    assert sum(offsets.values()) == 40
    parts: list[pa.Table] = []
    deadline = time.monotonic() + DEADLINE_S
    while sum(part.num_rows for part in parts) < 40:
        assert time.monotonic() < deadline
        parts.append(changes.poll(1_000))
    followed = pa.concat_tables(parts)
    assert followed.select(columns.names).sort_by(order).to_pylist() == rows
    assert set(followed["_change_type"].to_pylist()) == {"+I"}
    changes.close()


def test_a_reader_goes_on_while_the_snapshot_is_opened(cluster: ApacheFluss, make: Callable[..., Any]) -> None:
    table = make()
    upsert(table, [row(key) for key in range(5_000)])
    changes = table.changes()
    seen: dict[int, Any] = {}
    began = time.monotonic()
    while len(seen) < 5_000:
        apply(seen, changes.poll(0))
        assert time.monotonic() - began < DEADLINE_S
    changes.close()


def test_limit_scans_and_changelogs(make: Callable[..., Any]) -> None:
    table = make(bucket_count=1, properties={"table.log.format": "COMPACTED"})
    upsert(table, [row(1), row(2), row(1, "b")], [[2], [77]])
    upsert(table, [], [[78]])
    scanner = table.new_scan().project([1]).create_changelog_batch_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    found = scanner.to_arrow()
    assert found["_change_type"].to_pylist() == ["+I", "+I", "-U", "+U", "-D"]
    assert found.schema.names == ["_change_type", "_log_offset", "_commit_timestamp", "name"]
    bucket = TableBucket(table.get_table_info().table_id, 0)
    assert table.new_scan().limit(9).create_bucket_batch_scanner(bucket).to_arrow().to_pylist() == [row(1, "b")]
    assert table.arrow_schema.names == COLUMNS.names

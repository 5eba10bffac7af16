"""Rows of tables without a bucket key are spread evenly over the buckets, in slices of batches."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from fluss.sync import EARLIEST_OFFSET, DataTypes, Schema, TableDescriptor, TablePath
from tests.spark.conftest import Backend

pytestmark = pytest.mark.spark

BUCKETS, ROWS = 4, 40_000
EVENTS = Schema.builder().column("id", DataTypes.bigint()).column("day", DataTypes.string()).build()


def _create(backend: Backend, *partition_keys: str) -> TablePath:
    path = TablePath(backend.database, "events")
    descriptor = TableDescriptor(EVENTS, bucket_count=BUCKETS, partition_keys=list(partition_keys))
    backend.connection.get_admin().create_table(path, descriptor)
    return path


def _events(backend: Backend, tasks: int, count: int = ROWS) -> DataFrame:
    return backend.spark.range(0, count, 1, tasks).selectExpr("id", "if(id % 2 = 0, 'even', 'odd') AS day")


def _buckets(backend: Backend, path: TablePath) -> list[list[int]]:
    """The ids in each bucket, or each bucket of each partition, in their order."""
    table = backend.connection.get_table(path)
    partition_ids: list[int | None] = [None]
    if table.get_table_info().is_partitioned():
        infos = backend.connection.get_admin().list_partition_infos(path)
        partition_ids = [info.partition_id for info in infos]
    found = []
    for partition_id in partition_ids:
        for bucket in range(BUCKETS):
            with table.new_scan().create_record_batch_log_scanner() as scanner:
                if partition_id is None:
                    scanner.subscribe(bucket, EARLIEST_OFFSET)
                else:
                    scanner.subscribe_partition(partition_id, bucket, EARLIEST_OFFSET)
                found.append(scanner.to_arrow()["id"].to_pylist())
    return found


def _check_slices(buckets: list[list[int]], step: int = 1) -> None:
    """All rows are there, as many in each bucket, and rows that came one after the other lie so."""
    assert sorted(number for ids in buckets for number in ids) == list(range(ROWS))
    assert {len(ids) for ids in buckets} == {ROWS // len(buckets)}
    assert sum(second != first + step for ids in buckets for first, second in pairwise(ids)) < ROWS // 500


@pytest.mark.parametrize("tasks", [1, 4])
def test_batch_writes(ours: Backend, tasks: int) -> None:
    path = _create(ours)
    ours.save(_events(ours, tasks), path)
    _check_slices(_buckets(ours, path))


def test_batch_writes_into_partitions(ours: Backend) -> None:
    path = _create(ours, "day")
    ours.save(_events(ours, 1), path)
    _check_slices(_buckets(ours, path), step=2)


@pytest.mark.parametrize("partition_keys", [[], ["day"]])
def test_streams_that_are_stored_exactly_once(ours: Backend, tmp_path: Path, partition_keys: list[str]) -> None:
    path = _create(ours, *partition_keys)
    _events(ours, 2).write.parquet(str(tmp_path / "rows"))
    stream = ours.spark.readStream.schema("id bigint, day string").parquet(str(tmp_path / "rows"))
    writer = stream.writeStream.format("fluss").option("bootstrap.servers", ours.address).option("table", str(path))
    writer = writer.option("exactly.once", "true").option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    _check_slices(_buckets(ours, path), step=2 if partition_keys else 1)


def test_few_rows_stay_together_and_tasks_choose_different_buckets(ours: Backend) -> None:
    path = _create(ours)
    ours.save(_events(ours, 40, count=400), path)
    buckets = _buckets(ours, path)
    assert {len(ids) % 10 for ids in buckets} == {0}
    assert max(map(len, buckets)) < 300


def test_another_spread_can_be_chosen(ours: Backend) -> None:
    path = _create(ours)
    # A slow machine must not have the batch sent before all rows are in it.
    ours.save(_events(ours, 1), path, **{"writer.bucket.no-key-assigner": "sticky", "writer.batch-timeout-ms": "60000"})
    assert sorted(len(ids) for ids in _buckets(ours, path)) == [0, 0, 0, ROWS]
    ours.save(_events(ours, 1, count=8), path, **{"client.writer.bucket.no-key-assigner": "round_robin"})
    assert sum(map(len, _buckets(ours, path))) == ROWS + 8

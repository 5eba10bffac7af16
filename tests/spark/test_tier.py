"""Tiering in Spark jobs: what tasks write in other processes, and a driver that is killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import fluss.spark
from fluss.lake import log_ranges
from fluss.lake.report import Status, TieringEvent
from fluss.lake.tiering.round import COMMITTED, CRASH_CODE, CRASH_VARIABLE
from fluss.spark.tiering import RUNTIME
from fluss.sync import InvalidRequestError, NotFoundError, connect
from fluss.testing import FlussServer
from tests.kit.lake.lake import Lake
from tests.kit.lake.random_rows import COLUMNS, PARTITIONS, write
from tests.kit.lake.tiered import check_lake, check_no_orphans, tier_here

pytestmark = pytest.mark.spark

JOB_S_MAX = 240.0


@pytest.fixture
def lake(spark_server: FlussServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lake]:
    with connect(spark_server.bootstrap_servers) as connection:
        database = f"tier_{request.node.name.partition('[')[0]}"
        connection.get_admin().create_database(database)
        yield Lake(spark_server, connection, database, tmp_path / "warehouse")
        connection.get_admin().drop_database(database, cascade=True)


def test_tables_of_several_kinds(lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log in several parts, one with partitions, and primary keys; a second round has updates and deletes."""
    monkeypatch.setattr(log_ranges, "PART_ROWS_MIN", 8)
    seed = random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    log = lake.create("log", COLUMNS, buckets=2)
    parts = lake.create("parts", COLUMNS, partition_keys=["part"])
    keyed = lake.create("keyed", COLUMNS, keys=["id"], buckets=2)
    for part in PARTITIONS:
        lake.connection.get_admin().create_partition(parts.get_table_info().table_path, {"part": part})
    tables = [log, parts, keyed]
    events: list[TieringEvent] = []
    for _ in range(2):
        for table in tables:
            write(table, dice, "")
        reports = fluss.spark.tier(
            spark,
            bootstrap_servers=lake.address,
            warehouse=str(lake.warehouse),
            tables=[table.get_table_info().table_path for table in tables],
            progress=events.append,
        )
        assert [report.status for report in reports] == [Status.TIERED] * 3, reports
        for table in tables:
            check_lake(lake, table)
            check_no_orphans(lake, table)
    of_log = [event for event in events if event.table_path == log.get_table_info().table_path]
    assert max(event.task_count for event in of_log) > 2


def test_a_task_that_fails_says_why(lake: Lake, spark: SparkSession) -> None:
    table = lake.create("t", pa.schema([("id", pa.int64())]))
    with table.new_append().create_writer() as writer:
        writer.append({"id": 1})
    lake.warehouse.mkdir(exist_ok=True)
    path = table.get_table_info().table_path

    def spoil(event: TieringEvent) -> None:
        if event.task_count and not event.tasks_done:
            # Where the data files belong there is a file.
            folder = lake.warehouse / path.database_name / path.table_name / "data"
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.write_text("")

    [report] = fluss.spark.tier(
        spark, bootstrap_servers=lake.address, warehouse=str(lake.warehouse), tables=[path], progress=spoil
    )
    assert report.status is Status.FAILED
    assert "data" in str(report.reason)
    assert "Traceback" not in str(report.reason)


def test_merge_on_read_needs_the_iceberg_runtime(lake: Lake, spark: SparkSession) -> None:
    table = lake.create("t", COLUMNS, keys=["id"])
    path = table.get_table_info().table_path
    with pytest.raises(InvalidRequestError, match=RUNTIME):
        fluss.spark.tier(
            spark,
            bootstrap_servers=lake.address,
            warehouse=str(lake.warehouse),
            tables=[path],
            merge_on_read=True,
        )
    assert not (lake.warehouse / path.database_name).exists()


def test_a_driver_is_killed_before_it_registers(lake: Lake) -> None:
    """`fluss tier` with a Spark of its own; the next round registers what it left."""
    table = lake.create("t", COLUMNS, keys=["id"], buckets=2)
    path = table.get_table_info().table_path
    write(table, random.Random(7), "")
    command = [sys.executable, "-m", "fluss.cli", "tier", "--bootstrap", lake.address]
    command += ["--warehouse", str(lake.warehouse), "--table", str(path)]
    environment = {**os.environ, CRASH_VARIABLE: COMMITTED}
    assert subprocess.run(command, env=environment, timeout=JOB_S_MAX).returncode == CRASH_CODE
    with pytest.raises(NotFoundError):
        lake.connection.get_admin().get_latest_lake_snapshot(path)
    assert [report.status for report in tier_here(lake, table)] == [Status.NOTHING_NEW]
    check_lake(lake, table)

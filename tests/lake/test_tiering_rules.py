"""Which tables are tiered, where to, and what is said when that can't be."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from fluss.api.operations import LakeRegistry
from fluss.lake.options import LakeOptions
from fluss.lake.report import Status, TieringEvent
from fluss.lake.tiering.service import tier
from fluss.lake.tiering.task import CurrentPart, LocalExecutor, Task, TaskResult, run_task
from fluss.sync import FlussTable, OffsetSpec, Schema, TableDescriptor, TablePath
from tests.kit.lake.lake import Lake
from tests.kit.lake.tiered import check_lake, iceberg_table, tier_here

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


def append(table: FlussTable, count: int = 10) -> None:
    with table.new_append().create_writer() as writer:
        writer.write_arrow(pa.table({"id": list(range(count)), "v": [0] * count}, schema=SCHEMA))


def path_of(table: FlussTable) -> TablePath:
    return table.get_table_info().table_path


def test_one_table_that_fails_does_not_stop_the_others(lake: Lake) -> None:
    admin = lake.connection.get_admin()
    plain = TablePath(lake.database, "plain")
    admin.create_table(plain, TableDescriptor(Schema(SCHEMA)))
    off = lake.create("off", SCHEMA)
    admin.alter_table(path_of(off), set_properties={"table.datalake.enabled": "false"})
    good = lake.create("good", SCHEMA)
    append(good)
    executor = LocalExecutor(lake.connection)
    names = [f"{lake.database}.{name}" for name in ("plain", "off", "missing", "good")]
    reports = tier(lake.connection, executor, tables=names, warehouse=str(lake.warehouse))
    assert [report.status for report in reports] == [Status.FAILED, Status.FAILED, Status.FAILED, Status.TIERED]
    assert "table.datalake.enabled=true" in str(reports[0].reason)
    assert "alter_table" in str(reports[1].reason)
    assert "missing" in str(reports[2].reason)
    check_lake(lake, good)


def test_events_tell_how_far_it_is(lake: Lake) -> None:
    table = lake.create("t", SCHEMA)
    append(table)
    events: list[TieringEvent] = []
    [report] = tier_here(lake, table, progress=events.append)
    assert [(event.tasks_done, event.task_count, event.row_count, event.report) for event in events] == [
        (0, 0, 0, None),
        (0, 1, 10, None),
        (1, 1, 10, None),
        (0, 0, 0, report),
    ]
    assert (report.row_count, report.files_added, report.files_removed) == (10, 1, 0)


def test_a_warehouse_is_for_the_job_that_names_it(lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is not kept on the table, where others would follow it."""
    table = lake.create("t", SCHEMA)
    append(table)
    before = lake.connection.get_admin().get_table_info(path_of(table)).properties
    elsewhere = replace(lake, warehouse=tmp_path / "elsewhere")
    assert [report.status for report in tier_here(elsewhere, table)] == [Status.TIERED]
    assert lake.connection.get_admin().get_table_info(path_of(table)).properties == before
    assert "readers have to name it, too" in caplog.text
    append(table)
    assert [report.status for report in tier_here(elsewhere, table)] == [Status.TIERED]
    check_lake(elsewhere, table)


def test_a_relative_warehouse_means_the_same_everywhere(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lake.warehouse.parent)
    table = lake.create("t", SCHEMA)
    append(table)
    executor = LocalExecutor(lake.connection)
    tier(lake.connection, executor, tables=[path_of(table)], warehouse=lake.warehouse.name)
    monkeypatch.chdir("/")
    check_lake(lake, table)


def test_another_warehouse_is_refused_once_there_are_rows(lake: Lake, tmp_path: Path) -> None:
    table = lake.create("t", SCHEMA)
    append(table)
    tier_here(lake, table)
    append(table)
    executor = LocalExecutor(lake.connection)
    other = str(tmp_path / "other")
    [report] = tier(lake.connection, executor, tables=[path_of(table)], warehouse=other)
    assert report.status is Status.FAILED
    assert "name the warehouse it was tiered to" in str(report.reason)
    [report] = tier(lake.connection, executor, tables=[path_of(table)])
    assert report.status is Status.TIERED
    check_lake(lake, table)


def test_a_lake_that_is_lost(lake: Lake, tmp_path: Path) -> None:
    table = lake.create("t", SCHEMA)
    append(table)
    lost = replace(lake, warehouse=tmp_path / "lost")
    tier_here(lost, table)
    shutil.rmtree(lost.warehouse)
    append(table)
    [report] = tier_here(lost, table)
    assert report.status is Status.FAILED
    assert "--start-over" in str(report.reason)


@pytest.mark.parametrize("keys", [[], ["id"]], ids=["log", "primary key"])
def test_a_lake_of_a_table_that_was_dropped(lake: Lake, keys: list[str]) -> None:
    table = lake.create("t", SCHEMA, keys=keys)
    _put(table)
    tier_here(lake, table)
    before = iceberg_table(lake.warehouse, path_of(table)).scan().to_arrow()
    lake.connection.get_admin().drop_table(path_of(table))
    _put(lake.create("t", SCHEMA, keys=keys))
    [report] = tier_here(lake, table)
    assert report.status is Status.FAILED
    assert "another table" in str(report.reason)
    assert iceberg_table(lake.warehouse, path_of(table)).scan().to_arrow() == before


def test_a_lake_table_of_another_shape(lake: Lake) -> None:
    table = lake.create("t", SCHEMA)
    tier_here(lake, table)
    lake.connection.get_admin().drop_table(path_of(table))
    table = lake.create("t", pa.schema([("id", pa.string())]))
    [report] = tier_here(lake, table)
    assert report.status is Status.FAILED
    assert "another shape" in str(report.reason)


def test_files_that_tasks_wrote_to_another_machine_are_not_committed(lake: Lake) -> None:
    """Their rows would count as stored, and nobody could read them."""

    class Elsewhere(LocalExecutor):
        def run_tasks(self, tasks: Sequence[Task]) -> Iterator[TaskResult]:
            for result in super().run_tasks(tasks):
                for file in result.added:
                    Path(file.path).unlink()
                yield result

    table = lake.create("t", SCHEMA)
    append(table)
    [report] = tier(lake.connection, Elsewhere(lake.connection), tables=[path_of(table)])
    assert report.status is Status.FAILED
    assert "is not on this machine" in str(report.reason)
    assert LakeRegistry(lake.connection).latest(path_of(table)) is None
    [report] = tier_here(lake, table)
    assert (report.status, report.row_count) == (Status.TIERED, 10)
    check_lake(lake, table)


def test_small_files_are_joined_where_that_is_wanted(lake: Lake) -> None:
    table = lake.create("t", SCHEMA, properties={"table.datalake.auto-compaction": "true"})
    for _ in range(5):
        append(table)
        [report] = tier_here(lake, table)
        assert (report.status, report.reason) == (Status.TIERED, None)
        check_lake(lake, table)
    files = [*iceberg_table(lake.warehouse, path_of(table)).scan().plan_files()]
    assert len(files) < 5


def test_rows_of_a_changelog_that_does_not_reach_back(lake: Lake) -> None:
    """Those are the rows as of an offset; where each comes from is not known."""
    from fluss.lake.parquet import FileTarget
    from fluss.lake.tiering.task import TieredTable

    table = lake.create("t", SCHEMA, keys=["id"])
    _put(table)
    info = lake.connection.get_admin().get_table_info(path_of(table))
    [(bucket, end)] = table.new_scan().bucket_offsets(OffsetSpec.latest()).items()
    _put(table, 5)  # later changes are not among them
    found = LakeOptions.of(info, str(lake.warehouse)).open().ensure_table(info)
    target = FileTarget(found.location, found.file_schema, (), found.io_properties)
    common = TieredTable(info.table_path, info.table_id, tuple(info.get_column_names()), target)
    result = run_task(CurrentPart(common, bucket, (), 3, end), lake.connection)
    assert result.error is None
    found.commit(result.added, [], "somewhere")
    rows = iceberg_table(lake.warehouse, path_of(table)).scan().to_arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["v"], row["__offset"], row["__timestamp"].timestamp()) for row in rows] == [
        (number, 0, -1, 0) for number in range(10)
    ]


def _put(table: FlussTable, value: int = 0) -> None:
    if not table.get_table_info().has_primary_key():
        return append(table)
    with table.new_upsert().create_writer() as writer:
        for number in range(10):
            writer.upsert({"id": number, "v": value})

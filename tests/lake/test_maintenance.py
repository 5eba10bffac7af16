"""Upkeep of tables in the lake: fewer files, fewer snapshots, no orphans, and the same rows at every moment."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fluss.api.operations import LakeRegistry
from fluss.cli.main import main
from fluss.doors import clock
from fluss.lake.format import LakeConflictError
from fluss.lake.maintenance import clean_orphans, expire
from fluss.lake.report import Status
from fluss.lake.tiering import round
from fluss.lake.tiering.round import compact
from fluss.lake.tiering.task import LocalExecutor
from fluss.lake.union.plan import plan_union
from fluss.model.errors import FlussError
from fluss.sync import FlussTable
from tests.kit.lake.lake import Lake
from tests.kit.lake.tiered import check_lake, iceberg_table, tier_here
from tests.lake.keyed_table import SCHEMA, loaded, on_disk, rounds, union_ids, upsert


def file_count(lake: Lake, table: FlussTable) -> int:
    found = loaded(lake, table)
    return len(found.files(found.snapshot_id))


def snapshot_ids(lake: Lake, table: FlussTable) -> list[int]:
    return [snapshot_id for snapshot_id, _ in loaded(lake, table).snapshots()]


# ---- compaction ----


@pytest.mark.parametrize("keys", [[], ["id"]])
def test_fewer_files_with_the_same_rows(lake: Lake, keys: list[str]) -> None:
    table = lake.create("small", SCHEMA, keys=keys, buckets=1)
    path = table.get_table_info().table_path
    rounds(lake, table, 5)
    upsert(table, 3, 44, tag="b")
    tier_here(lake, table)
    before = snapshot_ids(lake, table)[-1]
    rows = iceberg_table(lake.warehouse, path).scan().to_arrow()
    planned = plan_union(lake.connection, table)
    done = compact(lake.connection, path, LocalExecutor(lake.connection, 2))
    assert done.files_added == 1
    assert done.row_count == rows.num_rows
    assert file_count(lake, table) == 1
    check_lake(lake, table)
    assert iceberg_table(lake.warehouse, path).scan(snapshot_id=before).to_arrow().equals(rows)
    assert all(Path(file.path).exists() for bucket in planned.buckets for file in bucket.files)
    offsets = iceberg_table(lake.warehouse, path).scan().to_arrow()["__offset"].to_pylist()
    assert offsets == sorted(offsets)
    upsert(table, 1000)
    assert 1000 in union_ids(lake, table)
    tier_here(lake, table)
    check_lake(lake, table)
    assert compact(lake.connection, path).snapshot_id is None  # there is little to join now


def test_partitions_and_sizes(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create("parted", SCHEMA, partition_keys=["day"])
    path = table.get_table_info().table_path
    admin = lake.connection.get_admin()
    for day in ("d1", "d2"):
        admin.create_partition(path, {"day": day})
    for number in range(4):
        upsert(table, number, day="d1")
        if number < 3:
            upsert(table, 100 + number, day="d2")
        tier_here(lake, table)
    assert compact(lake.connection, path, small_bytes=10).snapshot_id is None
    monkeypatch.setattr(round, "TASK_BYTES_MAX", 10)
    assert compact(lake.connection, path).snapshot_id is None  # no two files fit into a task
    monkeypatch.undo()
    done = compact(lake.connection, path)
    assert (done.files_removed, done.files_added) == (4, 1)
    assert file_count(lake, table) == 4
    admin.drop_partition(path, {"day": "d2"})
    assert compact(lake.connection, path, files_min=3).files_removed == 3  # of history, too
    assert union_ids(lake, table) == [0, 1, 2, 3, 100, 101, 102]


def test_nothing_was_tiered(lake: Lake) -> None:
    table = lake.create("fresh", SCHEMA)
    path = table.get_table_info().table_path
    assert compact(lake.connection, path).snapshot_id is None
    assert expire(lake.connection, path) == []
    assert clean_orphans(lake.connection, path).locations == []


class Overtaken(LocalExecutor):
    """While its tasks are under way, something else is done."""

    def __init__(self, lake: Lake, meanwhile: Any) -> None:
        super().__init__(lake.connection, 2)
        self._meanwhile = meanwhile

    def run_tasks(self, tasks: Any) -> Any:
        """The results, and the other thing after them."""
        yield from super().run_tasks(tasks)
        self._meanwhile()


@pytest.mark.parametrize("keys", [[], ["id"]])
def test_a_round_that_commits_first(lake: Lake, keys: list[str]) -> None:
    table = lake.create("race", SCHEMA, keys=keys)
    path = table.get_table_info().table_path
    rounds(lake, table, 5)
    files = on_disk(lake)
    with pytest.raises(LakeConflictError):
        compact(lake.connection, path, Overtaken(lake, lambda: rounds(lake, table, 1, first=3)))
    check_lake(lake, table)
    assert all(path.exists() for path in files)
    assert clean_orphans(lake.connection, path, older_than_s=-60, dry_run=True).locations == []
    assert compact(lake.connection, path).files_removed >= 4
    check_lake(lake, table)


@pytest.mark.parametrize("keys", [[], ["id"]])
def test_a_compaction_that_commits_first(lake: Lake, keys: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create("race", SCHEMA, keys=keys)
    path = table.get_table_info().table_path
    rounds(lake, table, 5)
    upsert(table, 7, 1000)
    run_tasks = LocalExecutor.run_tasks
    is_first = iter([True])

    def overtaken(self: LocalExecutor, tasks: Any) -> Any:
        yield from run_tasks(self, tasks)
        if next(is_first, False):
            assert compact(lake.connection, path).files_removed >= 4

    monkeypatch.setattr(LocalExecutor, "run_tasks", overtaken)
    (report,) = tier_here(lake, table)
    assert report.status is Status.LOST
    (report,) = tier_here(lake, table)
    assert report.status is Status.TIERED
    check_lake(lake, table)


def test_a_compaction_that_was_not_registered(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create("halfway", SCHEMA)
    path = table.get_table_info().table_path
    rounds(lake, table, 5)
    registered = LakeRegistry(lake.connection).latest(path)

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LakeRegistry, "commit", killed)
    with pytest.raises(KeyboardInterrupt):
        compact(lake.connection, path)
    monkeypatch.undo()
    assert LakeRegistry(lake.connection).latest(path) == registered
    assert union_ids(lake, table) == list(range(50))
    # The server points to one that is not the newest: neither may go.
    expire(lake.connection, path, older_than_s=-60, keep_min=1)
    assert registered is not None
    assert registered.snapshot_id in snapshot_ids(lake, table)
    assert union_ids(lake, table) == list(range(50))
    rounds(lake, table, 1, first=5)
    check_lake(lake, table)


# ---- expiry and clean-up ----


def test_old_snapshots_are_forgotten(lake: Lake) -> None:
    table = lake.create("history", SCHEMA)
    path = table.get_table_info().table_path
    rounds(lake, table, 6)
    ids = snapshot_ids(lake, table)
    assert expire(lake.connection, path) == []  # they are young
    assert expire(lake.connection, path, older_than_s=-60) == []  # they are few
    iceberg_table(lake.warehouse, path).manage_snapshots().create_tag(ids[0], "first").commit()
    known = [item for item in ids if LakeRegistry(lake.connection).snapshot(path, item) or item == ids[0]]
    gone = expire(lake.connection, path, older_than_s=-60, keep_min=3)
    assert gone == [item for item in ids[:3] if item not in known]
    assert gone
    gone += expire(lake.connection, path, older_than_s=-60, keep_min=1)
    assert set(snapshot_ids(lake, table)) == {*known, ids[-1]}
    check_lake(lake, table)
    assert union_ids(lake, table) == list(range(60))
    rounds(lake, table, 1, first=6)
    check_lake(lake, table)


@pytest.mark.parametrize("partition_keys", [[], ["day"]])
def test_a_clock_that_is_ahead_of_the_servers_removes_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, partition_keys: list[str]
) -> None:
    table = lake.create("ahead", SCHEMA, keys=["id", *partition_keys], partition_keys=partition_keys)
    path = table.get_table_info().table_path
    if partition_keys:
        lake.connection.get_admin().create_partition(path, {"day": "d1"})
    for _ in range(3):
        upsert(table, *range(20))
        tier_here(lake, table)
    lost = Path(loaded(lake, table).location) / "data" / "lost.parquet"
    lost.write_bytes(b"half a file")
    before, snapshots = on_disk(lake), snapshot_ids(lake, table)
    monkeypatch.setattr(clock, "wall_ns", lambda: time.time_ns() + 8 * 24 * 3600 * 10**9)
    for remove in (expire, clean_orphans):
        with pytest.raises(FlussError, match="ahead of the server's, so nothing was removed"):
            remove(lake.connection, path)
    assert (on_disk(lake), snapshot_ids(lake, table)) == (before, snapshots)


def test_files_of_nobody_are_removed(lake: Lake) -> None:
    table = lake.create("orphans", SCHEMA, keys=["id"], buckets=2)
    path = table.get_table_info().table_path
    for number in range(6):
        upsert(table, *range(20), tag=str(number))
        tier_here(lake, table)
    used = on_disk(lake)
    found = loaded(lake, table)
    root = Path(found.location)
    lost = root / "data" / "bucket=0" / "lost.parquet"
    lost.write_bytes(b"half a file")
    young = root / "metadata" / "young-m0.avro"
    young.write_bytes(b"?")
    for file in on_disk(lake) - {young}:
        os.utime(file, (1, 1))
    assert clean_orphans(lake.connection, path, dry_run=True).locations == [str(lost)]
    assert lost.exists()
    removed = clean_orphans(lake.connection, path)
    assert removed.locations == [str(lost)]
    assert removed.size_bytes == len(b"half a file")
    assert on_disk(lake) == {*used, young}
    # What expired snapshots alone had is nobody's, and nothing else.
    kept = snapshot_ids(lake, table)[-1]
    expire(lake.connection, path, older_than_s=-60, keep_min=1)
    for file in on_disk(lake) - {young}:
        os.utime(file, (1, 1))
    before = len(on_disk(lake))
    clean_orphans(lake.connection, path)
    assert len(on_disk(lake)) < before
    assert iceberg_table(lake.warehouse, path).scan(snapshot_id=kept).to_arrow().num_rows == 20
    check_lake(lake, table)
    for snapshot_id in snapshot_ids(lake, table):
        assert iceberg_table(lake.warehouse, path).scan(snapshot_id=snapshot_id).to_arrow().num_rows == 20
    rounds(lake, table, 1)
    check_lake(lake, table)


def test_commands(lake: Lake) -> None:
    table = lake.create("commanded", SCHEMA)
    rounds(lake, table, 4)
    arguments = ["--bootstrap", lake.address, "--table", str(table.get_table_info().table_path)]

    def run(*words: str) -> str:
        result = CliRunner().invoke(main, ["lake", *words, *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    assert "4 files became 1, 40 rows" in run("compact")
    assert "0 snapshots expired" in run("expire")
    assert "0 files to be removed" in run("clean", "--dry-run")
    assert "0 files removed" in run("clean", "--older-than", "2d")
    check_lake(lake, table)

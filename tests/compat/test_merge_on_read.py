"""Tiering of primary-key tables by merge-on-read, with the real Iceberg runtime in Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyiceberg.table import Table

from fluss.lake.format import SYSTEM_COLUMNS
from fluss.lake.iceberg.table import PREFIX
from fluss.lake.report import Status, TieringReport
from fluss.lake.tiering.round import COMMITTED, COMMITTING, compact
from fluss.lake.tiering.service import tier
from fluss.lake.tiering.task import LocalExecutor
from fluss.sync import NotFoundError, TablePath
from fluss.testing import FlussServer
from tests.kit.lake.oracle import arranged, expected_rows
from tests.kit.lake.samples import (
    KEYED_NESTED,
    KEYED_TYPES,
    LOG,
    PARTITIONED_PRIMARY_KEY,
    PRIMARY_KEY,
    REGIONS,
    Sample,
)
from tests.kit.lake.tiered import iceberg_table
from tests.kit.lake.unions import WAYS, read_union
from tests.peers.mergingspark import MergingSpark, spark_conf
from tests.peers.ourclient import OurPeer
from tests.peers.peer import Row

pytestmark = pytest.mark.compat

COMMAND_TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Merged:
    """A server with a lake, and a Spark that merges into it."""

    server: FlussServer
    peer: OurPeer
    spark: MergingSpark
    warehouse: Path
    database: str

    def create(self, sample: Sample) -> TablePath:
        sample.create(self.peer, self.database)
        return TablePath(self.database, sample.name)

    def merge(self, path: TablePath) -> None:
        """A round that must have been merged, not copied: no data file was replaced."""
        before = self.data_files(path)
        report = self.spark.tier(path)
        assert report["status"] == Status.TIERED, report
        assert self.data_files(path) >= before
        assert not self.branches(path)

    def copy(self, path: TablePath) -> TieringReport:
        """A round by copy."""
        executor = LocalExecutor(self.peer.conn)
        [report] = tier(self.peer.conn, executor, tables=[path], warehouse=str(self.warehouse))
        return report

    def load(self, path: TablePath) -> Table:
        return iceberg_table(self.warehouse, path)

    def data_files(self, path: TablePath) -> set[str]:
        try:
            self.peer.admin.get_latest_lake_snapshot(path)
        except NotFoundError:
            return set()
        return {task.file.file_path for task in self.load(path).scan().plan_files()}

    def delete_count(self, path: TablePath) -> int:
        return sum(len(task.delete_files) for task in self.load(path).scan().plan_files())

    def branches(self, path: TablePath) -> list[str]:
        return [name for name in self.load(path).metadata.refs if name.startswith(PREFIX)]

    def check(self, path: TablePath) -> None:
        """All readers find what the log leaves, and the server knows the lake's snapshot."""
        assert arranged(self.spark.rows(path)) == expected_rows(self.peer, path.database_name, path.table_name)
        self.check_readers(path)

    def check_readers(self, path: TablePath) -> None:
        """The same without Spark."""
        expected = expected_rows(self.peer, path.database_name, path.table_name)
        found = arranged(self.load(path).scan().to_arrow().to_pylist())
        # pyiceberg reads a null list of structs as an empty one
        assert found == arranged({**row, "people": row["people"] or []} if "people" in row else row for row in expected)
        current = self.load(path).current_snapshot()
        assert current is not None
        assert self.peer.admin.get_latest_lake_snapshot(path).snapshot_id == current.snapshot_id
        self.check_union(path)

    def check_union(self, path: TablePath) -> None:
        """Union reads have what the log leaves."""
        rows = expected_rows(self.peer, path.database_name, path.table_name)
        expected = [{name: value for name, value in row.items() if name not in SYSTEM_COLUMNS} for row in rows]
        table = self.peer.conn.get_table(path)
        for way in WAYS:
            assert _sorted(read_union(table, way).to_pylist()) == _sorted(expected), way


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=repr)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Merged]:
    folder = tmp_path_factory.mktemp("merge-on-read")
    with FlussServer(folder / "data") as server:
        peer = OurPeer(server.bootstrap_servers)
        # The server's own lake, which readers use without being told.
        warehouse = folder / "data" / "lake"
        spark = MergingSpark(server.bootstrap_servers, warehouse, folder)
        yield Merged(server, peer, spark, warehouse, "merged")
        spark.kill()
        peer.close()


@pytest.fixture
def merged(started: Merged, new_name: Callable[[str], str]) -> Merged:
    database = new_name("merged")
    started.peer.create_database(database)
    return Merged(started.server, started.peer, started.spark, started.warehouse, database)


@pytest.mark.parametrize("sample", [PRIMARY_KEY, PARTITIONED_PRIMARY_KEY], ids=lambda sample: sample.name)
def test_rounds_of_inserts_updates_and_deletes(merged: Merged, sample: Sample) -> None:
    """The first round fills an empty table, the others are merged; the last brings keys back."""
    path = merged.create(sample)
    for turn in (0, 1, 0):
        sample.write(merged.peer, merged.database, turn)
        merged.check_union(path)
        merged.merge(path)
        merged.check(path)
    assert merged.delete_count(path)
    assert merged.spark.tier(path)["status"] == Status.NOTHING_NEW


@pytest.mark.parametrize("sample", [KEYED_TYPES, KEYED_NESTED], ids=lambda sample: sample.name)
def test_values_of_all_types(merged: Merged, sample: Sample) -> None:
    path = merged.create(sample)
    for turn in (0, 1):
        sample.write(merged.peer, merged.database, turn)
        merged.merge(path)
    merged.check(path)


def test_a_report_counts_changed_keys(merged: Merged) -> None:
    path = merged.create(PRIMARY_KEY)
    PRIMARY_KEY.write(merged.peer, merged.database, 0)
    assert merged.spark.tier(path)["row_count"] == 60
    merged.peer.upsert_rows(merged.database, path.table_name, [{"id": n, "text": "x"} for n in (1, 2, 100)])
    merged.peer.delete_rows(merged.database, path.table_name, [{"id": 3}])
    report = merged.spark.tier(path)
    assert (report["row_count"], report["removed"]) == (4, 0), report


def test_rounds_by_copy_and_compactions_in_between(merged: Merged) -> None:
    """Files that are written anew lose their deletes, the others keep them."""
    path = merged.create(PARTITIONED_PRIMARY_KEY)
    for turn in (0, 1):
        PARTITIONED_PRIMARY_KEY.write(merged.peer, merged.database, turn)
        merged.merge(path)
    before = merged.data_files(path)
    row = {"id": 1, "region": REGIONS[1], "text": "copied"}
    merged.peer.upsert_rows(merged.database, path.table_name, [row])
    assert merged.copy(path).status is Status.TIERED
    assert before & merged.data_files(path)
    assert merged.delete_count(path)
    merged.check(path)
    merged.peer.upsert_rows(merged.database, path.table_name, [{**row, "text": "merged"}])
    merged.merge(path)
    merged.check(path)
    done = compact(merged.peer.conn, path, warehouse=str(merged.warehouse), files_min=2)
    assert done.files_removed > done.files_added
    merged.check(path)
    merged.peer.delete_rows(merged.database, path.table_name, [row])
    merged.merge(path)
    merged.check(path)


def test_a_partition_that_was_created_again(merged: Merged) -> None:
    """Its files have to go, so the round is done by copy."""
    path = merged.create(PARTITIONED_PRIMARY_KEY)
    PARTITIONED_PRIMARY_KEY.write(merged.peer, merged.database, 0)
    merged.merge(path)
    merged.peer.admin.drop_partition(path, {"region": REGIONS[0]})
    merged.peer.admin.create_partition(path, {"region": REGIONS[0]})
    rows = [{"id": 2, "region": REGIONS[0], "text": "new"}]
    merged.peer.upsert_rows(merged.database, path.table_name, rows)
    report = merged.spark.tier(path)
    assert report["status"] == Status.TIERED
    assert report["removed"]
    merged.check(path)


def test_a_log_table_is_appended_to(merged: Merged) -> None:
    path = merged.create(LOG)
    for turn in (0, 1):
        LOG.write(merged.peer, merged.database, turn)
        merged.merge(path)
    merged.check(path)


@pytest.mark.parametrize(
    ("turns", "loser", "winner"),
    [(1, "merge", "merge"), (2, "merge", "merge"), (2, "merge", "copy"), (2, "copy", "merge")],
)
def test_a_job_that_was_overtaken_changes_nothing(merged: Merged, turns: int, loser: str, winner: str) -> None:
    """In the first round of a table, or a later one."""
    path = merged.create(PRIMARY_KEY)
    for turn in range(turns):
        merged.copy(path)
        PRIMARY_KEY.write(merged.peer, merged.database, turn)
    lost, won = merged.spark.race(path, loser, winner)
    assert (lost["status"], won["status"]) == (Status.LOST, Status.TIERED), (lost, won)
    merged.check(path)
    assert not merged.branches(path)
    assert merged.spark.tier(path)["status"] == Status.NOTHING_NEW


@pytest.mark.full  # starts another Spark
def test_the_command(merged: Merged) -> None:
    path = merged.create(PRIMARY_KEY)
    PRIMARY_KEY.write(merged.peer, merged.database, 0)
    assert merged.copy(path).status is Status.TIERED
    PRIMARY_KEY.write(merged.peer, merged.database, 1)
    command = [sys.executable, "-m", "fluss.cli", "tier", "--bootstrap", merged.server.bootstrap_servers]
    command += ["--warehouse", str(merged.warehouse), "--table", str(path), "--merge-on-read"]
    command += [text for key, value in spark_conf().items() for text in ("--spark", f"{key}={value}")]
    subprocess.run(command, timeout=COMMAND_TIMEOUT_S, check=True)
    assert merged.delete_count(path)
    merged.check(path)


@pytest.mark.parametrize("step", [pytest.param(COMMITTING, marks=pytest.mark.full), COMMITTED])
def test_a_job_that_is_killed(merged: Merged, step: str) -> None:
    """Before the lake's commit, which leaves its branch, or before the registration."""
    path = merged.create(PRIMARY_KEY)
    PRIMARY_KEY.write(merged.peer, merged.database, 0)
    assert merged.copy(path).status is Status.TIERED
    known = merged.peer.admin.get_latest_lake_snapshot(path)
    PRIMARY_KEY.write(merged.peer, merged.database, 1)
    merged.spark.die(path, step)
    assert merged.peer.admin.get_latest_lake_snapshot(path) == known
    merged.check_union(path)
    was_committed = step == COMMITTED
    assert bool(merged.branches(path)) is not was_committed
    assert merged.copy(path).status is (Status.NOTHING_NEW if was_committed else Status.TIERED)
    merged.check_readers(path)

"""Tiering of a real Apache Fluss with its Iceberg plugin, which makes the lake's tables; its own clients see it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from fluss.api.operations import LakeRegistry
from fluss.lake.format import CATALOG_NAME, SYSTEM_COLUMNS, LakeConflictError
from fluss.lake.options import LakeOptions
from fluss.lake.report import Status, TieringEvent
from fluss.lake.tiering.round import COMMITTED, COMMITTING, CRASH_CODE, CRASH_VARIABLE, REGISTERED
from fluss.lake.tiering.service import tier
from fluss.lake.tiering.task import LocalExecutor
from fluss.model.trust import Trust
from fluss.sync import TablePath
from fluss.testing import ApacheFluss
from tests.kit.lake.oracle import arranged, expected_rows
from tests.kit.lake.samples import KEYED_NESTED, KEYED_TYPES, KINDS, LOG, PRIMARY_KEY, TYPES, Sample
from tests.peers.fixtures import PeerFactory
from tests.peers.javaclient import JavaPeer
from tests.peers.ourclient import OurPeer
from tests.peers.peer import LakeSnapshot, Peer
from tests.peers.pyfluss import PyflussPeer

pytestmark = pytest.mark.compat

SMALL_HEAP = {"tablet": ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")}
COMMAND_TIMEOUT_S = 300.0
SERVICE_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Lake:
    """A real cluster with a lake, and all clients on it."""

    cluster: ApacheFluss
    ours: OurPeer
    others: tuple[Peer, ...]
    database: str

    def create(self, sample: Sample) -> TablePath:
        sample.create(self.ours, self.database, self.cluster.await_table)
        return TablePath(self.database, sample.name)

    def tier(self, path: TablePath) -> Status:
        """One round of a table; where its lake is, its server says."""
        [report] = tier(self.ours.conn, LocalExecutor(self.ours.conn), tables=[path])
        assert report.status is not Status.FAILED, report
        return report.status

    def run_command(self, *arguments: str, status: int = 0, **env: str) -> None:
        """`fluss tier` in a process of its own."""
        command = [sys.executable, "-m", "fluss.cli", "tier", "--bootstrap", self.cluster.bootstrap_servers, *arguments]
        done = subprocess.run(
            command,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr

    def load(self, path: TablePath) -> Table:
        """A table of the lake as others find it."""
        uri = f"sqlite:///{self.cluster.lake}/catalog.db"
        return SqlCatalog(CATALOG_NAME, uri=uri).load_table((path.database_name, path.table_name))

    def registered(self, path: TablePath) -> LakeSnapshot:
        """What our client is told, in the shape of the others."""
        found = self.ours.admin.get_latest_lake_snapshot(path)
        offsets = {(item.partition_id, item.bucket_id): end for item, end in found.table_buckets_offset.items()}
        return LakeSnapshot(found.snapshot_id, offsets)

    def check_rows(self, path: TablePath) -> None:
        """The lake has what the log leaves."""
        expected = expected_rows(self.ours, path.database_name, path.table_name)
        found = arranged(self.load(path).scan().to_arrow().to_pylist())
        if any("people" in row for row in expected):  # pyiceberg reads a null list of structs as an empty one
            expected = arranged({**row, "people": row["people"] or []} for row in expected)
        assert found == expected

    def check_union(self, path: TablePath) -> None:
        """A union read has what the log leaves; for tables whose rows are ordered by any spelling of them."""
        found = self.ours.conn.get_table(path).new_scan().union().to_arrow().to_pylist()
        rows = expected_rows(self.ours, path.database_name, path.table_name)
        expected = [{name: value for name, value in row.items() if name not in SYSTEM_COLUMNS} for row in rows]
        assert sorted(found, key=repr) == sorted(expected, key=repr)

    def check_snapshot(self, path: TablePath) -> None:
        """Every client is told of the lake's snapshot, which reaches to the end of the log."""
        partitions: list[tuple[str | None, int | None]] = [(None, None)]
        if self.ours.admin.get_table_info(path).is_partitioned():
            partitions = [*self.ours.list_partitions(path.database_name, path.table_name).items()]
        ends = {
            (number, bucket): end
            for name, number in partitions
            for bucket, end in self.ours.list_offsets(path.database_name, path.table_name, partition=name).items()
        }
        current = self.load(path).current_snapshot()
        assert current is not None
        expected = LakeSnapshot(current.snapshot_id, ends)
        assert self.registered(path) == expected
        for peer in self.others:
            assert peer.lake_snapshot(path.database_name, path.table_name) == expected


@pytest.fixture(scope="module")
def lake(
    tmp_path_factory: pytest.TempPathFactory,
    pyfluss_peers: PeerFactory[PyflussPeer],
    java_peers: PeerFactory[JavaPeer],
    new_name: Callable[[str], str],
) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("apache-lake")
    with ApacheFluss(folder / "fluss", lake=folder / "lake", jvm_options=SMALL_HEAP) as cluster:
        ours = OurPeer(cluster.bootstrap_servers)
        others = (pyfluss_peers(cluster.bootstrap_servers), java_peers(cluster.bootstrap_servers))
        database = new_name("lake")
        ours.create_database(database)
        yield Lake(cluster, ours, others, database)
        for peer in (ours, *others):
            peer.close()


@pytest.mark.parametrize("sample", [*KINDS, TYPES, KEYED_TYPES, KEYED_NESTED], ids=lambda sample: sample.name)
def test_tables_are_tiered_and_all_clients_see_it(lake: Lake, sample: Sample) -> None:
    path = lake.create(sample)
    for turn in (0, 1):
        sample.write(lake.ours, lake.database, turn)
        if sample in KINDS:
            lake.check_union(path)
        assert lake.tier(path) is Status.TIERED
        lake.check_rows(path)
        lake.check_snapshot(path)
        assert lake.tier(path) is Status.NOTHING_NEW


@pytest.mark.parametrize(
    ("sample", "step"),
    [
        (PRIMARY_KEY, COMMITTING),
        (LOG, COMMITTED),
        (PRIMARY_KEY, COMMITTED),
        (LOG, REGISTERED),
    ],
    ids=lambda item: getattr(item, "name", item),
)
def test_a_job_that_dies_is_made_good_by_the_next(lake: Lake, sample: Sample, step: str) -> None:
    sample = sample.renamed(f"dies_{sample.name}_{step}")
    path = lake.create(sample)
    sample.write(lake.ours, lake.database, 0)
    assert lake.tier(path) is Status.TIERED
    before = lake.registered(path)
    sample.write(lake.ours, lake.database, 1)
    crash = {CRASH_VARIABLE: step}
    lake.run_command("--local", "--table", str(path), status=CRASH_CODE, **crash)
    assert (lake.registered(path) == before) is (step != REGISTERED)
    assert lake.tier(path) is (Status.TIERED if step == COMMITTING else Status.NOTHING_NEW)
    lake.check_rows(path)
    lake.check_snapshot(path)


def test_the_spark_job_tiers_tables(lake: Lake) -> None:
    samples = [sample.renamed(f"spark_{sample.name}") for sample in (LOG, PRIMARY_KEY)]
    paths = [lake.create(sample) for sample in samples]
    for sample in samples:
        sample.write(lake.ours, lake.database, 0)
        sample.write(lake.ours, lake.database, 1)
    lake.run_command(*(text for path in paths for text in ("--table", str(path))))
    for path in paths:
        lake.check_rows(path)
        lake.check_snapshot(path)


def test_the_service_tiers_what_the_server_hands_out(lake: Lake) -> None:
    sample = PRIMARY_KEY.renamed("due")
    path = lake.create(sample)
    stop = threading.Event()
    turns = iter((0, 1))

    def write_more(event: TieringEvent) -> None:
        """Twice: a table is handed out again only if its first round was reported in a way that the server takes."""
        if event.report is None or event.table_path != path:
            return
        assert event.report.status in (Status.TIERED, Status.NOTHING_NEW), event.report
        turn = next(turns, None)
        if turn is None:
            stop.set()
        else:
            sample.write(lake.ours, lake.database, turn)

    executor = LocalExecutor(lake.ours.conn)
    with ThreadPoolExecutor(1) as pool:
        service = pool.submit(tier, lake.ours.conn, executor, interval_s=0.1, stop=stop, progress=write_more)
        try:
            service.result(SERVICE_TIMEOUT_S)
        finally:
            stop.set()
    lake.check_rows(path)
    lake.check_snapshot(path)


def test_a_table_that_the_server_made_refuses_commits_that_lost_a_race(lake: Lake) -> None:
    path = lake.create(LOG.renamed("raced"))
    info = lake.ours.admin.get_table_info(path)
    options = LakeOptions.of(info, trust=Trust.of(lake.ours.conn.config))
    first, second = (options.open().ensure_table(info) for _ in range(2))
    first.commit([], [], "first")
    with pytest.raises(LakeConflictError):
        second.commit([], [], "second")
    assert [snapshot.offsets_path for snapshot in first.all_tiered()] == ["first"]


def test_a_snapshot_that_is_registered_twice_stays_known(lake: Lake) -> None:
    """The server removes the offsets of snapshots that it need not keep, even if the new one's are the same file."""
    path = lake.create(LOG.renamed("twice"))
    LOG.renamed("twice").write(lake.ours, lake.database, 0)
    assert lake.tier(path) is Status.TIERED
    known = lake.registered(path)
    summary: Any = lake.load(path).current_snapshot().summary
    info = lake.ours.admin.get_table_info(path)
    registry = LakeRegistry(lake.ours.conn)
    registry.commit(info, known.snapshot_id, summary["fluss-offsets"], {}, earliest_to_keep=known.snapshot_id)
    assert lake.registered(path) == known
    assert lake.tier(path) is Status.NOTHING_NEW

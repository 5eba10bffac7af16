"""The Java client reads whole primary-key tables of our server: from snapshot files, then the changelog from there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from fluss.testing import FlussServer
from tests.peers.fixtures import PeerFactory
from tests.peers.javaclient import JavaPeer, Snapshot
from tests.peers.peer import Record, Row

pytestmark = pytest.mark.compat

DATABASE = "snapshots"
COLUMNS = {"id": "INT", "name": "STRING", "amount": "DECIMAL(20, 4)", "score": "DOUBLE"}
BUCKETS = 3
WAIT_S_MAX = 30.0
POLL_S = 0.1
# Snapshots all the time; the log is cut wherever two of them allow it.
EAGER = """
kv.snapshot.interval-ms = 200
log.segment.file-size = 4096
log.retention.size-bytes = 1
log.retention.check-interval-ms = 200
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "fluss.toml"
    path.write_text(EAGER)
    return path


@pytest.fixture
def server(tmp_path: Path, config: Path) -> Iterator[FlussServer]:
    with FlussServer(tmp_path / "data", args=["--config", str(config)]) as running:
        yield running


@pytest.fixture
def java(server: FlussServer, java_peers: PeerFactory[JavaPeer]) -> Iterator[JavaPeer]:
    peer = java_peers(server.bootstrap_servers)
    peer.create_database(DATABASE)
    yield peer
    peer.close()


def row(number: int, name: str) -> Row:
    return {
        "id": number,
        "name": f"{name} {number}",
        "amount": Decimal(number) + Decimal("0.2500"),
        "score": number / 8,
    }


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(POLL_S)


def snapshots_are_current(java: JavaPeer, table: str, partition: str | None = None) -> bool:
    ends = java.list_offsets(DATABASE, table, partition=partition)
    snapshots = java.read_snapshots(DATABASE, table, partition=partition)
    return {bucket: snapshot.log_offset for bucket, snapshot in snapshots.items()} == ends


def whole_table(snapshots: dict[int, Snapshot], changelog: list[Record]) -> dict[int, Row]:
    """The rows of the snapshots, changed by what comes behind them."""
    rows = {row["id"]: row for snapshot in snapshots.values() for row in snapshot.rows}
    for record in changelog:
        if record.offset < snapshots[record.bucket].log_offset:
            continue
        if record.change in ("+I", "+U"):
            rows[record.row["id"]] = record.row
        elif record.change == "-D":
            del rows[record.row["id"]]
    return rows


def test_a_whole_table_of_which_the_log_has_only_the_end(server: FlussServer, config: Path, java: JavaPeer) -> None:
    java.create_table(DATABASE, "t", COLUMNS, primary_keys=["id"], bucket_count=BUCKETS)
    expected = {number: row(number, "first") for number in range(600)}
    java.upsert_rows(DATABASE, "t", list(expected.values()))
    wait_for(lambda: snapshots_are_current(java, "t"))
    for number in range(0, 600, 3):
        expected[number] = row(number, "second")
    java.upsert_rows(DATABASE, "t", [expected[number] for number in range(0, 600, 3)])
    java.delete_rows(DATABASE, "t", [{"id": number} for number in range(500, 600)])
    for number in range(500, 600):
        del expected[number]
    wait_for(lambda: all(offset > 0 for offset in java.list_offsets(DATABASE, "t", "earliest").values()))
    wait_for(lambda: snapshots_are_current(java, "t"))
    snapshots = java.read_snapshots(DATABASE, "t")
    assert snapshots.keys() == set(range(BUCKETS))
    assert {item["id"]: item for snapshot in snapshots.values() for item in snapshot.rows} == expected

    # From now on no snapshots are made: what comes is in the changelog alone.
    config.write_text("")
    server.restart()
    expected[7] = row(7, "third")
    expected[1_000] = row(1_000, "third")
    java.upsert_rows(DATABASE, "t", [expected[7], expected[1_000]])
    java.delete_rows(DATABASE, "t", [{"id": 8}])
    del expected[8]
    assert java.read_snapshots(DATABASE, "t") == snapshots
    assert whole_table(snapshots, java.scan_records(DATABASE, "t")) == expected
    assert java.read_snapshots(DATABASE, "t", columns=["score", "id"])[0].rows == [
        {"score": item["score"], "id": item["id"]} for item in snapshots[0].rows
    ]


def test_partitions_have_snapshots_of_their_own(java: JavaPeer) -> None:
    columns = {"id": "INT", "region": "STRING", "name": "STRING"}
    java.create_table(DATABASE, "p", columns, primary_keys=["id", "region"], partition_keys=["region"], bucket_count=1)
    rows = [{"id": number, "region": region, "name": f"n{number}"} for number in range(50) for region in ("eu", "us")]
    for region in ("eu", "us"):
        java.create_partition(DATABASE, "p", {"region": region})
    java.upsert_rows(DATABASE, "p", rows)
    for region in ("eu", "us"):
        wait_for(lambda region=region: snapshots_are_current(java, "p", region))  # type: ignore[misc]
        (snapshot,) = java.read_snapshots(DATABASE, "p", partition=region).values()
        found = sorted(snapshot.rows, key=lambda item: int(item["id"]))
        assert found == [item for item in rows if item["region"] == region]


def test_a_lease_keeps_a_snapshot_while_others_come_and_go(server: FlussServer, java: JavaPeer) -> None:
    java.create_table(DATABASE, "l", COLUMNS, primary_keys=["id"], bucket_count=1)
    java.upsert_rows(DATABASE, "l", [row(number, "first") for number in range(100)])
    wait_for(lambda: snapshots_are_current(java, "l"))
    assert java.lease_snapshots(DATABASE, "l", "reader", duration_ms=60_000) == []
    leased = java.read_snapshots(DATABASE, "l")[0].snapshot_id
    for count in range(4):
        java.upsert_rows(DATABASE, "l", [row(count, "later")])
        wait_for(lambda: snapshots_are_current(java, "l"))
    directory = server.data_dir / "tables" / str(java.table_info(DATABASE, "l")["table_id"]) / "0" / "snapshots"

    def ids() -> list[int]:
        return sorted(int(path.name.partition("-")[0]) for path in directory.iterdir())

    newest = java.read_snapshots(DATABASE, "l")[0].snapshot_id
    assert newest > leased + 2
    wait_for(lambda: ids() == [leased, newest - 1, newest])
    java.drop_lease("reader")
    wait_for(lambda: ids() == [newest - 1, newest])

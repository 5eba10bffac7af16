"""A real cluster of three tablet servers, replication 1: leaders are spread, and each request has to find its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fluss.sync as fluss
from fluss.testing import ApacheFluss
from tests.compat.differences import APACHE, OUR_CLIENT, expected
from tests.peers.fixtures import PeerFactory
from tests.peers.ourclient import OurPeer
from tests.peers.pyfluss import PyflussPeer
from tests.peers.samples import SMALL

pytestmark = pytest.mark.compat

TABLETS = 3
BUCKETS = 12
CONFIG = {
    "log.segment.file-size": "1mb",
    "remote.log.task-interval-duration": "2s",
    "log.replica.high-watermark.checkpoint-interval": "1s",
}
SMALL_HEAP = {"tablet": ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")}
TIERING_TIMEOUT_S = 60.0
CHECKPOINT_TIMEOUT_S = 20.0
# Long enough for a tablet server's old session to end and its successor to be elected.
OUTAGE_TIMEOUT_S = 90.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheFluss]:
    folder = tmp_path_factory.mktemp("three-tablets")
    with ApacheFluss(folder, tablets=TABLETS, config=CONFIG, jvm_options=SMALL_HEAP) as started:
        yield started


@pytest.fixture(scope="module")
def ours(cluster: ApacheFluss) -> Iterator[OurPeer]:
    peer = OurPeer(cluster.bootstrap_servers)
    yield peer
    peer.close()


@pytest.fixture
def database(ours: OurPeer, new_name: Callable[[str], str]) -> str:
    name = new_name("three")
    ours.create_database(name)
    return name


def create(cluster: ApacheFluss, ours: OurPeer, database: str, table: str, **options: Any) -> fluss.FlussTable:
    ours.create_table(database, table, SMALL, **{"bucket_count": BUCKETS, "bucket_keys": ["id"], **options})
    cluster.await_table(database, table)
    return ours.table(database, table)


def buckets_on(cluster: ApacheFluss, tablet: int, database: str, table: str) -> int:
    """How many buckets of a table a tablet server has files of."""
    folders = (cluster.data_dir / f"tablet-{tablet}" / database).glob(f"{table}-*/*")
    return len([folder for folder in folders if folder.is_dir()])


def row(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"row {number}"}


def test_every_request_finds_the_leader_of_its_bucket(
    cluster: ApacheFluss, ours: OurPeer, database: str, pyfluss_peers: PeerFactory[PyflussPeer]
) -> None:
    table = create(cluster, ours, database, "spread")
    rows = [row(number) for number in range(3_000)]
    ours.append_rows(database, "spread", rows[:1_500])
    ours.append_arrow(database, "spread", pa.Table.from_pylist(rows[1_500:], schema=table.arrow_schema))
    held = [buckets_on(cluster, tablet, database, "spread") for tablet in range(TABLETS)]
    assert sum(held) == BUCKETS
    assert all(held), "leaders are not spread: this run proves nothing"

    tail = ours.start_tail(database, "spread")
    records = tail.take(len(rows))
    tail.stop()
    by_bucket: dict[int, list[Any]] = {}
    for record in records:
        by_bucket.setdefault(record.bucket, []).append(record)
    assert all([r.offset for r in found] == list(range(len(found))) for found in by_bucket.values())
    assert sorted(record.row["id"] for record in records) == list(range(3_000))

    ends = {bucket: len(found) for bucket, found in by_bucket.items()}
    assert ours.list_offsets(database, "spread") == ends
    assert set(ours.list_offsets(database, "spread", "earliest").values()) == {0}
    assert ours.list_offsets(database, "spread", 0) == dict.fromkeys(range(BUCKETS), 0)
    assert ours.table_stats(database, "spread") == 3_000
    assert sorted(r["id"] for r in ours.scan_rows(database, "spread", columns=["id"])) == list(range(3_000))
    for bucket, found in by_bucket.items():
        last = ours.limit_scan(database, "spread", 7, bucket=bucket)
        assert last == [record.row for record in found[-7:]], bucket

    with pyfluss_peers(cluster.bootstrap_servers) as peer:
        assert sorted(r["id"] for r in peer.scan_rows(database, "spread")) == list(range(3_000))
        peer.close()


def test_partitions_are_spread_too(cluster: ApacheFluss, ours: OurPeer, database: str) -> None:
    columns = {"id": "INT", "region": "STRING"}
    ours.create_table(database, "parted", columns, partition_keys=["region"], bucket_count=3, bucket_keys=["id"])
    regions = ["eu", "us", "asia"]
    for region in regions:
        ours.create_partition(database, "parted", {"region": region})
        cluster.await_table(database, "parted", region)
    rows = [{"id": number, "region": regions[number % 3]} for number in range(900)]
    ours.append_rows(database, "parted", rows)
    found = ours.scan_rows(database, "parted")
    assert sorted((r["id"], r["region"]) for r in found) == [(r["id"], r["region"]) for r in rows]
    for region in regions:
        assert sum(ours.list_offsets(database, "parted", partition=region).values()) == 300
    assert ours.table_stats(database, "parted") == 900


def test_tiered_buckets_of_all_tablets_are_read_exactly(cluster: ApacheFluss, ours: OurPeer, database: str) -> None:
    properties = {"table.log.arrow.compression.type": "NONE", "table.log.tiered.local-segments": "1"}
    table = create(cluster, ours, database, "tiered", bucket_count=TABLETS, properties=properties)
    text = "x" * 300
    for first in range(0, 36_000, 1_000):
        data = [{"id": number, "name": text} for number in range(first, first + 1_000)]
        ours.append_arrow(database, "tiered", pa.Table.from_pylist(data, schema=table.arrow_schema))
    _await_tiering(cluster, database, "tiered", TABLETS)
    tail = ours.start_tail(database, "tiered")
    records = tail.take(36_000)
    tail.stop()
    assert sorted(record.row["id"] for record in records) == list(range(36_000))
    places = [(record.bucket, record.offset) for record in records]
    assert len(set(places)) == len(places)
    assert sorted(ours.scan_arrow(database, "tiered", ["id"]).column("id").to_pylist()) == list(range(36_000))


def _await_tiering(cluster: ApacheFluss, database: str, table: str, buckets: int) -> None:
    """Wait until every bucket has most of its log in remote files only."""
    deadline = time.monotonic() + TIERING_TIMEOUT_S
    while True:
        local = [
            sorted(int(log.stem) for log in folder.glob("*.log"))
            for tablet in range(TABLETS)
            for folder in (cluster.data_dir / f"tablet-{tablet}" / database).glob(f"{table}-*/*")
        ]
        if len(local) == buckets and all(starts and starts[0] > 0 for starts in local):
            return
        assert time.monotonic() < deadline, f"first local offsets are {local}"
        time.sleep(0.1)


@pytest.mark.parametrize("graceful", [True, False], ids=["signs off", "dies"])
def test_a_tablet_that_goes_and_comes_back_loses_nothing(
    cluster: ApacheFluss, ours: OurPeer, database: str, graceful: bool
) -> None:
    """Rows for its buckets wait in the writer and in the scanner; nobody has to open anything again."""
    table = create(cluster, ours, database, "healed")
    tail = ours.start_tail(database, "healed")
    writer = table.new_append().create_writer()
    for number in range(600):
        writer.append(row(number))
    writer.flush()
    gone = next(tablet for tablet in range(TABLETS) if buckets_on(cluster, tablet, database, "healed"))
    _await_checkpoint(cluster, gone, table, ours.list_offsets(database, "healed"))
    cluster.stop_tablet(gone, graceful=graceful)
    for number in range(600, 1_200):
        writer.append(row(number))
    failure: list[BaseException] = []
    flushed = threading.Thread(target=_flush, args=(writer, failure))
    flushed.start()
    cluster.start_tablet(gone)
    cluster.await_table(database, "healed")
    flushed.join(OUTAGE_TIMEOUT_S)
    assert not flushed.is_alive()
    assert failure == []
    records = tail.take(1_200, OUTAGE_TIMEOUT_S)
    tail.stop()
    assert sorted(record.row["id"] for record in records) == list(range(1_200))
    assert sum(ours.list_offsets(database, "healed").values()) == 1_200
    assert sorted(r["id"] for r in ours.scan_rows(database, "healed")) == list(range(1_200))


def _await_checkpoint(cluster: ApacheFluss, tablet: int, table: fluss.FlussTable, ends: dict[int, int]) -> None:
    """Wait until a tablet server has noted how far its logs are acknowledged.

    After a kill it cuts them there; the next test shows what happens to rows acknowledged since then.
    """
    table_id = table.get_table_info().table_id
    deadline = time.monotonic() + CHECKPOINT_TIMEOUT_S
    while True:
        noted = {bucket: offset for owner, bucket, offset in _noted(cluster, tablet) if owner == table_id}
        if noted and all(ends[bucket] == offset for bucket, offset in noted.items()):
            return
        assert time.monotonic() < deadline, f"noted {noted}, acknowledged {ends}"
        time.sleep(0.1)


def _noted(cluster: ApacheFluss, tablet: int) -> list[tuple[int, ...]]:
    """Table, bucket and end of what is safe, as a tablet server has noted them down."""
    text = (cluster.data_dir / f"tablet-{tablet}" / "high-watermark-checkpoint").read_text()
    return [tuple(map(int, line.split())) for line in text.splitlines() if line.count(" ") == 2]


def _flush(writer: Any, failure: list[BaseException]) -> None:
    try:
        writer.flush()
    except BaseException as error:
        failure.append(error)


@pytest.mark.feature("A killed server")
def test_a_kill_takes_rows_that_were_acknowledged_since_the_last_checkpoint(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Nothing that a client could do about it, and the reason why this project's server syncs before it answers."""
    record_property("server", APACHE)
    never = {"log.replica.high-watermark.checkpoint-interval": "1h"}
    with ApacheFluss(tmp_path, config=never, jvm_options=SMALL_HEAP) as cluster:
        peer = OurPeer(cluster.bootstrap_servers)
        peer.create_database("killed")
        create(cluster, peer, "killed", "t", bucket_count=1)
        # The first checkpoint comes soon after the first table; a late one would have the rows.
        deadline = time.monotonic() + CHECKPOINT_TIMEOUT_S
        while not _noted(cluster, 0):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        peer.append_rows("killed", "t", [row(number) for number in range(10)])
        assert peer.list_offsets("killed", "t") == {0: 10}
        cluster.stop_tablet(0)
        cluster.start_tablet(0)
        cluster.await_table("killed", "t")
        survived = peer.list_offsets("killed", "t") == {0: 10}
        assert survived == expected(OUR_CLIENT, APACHE)["rows_survive_a_kill"]
        peer.close()

"""The launcher and the drivers proved on the real thing: what one real client writes, the other reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fluss.testing import ApacheFluss, Direction, FaultProxy, ProcessFailedError
from tests.peers.columns import arrow_schema
from tests.peers.fixtures import PeerFactory
from tests.peers.javaclient import JavaPeer
from tests.peers.jsonlines import PeerError
from tests.peers.peer import Peer, Row
from tests.peers.pyfluss import PyflussPeer
from tests.peers.samples import COLUMNS, EMPTY, FULL, SMALL

pytestmark = pytest.mark.compat


@pytest.fixture(scope="module")
def pyfluss(apache_fluss: ApacheFluss, pyfluss_peers: PeerFactory[PyflussPeer]) -> Iterator[PyflussPeer]:
    peer = pyfluss_peers(apache_fluss.bootstrap_servers)
    yield peer
    peer.close()


@pytest.fixture(scope="module")
def java(apache_fluss: ApacheFluss, java_peers: PeerFactory[JavaPeer]) -> Iterator[JavaPeer]:
    peer = java_peers(apache_fluss.bootstrap_servers)
    yield peer
    peer.close()


@pytest.fixture
def database(pyfluss: PyflussPeer, new_name: Callable[[str], str]) -> str:
    name = new_name("proof")
    pyfluss.create_database(name, ignore_if_exists=False)
    return name


def small_rows(start: int, count: int) -> list[Row]:
    return [{"id": number, "name": f"row {number}"} for number in range(start, start + count)]


def test_each_reads_every_scalar_type_the_other_wrote(
    apache_fluss: ApacheFluss, pyfluss: PyflussPeer, java: JavaPeer, database: str
) -> None:
    pyfluss.create_table(database, "everything", COLUMNS)
    apache_fluss.await_table(database, "everything")
    pyfluss.append_rows(database, "everything", [FULL, EMPTY])
    java.append_rows(database, "everything", [FULL, EMPTY])
    pyfluss.append_arrow(database, "everything", pa.Table.from_pylist([FULL, EMPTY], schema=arrow_schema(COLUMNS)))
    expected = [FULL, EMPTY] * 3
    assert pyfluss.scan_rows(database, "everything") == expected
    assert java.scan_rows(database, "everything") == expected
    assert pyfluss.scan_arrow(database, "everything").to_pylist() == expected
    assert pyfluss.list_offsets(database, "everything") == java.list_offsets(database, "everything") == {0: 6}


def test_records_carry_bucket_offset_time_and_change(
    apache_fluss: ApacheFluss, pyfluss: PyflussPeer, java: JavaPeer, database: str
) -> None:
    java.create_table(database, "buckets", SMALL, bucket_count=3, bucket_keys=["id"])
    apache_fluss.await_table(database, "buckets")
    java.append_rows(database, "buckets", small_rows(0, 100))
    by_java = java.scan_records(database, "buckets")
    by_pyfluss = pyfluss.scan_records(database, "buckets")

    def place(record: Any) -> tuple[int, int]:
        return record.bucket, record.offset

    assert sorted(by_java, key=place) == sorted(by_pyfluss, key=place)
    assert {record.bucket for record in by_java} == {0, 1, 2}
    assert {record.change for record in by_java} == {"+A"}
    assert all(record.timestamp > 0 and record.partition is None for record in by_java)
    assert sum(java.list_offsets(database, "buckets").values()) == 100
    assert java.list_offsets(database, "buckets", "earliest") == {0: 0, 1: 0, 2: 0}
    names = pyfluss.scan_rows(database, "buckets", columns=["name"])
    assert sorted(row["name"] for row in names) == sorted(row["name"] for row in small_rows(0, 100))
    assert all(row.keys() == {"name"} for row in java.scan_rows(database, "buckets", columns=["name"]))


@pytest.mark.parametrize("tailing", ["pyfluss", "java"])
def test_a_tail_sees_rows_as_they_come(
    apache_fluss: ApacheFluss, pyfluss: PyflussPeer, java: JavaPeer, database: str, tailing: str
) -> None:
    reader, writer = (pyfluss, java) if tailing == "pyfluss" else (java, pyfluss)
    writer.create_table(database, "stream", SMALL)
    apache_fluss.await_table(database, "stream")
    writer.append_rows(database, "stream", small_rows(0, 5))
    whole, fresh = reader.start_tail(database, "stream"), reader.start_tail(database, "stream", "latest")
    assert [record.row for record in whole.take(5)] == small_rows(0, 5)
    writer.append_rows(database, "stream", small_rows(5, 3))
    assert [record.offset for record in whole.take(3)] == [5, 6, 7]
    assert [record.row for record in fresh.take(3)] == small_rows(5, 3)
    whole.stop()
    fresh.stop()


def test_primary_key_tables_are_written_and_looked_up_by_both(
    apache_fluss: ApacheFluss, pyfluss: PyflussPeer, java: JavaPeer, database: str
) -> None:
    pyfluss.create_table(database, "keyed", SMALL, primary_keys=["id"], bucket_count=1)
    apache_fluss.await_table(database, "keyed")
    pyfluss.upsert_rows(database, "keyed", small_rows(0, 2))
    java.upsert_rows(database, "keyed", [{"id": 1, "name": "changed"}])
    pyfluss.delete_rows(database, "keyed", [{"id": 0}])
    keys = [{"id": 0}, {"id": 1}]
    assert pyfluss.lookup(database, "keyed", keys) == java.lookup(database, "keyed", keys)
    assert java.lookup(database, "keyed", keys) == [None, {"id": 1, "name": "changed"}]
    changes = [record.change for record in java.scan_records(database, "keyed")]
    assert changes == ["+I", "+I", "-U", "+U", "-D"]
    assert [record.change for record in pyfluss.scan_records(database, "keyed")] == changes


def test_partitioned_tables(apache_fluss: ApacheFluss, pyfluss: PyflussPeer, java: JavaPeer, database: str) -> None:
    pyfluss.create_table(database, "parted", {"id": "INT", "region": "STRING"}, partition_keys=["region"])
    for region in ("eu", "us"):
        java.create_partition(database, "parted", {"region": region})
        apache_fluss.await_table(database, "parted", region)
    partitions = pyfluss.list_partitions(database, "parted")
    assert partitions == java.list_partitions(database, "parted")
    assert partitions.keys() == {"eu", "us"}
    rows = [{"id": 1, "region": "eu"}, {"id": 2, "region": "us"}, {"id": 3, "region": "eu"}]
    java.append_rows(database, "parted", rows)
    found = pyfluss.scan_records(database, "parted")
    assert sorted(found, key=lambda record: record.row["id"]) == sorted(
        java.scan_records(database, "parted"), key=lambda record: record.row["id"]
    )
    assert {(record.row["region"], record.partition) for record in found} == set(partitions.items())
    assert pyfluss.list_offsets(database, "parted", partition="eu") == {0: 2}
    assert java.list_offsets(database, "parted", partition="us") == {0: 1}


def test_catalog_commands_agree(pyfluss: PyflussPeer, java: JavaPeer, database: str) -> None:
    options = {"bucket_count": 2, "bucket_keys": ["id"], "comment": "a table", "custom_properties": {"owner": "tests"}}
    pyfluss.create_table(database, "first", SMALL, **options)
    java.create_table(database, "second", SMALL, **options)
    assert sorted(pyfluss.list_tables(database)) == sorted(java.list_tables(database)) == ["first", "second"]
    for table in ("first", "second"):
        seen_by_java, seen_by_pyfluss = java.table_info(database, table), pyfluss.table_info(database, table)
        assert seen_by_java["bucket_count"] == 2
        assert seen_by_java["bucket_keys"] == ["id"]
        assert seen_by_java["comment"] == "a table"
        assert seen_by_java["custom_properties"] == {"owner": "tests"}
        assert list(seen_by_java["columns"]) == ["id", "name"]
        for key in ("table_id", "schema_id", "bucket_count", "bucket_keys", "comment", "custom_properties"):
            assert seen_by_java[key] == seen_by_pyfluss[key], key
    java.drop_table(database, "first")
    pyfluss.drop_table(database, "second")
    assert pyfluss.list_tables(database) == []
    java.drop_database(database)
    assert database not in pyfluss.list_databases()


@pytest.mark.parametrize("which", ["pyfluss", "java"])
def test_errors_carry_their_code(request: pytest.FixtureRequest, which: str, database: str) -> None:
    peer: Peer = request.getfixturevalue(which)
    with pytest.raises(PeerError) as caught:
        peer.drop_table(database, "missing")
    assert caught.value.code == 7


def test_a_write_refused_to_java_is_not_taken_for_acknowledged(
    apache_fluss: ApacheFluss, pyfluss: PyflussPeer, java_peers: PeerFactory[JavaPeer], database: str
) -> None:
    pyfluss.create_table(database, "strict", SMALL)
    apache_fluss.await_table(database, "strict")
    # The server knows no such level of acknowledgement; the client's own check goes with idempotence.
    config = {"client.writer.acks": "2", "client.writer.enable-idempotence": "false"}
    with java_peers(apache_fluss.bootstrap_servers, config) as peer, pytest.raises(PeerError) as caught:
        peer.append_rows(database, "strict", small_rows(0, 1))
    assert caught.value.kind == "InvalidRequiredAcksException"
    assert pyfluss.list_offsets(database, "strict") == {0: 0}


def test_writes_of_pyfluss_to_a_dropped_table_come_to_fail(
    apache_fluss: ApacheFluss, pyfluss: PyflussPeer, java: JavaPeer, database: str
) -> None:
    pyfluss.create_table(database, "doomed", SMALL)
    apache_fluss.await_table(database, "doomed")
    pyfluss.append_rows(database, "doomed", small_rows(0, 1))
    java.drop_table(database, "doomed")
    deadline = time.monotonic() + 20
    with pytest.raises(PeerError) as caught:
        # The server still takes writes for a moment after it has answered the drop.
        while time.monotonic() < deadline:
            pyfluss.append_rows(database, "doomed", small_rows(1, 1))
    assert caught.value.code == 7


def test_a_proxy_in_front_of_the_coordinator_is_seen_and_passed(
    apache_fluss: ApacheFluss, pyfluss_peers: PeerFactory[PyflussPeer], database: str
) -> None:
    with FaultProxy(apache_fluss.bootstrap_servers) as proxy:
        with pyfluss_peers(proxy.address) as peer:
            assert database in peer.list_databases()
        counters = proxy.counters
        assert counters.requests_by_api[1012] >= 1
        assert counters.frames[Direction.RESPONSE] == counters.frames[Direction.REQUEST]


def test_a_cluster_that_elects_no_leader_is_restarted_and_keeps_its_data(
    apache_fluss: ApacheFluss, pyfluss: PyflussPeer, java: JavaPeer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    java.create_table(database, "kept", SMALL)
    apache_fluss.await_table(database, "kept")
    java.append_rows(database, "kept", small_rows(0, 10))
    before = apache_fluss.pids
    with monkeypatch.context() as patch:
        patch.setattr("fluss.testing.apache._LEADER_TIMEOUT_S", 0.5)
        with pytest.raises(ProcessFailedError, match=f"no leader for {database}.missing"):
            apache_fluss.await_table(database, "missing", restarts=1)
    assert not set(before.values()) & set(apache_fluss.pids.values())
    apache_fluss.await_table(database, "kept")
    pyfluss.append_rows(database, "kept", small_rows(10, 1))
    assert pyfluss.scan_rows(database, "kept") == java.scan_rows(database, "kept") == small_rows(0, 11)


def test_a_cluster_that_cannot_start_says_why(tmp_path: Path) -> None:
    cluster = ApacheFluss(tmp_path, config={"bind.listeners": "nonsense"})
    with pytest.raises(ProcessFailedError, match=r"(?s)stopped \(exit status \d+\).*nonsense"):
        cluster.start()
    assert cluster.pids == {}

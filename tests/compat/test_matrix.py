"""Wire compatibility both ways: {our client, pyfluss 1.0.0, Java 0.9.1} on {our server, Apache Fluss 0.9.1}.

Every client creates, appends, scans and tails on every server, and reads what the others wrote.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from fluss.testing import ApacheFluss, FlussServer
from tests.compat.ourclient import OurPeer
from tests.peers.columns import arrow_schema
from tests.peers.fixtures import PeerFactory
from tests.peers.javaclient import JavaPeer
from tests.peers.peer import Row
from tests.peers.pyfluss import PyflussPeer
from tests.peers.samples import COLUMNS, EMPTY, FULL, SMALL


@dataclass
class Cluster:
    """A server and the clients on it."""

    server: FlussServer | ApacheFluss
    clients: dict[str, Any]

    def create_table(self, by: str, database: str, table: str, columns: dict[str, str], **options: Any) -> None:
        self.clients[by].create_table(database, table, columns, **options)
        if isinstance(self.server, ApacheFluss):
            self.server.await_table(database, table)


@pytest.fixture(scope="module")
def our_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    with FlussServer(tmp_path_factory.mktemp("compat") / "data") as server:
        yield server


def _clients(address: str, pyfluss: PeerFactory[PyflussPeer], java: PeerFactory[JavaPeer] | None) -> dict[str, Any]:
    clients: dict[str, Any] = {"ours": OurPeer(address), "pyfluss": pyfluss(address)}
    if java is not None:
        clients["java"] = java(address)
    return clients


OUR_SERVER = ["our server", pytest.param("our server, java too", marks=pytest.mark.compat)]


@pytest.fixture(scope="module", params=[*OUR_SERVER, pytest.param("apache fluss", marks=pytest.mark.compat)])
def cluster(request: pytest.FixtureRequest, pyfluss_peers: PeerFactory[PyflussPeer]) -> Iterator[Cluster]:
    fixture = "apache_fluss" if request.param == "apache fluss" else "our_server"
    server: FlussServer | ApacheFluss = request.getfixturevalue(fixture)
    java = None if request.param == "our server" else request.getfixturevalue("java_peers")
    made = Cluster(server, _clients(server.bootstrap_servers, pyfluss_peers, java))
    yield made
    for client in made.clients.values():
        client.close()


@pytest.fixture
def database(cluster: Cluster, new_name: Callable[[str], str]) -> str:
    name = new_name("compat")
    cluster.clients["pyfluss"].create_database(name, ignore_if_exists=False)
    return name


def test_everyone_reads_every_scalar_type_that_anyone_wrote(cluster: Cluster, database: str) -> None:
    for creator in cluster.clients:
        table = f"made_by_{creator}"
        cluster.create_table(creator, database, table, COLUMNS)
        expected: list[Row] = []
        for writer, client in cluster.clients.items():
            client.append_rows(database, table, [FULL, EMPTY])
            expected += [FULL, EMPTY]
            if writer != "java":
                client.append_arrow(database, table, pa.Table.from_pylist([EMPTY, FULL], schema=arrow_schema(COLUMNS)))
                expected += [EMPTY, FULL]
        for reader, client in cluster.clients.items():
            assert client.scan_rows(database, table) == expected, (creator, reader)
            assert client.list_offsets(database, table) == {0: len(expected)}
            assert client.list_offsets(database, table, "earliest") == {0: 0}


@pytest.mark.parametrize("codec", ["NONE", "LZ4_FRAME", "ZSTD"])
def test_every_codec_is_read_by_everyone(cluster: Cluster, database: str, codec: str) -> None:
    properties = {"table.log.arrow.compression.type": codec}
    cluster.create_table("ours", database, codec.lower(), SMALL, properties=properties)
    rows = [{"id": i, "name": f"the same words again and again {i % 7}"} for i in range(2_000)]
    for client in cluster.clients.values():
        client.append_rows(database, codec.lower(), rows)
    for reader, client in cluster.clients.items():
        assert client.scan_rows(database, codec.lower()) == rows * len(cluster.clients), reader
        assert client.scan_rows(database, codec.lower(), columns=["name"])[:3] == [
            {"name": r["name"]} for r in rows[:3]
        ]


@pytest.mark.parametrize("codec", ["LZ4_FRAME", "ZSTD"])
def test_batches_too_small_to_compress_are_read_by_everyone(cluster: Cluster, database: str, codec: str) -> None:
    """Their buffers are stored as they are under the table's codec; a server that projects must keep them so."""
    table = f"tiny_{codec.lower()}"
    properties = {"table.log.arrow.compression.type": codec}
    cluster.create_table("ours", database, table, COLUMNS, properties=properties)
    rows = [FULL, EMPTY, FULL]
    for row in rows:
        cluster.clients["ours"].append_rows(database, table, [row])
    for reader, client in cluster.clients.items():
        assert client.scan_rows(database, table) == rows, reader
        for columns in (["text"], ["flag", "text", "huge"], ["number", "instant_ms"], ["blob"]):
            expected = [{name: row[name] for name in columns} for row in rows]
            assert client.scan_rows(database, table, columns=columns) == expected, (reader, columns)


def test_everyone_tails_everyone(cluster: Cluster, database: str) -> None:
    cluster.create_table("pyfluss", database, "tailed", SMALL)
    tails = {name: client.start_tail(database, "tailed") for name, client in cluster.clients.items()}
    for offset, (writer, client) in enumerate(cluster.clients.items()):
        client.append_rows(database, "tailed", [{"id": offset, "name": writer}])
        for reader, tail in tails.items():
            records = tail.take(1)
            assert [(r.offset, r.change, r.row) for r in records] == [(offset, "+A", {"id": offset, "name": writer})], (
                writer,
                reader,
            )
    for tail in tails.values():
        tail.stop()


def test_rows_of_one_key_share_a_bucket_whoever_writes_them(cluster: Cluster, database: str) -> None:
    """Keys below 128: beyond that pyfluss 1.0.0 hashes otherwise than Java."""
    cluster.create_table("ours", database, "keyed", SMALL, bucket_count=4, bucket_keys=["id"])
    for name, client in cluster.clients.items():
        client.append_rows(database, "keyed", [{"id": i, "name": name} for i in range(100)])
    tail = cluster.clients["ours"].start_tail(database, "keyed")
    buckets: dict[int, set[int]] = {}
    for record in tail.take(100 * len(cluster.clients)):
        buckets.setdefault(record.row["id"], set()).add(record.bucket)
    tail.stop()
    assert len(buckets) == 100
    assert all(len(found) == 1 for found in buckets.values())
    assert set().union(*buckets.values()) == {0, 1, 2, 3}


def test_offsets_by_time_agree(cluster: Cluster, database: str) -> None:
    cluster.create_table("ours", database, "timed", SMALL)
    client = cluster.clients["ours"]
    client.append_rows(database, "timed", [{"id": 1, "name": "early"}])
    deadline = time.time_ns() // 1_000_000 + 20
    while time.time_ns() // 1_000_000 <= deadline:
        pass  # the two batches need commit times that differ
    client.append_rows(database, "timed", [{"id": 2, "name": "late"}])
    for name, reader in cluster.clients.items():
        assert reader.list_offsets(database, "timed", deadline) == {0: 1}, name
        assert reader.list_offsets(database, "timed", deadline - 10_000) == {0: 0}, name


def test_what_one_drops_nobody_sees(cluster: Cluster, database: str) -> None:
    for dropper, client in cluster.clients.items():
        cluster.create_table("ours", database, "dropped", SMALL)
        client.drop_table(database, "dropped")
        for name, other in cluster.clients.items():
            assert other.list_tables(database) == [], (dropper, name)


@pytest.mark.parametrize("cluster", OUR_SERVER, indirect=True)
def test_rows_survive_a_restart_for_everyone(
    our_server: FlussServer, cluster: Cluster, database: str, request: pytest.FixtureRequest
) -> None:
    cluster.create_table("pyfluss", database, "restarted", SMALL)
    rows = [{"id": i, "name": "before"} for i in range(100)]
    for client in cluster.clients.values():
        client.append_rows(database, "restarted", rows)
    expected = rows * len(cluster.clients)
    our_server.restart()
    # A connection made before the restart goes on. (pyfluss 1.0.0 may lose a table's metadata there, so for the others
    # new connections have to do.)
    assert cluster.clients["ours"].scan_rows(database, "restarted") == expected
    java = request.getfixturevalue("java_peers") if "java" in cluster.clients else None
    again = _clients(our_server.bootstrap_servers, request.getfixturevalue("pyfluss_peers"), java)
    for name, client in again.items():
        assert client.scan_rows(database, "restarted") == expected, name
        client.append_rows(database, "restarted", rows[:1])
        expected = [*expected, rows[0]]
        client.close()

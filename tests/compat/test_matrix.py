"""Wire compatibility both ways: {our client, pyfluss 1.0.0, Java 0.9.1} on {our server, Apache Fluss 0.9.1}.

Every client creates, appends, scans and tails on every server, and reads what the others wrote.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from fluss.testing import FlussServer
from tests.compat.conftest import ON_OUR_SERVER, Cluster, connect_all
from tests.compat.differences import JAVA, OUR_CLIENT, PYFLUSS, expected
from tests.peers.columns import arrow_schema
from tests.peers.fixtures import PeerFactory
from tests.peers.peer import Row
from tests.peers.pyfluss import PyflussPeer
from tests.peers.samples import (
    COLUMNS,
    EMPTY,
    FULL,
    NESTED,
    NESTED_EMPTY,
    NESTED_FULL,
    NESTED_HOLLOW,
    SMALL,
)


@pytest.mark.feature("Scalar types")
def test_everyone_reads_every_scalar_type_that_anyone_wrote(cluster: Cluster, database: str) -> None:
    for creator in cluster.clients:
        _everyone_writes_and_reads(cluster, database, creator, COLUMNS, [FULL, EMPTY])


@pytest.mark.feature("Nested types: ARRAY, MAP, ROW")
def test_everyone_reads_every_nested_type_that_anyone_wrote(cluster: Cluster, database: str) -> None:
    for creator in cluster.clients:
        _everyone_writes_and_reads(cluster, database, creator, NESTED, [NESTED_FULL, NESTED_EMPTY, NESTED_HOLLOW])


def _everyone_writes_and_reads(
    cluster: Cluster, database: str, creator: str, columns: dict[str, str], rows: list[Row]
) -> None:
    table = f"made_by_{creator.replace(' ', '_')}"
    cluster.create_table(creator, database, table, columns)
    written: list[Row] = []
    for writer, client in cluster.clients.items():
        client.append_rows(database, table, rows)
        written += rows
        if writer != JAVA:
            client.append_arrow(database, table, pa.Table.from_pylist(rows[::-1], schema=arrow_schema(columns)))
            written += rows[::-1]
    for reader, client in cluster.clients.items():
        assert client.scan_rows(database, table) == written, (creator, reader)
        assert client.list_offsets(database, table) == {0: len(written)}
        assert client.list_offsets(database, table, "earliest") == {0: 0}
        for name in columns:
            projected = [{name: row[name]} for row in written]
            assert client.scan_rows(database, table, columns=[name]) == projected, (creator, reader, name)


@pytest.mark.feature("INDEXED log format")
def test_indexed_logs_are_read_by_all_who_can(
    cluster: Cluster, database: str, record_property: Callable[[str, object], None]
) -> None:
    for table, columns, rows in (("flat", COLUMNS, [FULL, EMPTY]), ("nested", NESTED, [NESTED_FULL, NESTED_EMPTY])):
        cluster.create_table(OUR_CLIENT, database, table, columns, log_format="indexed")
        can = [name for name in cluster.clients if expected(name, cluster.name)["indexed_log_is_read_and_written"]]
        record_property("clients", can)
        for name in can:
            cluster.clients[name].append_rows(database, table, rows)
        for name in can:
            found = [record.row for record in cluster.clients[name].scan_records(database, table)]
            assert found == rows * len(can), name
            assert cluster.clients[name].list_offsets(database, table) == {0: len(rows * len(can))}


@pytest.mark.feature("Limit scan")
def test_the_last_rows_are_the_same_for_everyone(cluster: Cluster, database: str) -> None:
    cluster.create_table(PYFLUSS, database, "limited", SMALL)
    rows = [{"id": number, "name": f"row {number}"} for number in range(50)]
    for first in range(0, 50, 10):
        cluster.clients[OUR_CLIENT].append_rows(database, "limited", rows[first : first + 10])
    for reader, client in cluster.clients.items():
        for limit in (1, 15, 50, 1_000):
            assert client.limit_scan(database, "limited", limit) == rows[-limit:], (reader, limit)
        assert client.limit_scan(database, "limited", 3, columns=["name"]) == [{"name": r["name"]} for r in rows[-3:]]


@pytest.mark.feature("Partitions: rows and offsets")
def test_everyone_reads_every_partition_that_anyone_made(cluster: Cluster, database: str) -> None:
    columns = {"id": "INT", "region": "STRING", "day": "STRING"}
    cluster.create_table(OUR_CLIENT, database, "parted", columns, partition_keys=["region", "day"], bucket_count=2)
    written: list[Row] = []
    for writer, client in cluster.clients.items():
        region = writer.replace(" ", "_")
        cluster.create_partition(writer, database, "parted", {"region": region, "day": "mon"})
        rows = [{"id": number, "region": region, "day": "mon"} for number in range(10)]
        client.append_rows(database, "parted", rows)
        written += rows
    names = {f"{writer.replace(' ', '_')}$mon" for writer in cluster.clients}
    for reader, client in cluster.clients.items():
        found = client.list_partitions(database, "parted")
        assert found.keys() == names, reader
        assert client.list_partitions(database, "parted", {"day": "mon"}) == found
        assert client.list_partitions(database, "parted", {"day": "tue"}) == {}
        seen = client.scan_rows(database, "parted")
        assert sorted(map(str, seen)) == sorted(map(str, written)), reader
        for name in names:
            assert sum(client.list_offsets(database, "parted", partition=name).values()) == 10
            assert set(client.list_offsets(database, "parted", "earliest", partition=name).values()) == {0}
    for dropper, client in cluster.clients.items():
        client.drop_partition(database, "parted", {"region": dropper.replace(" ", "_"), "day": "mon"})
    for client in cluster.clients.values():
        assert client.list_partitions(database, "parted") == {}


@pytest.mark.feature("Compression: none, LZ4, ZSTD")
@pytest.mark.parametrize("codec", ["NONE", "LZ4_FRAME", "ZSTD"])
def test_every_codec_is_read_by_everyone(cluster: Cluster, database: str, codec: str) -> None:
    properties = {"table.log.arrow.compression.type": codec}
    cluster.create_table(OUR_CLIENT, database, codec.lower(), SMALL, properties=properties)
    rows = [{"id": i, "name": f"the same words again and again {i % 7}"} for i in range(2_000)]
    for client in cluster.clients.values():
        client.append_rows(database, codec.lower(), rows)
    for reader, client in cluster.clients.items():
        assert client.scan_rows(database, codec.lower()) == rows * len(cluster.clients), reader
        assert client.scan_rows(database, codec.lower(), columns=["name"])[:3] == [
            {"name": r["name"]} for r in rows[:3]
        ]


@pytest.mark.feature("Compression: none, LZ4, ZSTD")
@pytest.mark.parametrize("codec", ["LZ4_FRAME", "ZSTD"])
def test_batches_too_small_to_compress_are_read_by_everyone(cluster: Cluster, database: str, codec: str) -> None:
    """Their buffers are stored as they are under the table's codec; a server that projects must keep them so."""
    table = f"tiny_{codec.lower()}"
    properties = {"table.log.arrow.compression.type": codec}
    cluster.create_table(OUR_CLIENT, database, table, COLUMNS, properties=properties)
    rows = [FULL, EMPTY, FULL]
    for row in rows:
        cluster.clients[OUR_CLIENT].append_rows(database, table, [row])
    for reader, client in cluster.clients.items():
        assert client.scan_rows(database, table) == rows, reader
        for columns in (["text"], ["flag", "text", "huge"], ["number", "instant_ms"], ["blob"]):
            expected = [{name: row[name] for name in columns} for row in rows]
            assert client.scan_rows(database, table, columns=columns) == expected, (reader, columns)


@pytest.mark.feature("Record scanner: offsets, timestamps, change types")
def test_everyone_tails_everyone(cluster: Cluster, database: str) -> None:
    cluster.create_table(PYFLUSS, database, "tailed", SMALL)
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


@pytest.mark.feature("Appends: bucket keys and sticky buckets")
def test_rows_of_one_key_share_a_bucket_whoever_writes_them(cluster: Cluster, database: str) -> None:
    """Keys below 128: beyond that pyfluss 1.0.0 hashes otherwise than Java."""
    cluster.create_table(OUR_CLIENT, database, "keyed", SMALL, bucket_count=4, bucket_keys=["id"])
    for name, client in cluster.clients.items():
        client.append_rows(database, "keyed", [{"id": i, "name": name} for i in range(100)])
    tail = cluster.clients[OUR_CLIENT].start_tail(database, "keyed")
    buckets: dict[int, set[int]] = {}
    for record in tail.take(100 * len(cluster.clients)):
        buckets.setdefault(record.row["id"], set()).add(record.bucket)
    tail.stop()
    assert len(buckets) == 100
    assert all(len(found) == 1 for found in buckets.values())
    assert set().union(*buckets.values()) == {0, 1, 2, 3}


@pytest.mark.feature("Offsets")
def test_offsets_by_time_agree(cluster: Cluster, database: str) -> None:
    cluster.create_table(OUR_CLIENT, database, "timed", SMALL)
    client = cluster.clients[OUR_CLIENT]
    client.append_rows(database, "timed", [{"id": 1, "name": "early"}])
    deadline = time.time_ns() // 1_000_000 + 20
    while time.time_ns() // 1_000_000 <= deadline:
        pass  # the two batches need commit times that differ
    client.append_rows(database, "timed", [{"id": 2, "name": "late"}])
    for name, reader in cluster.clients.items():
        assert reader.list_offsets(database, "timed", deadline) == {0: 1}, name
        assert reader.list_offsets(database, "timed", deadline - 10_000) == {0: 0}, name


@pytest.mark.feature("Tables")
def test_what_one_drops_nobody_sees(cluster: Cluster, database: str) -> None:
    for dropper, client in cluster.clients.items():
        cluster.create_table(OUR_CLIENT, database, "dropped", SMALL)
        client.drop_table(database, "dropped")
        for name, other in cluster.clients.items():
            assert other.list_tables(database) == [], (dropper, name)


@pytest.mark.feature("A killed server")
@pytest.mark.parametrize("cluster", ON_OUR_SERVER, indirect=True)
def test_rows_survive_a_restart_for_everyone(
    matrix_server: FlussServer,
    cluster: Cluster,
    database: str,
    request: pytest.FixtureRequest,
    pyfluss_peers: PeerFactory[PyflussPeer],
) -> None:
    cluster.create_table(PYFLUSS, database, "restarted", SMALL)
    rows = [{"id": i, "name": "before"} for i in range(100)]
    for client in cluster.clients.values():
        client.append_rows(database, "restarted", rows)
    written = rows * len(cluster.clients)
    matrix_server.restart()
    assert expected(OUR_CLIENT, cluster.name)["rows_survive_a_kill"]
    # A connection made before the restart goes on. (pyfluss 1.0.0 may lose a table's metadata there, so for the others
    # new connections have to do.)
    assert cluster.clients[OUR_CLIENT].scan_rows(database, "restarted") == written
    java = request.getfixturevalue("java_peers") if JAVA in cluster.clients else None
    again = connect_all(matrix_server.bootstrap_servers, pyfluss_peers, java)
    for name, client in again.items():
        assert client.scan_rows(database, "restarted") == written, name
        client.append_rows(database, "restarted", rows[:1])
        written = [*written, rows[0]]
        client.close()

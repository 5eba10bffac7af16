"""Real clients read on behind what a repair has filled with empty batches, in a log and in a changelog."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import fluss
import fluss.sync
from fluss.formats.batches.log_batch import walk
from fluss.testing import FlussServer
from tests.kit.command import fluss as command
from tests.peers.fixtures import PeerFactory
from tests.peers.javaclient import JavaPeer
from tests.peers.pyfluss import PyflussPeer

DATABASE = "fluss"
BATCHES = 10
ROWS = 10  # of a batch
LOST = range(40, 50)


@pytest.fixture(scope="module")
def repaired(tmp_path_factory: pytest.TempPathFactory) -> FlussServer:
    """A server on a directory that has lost one batch in the middle of each of two tables."""
    root: Path = tmp_path_factory.mktemp("repaired") / "data"
    with FlussServer(root) as server, fluss.sync.connect(server.bootstrap_servers) as connection:
        for name, keys in (("log", []), ("rows", ["id"])):
            path = fluss.TablePath(DATABASE, name)
            schema = fluss.Schema(pa.schema([("id", pa.int32()), ("name", pa.string())]), keys)
            connection.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
            table = connection.get_table(path)
            with (table.new_upsert() if keys else table.new_append()).create_writer() as writer:
                for first in range(0, BATCHES * ROWS, ROWS):
                    ids = range(first, first + ROWS)
                    writer.write_arrow(pa.table({"id": pa.array(ids, pa.int32()), "name": list(map(str, ids))}))
                    writer.flush()
    for log in root.rglob("*.log"):
        if len(log.stem) == 20:
            data = log.read_bytes()
            position, header = list(walk(data))[LOST.start // ROWS]
            at = position + header.size_bytes - 1
            log.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    done = command("repair", root, "--apply")
    assert done.returncode == 0, done.stdout + done.stderr
    return FlussServer(root)


def check(peer: PyflussPeer | JavaPeer) -> None:
    expected = [number for number in range(BATCHES * ROWS) if number not in LOST]
    for table, change in (("log", "+A"), ("rows", "+I")):
        found = peer.scan_records(DATABASE, table)
        assert [(record.offset, record.row["id"], record.change) for record in found] == [
            (number, number, change) for number in expected
        ]


def test_pyfluss(repaired: FlussServer, pyfluss_peers: PeerFactory[PyflussPeer]) -> None:
    with repaired as server:
        check(pyfluss_peers(server.bootstrap_servers))


@pytest.mark.compat
def test_java(repaired: FlussServer, java_peers: PeerFactory[JavaPeer]) -> None:
    with repaired as server:
        check(java_peers(server.bootstrap_servers))

"""`fluss repair` as a process, and a real server over what it leaves."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import fluss
import fluss.sync
from fluss.formats.batches.log_batch import walk
from fluss.testing import FlussServer
from tests.cli.tables import PATH, write_ten_batches
from tests.kit.command import fluss as command
from tests.kit.directory_image import DirectoryImage


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Ten batches of ten rows."""
    server = FlussServer(tmp_path / "data").start()
    with fluss.sync.connect(server.bootstrap_servers) as connection:
        write_ten_batches(connection)
        refused = command("repair", server.data_dir, "--apply")
        assert refused.returncode == 1
        assert "in use by another server" in refused.stderr
    server.terminate()
    return Path(server.data_dir)


def test_a_flipped_bit_from_listing_to_reading(data_dir: Path, tmp_path: Path) -> None:
    assert "no damage was found" in command("repair", data_dir).stdout
    (log,) = data_dir.rglob("*.log")
    good = log.read_bytes()
    position, header = list(walk(good))[4]
    at = position + header.size_bytes - 1
    log.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    before = DirectoryImage.take(data_dir)

    listed = command("repair", data_dir)
    assert (listed.returncode, listed.stderr) == (1, "")
    assert f"corrupt batch at byte {position}" in listed.stdout
    assert "would lose: 10 rows, at offsets 40 to 49" in listed.stdout
    assert "nothing was changed" in listed.stdout
    assert DirectoryImage.take(data_dir) == before

    done = command("repair", data_dir, "--apply")
    assert (done.returncode, done.stderr) == (0, "")
    assert "10 rows, at offsets 40 to 49" in done.stdout
    assert "1 damage repaired" in done.stdout
    assert (data_dir / "lost" / log.relative_to(data_dir)).read_bytes() != good
    assert command("doctor", data_dir).returncode == 0

    with FlussServer(data_dir) as server, fluss.sync.connect(server.bootstrap_servers) as connection:
        table = connection.get_table(PATH)
        writer = table.new_append().create_writer()
        writer.write_arrow(pa.table({"id": [1_000]}))
        writer.flush()
        expected = [*range(40), *range(50, 100), 1_000]
        scanner = table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET})
        assert scanner.to_arrow().column("id").to_pylist() == expected
        records = table.new_scan().create_log_scanner()
        records.subscribe_buckets({0: fluss.EARLIEST_OFFSET})
        offsets: list[int] = []
        while len(offsets) < len(expected):
            offsets += [record.offset for record in records.poll(1_000)]
        assert offsets == [*range(40), *range(50, 101)]


def test_what_is_no_data_directory(tmp_path: Path) -> None:
    done = command("repair", tmp_path / "nowhere", "--apply")
    assert done.returncode == 1
    assert "no data directory" in done.stderr
    assert not (tmp_path / "nowhere").exists()

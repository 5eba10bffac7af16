"""Many partitions of a primary-key table: each has a store of its own, and few of them are open."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

import fluss
import fluss.sync
from fluss.testing import FlussServer
from tests.crash.servers import new_server

PATH = fluss.TablePath("fluss", "parted")
PARTITIONS = 30
FULL_PARTITIONS = 1_000
OPEN_STORES_MAX = 8
FULL_OPEN_STORES_MAX = 64  # the server's own choice
BUSY_MAX = 16
SETTLE_S_MAX = 10.0
ROWS_PER_PARTITION = 5
MEMORY_BYTES_MAX = 600 << 20
SCHEMA = fluss.Schema(pa.schema([("id", pa.int32()), ("part", pa.int32()), ("v", pa.int64())]), ["id", "part"])


def open_stores(server: FlussServer) -> int:
    """Databases of which the server holds the lock."""
    paths = (file.path for file in psutil.Process(server.pid).open_files())
    return sum(Path(path).name == "LOCK" for path in paths)


def check_open(server: FlussServer, open_max: int) -> None:
    """One that is being used stays open, and closing takes a moment: a few more may be open, but not for long."""
    assert open_stores(server) <= open_max + BUSY_MAX
    deadline = time.monotonic() + SETTLE_S_MAX
    while open_stores(server) > open_max:
        assert time.monotonic() < deadline, f"{open_stores(server)} stores are open"
        time.sleep(0.05)
    assert open_stores(server)


def rows(round_number: int, partitions: int) -> pa.Table:
    """The rows of one round, partition after partition in one, mixed in the next."""
    numbers = [(number, part) for part in range(partitions) for number in range(ROWS_PER_PARTITION)]
    if round_number % 2:
        numbers.sort()
    ids, parts = zip(*numbers, strict=True)
    values = [round_number * 1_000_000 + part for part in parts]
    return pa.table({"id": pa.array(ids, pa.int32()), "part": pa.array(parts, pa.int32()), "v": values})


def use_partitions(server: FlussServer, partitions: int, open_max: int) -> None:
    config = fluss.Config(
        {"bootstrap.servers": server.bootstrap_servers, "writer.dynamic-create-partition.enabled": True}
    )
    with fluss.sync.FlussConnection.create(config) as connection:
        connection.get_admin().create_table(
            PATH, fluss.TableDescriptor(SCHEMA, partition_keys=["part"], bucket_count=1)
        )
        table = connection.get_table(PATH)
        for round_number in range(3):
            writer = table.new_upsert().create_writer()
            writer.write_arrow(rows(round_number, partitions))
            writer.flush()
            check_open(server, open_max)
            keys = [{"id": 1, "part": part} for part in range(partitions)]
            found = table.new_lookup().create_lookuper().lookup_many(keys)
            assert found["v"].to_pylist() == [round_number * 1_000_000 + part for part in range(partitions)]
            check_open(server, open_max)
        assert table.new_scan().to_arrow().num_rows == partitions * ROWS_PER_PARTITION
        check_open(server, open_max)
    assert psutil.Process(server.pid).memory_info().rss < MEMORY_BYTES_MAX
    server.restart()
    with fluss.sync.FlussConnection.create(config) as connection:
        assert connection.get_table(PATH).new_scan().to_arrow().num_rows == partitions * ROWS_PER_PARTITION
        check_open(server, open_max)
    assert "Traceback" not in server.log_file.read_text()


def test_few_stores_are_open(tmp_path: Path) -> None:
    server = new_server(tmp_path)
    with (tmp_path / "fluss.toml").open("a") as settings:
        settings.write(f'"kv.open-stores-max" = {OPEN_STORES_MAX}\n')
    with server:
        use_partitions(server, PARTITIONS, OPEN_STORES_MAX)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_thousand_partitions(tmp_path: Path) -> None:
    with FlussServer(tmp_path / "data") as server:
        use_partitions(server, FULL_PARTITIONS, FULL_OPEN_STORES_MAX)

"""Thousands of tables and partitions: made and dropped 16 at a time, the server stays quick, small, and clean."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import fluss
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.storage.catalog.catalog import Catalog
from fluss.storage.store import OPEN_LOGS_MAX
from fluss.testing import FlussServer
from tests.crash.servers import new_server
from tests.kit.loads.writers import POLL_INTERVAL_S
from tests.kit.rows import SCHEMA, Row, descriptor, wire_batch
from tests.kit.wire import Wire

WORKERS = 16
ROUNDS = 2
DATABASE = "fluss"
PARTED = fluss.TablePath(DATABASE, "parted")
CANARY = fluss.TablePath(DATABASE, "canary")
GROWTH_BYTES_MAX = 64 << 20  # of a server that has had its tables and dropped them
LATER_GROWTH_BYTES_MAX = 16 << 20  # from one round to the next
CANARY_WAIT_S_MAX = 5.0
SETTLE_S_MAX = 30.0
STARTUP_S_MAX = 5.0
STARTUP_TABLES = 5_000


def table_path(number: int) -> fluss.TablePath:
    return fluss.TablePath(DATABASE, f"table-{number}")


class Canary(threading.Thread):
    """Writes and reads a row again and again; remembers the longest wait."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._end = threading.Event()
        self.rounds = 0
        self.wait_s_max = 0.0
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            with Wire(self._address) as wire:
                table_id = wire.table_id(CANARY)
                while not self._end.is_set():
                    began = time.monotonic()
                    offset = wire.produce(table_id, 0, wire_batch([Row(0, self.rounds)])).base_offset
                    (batch,) = wire.fetch(table_id, 0, offset)
                    assert batch.rows == [Row(0, self.rounds)]
                    self.wait_s_max = max(self.wait_s_max, time.monotonic() - began)
                    self.rounds += 1
        except Exception as error:
            self.failure = error

    def check(self) -> None:
        self._end.set()
        self.join(SETTLE_S_MAX)
        if self.failure is not None:
            raise self.failure
        assert self.rounds
        assert self.wait_s_max < CANARY_WAIT_S_MAX


def sixteen_at_a_time(address: str, count: int, work: Callable[[Wire, int], None]) -> None:
    """Do the work for every number, each of 16 connections with its share."""

    def share(worker: int) -> None:
        with Wire(address, timeout_s=60) as wire:
            for number in range(worker, count, WORKERS):
                work(wire, number)

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(share, range(WORKERS)))


def make(wire: Wire, number: int) -> None:
    """A table with a row, and a partition with a row."""
    row = wire_batch([Row(number, 0)])
    assert wire.produce(wire.create_table(table_path(number), descriptor(1)), 0, row).error_code == 0
    wire.create_partition(PARTED, writer=str(number))
    path = pb.PbPhysicalTablePath(database_name=DATABASE, table_name=PARTED.table_name, partition_name=str(number))
    answer = wire.call(api_keys.METADATA, pb.MetadataRequest(partitions_path=[path]))
    (partition,) = answer.partition_metadata
    assert wire.produce(partition.table_id, 0, row, partition.partition_id).error_code == 0


def drop(wire: Wire, number: int) -> None:
    wire.drop_table(table_path(number))
    wire.drop_partition(PARTED, writer=str(number))


def table_names(wire: Wire) -> set[str]:
    return set(wire.call(api_keys.LIST_TABLES, pb.ListTablesRequest(database_name=DATABASE)).table_name)


def await_clean(server: FlussServer, kept: int) -> None:
    """Files of dropped tables and partitions go in the background."""
    deadline = time.monotonic() + SETTLE_S_MAX
    while len(list(server.data_dir.glob("tables/*"))) > kept or list(server.data_dir.glob("tables/*/p*")):
        assert time.monotonic() < deadline, "files of dropped tables were not removed"
        time.sleep(POLL_INTERVAL_S)


def come_and_go(server: FlussServer, count: int) -> None:
    address = server.bootstrap_servers
    base = {PARTED.table_name, CANARY.table_name}
    sixteen_at_a_time(address, count, make)
    with Wire(address) as wire:
        assert table_names(wire) == base | {f"table-{number}" for number in range(count)}
        assert set(wire.partition_ids(PARTED)) == {str(number) for number in range(count)}
    # Data files are opened when needed, and closed when there are too many.
    assert psutil.Process(server.pid).num_fds() < OPEN_LOGS_MAX + 200
    sixteen_at_a_time(address, count, drop)
    with Wire(address) as wire:
        assert table_names(wire) == base
        assert not wire.partition_ids(PARTED)
    await_clean(server, kept=2)


def check_coming_and_going(directory: Path, count: int) -> None:
    with new_server(directory) as server:
        with Wire(server.bootstrap_servers) as wire:
            wire.create_table(CANARY, descriptor(1))
            wire.create_table(
                PARTED, fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1, partition_keys=["writer"])
            )
        canary = Canary(server.bootstrap_servers)
        canary.start()
        process = psutil.Process(server.pid)
        sizes = [process.memory_info().rss]
        for _ in range(ROUNDS):
            come_and_go(server, count)
            sizes.append(process.memory_info().rss)
        canary.check()
        print(f"{count} at a time: resident bytes {sizes}, longest wait {canary.wait_s_max:.3f} s")
        assert sizes[-1] - sizes[0] < GROWTH_BYTES_MAX
        assert sizes[-1] - sizes[1] < LATER_GROWTH_BYTES_MAX
        server.restart(graceful=True)
        with Wire(server.bootstrap_servers) as wire:
            assert len(table_names(wire)) == 2
        assert "Traceback" not in server.log_file.read_text()


def test_a_hundred_tables_and_partitions_come_and_go(tmp_path: Path) -> None:
    check_coming_and_going(tmp_path, 100)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_thousand_tables_and_partitions_come_and_go(tmp_path: Path) -> None:
    check_coming_and_going(tmp_path, 1_000)


def fill_catalog(path: Path, count: int) -> None:
    """Tables and a hundredth of them partitions, as the server would store them."""

    async def fill() -> None:
        catalog = await Catalog.open(path)
        table_json = descriptor(1).to_json().decode()
        schema_json = json.dumps(descriptor(1).schema.to_json())
        for number in range(count):
            await catalog.create_table(table_path(number), table_json, schema_json, 1)
        names = [str(number) for number in range(count // 100)]
        await catalog.create_table(PARTED, table_json, schema_json, 1, partition_keys=["writer"], partitions=names)
        await catalog.close()

    asyncio.run(fill())


def startup_s(server: FlussServer) -> float:
    began = time.monotonic()
    server.start()
    return time.monotonic() - began


@pytest.mark.full
def test_a_server_with_five_thousand_tables_starts_at_once(tmp_path: Path) -> None:
    with new_server(tmp_path) as server:
        server.terminate()
        empty_s = startup_s(server)
        server.terminate()
        fill_catalog(server.data_dir / "catalog.db", STARTUP_TABLES)
        for number in range(STARTUP_TABLES):
            (server.data_dir / "tables" / str(number) / "0").mkdir(parents=True)
        full_s = startup_s(server)
        resident = psutil.Process(server.pid).memory_info().rss >> 20
        print(f"ready in {empty_s:.2f} s empty, in {full_s:.2f} s with {STARTUP_TABLES} tables, {resident} MiB")
        assert full_s - empty_s < STARTUP_S_MAX
        with Wire(server.bootstrap_servers) as wire:
            assert len(table_names(wire)) == STARTUP_TABLES + 1
            assert wire.produce(wire.table_id(table_path(4_999)), 0, wire_batch([Row(0, 0)])).error_code == 0

"""Streams from table to table while drivers, tasks and the server are killed: no row is lost, none is doubled.

Four queries in one driver read the same source: appends exactly once, plain appends (which may be doubled), upserts,
and sums that are aggregated by the table, exactly once. A driver whose query has failed is started again, as its owner
would do.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fluss.sync import Config, DataTypes, FlussConnection, Schema, TableDescriptor, TablePath
from fluss.testing import FlussServer
from fluss.testing.processes import ManagedProcess
from tests.spark.drivers import Drivers

pytestmark = pytest.mark.spark

ROWS: Final = pa.schema([("id", pa.int64()), ("bin", pa.int32()), ("amount", pa.int64())])
SOURCE, ONCE, PLAIN, STATE, SUMS = (TablePath("fluss", name) for name in ("source", "once", "plain", "state", "sums"))
SINKS: Final = {
    str(ONCE): {"columns": ROWS.names, "exactly_once": True},
    str(PLAIN): {"columns": ROWS.names, "exactly_once": False},
    str(STATE): {"columns": ROWS.names, "exactly_once": False},
    str(SUMS): {"columns": ["bin", "amount"], "exactly_once": True},
}
BINS: Final = 7
ROWS_PER_WRITE: Final = 50


def make_tables(connection: FlussConnection) -> None:
    keyed = Schema(ROWS, ["id"])
    sums = (
        Schema.builder()
        .column("bin", DataTypes.int())
        .column("amount", DataTypes.bigint(), agg_function="sum")
        .primary_key(["bin"])
        .build()
    )
    admin = connection.get_admin()
    for path in (SOURCE, ONCE, PLAIN):
        admin.create_table(path, TableDescriptor(Schema(ROWS), bucket_count=2))
    admin.create_table(STATE, TableDescriptor(keyed, bucket_count=2))
    admin.create_table(SUMS, TableDescriptor(sums, properties={"table.merge-engine": "aggregation"}))


class Feed(threading.Thread):
    """Appends numbered rows to the source until it is told to stop."""

    def __init__(self, connection: FlussConnection) -> None:
        super().__init__(daemon=True)
        self._connection = connection
        self._stopped = threading.Event()
        self.row_count = 0

    def run(self) -> None:
        with self._connection.get_table(SOURCE).new_append().create_writer() as writer:
            while not self._stopped.wait(0.1):
                ids = range(self.row_count, self.row_count + ROWS_PER_WRITE)
                columns = [list(ids), [number % BINS for number in ids], [number * 3 for number in ids]]
                writer.write_arrow(pa.table(columns, schema=ROWS))
                writer.flush()
                self.row_count += ROWS_PER_WRITE

    def stop(self) -> int:
        self._stopped.set()
        self.join(60)
        assert not self.is_alive()
        return self.row_count


def _workers(driver: ManagedProcess) -> list[int]:
    """The Python processes in which tasks run."""
    found = []
    pending = [driver.pid]
    while pending:
        pid = pending.pop()
        with contextlib.suppress(OSError):
            pending += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            if b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def kill_driver(server: FlussServer, drivers: Drivers, chance: random.Random) -> None:
    drivers.kill()


def kill_task(server: FlussServer, drivers: Drivers, chance: random.Random) -> None:
    workers = _workers(drivers.ensure_running())
    if workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)


def kill_server(server: FlussServer, drivers: Drivers, chance: random.Random) -> None:
    server.kill()
    time.sleep(chance.random())
    server.start()


Kill: TypeAlias = Callable[[FlussServer, Drivers, random.Random], None]
KINDS: Final[tuple[Kill, ...]] = (kill_driver, kill_task, kill_server)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[tuple[FlussServer, FlussConnection]]:
    with FlussServer(tmp_path / "data") as server:
        config = Config({"bootstrap.servers": server.bootstrap_servers, "request-timeout-ms": 60_000})
        with FlussConnection.create(config) as connection:
            yield server, connection


def _any_order(chance: random.Random) -> list[Kill]:
    return [kill for _ in range(8) for kill in chance.sample(KINDS, len(KINDS))]


def _driver_last(chance: random.Random) -> list[Kill]:
    """Each kind once. The driver is the last, so that the one that drains takes up its work: starting one is slow."""
    return [*chance.sample((kill_task, kill_server), 2), kill_driver]


@pytest.mark.timeout(3600)  # drivers are started again and again, and each takes its time
@pytest.mark.parametrize("plan", [_driver_last, pytest.param(_any_order, marks=pytest.mark.full)])
def test_kills(
    connection: tuple[FlussServer, FlussConnection], tmp_path: Path, plan: Callable[[random.Random], list[Kill]]
) -> None:
    server, client = connection
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    make_tables(client)
    drive = {"address": server.bootstrap_servers, "source": str(SOURCE), "sinks": SINKS, "rows_per_trigger": 2_000}
    drivers = Drivers("tests.spark.stream_driver", drive, tmp_path)
    feed = Feed(client)
    try:
        drivers.start()
        feed.start()
        for kill in plan(chance):
            drivers.await_commits(chance.randint(1, 4))
            time.sleep(chance.random())
            kill(server, drivers, chance)
        row_count = feed.stop()
        drivers.drain()
    finally:
        drivers.kill()
    print(f"{row_count} rows, {len(drivers.failures)} drivers failed by themselves")
    _check(client, row_count)


def _check(client: FlussConnection, row_count: int) -> None:
    def stored(path: TablePath) -> pa.Table:
        return client.get_table(path).new_scan().to_arrow()

    ids = list(range(row_count))
    assert sorted(stored(SOURCE)["id"].to_pylist()) == ids
    assert sorted(stored(ONCE)["id"].to_pylist()) == ids
    assert sorted(pc.unique(stored(PLAIN)["id"]).to_pylist()) == ids
    state = stored(STATE).sort_by("id")
    assert state["id"].to_pylist() == ids
    assert state["amount"].to_pylist() == [number * 3 for number in ids]
    sums = dict(zip(*(stored(SUMS)[name].to_pylist() for name in ("bin", "amount")), strict=True))
    assert sums == {group: sum(number * 3 for number in ids[group::BINS]) for group in range(BINS)}

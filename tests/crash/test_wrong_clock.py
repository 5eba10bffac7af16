"""A real server whose wall clock jumps by days and years, both ways: no row is removed, no stamp is wrong."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import fluss
import fluss.sync
from fluss.testing import FlussServer
from tests.crash.shifted_clock import ShiftedClock

DAY_MS = 86_400_000
YEARS_MS = 50 * 365 * DAY_MS
JUMPS = (8 * DAY_MS, -8 * DAY_MS, YEARS_MS, -YEARS_MS)
SETTINGS = """
"log.segment.file-size" = 300
"log.retention.check-interval-ms" = 50
"kv.snapshot.interval-ms" = 100
"""
LOG, ROWS, DAILY, SURPLUS = (fluss.TablePath("fluss", name) for name in ("log", "rows", "daily", "surplus"))
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.string())])
PATIENCE_S = 60.0


class World:
    """The server and its tables; all rows are younger than the hour that they are kept for."""

    def __init__(self, server: FlussServer, clock: ShiftedClock) -> None:
        self.server = server
        self.clock = clock
        self.written = 0
        with self.connect() as connection:
            admin = connection.get_admin()
            schema, keyed = fluss.Schema(COLUMNS), fluss.Schema(COLUMNS, primary_keys=["id"])
            kept = {"table.log.ttl": "1 h"}
            daily = {
                "table.auto-partition.enabled": "true",
                "table.auto-partition.time-unit": "DAY",
                "table.auto-partition.num-retention": "2",
            }
            admin.create_table(LOG, fluss.TableDescriptor(schema, bucket_count=1, properties=kept))
            admin.create_table(ROWS, fluss.TableDescriptor(keyed, bucket_count=1, properties=kept))
            admin.create_table(
                DAILY, fluss.TableDescriptor(schema, bucket_count=1, partition_keys=["day"], properties=daily)
            )
            # The last to be looked at in a pass: what goes of it says that the pass went over the others.
            surplus = {"log.retention.size-bytes": "1"}
            admin.create_table(SURPLUS, fluss.TableDescriptor(schema, bucket_count=1, custom_properties=surplus))
            self.days = self.partitions(connection)

    def connect(self) -> fluss.sync.FlussConnection:
        return fluss.sync.connect(self.server.bootstrap_servers)

    def partitions(self, connection: fluss.sync.FlussConnection) -> set[str]:
        found = connection.get_admin().list_partition_infos(DAILY)
        return {info.partition_name for info in found}

    def write(self, connection: fluss.sync.FlussConnection) -> None:
        """One more row for each table, in a batch of its own."""
        row = {"id": self.written, "day": "x" * 200}
        writer = connection.get_table(LOG).new_append().create_writer()
        writer.append(row)
        writer.flush()
        upserts = connection.get_table(ROWS).new_upsert().create_writer()
        upserts.upsert(row)
        upserts.flush()
        self.written += 1

    def stamps(self, connection: fluss.sync.FlussConnection, path: fluss.TablePath) -> list[int]:
        """Commit times of all rows, in order."""
        found: list[int] = []
        with connection.get_table(path).new_scan().create_log_scanner() as scanner:
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            while len(found) < self.written:
                found += [record.timestamp for record in scanner.poll(PATIENCE_S * 1_000)]
        return found

    def earliest(self, connection: fluss.sync.FlussConnection, path: fluss.TablePath) -> int:
        return connection.get_admin().list_offsets(path, [0], fluss.OffsetSpec.earliest())[0]

    def await_passes(self, connection: fluss.sync.FlussConnection) -> None:
        """Return when at least one whole pass of retention was made since the call."""
        for _ in range(2):
            before = self.earliest(connection, SURPLUS)
            writer = connection.get_table(SURPLUS).new_append().create_writer()
            for number in range(4):
                writer.append({"id": number, "day": "x" * 400})
                writer.flush()
            eventually(lambda before=before: self.earliest(connection, SURPLUS) > before)  # type: ignore[misc]

    def check_all_there(self, connection: fluss.sync.FlussConnection, since_ms: int) -> None:
        for path in (LOG, ROWS):
            assert self.earliest(connection, path) == 0
            stamps = self.stamps(connection, path)
            assert len(stamps) == self.written
            assert stamps == sorted(stamps)
            # By the clock of this process, which is right.
            assert since_ms <= stamps[0]
            assert stamps[-1] <= time.time() * 1_000 + 1
        assert self.partitions(connection) == self.days

    def confirm_clock(self) -> None:
        count = self.server.process.output().count("the clock was confirmed")
        os.kill(self.server.pid, signal.SIGUSR1)
        eventually(lambda: self.server.process.output().count("the clock was confirmed") > count)


def eventually(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it never became true"
        time.sleep(0.01)


@pytest.fixture
def clock(tmp_path: Path) -> ShiftedClock:
    return ShiftedClock(tmp_path)


@pytest.fixture
def world(tmp_path: Path, clock: ShiftedClock) -> Iterator[World]:
    settings = tmp_path / "fluss.toml"
    settings.write_text(SETTINGS)
    with FlussServer(tmp_path / "data", args=["--config", str(settings)], env=clock.env) as server:
        yield World(server, clock)


def test_jumps_remove_no_row_and_stamp_none_wrong(world: World) -> None:
    since_ms = int(time.time() * 1_000) - 1
    world.confirm_clock()
    with world.connect() as connection:
        for jump_ms in JUMPS:
            for ahead_ms in (0, jump_ms, 0):
                world.clock.set(ahead_ms)
                for _ in range(3):
                    world.write(connection)
                world.await_passes(connection)
                world.check_all_there(connection, since_ms)
        jumps = world.server.process.output().count("kill -USR1")
        assert jumps == 1  # the others came within a minute


@pytest.mark.parametrize("ahead_ms", JUMPS)
@pytest.mark.parametrize("is_noted", [True, False])
def test_a_start_with_a_wrong_clock_removes_no_row(world: World, ahead_ms: int, is_noted: bool) -> None:
    with world.connect() as connection:
        for _ in range(6):
            world.write(connection)
    since_ms = int(time.time() * 1_000) - 60_000
    world.server.terminate()
    world.clock.set(ahead_ms)
    if not is_noted:
        (world.server.data_dir / "server.clock").unlink()
    world.server.start()
    with world.connect() as connection:
        world.await_passes(connection)
        for path in (LOG, ROWS):
            assert world.earliest(connection, path) == 0
            assert len(world.stamps(connection, path)) == world.written
            assert world.stamps(connection, path)[0] >= since_ms
        assert world.days <= world.partitions(connection)


def test_what_is_old_goes_when_the_new_time_is_confirmed(world: World) -> None:
    with world.connect() as connection:
        for _ in range(6):
            world.write(connection)
        world.clock.set(8 * DAY_MS)
        world.await_passes(connection)
        assert world.earliest(connection, LOG) == 0
        world.confirm_clock()
        for path in (LOG, ROWS):
            eventually(lambda path=path: world.earliest(connection, path) == world.written)  # type: ignore[misc]
        world.server.restart(graceful=True)
    with world.connect() as connection:
        # Partitions are looked at after a start and then every ten minutes.
        eventually(lambda: not world.days & world.partitions(connection))

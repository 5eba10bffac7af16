"""Data directories that a real server has written and left, killed or stopped, and what its clients were told."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

import fluss
import fluss.sync
from fluss.api.operations import LakeRegistry
from fluss.model.staging import StagedTask
from fluss.testing import FlussServer
from tests.crash.rot_directory import (
    DROPPED,
    KEYS,
    LAKE,
    LOG,
    NUMBERS,
    PARTITIONS,
    PARTS,
    SEGMENT_SIZE_BYTES,
    STAGED,
    descriptors,
    table_path,
)
from tests.kit import rows
from tests.kit.directory_image import DirectoryImage
from tests.kit.rows import Row

ROUNDS: Final = 3
APPENDS: Final = 5
APPEND_ROWS: Final = 3
READ_MS_MAX: Final = 8_000
SNAPSHOT_S_MAX: Final = 30.0
POLL_S: Final = 0.02
QUERY, WAITING_QUERY = "steady", "waiting"
_SETTINGS: Final = f'"log.segment.file-size" = {SEGMENT_SIZE_BYTES}\n"kv.snapshot.interval-ms" = 100\n'
# A client repeats what may pass; after a damage nothing does.
_HASTY: Final = {"request-timeout-ms": 3_000, "writer.delivery-timeout-ms": 3_000}
_SNAPSHOT_NAME: Final = re.compile(r"\d+-(\d+)")

Values = tuple[Any, ...]


class Place(NamedTuple):
    """A bucket as clients name it."""

    table: str
    bucket: int = 0
    partition: str | None = None


LOG_PLACES: Final = (
    Place(LOG, 0),
    Place(LOG, 1),
    *(Place(PARTS, 0, name) for name in PARTITIONS),
    Place(LAKE),
    Place(STAGED),
)


@dataclass
class Told:
    """What clients were told before the end."""

    table_ids: dict[str, int] = field(default_factory=dict)
    partition_ids: dict[str, int] = field(default_factory=dict)
    logs: dict[Place, list[Values]] = field(default_factory=dict)  # by offset
    keys: dict[int, Values] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    waiting: list[Row] = field(default_factory=list)  # staged and not committed
    waiting_tasks: list[StagedTask] = field(default_factory=list)
    lake_offset: int = -1
    prepared_path: str = ""
    prepared_offset: int = -1


@dataclass
class ServerTemplate:
    """A directory that a server left, to be damaged many times."""

    told: Told
    earlier: list[DirectoryImage]
    image: DirectoryImage


def server_for(directory: Path) -> FlussServer:
    """A server with `directory`/data, not started; segments are small, snapshots frequent."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = directory / "fluss.toml"
    settings.write_text(_SETTINGS)
    return FlussServer(directory / "data", args=["--config", str(settings)])


@contextmanager
def connected(server: FlussServer, *, hasty: bool = False) -> Iterator[fluss.sync.FlussConnection]:
    config = fluss.Config({"bootstrap.servers": server.bootstrap_servers, **(_HASTY if hasty else {})})
    with fluss.sync.FlussConnection.create(config) as connection:
        yield connection


def read_log(connection: fluss.sync.FlussConnection, place: Place, told: Told, offset: int, end: int) -> list[Values]:
    """The rows of a bucket from an offset up to `end`, fewer if nothing comes."""
    scanner = connection.get_table(table_path(place.table)).new_scan().create_record_batch_log_scanner()
    found: list[Values] = []
    try:
        if place.partition is None:
            scanner.subscribe(place.bucket, offset)
        else:
            scanner.subscribe_partition(told.partition_ids[place.partition], place.bucket, offset)
        while offset + len(found) < end:
            polled = scanner.poll_record_batch(READ_MS_MAX)
            if not polled:
                break
            for batch in polled:
                assert batch.base_offset == offset + len(found), f"{place}: a gap at {offset + len(found)}"
                found += zip(*(column.to_pylist() for column in batch.batch.columns), strict=True)
    finally:
        scanner.close()
    return found


def end_of(connection: fluss.sync.FlussConnection, place: Place) -> int:
    """The offset that the next row will get."""
    admin, path, latest = connection.get_admin(), table_path(place.table), fluss.OffsetSpec.latest()
    if place.partition is None:
        return admin.list_offsets(path, [place.bucket], latest)[place.bucket]
    return admin.list_partition_offsets(path, place.partition, [place.bucket], latest)[place.bucket]


def arrow_rows(written: list[Row], part: str | None = None) -> pa.RecordBatch:
    batch = rows.arrow_batch(written)
    return batch if part is None else batch.append_column("part", pa.array([part] * len(written)))


def table_rows(connection: fluss.sync.FlussConnection, table: str) -> list[Values]:
    """A scan of a primary-key table."""
    scanned = connection.get_table(table_path(table)).new_scan().to_arrow()
    return list(zip(*(column.to_pylist() for column in scanned.columns), strict=True))


def staged_write(connection: fluss.sync.FlussConnection, query: str, batch_id: int, written: list[Row]) -> Any:
    """Stage rows by two tasks; the write and its tasks."""
    write = connection.get_table(table_path(STAGED)).new_staged_write(query, batch_id)
    tasks = []
    for task in range(2):
        with write.create_writer(task, 0) as writer:
            writer.write_arrow_batch(arrow_rows(written[task::2]))
            tasks.append(writer.finish())
    return write, tasks


class ServerLoad:
    """What clients write before the end."""

    def __init__(self, server: FlussServer) -> None:
        self._server = server
        self._sequence = 0
        self.told = Told()

    def run(self) -> list[DirectoryImage]:
        """All rounds; returns the directory as it was in between."""
        earlier = []
        with connected(self._server) as connection:
            self._create(connection)
            for number in range(ROUNDS):
                self._write(connection, number)
                if number < ROUNDS - 1:
                    for table in (KEYS, NUMBERS):
                        self._await_snapshot(connection, table)
                    earlier.append(DirectoryImage.take(self._server.data_dir))
            self._leave_undone(connection)
            self._read_back(connection)
        return earlier

    def _create(self, connection: fluss.sync.FlussConnection) -> None:
        admin = connection.get_admin()
        for name, descriptor in descriptors("3").items():
            admin.create_table(table_path(name), descriptor)
            self.told.table_ids[name] = admin.get_table_info(table_path(name)).table_id
        admin.drop_table(table_path(DROPPED))
        for name in PARTITIONS:
            admin.create_partition(table_path(PARTS), {"part": name})
        for info in admin.list_partition_infos(table_path(PARTS)):
            self.told.partition_ids[info.partition_name] = info.partition_id

    def _rows(self, count: int = APPEND_ROWS) -> list[Row]:
        self._sequence += count
        return [Row(0, number) for number in range(self._sequence - count, self._sequence)]

    def _write(self, connection: fluss.sync.FlussConnection, number: int) -> None:
        for table, parts in ((LOG, (None,)), (PARTS, PARTITIONS), (LAKE, (None,))):
            with connection.get_table(table_path(table)).new_append().create_writer() as writer:
                for part in parts * APPENDS:
                    writer.write_arrow_batch(arrow_rows(self._rows(), part))
                    writer.flush()
        self._upsert(connection, number)
        write, tasks = staged_write(connection, QUERY, number, self._rows(4))
        write.commit(tasks)
        self._tier(connection, number)

    def _upsert(self, connection: fluss.sync.FlussConnection, number: int) -> None:
        with connection.get_table(table_path(KEYS)).new_upsert().create_writer() as writer:
            for key in range(30):
                if key % ROUNDS <= number:
                    row = (key, f"name-{number}", key * 100 + number)
                    writer.upsert(list(row))
                    self.told.keys[key] = row
            writer.flush()
            writer.delete({"id": number})
            del self.told.keys[number]
            writer.flush()
        ids = [100 * number + each for each in range(4)]
        with connection.get_table(table_path(NUMBERS)).new_upsert(columns=["id"]).create_writer() as writer:
            for each in ids:
                writer.upsert({"id": each})
            writer.flush()

    def _tier(self, connection: fluss.sync.FlussConnection, number: int) -> None:
        registry, info = LakeRegistry(connection), connection.get_admin().get_table_info(table_path(LAKE))
        bucket, end = fluss.TableBucket(info.table_id, 0), end_of(connection, Place(LAKE))
        registry.commit(info, 1_000 + number, registry.prepare(info, {bucket: end}), {bucket: end}, keep_all=True)
        self.told.lake_offset = end

    def _await_snapshot(self, connection: fluss.sync.FlussConnection, table: str) -> None:
        """Until a snapshot has all rows."""
        end = end_of(connection, Place(table))
        directory = self._server.data_dir / "tables" / str(self.told.table_ids[table]) / "0" / "snapshots"
        deadline_s = time.monotonic() + SNAPSHOT_S_MAX
        while not any(
            (match := _SNAPSHOT_NAME.fullmatch(path.name)) and int(match[1]) == end for path in directory.glob("*")
        ):
            assert time.monotonic() < deadline_s, f"no snapshot of {table} at {end}"
            time.sleep(POLL_S)

    def _leave_undone(self, connection: fluss.sync.FlussConnection) -> None:
        told = self.told
        told.waiting = self._rows(4)
        _, told.waiting_tasks = staged_write(connection, WAITING_QUERY, 0, told.waiting)
        with connection.get_table(table_path(LAKE)).new_append().create_writer() as writer:
            writer.write_arrow_batch(arrow_rows(self._rows()))
            writer.flush()
        info = connection.get_admin().get_table_info(table_path(LAKE))
        told.prepared_offset = end_of(connection, Place(LAKE))
        offsets = {fluss.TableBucket(info.table_id, 0): told.prepared_offset}
        told.prepared_path = LakeRegistry(connection).prepare(info, offsets)

    def _read_back(self, connection: fluss.sync.FlussConnection) -> None:
        for place in LOG_PLACES:
            self.told.logs[place] = read_log(connection, place, self.told, 0, end_of(connection, place))
        stored = sorted(values[1] for found in self.told.logs.values() for values in found)
        waiting = {row.sequence for row in self.told.waiting}
        assert stored == [number for number in range(self._sequence) if number not in waiting]
        assert {row[0]: row for row in table_rows(connection, KEYS)} == self.told.keys
        self.told.numbers = dict(table_rows(connection, NUMBERS))


def build(directory: Path, *, kill: bool) -> ServerTemplate:
    """Let a server make a directory, then end it."""
    server = server_for(directory)
    with server:
        load = ServerLoad(server)
        earlier = load.run()
        if kill:
            server.kill()
        else:
            server.terminate()
    return ServerTemplate(load.told, earlier, DirectoryImage.take(server.data_dir))

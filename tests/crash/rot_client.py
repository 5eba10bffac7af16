"""A damaged data directory under a real server, used through the client: the same verdicts, by what clients see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa

import fluss
import fluss.sync
from fluss.api.operations import LakeRegistry
from fluss.model.errors import FlussError
from fluss.testing import FlussServer
from fluss.testing.processes import ProcessFailedError
from tests.crash.rot_damage import Damage
from tests.crash.rot_directory import DROPPED, KEYS, LAKE, LOG, NUMBERS, PARTS, STAGED, descriptors, table_path
from tests.crash.rot_judgement import Judgement, Scope
from tests.crash.rot_server import (
    LOG_PLACES,
    QUERY,
    ROUNDS,
    WAITING_QUERY,
    Place,
    ServerTemplate,
    Told,
    Values,
    arrow_rows,
    connected,
    end_of,
    read_log,
    server_for,
    staged_write,
    table_rows,
)
from tests.kit.directory_image import DirectoryImage
from tests.kit.rows import Row

READS_MAX: Final = 2
TIMEOUTS_MAX: Final = 2
NEW_ROWS: Final = [Row(99, number) for number in range(3)]
NEW_KEY, NEW_ID = 5_000, 7_000

_T = TypeVar("_T")


class ClientExamination:
    """One damage, or none: then all must be as it was."""

    def __init__(self, told: Told, image: DirectoryImage, damage: Damage | None) -> None:
        self._told = told
        self._image = image
        self._damage = damage
        self._judgement = Judgement(image, damage)
        self._problem = self._judgement.problem
        self._logs = dict(told.logs)
        self._keys = dict(told.keys)
        self._numbers = dict(told.numbers)
        self._lake_offset = told.lake_offset

    @property
    def problems(self) -> list[str]:
        return self._judgement.problems

    @property
    def errors(self) -> list[str]:
        return self._judgement.errors

    def run(self, directory: Path) -> None:
        """Start, use, stop, start, read; the directory has the server's data in `data`."""
        server = server_for(directory)
        try:
            if not self._start(server):
                if self._damage is not None and not self.problems:
                    self._restore(directory, self._damage)
                return
            with connected(server, hasty=True) as connection:
                self._use(connection)
            server.terminate()
            if self._start(server):
                with connected(server, hasty=True) as connection:
                    self._read_all(connection)
        finally:
            server.kill()

    def _start(self, server: FlussServer) -> bool:
        try:
            server.start()
        except ProcessFailedError as error:
            if "Traceback" in str(error):
                self._problem("start", f"not an error for people: {error}")
            else:
                self._judgement.judge_start(FlussError(str(error)))
            return False
        return True

    def _restore(self, directory: Path, damage: Damage) -> None:
        damage.undo(directory / "data", self._image)
        after = ClientExamination(self._told, self._image, None)
        after.run(directory)
        for problem in after.problems:
            self._problem("restored after a refused start", problem)

    def _attempt(self, work: Callable[[], _T], where: object, scope: Scope | None, times: int = 1) -> _T | None:
        """What work gives, or None after an error, which is judged."""
        for _ in range(times):
            try:
                return _patiently(work)
            except Exception as error:
                self._judgement.judge(error, where, scope)
        return None

    def _scope(self, place: Place) -> str:
        partition = "" if place.partition is None else f"/p{self._told.partition_ids[place.partition]}"
        return f"tables/{self._told.table_ids[place.table]}{partition}/{place.bucket}"

    def _table_scope(self, table: str) -> str:
        return f"tables/{self._told.table_ids[table]}"

    # --- what is done

    def _use(self, connection: fluss.sync.FlussConnection) -> None:
        self._attempt(lambda: self._check_catalog(connection), "catalog", None)
        self._read_all(connection)
        self._check_staged(connection)
        self._register(connection)
        self._write(connection)
        self._read_all(connection)

    def _read_all(self, connection: fluss.sync.FlussConnection) -> None:
        for place in LOG_PLACES:
            self._check_log(connection, place)
        self._check_rows(connection, KEYS, self._keys)
        self._check_rows(connection, NUMBERS, {key: (key, number) for key, number in self._numbers.items()})
        self._check_latest(connection)

    def _check_catalog(self, connection: fluss.sync.FlussConnection) -> None:
        admin = connection.get_admin()
        for name, table_id in self._told.table_ids.items():
            exists = admin.table_exists(table_path(name))
            if exists is (name == DROPPED):
                self._problem("catalog", f"table {name} {'is back' if exists else 'is gone'}")
            elif exists and admin.get_table_info(table_path(name)).table_id != table_id:
                self._problem("catalog", f"table {name} has another id")

    def _check_log(self, connection: fluss.sync.FlussConnection, place: Place) -> None:
        expected = self._logs[place]
        if not expected:
            return
        found = self._attempt(
            lambda: read_log(connection, place, self._told, 0, len(expected)), place, self._scope(place)
        )
        if found is None:
            return
        if found[: len(expected)] != expected[: len(found)]:
            self._problem(place, "other rows than before")
        elif len(found) < len(expected):
            self._problem(place, f"nothing at offset {len(found)}, acknowledged up to {len(expected)}")

    def _check_rows(self, connection: fluss.sync.FlussConnection, table: str, expected: dict[int, Values]) -> None:
        scope = self._scope(Place(table))
        scanned = self._attempt(lambda: table_rows(connection, table), f"{table} by scan", scope, READS_MAX)
        if scanned is not None and {row[0]: row for row in scanned} != expected:
            self._problem(table, "wrong rows in a scan")
        keys = [{"id": key} for key in expected]

        def look_up() -> pa.Table:
            return connection.get_table(table_path(table)).new_lookup().create_lookuper().lookup_many(keys)

        found = self._attempt(look_up, f"{table} by look-up", scope, READS_MAX)
        if found is not None and list(zip(*found.to_pydict().values(), strict=True)) != list(expected.values()):
            self._problem(table, "wrong rows by look-up")

    def _check_staged(self, connection: fluss.sync.FlussConnection) -> None:
        scope, told = self._table_scope(STAGED), self._told
        if self._attempt(lambda: self._repeat(connection), "the last commit again", scope):
            self._problem("the last commit again", "it was done once more")

        def commit() -> bool:
            write = connection.get_table(table_path(STAGED)).new_staged_write(WAITING_QUERY, 0)
            write.commit(told.waiting_tasks)
            return True

        end = self._attempt(lambda: end_of(connection, Place(STAGED)), STAGED, scope)
        if end is None or not self._attempt(commit, "commit", scope):
            return
        rows = self._attempt(
            lambda: read_log(connection, Place(STAGED), told, end, end + len(told.waiting)), STAGED, scope
        )
        if rows is not None and sorted(row[1] for row in rows) != [row.sequence for row in told.waiting]:
            self._problem(STAGED, "the committed rows are not there, or not once")

    def _repeat(self, connection: fluss.sync.FlussConnection) -> bool:
        """Whether the last batch of the query, written and committed once more, adds rows."""
        before = end_of(connection, Place(STAGED))
        count = len(self._told.logs[Place(STAGED)]) // ROUNDS
        written = [Row(*row[:2]) for row in self._told.logs[Place(STAGED)][-count:]]
        write, tasks = staged_write(connection, QUERY, ROUNDS - 1, _in_order(written))
        write.commit(tasks)
        return end_of(connection, Place(STAGED)) > before

    def _register(self, connection: fluss.sync.FlussConnection) -> None:
        told = self._told
        offsets = {fluss.TableBucket(told.table_ids[LAKE], 0): told.prepared_offset}

        def commit() -> int:
            info = connection.get_admin().get_table_info(table_path(LAKE))
            LakeRegistry(connection).commit(info, 2_000, told.prepared_path, offsets, keep_all=True)
            return told.prepared_offset

        place = f"{self._table_scope(LAKE)}/lake-offsets"
        self._lake_offset = self._attempt(commit, "registering a lake snapshot", place) or self._lake_offset

    def _check_latest(self, connection: fluss.sync.FlussConnection) -> None:
        latest = self._attempt(
            lambda: connection.get_admin().get_latest_lake_snapshot(table_path(LAKE)), LAKE, self._table_scope(LAKE)
        )
        if latest is not None and list(latest.table_buckets_offset.values()) != [self._lake_offset]:
            self._problem(LAKE, f"the latest snapshot reaches {latest.table_buckets_offset}, not {self._lake_offset}")

    # --- new rows

    def _write(self, connection: fluss.sync.FlussConnection) -> None:
        for place in LOG_PLACES:
            if place.table != STAGED and place != Place(LOG, 1):
                self._append(connection, place)
        self._upsert(connection)
        self._number(connection)
        self._check_ids(connection)

    def _append(self, connection: fluss.sync.FlussConnection, place: Place) -> None:
        """New rows are acknowledged, or there is an error; those that are get offsets behind all others."""
        places = [other for other in LOG_PLACES if (other.table, other.partition) == (place.table, place.partition)]
        scope = self._table_scope(place.table) if len(places) > 1 else self._scope(place)
        appended = self._attempt(lambda: self._write_rows(connection, place), f"{place} append", scope)
        if appended is None:
            return
        found = [
            row
            for other in places
            for row in self._attempt(lambda: self._behind(connection, other), other, self._scope(other)) or []  # noqa: B023
        ]
        # Twice, if time was too short and they were sent again.
        if {Row(*row[:2]) for row in found} != set(NEW_ROWS):
            self._problem(place, f"new rows are acknowledged, and behind the others there are {found}")
        elif len(places) == 1:
            self._logs[place] = self._logs[place] + found

    def _write_rows(self, connection: fluss.sync.FlussConnection, place: Place) -> bool:
        with connection.get_table(table_path(place.table)).new_append().create_writer() as writer:
            writer.write_arrow_batch(arrow_rows(NEW_ROWS, place.partition))
            writer.flush()
        return True

    def _behind(self, connection: fluss.sync.FlussConnection, place: Place) -> list[Values]:
        end, before = end_of(connection, place), len(self._told.logs[place])
        return read_log(connection, place, self._told, before, end) if end > before else []

    def _upsert(self, connection: fluss.sync.FlussConnection) -> None:
        old = next(iter(self._told.keys))
        new = {key: (key, "new", key) for key in (NEW_KEY, old)}

        def put() -> bool:
            with connection.get_table(table_path(KEYS)).new_upsert().create_writer() as writer:
                for row in new.values():
                    writer.upsert(list(row))
                writer.flush()
            return True

        if self._attempt(put, "upsert", self._scope(Place(KEYS))):
            self._keys |= new

    def _number(self, connection: fluss.sync.FlussConnection) -> None:
        def put() -> int:
            table = connection.get_table(table_path(NUMBERS))
            with table.new_upsert(columns=["id"]).create_writer() as writer:
                writer.upsert({"id": NEW_ID})
                writer.flush()
            row = table.new_lookup().create_lookuper().lookup({"id": NEW_ID})
            return -1 if row is None else int(row["number"])

        number = self._attempt(put, "a new number", self._scope(Place(NUMBERS)))
        if number is None:
            return
        if number < 0 or number in self._numbers.values():
            self._problem(NUMBERS, f"number {number} for a new row")
        self._numbers[NEW_ID] = number

    def _check_ids(self, connection: fluss.sync.FlussConnection) -> None:
        admin = connection.get_admin()

        def create() -> tuple[int, dict[str, int]]:
            admin.create_table(table_path("new"), descriptors("3")[DROPPED], ignore_if_exists=True)
            admin.create_partition(table_path(PARTS), {"part": "new"}, ignore_if_exists=True)
            partitions = admin.list_partition_infos(table_path(PARTS))
            table_id = admin.get_table_info(table_path("new")).table_id
            return table_id, {info.partition_name: info.partition_id for info in partitions}

        made = self._attempt(create, "new table and partition", None)
        if made is not None and made[0] in self._told.table_ids.values():
            self._problem("ids", f"table id {made[0]} is given out twice")
        if made is not None and made[1]["new"] in self._told.partition_ids.values():
            self._problem("ids", "a partition id is given out twice")


def _patiently(work: Callable[[], _T]) -> _T:
    """Try again when time was too short: on a busy machine that says nothing."""
    for _ in range(TIMEOUTS_MAX):
        try:
            return work()
        except fluss.TimeoutError:
            continue
    return work()


def _in_order(written: list[Row]) -> list[Row]:
    """As they were given to the two tasks, whose rows were stored one task after the other."""
    half = len(written) // 2
    return [row for pair in zip(written[:half], written[half:], strict=True) for row in pair]


def examine_by_client(directory: Path, template: ServerTemplate, damage: Damage | None) -> ClientExamination:
    """The verdict on a server over `directory`/data, a copy of the template's image, damaged or not."""
    examination = ClientExamination(template.told, template.image, damage)
    examination.run(directory)
    return examination

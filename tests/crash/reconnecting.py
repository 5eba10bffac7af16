"""Programs that close and reconnect after every error while their server is killed, and know what each row became.

A program upserts ever larger counters to a few keys of a table of its own, so an old value that is stored behind a
newer one shows in the changelog. Each row's handle says after closing whether it was stored; an error of a row must
have been reported by flush, by its handle, by the next upsert or by close, and one that does not say "may have been
stored" is a promise that it was not.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

import fluss
import fluss.sync
from tests.kit.facades import FACADES, Facade

KEYS: Final = 8
STEPS_MAX: Final = 40
ROWS_MAX: Final = 20
OPEN_S_MAX: Final = 60.0
MAY_BE_STORED: Final = "may have been stored"


@dataclass(eq=False)
class Write:
    """One row of one connection."""

    key: int
    value: int
    handle: Any
    was_reported: bool = False
    was_acknowledged: bool = False


class Program(threading.Thread):
    """One program, of one facade."""

    def __init__(self, facade: str, address: str, seed: int) -> None:
        super().__init__(name=facade, daemon=True)
        self.path = fluss.TablePath("fluss", "of_" + facade.replace(".", "_"))
        self.failure: BaseException | None = None
        self.steps = 0
        self.errors = 0
        self.stored: set[tuple[int, int]] = set()
        self.never_stored: set[tuple[int, int]] = set()
        self.doubtful: set[tuple[int, int]] = set()
        self._facade = Facade(facade)
        self._address = address
        self._chance = random.Random(f"{seed}/{facade}")
        self._stopping = threading.Event()
        self._counter = 0
        self._newest: dict[int, int] = {}

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._session()
        except BaseException as error:
            self.failure = error
        finally:
            self._facade.close()

    def _session(self) -> None:
        """From connecting to closing; an error of anything ends it."""
        connection = self._open()
        writes: list[Write] = []
        try:
            self._work(connection, writes)
        except fluss.FlussError:
            self.errors += 1
        try:
            self._facade.close_connection(connection)
        except fluss.FlussError:
            self.errors += 1
            _report(writes)
        self._judge(writes)

    def _open(self) -> Any:
        settings = {
            "writer.batch-timeout-ms": self._chance.choice([0, 5, 600_000]),
            "writer.delivery-timeout-ms": self._chance.choice([100, 400, 120_000]),
            "close.timeout-ms": self._chance.choice([0, 50, 300, 30_000]),
            "request-timeout-ms": self._chance.choice([200, 10_000]),
            "connect-timeout-ms": 5_000,
        }
        deadline = time.monotonic() + OPEN_S_MAX
        while True:
            try:
                return self._facade.connect(self._address, **settings)
            except fluss.FlussError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _work(self, connection: Any, writes: list[Write]) -> None:
        table = self._facade.table(connection, self.path)
        writer = table.new_upsert().create_writer()
        lookuper = table.new_lookup().create_lookuper()
        for _ in range(self._chance.randint(1, STEPS_MAX)):
            if self._stopping.is_set():
                return
            self.steps += 1
            step = self._chance.random()
            if step < 0.5:
                self._upsert(writer, writes)
            elif step < 0.65:
                self._flush(writer, writes)
            elif step < 0.75:
                self._give_up_flush(writer, writes)
            elif step < 0.85 and writes:
                self._await_handle(writes)
            else:
                self._look_up(lookuper)

    def _upsert(self, writer: Any, writes: list[Write]) -> None:
        for _ in range(self._chance.randint(1, ROWS_MAX)):
            self._counter += 1
            key = self._chance.randrange(KEYS)
            try:
                handle = writer.upsert({"id": key, "counter": self._counter})
            except fluss.FlussError:
                _report([write for write in writes if write.handle._handle.done()])
                raise
            writes.append(Write(key, self._counter, handle))

    def _flush(self, writer: Any, writes: list[Write]) -> None:
        try:
            self._facade.do(writer.flush)
        except fluss.FlussError:
            _report(writes)
            raise
        self._acknowledge(writes)

    def _give_up_flush(self, writer: Any, writes: list[Write]) -> None:
        """Where there are tasks they are cancelled: the rows are still on the way then."""
        if self._facade.blocks:
            return
        limit_s = self._chance.uniform(0, 0.01)

        async def flush() -> bool:
            try:
                await asyncio.wait_for(writer.flush(), limit_s)
            except fluss.FlussError:
                raise
            except TimeoutError:
                return False
            return True

        try:
            if self._facade.do(flush):
                self._acknowledge(writes)
        except fluss.FlussError:
            _report(writes)
            raise

    def _await_handle(self, writes: list[Write]) -> None:
        write = self._chance.choice(writes[-ROWS_MAX:])
        together = [other for other in writes if other.handle is write.handle]
        try:
            self._facade.do(write.handle.wait)
        except fluss.FlussError:
            _report(together)
            raise
        self._acknowledge(together)

    def _acknowledge(self, writes: list[Write]) -> None:
        for write in writes:
            if not write.was_reported:
                write.was_acknowledged = True
                self._newest[write.key] = max(self._newest.get(write.key, 0), write.value)

    def _look_up(self, lookuper: Any) -> None:
        key = self._chance.randrange(KEYS)
        row = self._facade.do(lambda: lookuper.lookup({"id": key}))
        found = 0 if row is None else row["counter"]
        assert found >= self._newest.get(key, 0), (
            f"key {key} has {found} after {self._newest[key]} was acknowledged (table {self.path})"
        )

    def _judge(self, writes: list[Write]) -> None:
        """After closing each row has an outcome, and whoever has an error was told."""
        for write in writes:
            assert write.handle._handle.done(), f"{write} has no outcome after close"
            error = self._error_of(write)
            place = (write.key, write.value)
            if error is None:
                self.stored.add(place)
                self._newest[write.key] = max(self._newest.get(write.key, 0), write.value)
                continue
            assert not write.was_acknowledged, f"{write} was acknowledged and then failed: {error}"
            assert write.was_reported, f"nobody was told of {write}: {error}"
            (self.doubtful if MAY_BE_STORED in str(error) else self.never_stored).add(place)

    def _error_of(self, write: Write) -> fluss.FlussError | None:
        try:
            self._facade.do(write.handle.wait)
        except fluss.FlussError as error:
            return error
        return None

    # ---- when all is over ----

    def check(self, connection: fluss.sync.FlussConnection) -> int:
        """Compare what is stored with what was said; returns how many rows were stored."""
        table = connection.get_table(self.path)
        (end,) = connection.get_admin().list_offsets(self.path, [0], fluss.OffsetSpec.latest()).values()
        stored = changelog(table, end)
        last: dict[int, int] = {}
        for key, value in stored:
            assert value > last.get(key, 0), f"{value} was stored behind {last[key]} for key {key} of {self.path}"
            last[key] = value
        found = set(stored)
        lost, ghosts = self.stored - found, self.never_stored & found
        assert not lost, f"acknowledged and not stored in {self.path}: {sorted(lost)[:5]}"
        assert not ghosts, f"stored in {self.path} though the error did not say that it may be: {sorted(ghosts)[:5]}"
        assert found <= self.stored | self.doubtful, "rows that nobody wrote"
        lookuper = table.new_lookup().create_lookuper()
        for key, value in last.items():
            row = lookuper.lookup({"id": key})
            assert row is not None
            assert row["counter"] == value
        return len(found)


def _report(writes: list[Write]) -> None:
    for write in writes:
        write.was_reported = True


def changelog(table: fluss.sync.FlussTable, end: int) -> list[tuple[int, int]]:
    """Keys and counters in the order in which they were stored."""
    found: list[tuple[int, int]] = []
    position = 0
    with table.new_scan().create_log_scanner() as scanner:
        scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET})
        while position < end - 1:
            for record in scanner.poll(10_000):
                position = record.offset
                if record.change_type.short_string() in ("+I", "+U"):
                    found.append((record.row["id"], record.row["counter"]))
    return found


def make_tables(address: str, programs: list[Program]) -> None:
    schema = fluss.Schema(pa.schema([("id", pa.int32()), ("counter", pa.int64())]), ["id"])
    with fluss.sync.connect(address) as connection:
        for program in programs:
            connection.get_admin().create_table(program.path, fluss.TableDescriptor(schema, bucket_count=1))


def programs_of(address: str, seed: int) -> list[Program]:
    """One program of each facade."""
    return [Program(facade, address, seed) for facade in FACADES]

"""Clients of primary-key tables that know what they wrote: they write, look up and follow while servers die.

Every writer has keys of its own, so what is stored there is what it was told is stored, and nothing else. A writer that
gets an error does not know what is stored, so any error ends the test: retries are the client's business.
"""

from __future__ import annotations

import random
import threading
import time
from typing import Any, Final

import pyarrow as pa

import fluss
import fluss.sync
from tests.kit.loads.kv_model import Batch, Change, Model, Row, fold, random_batch
from tests.kit.loads.writers import OPEN_S_MAX, POLL_INTERVAL_S, client_config

DATABASE: Final = "fluss"
PLAIN: Final = fluss.TablePath(DATABASE, "kv_plain")
SPREAD: Final = fluss.TablePath(DATABASE, "kv_spread")
SUMS: Final = fluss.TablePath(DATABASE, "kv_sums")
BUCKETS: Final = {PLAIN: 1, SPREAD: 3, SUMS: 2}
KEYS_PER_WRITER: Final = 100
BATCH_ROWS_MAX: Final = 25
LOOKUPS: Final = 5
SUM_KEYS: Final = 20
# A server that is killed again as soon as it is up may be away for longer than a call waits by itself.
_PATIENT: Final = {"request-timeout-ms": 60_000}
_COLUMNS: Final = ("id", "name", "count")
_TARGETS: Final = {(): None, (0, 1): ["id", "name"], (0, 2): ["id", "count"]}


def make_tables(address: str) -> None:
    columns = pa.schema([("id", pa.int32()), ("name", pa.string()), ("count", pa.int64())])
    plain = fluss.Schema(columns, ["id"])
    sums = (
        fluss.Schema.builder()
        .column("id", fluss.DataTypes.int())
        .column("total", fluss.DataTypes.bigint(), agg_function="sum")
        .primary_key(["id"])
        .build()
    )
    with fluss.sync.FlussConnection.create(client_config(address, {})) as connection:
        admin = connection.get_admin()
        for path in (PLAIN, SPREAD):
            admin.create_table(path, fluss.TableDescriptor(plain, bucket_count=BUCKETS[path]))
        properties = {"table.merge-engine": "aggregation"}
        admin.create_table(SUMS, fluss.TableDescriptor(sums, bucket_count=BUCKETS[SUMS], properties=properties))


def opened(config: fluss.Config) -> Any:
    """A connection. Its server may be down at first: only an open one must heal by itself."""
    deadline = time.monotonic() + OPEN_S_MAX
    while True:
        try:
            return fluss.sync.FlussConnection.create(config)
        except fluss.ConnectError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_INTERVAL_S)


class KvThread(threading.Thread):
    """Works until it is told to stop, or fails."""

    def __init__(self, name: str, address: str) -> None:
        super().__init__(name=name, daemon=True)
        self._config = client_config(address, _PATIENT)
        self._stopping = threading.Event()
        self.pause_s = 0.0
        self.failure: BaseException | None = None
        self.rounds = 0

    def run(self) -> None:
        try:
            with opened(self._config) as connection:
                self.work(connection)
        except BaseException as error:
            self.failure = error

    def work(self, connection: Any) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self._stopping.set()

    @property
    def is_stopping(self) -> bool:
        """Asked between two rounds; a pause is made here."""
        return self._stopping.wait(self.pause_s)


class KvWriter(KvThread):
    """Upserts, deletes and partial updates; after each acknowledgement it looks some of its rows up."""

    def __init__(self, address: str, path: fluss.TablePath, number: int, seed: int) -> None:
        super().__init__(f"writer {number} of {path}", address)
        self.path = path
        self.model = Model()
        self._first_key = number * KEYS_PER_WRITER
        self._chance = random.Random(f"{seed}/{number}")

    def work(self, connection: Any) -> None:
        table = connection.get_table(self.path)
        writers = {targets: table.new_upsert(columns=columns).create_writer() for targets, columns in _TARGETS.items()}
        lookuper = table.new_lookup().create_lookuper()
        while not self.is_stopping:
            batch = self._batch()
            self._write(writers[batch.targets], batch)
            self.model.apply(batch)
            self._look_up(lookuper)
            self.rounds += 1

    def _batch(self) -> Batch:
        made = random_batch(self._chance, KEYS_PER_WRITER, BATCH_ROWS_MAX)
        first = self._first_key
        ops = [op._replace(key=op.key + first, row=op.row and (op.key + first, *op.row[1:])) for op in made.ops]
        return Batch(ops, made.targets)

    def _write(self, writer: Any, batch: Batch) -> None:
        columns = batch.targets or (0, 1, 2)
        for op in batch.ops:
            if op.row is None:
                writer.delete({"id": op.key})
            else:
                writer.upsert({_COLUMNS[index]: op.row[index] for index in columns})
        writer.flush()

    def _look_up(self, lookuper: Any) -> None:
        """What was acknowledged can be seen at once."""
        keys = [self._first_key + key for key in self._chance.sample(range(KEYS_PER_WRITER), LOOKUPS)]
        found = lookuper.lookup_many([{"id": key} for key in keys])
        expected = [dict(zip(_COLUMNS, self.model.rows.get(key, (None, None, None)), strict=True)) for key in keys]
        assert found.to_pylist() == expected, f"{self.name}: {keys}"


class SumWriter(KvThread):
    """Adds one at a time to sums: a row that is applied twice, or not at all, shows."""

    def __init__(self, address: str, number: int, seed: int) -> None:
        super().__init__(f"sum writer {number}", address)
        self.added: dict[int, int] = {}
        self._chance = random.Random(f"{seed}/sums/{number}")

    def work(self, connection: Any) -> None:
        writer = connection.get_table(SUMS).new_upsert().create_writer()
        while not self.is_stopping:
            for _ in range(self._chance.randint(1, BATCH_ROWS_MAX)):
                key = self._chance.randrange(SUM_KEYS)
                writer.upsert([key, 1])
                self.added[key] = self.added.get(key, 0) + 1
            writer.flush()
            self.rounds += 1


class KvFollower(KvThread):
    """Follows a changelog from its beginning; what it saw never changes."""

    def __init__(self, address: str, path: fluss.TablePath) -> None:
        super().__init__(f"follower of {path}", address)
        self.path = path
        self._lock = threading.Lock()
        self._changes: dict[int, list[Change]] = {bucket: [] for bucket in range(BUCKETS[path])}
        self._next_offset: dict[int, int] = dict.fromkeys(self._changes, 0)

    def work(self, connection: Any) -> None:
        scanner = connection.get_table(self.path).new_scan().create_changelog_batch_scanner()
        scanner.subscribe_buckets(dict.fromkeys(self._changes, fluss.EARLIEST_OFFSET))
        while not self.is_stopping:
            for part in scanner.poll_record_batch(200):
                self._take(part.bucket.bucket_id, part.batch.to_pylist())
        scanner.close()

    def _take(self, bucket: int, rows: list[dict[str, Any]]) -> None:
        with self._lock:
            for row in rows:
                offset = row["_log_offset"]
                assert offset >= self._next_offset[bucket], f"{self.name}: offset {offset} came again"
                self._next_offset[bucket] = offset + 1
                values: Row = (row["id"], row["name"], row["count"])
                self._changes[bucket].append((row["_change_type"], values))
            self.rounds += 1

    def rows(self) -> dict[int, Row]:
        """The table as the changes so far make it; they must fit each other."""
        with self._lock:
            changes = [list(of_bucket) for of_bucket in self._changes.values()]
        folded: dict[int, Row] = {}
        for of_bucket in changes:
            if of_bucket and of_bucket[-1][0] == "-U":
                of_bucket.pop()  # its other half is on the way
            folded.update(fold(of_bucket))
        return folded


def table_rows(connection: Any, path: fluss.TablePath) -> dict[int, tuple[Any, ...]]:
    table = connection.get_table(path).new_scan().to_arrow()
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    assert len({row[0] for row in rows}) == len(rows), f"{path}: a key is there twice"
    return {row[0]: row for row in rows}


class KvLoad:
    """All of them together; `finish` compares everything."""

    def __init__(self, address: str, seed: int, pause_s: float = 0.0) -> None:
        self._address = address
        self.writers = [
            KvWriter(address, path, number, seed) for number, path in enumerate((PLAIN, SPREAD, PLAIN, SPREAD))
        ]
        self.sums = SumWriter(address, 0, seed)
        self.followers = [KvFollower(address, PLAIN), KvFollower(address, SPREAD)]
        for writer in (*self.writers, self.sums):
            writer.pause_s = pause_s

    @property
    def threads(self) -> list[KvThread]:
        return [*self.writers, self.sums, *self.followers]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        for thread in self.threads:
            thread.stop()

    def raise_failures(self) -> None:
        for thread in self.threads:
            if thread.failure is not None:
                raise AssertionError(f"{thread.name} ended early") from thread.failure

    def await_progress(self, within_s: float) -> None:
        """Wait until every writer has had a batch acknowledged."""
        deadline = time.monotonic() + within_s
        goals = [(thread, thread.rounds + 1) for thread in (*self.writers, self.sums)]
        for thread, goal in goals:
            while thread.rounds < goal and thread.failure is None:
                assert time.monotonic() < deadline, f"{thread.name} made no progress within {within_s:g} s"
                time.sleep(0.005)
        self.raise_failures()

    def finish(self, within_s: float) -> None:
        for writer in (*self.writers, self.sums):
            writer.stop()
        for writer in (*self.writers, self.sums):
            writer.join(within_s)
            assert not writer.is_alive(), f"{writer.name} did not end within {within_s:g} s"
        self.raise_failures()
        with fluss.sync.FlussConnection.create(client_config(self._address, {})) as connection:
            for follower in self.followers:
                self._compare(connection, follower, within_s)
            assert table_rows(connection, SUMS) == {key: (key, total) for key, total in self.sums.added.items()}

    def _compare(self, connection: Any, follower: KvFollower, within_s: float) -> None:
        expected: dict[int, Row] = {}
        for writer in self.writers:
            if writer.path == follower.path:
                expected.update(writer.model.rows)
        assert table_rows(connection, follower.path) == expected
        deadline = time.monotonic() + within_s
        while follower.rows() != expected:
            self.raise_failures()
            assert time.monotonic() < deadline, f"{follower.name} does not find what the table has"
            time.sleep(0.05)
        follower.stop()
        follower.join(within_s)
        self.raise_failures()

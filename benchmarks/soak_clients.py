"""`python -m benchmarks.soak_clients ROLE ADDRESS FOLDER`: one client process of the soak.

A role repeats a step until the file `stop` appears. After each step it rests several times as long as the step took, so
that all of them together leave the machine room, whatever its speed. What a step wrote it reads back and compares. A
step that fails is counted and told, and the role begins again with tables of its own.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import fluss.sync as fluss
from fluss.client.admin import make_backup
from fluss.client.runtime import run

DATABASE = "fluss"
STOP_FILE = "stop"
REST_SHARE = 6.0  # so many times as long as a step took, it is followed by nothing
REST_S_MAX = 20.0
REST_AFTER_ERROR_S = 10.0
STATUS_S = 5.0
POLL_MS = 2_000
VISIBLE_S_MAX = 60.0
ERROR_CHARACTERS_MAX = 4_000
# By size, too: retention by time is careful with clocks, and a soak must not fill the disk meanwhile.
BOUNDED = {"table.log.ttl": "60 s"}
BOUNDED_SIZE = {"log.retention.size-bytes": str(4 << 20)}


class Mismatch(AssertionError):  # noqa: N818
    """A row is missing, doubled or has an old value."""


def check(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise Mismatch(f"{what}: found {str(found)[:300]}, wanted {str(wanted)[:300]}")


class Role(ABC):
    """One kind of load, with a connection and tables of its own."""

    def __init__(self, address: str, folder: Path, suffix: str) -> None:
        self.address = address
        self.folder = folder
        self.suffix = suffix
        self.random = Random(suffix)
        self.rows = 0  # written or read, and compared
        self.connection = fluss.connect(address)
        self.admin = self.connection.get_admin()
        self.number = 0

    def table(self, name: str, columns: Any, **options: Any) -> Any:
        path = fluss.TablePath(DATABASE, f"{name}_{self.suffix}")
        keys = options.pop("primary_keys", [])
        descriptor = fluss.TableDescriptor(
            fluss.Schema(pa.schema(columns), primary_keys=keys),
            properties={**BOUNDED, **options.pop("properties", {})},
            custom_properties=BOUNDED_SIZE,
            **options,
        )
        self.admin.create_table(path, descriptor)
        return self.connection.get_table(path)

    @abstractmethod
    def prepare(self) -> None:
        """Make the tables."""

    @abstractmethod
    def step(self) -> None:
        """Some work and its check."""

    def close(self) -> None:
        self.connection.close()


class Appends(Role):
    """Rows and Arrow batches into a log that a follower reads: dense offsets, each row once; projections of it."""

    BUCKETS = 4
    COLUMNS = (("n", pa.int64()), ("word", pa.string()), ("reading", pa.float64()))

    def prepare(self) -> None:
        self.log = self.table("log", self.COLUMNS, bucket_count=self.BUCKETS)
        self.writer = self.log.new_append().create_writer()
        self.follower = self._follower(self.log.new_scan())
        self.projected = self._follower(self.log.new_scan().project_by_name(["n"]))

    def _follower(self, scan: Any) -> Any:
        scanner = scan.create_record_batch_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(self.BUCKETS), fluss.EARLIEST_OFFSET))
        return scanner

    def step(self) -> None:
        first = self.number
        for _ in range(200):
            self.writer.append([self.number, f"word {self.number % 97}", self.number / 8])
            self.number += 1
        self.writer.flush()
        for _ in range(10):
            numbers = range(self.number, self.number + 500)
            words = [f"word {number % 97}" for number in numbers]
            readings = [number / 8 for number in numbers]
            columns = [pa.array(numbers, pa.int64()), pa.array(words), pa.array(readings)]
            self.writer.write_arrow_batch(pa.record_batch(columns, schema=pa.schema(self.COLUMNS)))
            self.number += 500
        self.writer.flush()
        for scanner, has_all in ((self.follower, True), (self.projected, False)):
            self._read(scanner, first, has_all)

    def _read(self, scanner: Any, first: int, has_all: bool) -> None:
        seen: list[int] = []
        deadline = time.monotonic() + VISIBLE_S_MAX
        while len(seen) < self.number - first and time.monotonic() < deadline:
            rows = scanner.poll_arrow(POLL_MS)
            seen += rows["n"].to_pylist()
            if has_all and rows.num_rows:
                check(pc.sum(rows["reading"]).as_py(), sum(rows["n"].to_pylist()) / 8, "readings of a log")
        check(sorted(seen), list(range(first, self.number)), "rows of a log")
        self.rows += len(seen)


class Keys(Role):
    """Upserts, partial updates, deletes, lookups, prefix lookups and whole reads of a key table, beside a model."""

    REGIONS = 200
    PER_REGION = 100
    COLUMNS = (("region", pa.int32()), ("id", pa.int32()), ("name", pa.string()), ("visits", pa.int64()))

    def prepare(self) -> None:
        self.keyed = self.table(
            "keys", self.COLUMNS, primary_keys=["region", "id"], bucket_keys=["region"], bucket_count=4
        )
        self.model: dict[tuple[int, int], tuple[str | None, int | None]] = {}
        self.writer = self.keyed.new_upsert().create_writer()
        self.partial = self.keyed.new_upsert(columns=["region", "id", "visits"]).create_writer()
        self.lookups = self.keyed.new_lookup().create_lookuper()
        self.prefixes = self.keyed.new_lookup().lookup_by(["region"]).create_lookuper()

    def _any_key(self) -> tuple[int, int]:
        return self.random.randrange(self.REGIONS), self.random.randrange(self.PER_REGION)

    def step(self) -> None:
        self._upsert()
        self._delete_and_update()
        for _ in range(100):
            key = self._any_key()
            check(self._values(self.lookups.lookup(list(key))), self.model.get(key), f"lookup of {key}")
        self._look_up_many()
        self._look_up_prefixes()
        self.number += 1
        self.rows += 3_000
        if self.number % 10 == 0:
            self._read_all()

    @staticmethod
    def _values(row: dict[str, Any] | None) -> tuple[str | None, int | None] | None:
        return None if row is None else (row["name"], row["visits"])

    def _upsert(self) -> None:
        keys = sorted({self._any_key() for _ in range(1_000)})
        for region, number in keys[:100]:
            name = f"name {self.random.random()} " + "x" * self.random.randrange(200)
            self.model[region, number] = (name, self.number)
            self.writer.upsert({"region": region, "id": number, "name": name, "visits": self.number})
        self.writer.flush()
        rest = keys[100:]
        names = [f"bulk {self.random.random()}" + "y" * 60 for _ in rest]
        self.model.update({key: (name, self.number) for key, name in zip(rest, names, strict=True)})
        columns = [[k[0] for k in rest], [k[1] for k in rest], names, [self.number] * len(rest)]
        self.writer.write_arrow(pa.table(columns, schema=pa.schema(self.COLUMNS)))
        self.writer.flush()

    def _delete_and_update(self) -> None:
        for key in {self._any_key() for _ in range(100)}:
            self.model.pop(key, None)
            self.writer.delete({"region": key[0], "id": key[1]})
        self.writer.flush()
        for key in {self._any_key() for _ in range(100)}:
            name = self.model[key][0] if key in self.model else None
            self.model[key] = (name, -self.number)
            self.partial.upsert({"region": key[0], "id": key[1], "visits": -self.number})
        self.partial.flush()

    def _look_up_many(self) -> None:
        keys = sorted({self._any_key() for _ in range(1_000)})
        found = self.lookups.lookup_many(keys)
        wanted = [(self.model.get(key) or (None, None))[0] for key in keys]
        check(found["name"].to_pylist(), wanted, "names of many keys")

    def _look_up_prefixes(self) -> None:
        for _ in range(5):
            region = self.random.randrange(self.REGIONS)
            found = {(row["region"], row["id"]): self._values(row) for row in self.prefixes.lookup([region])}
            wanted = {key: value for key, value in self.model.items() if key[0] == region}
            check(found, wanted, f"prefix {region}")

    def _read_all(self) -> None:
        rows = self.keyed.new_scan().to_arrow().to_pylist()
        found = {(row["region"], row["id"]): self._values(row) for row in rows}
        check(found, self.model, "all keys")
        check(len(rows), len(found), "rows of the key table")
        visits = self.keyed.new_scan().project_by_name(["visits"]).to_arrow()["visits"]
        check(pc.sum(visits).as_py(), sum(value[1] or 0 for value in self.model.values()), "sum of visits")
        self.rows += 2 * len(rows)


class Changelog(Role):
    """A key table whose changes are followed and folded; now and then the follower begins anew at the snapshot."""

    COLUMNS = (("id", pa.int64()), ("text", pa.string()))
    KEYS = 2_000

    def prepare(self) -> None:
        self.keyed = self.table("changed", self.COLUMNS, primary_keys=["id"], bucket_count=2)
        self.model: dict[int, str] = {}
        self.writer = self.keyed.new_upsert().create_writer()
        self._begin()

    def _begin(self) -> None:
        self.state: dict[int, str] = {}
        self.changes = self.keyed.changes(start="snapshot")

    def step(self) -> None:
        for _ in range(500):
            key = self.random.randrange(self.KEYS)
            if self.random.random() < 0.2:
                self.model.pop(key, None)
                self.writer.delete({"id": key})
            else:
                self.model[key] = f"{self.number} {self.random.random()}"
                self.writer.upsert({"id": key, "text": self.model[key]})
        self.writer.flush()
        self._fold()
        self.number += 1
        self.rows += 500
        if self.number % 20 == 0:
            self.changes.close()
            self._begin()
            self._fold()

    def _fold(self) -> None:
        deadline = time.monotonic() + VISIBLE_S_MAX
        while self.state != self.model and time.monotonic() < deadline:
            for change in self.changes.poll(timeout_ms=POLL_MS).to_pylist():
                if change["_change_type"] in ("+I", "+U"):
                    self.state[change["id"]] = change["text"]
                elif change["_change_type"] == "-D":
                    self.state.pop(change["id"], None)
        check(self.state, self.model, "folded changes")


class Staged(Role):
    """Batches that are stored once: staged by tasks, committed, committed again; some are given up."""

    COLUMNS = (("id", pa.int64()), ("text", pa.string()))

    def prepare(self) -> None:
        self.log = self.table("staged", self.COLUMNS, bucket_count=2)
        self.keyed = self.table("staged_keys", self.COLUMNS, primary_keys=["id"], bucket_count=2)
        self.stored = 0
        self.batch = 0

    def step(self) -> None:
        query = f"query-{self.suffix}-{self.number // 50}"
        self.batch = 0 if self.number % 50 == 0 else self.batch + 1
        for target in (self.log, self.keyed):
            self._abandon(target, f"{query}-lost")
            tasks = self._stage(target, query)
            for is_repeated in (False, True):
                write = target.new_staged_write(query, self.batch)
                write.commit(tasks)
                check(write.is_repeated, is_repeated, "whether a commit was a repetition")
        self.stored += 400
        latest = self.admin.list_offsets(self.log.table_path, [0, 1], fluss.OffsetSpec.latest())
        check(sum(latest.values()), self.stored, "rows of staged writes")
        check(self.keyed.new_lookup().lookup([399])["text"], f"{self.number}", "a staged key")
        self.number += 1
        self.rows += 800

    def _stage(self, target: Any, query: str) -> list[Any]:
        write = target.new_staged_write(query, self.batch)
        tasks = []
        for task in range(2):
            with write.create_writer(task, 0) as writer:
                ids = pa.array(range(200 * task, 200 * task + 200), pa.int64())
                writer.write_arrow_batch(pa.record_batch({"id": ids, "text": [f"{self.number}"] * 200}))
                tasks.append(writer.finish())
        return tasks

    def _abandon(self, target: Any, query: str) -> None:
        write = target.new_staged_write(query, self.batch)
        with write.create_writer(0, 0) as writer:
            writer.write_arrow_batch(pa.record_batch({"id": pa.array([1], pa.int64()), "text": ["lost"]}))
            writer.finish()
        write.abort()


class Churn(Role):
    """Tables and databases that come and go, schemas that change, partitions that are added and dropped."""

    PARTITIONS = 12
    COLUMNS = (("day", pa.string()), ("id", pa.int32()), ("text", pa.string()))

    def prepare(self) -> None:
        self.parted = self.table("parted", self.COLUMNS, primary_keys=["day", "id"], partition_keys=["day"])
        self.days: list[str] = []

    def step(self) -> None:
        self._make_and_drop()
        self._move_partitions()
        self._ask_admin()
        self.number += 1
        if self.number % 60 == 0:
            self._back_up()

    def _make_and_drop(self) -> None:
        name, columns = f"short_{self.number}", [("id", pa.int32()), ("text", pa.string())]
        keyed, log = self.table(name, columns, primary_keys=["id"]), self.table(f"{name}_log", columns)
        rows = pa.table([pa.array(range(300), pa.int32()), ["x" * 50] * 300], schema=pa.schema(columns))
        with keyed.new_upsert().create_writer() as upserts, log.new_append().create_writer() as appends:
            upserts.write_arrow(rows)
            appends.write_arrow(rows)
        self.admin.alter_table(keyed.table_path, add_columns=[("later", pa.int64())])
        altered = self.connection.get_table(keyed.table_path)
        with altered.new_upsert().create_writer() as writer:
            writer.upsert({"id": 7, "text": "new", "later": 1})
        check(altered.new_lookup().lookup([7]), {"id": 7, "text": "new", "later": 1}, "a row of the new schema")
        check(altered.new_lookup().lookup([8]), {"id": 8, "text": "x" * 50, "later": None}, "a row of the old schema")
        check(altered.new_scan().to_arrow().num_rows, 300, "rows of a short-lived key table")
        check(log.new_scan().to_arrow().num_rows, 300, "rows of a short-lived log table")
        for table in (keyed, log):
            self.admin.drop_table(table.table_path)
            check(self.admin.table_exists(table.table_path), False, "a dropped table")
        self.rows += 1_200

    def _move_partitions(self) -> None:
        day = f"d{self.number}"
        self.admin.create_partition(self.parted.table_path, {"day": day})
        self.days.append(day)
        with self.parted.new_upsert().create_writer() as writer:
            for one in self.days:
                writer.upsert({"day": one, "id": 1, "text": day})
        lookuper = self.parted.new_lookup().create_lookuper()
        for one in self.days:
            check(lookuper.lookup([one, 1])["text"], day, f"partition {one}")
        if len(self.days) > self.PARTITIONS:
            gone = self.days.pop(0)
            self.admin.drop_partition(self.parted.table_path, {"day": gone})
        names = sorted(info.partition_name for info in self.admin.list_partition_infos(self.parted.table_path))
        check(names, sorted(self.days), "partitions")
        self.rows += 2 * len(self.days)

    def _ask_admin(self) -> None:
        database = f"short_{self.suffix}"
        self.admin.create_database(database)
        check(database in self.admin.list_databases(), True, "a new database")
        self.admin.drop_database(database)
        check(str(self.parted.table_path.table_name) in self.admin.list_tables(DATABASE), True, "a listed table")
        self.admin.get_table_info(self.parted.table_path)
        self.admin.get_table_schema(self.parted.table_path)
        self.admin.describe_cluster_configs()
        self.admin.get_server_nodes()

    def _back_up(self) -> None:
        target = self.folder / f"backup-{self.suffix}-{self.number}"
        run(make_backup(self.connection._core.cluster, str(target), lambda _: None))
        shutil.rmtree(target)


class Scans(Role):
    """Whole, projected, filtered and limited reads of tables that hardly change; words that get numbers."""

    ROWS = 50_000
    COLUMNS = (("id", pa.int64()), ("kind", pa.int32()), ("text", pa.string()))

    def prepare(self) -> None:
        forever = {"table.log.ttl": "7 d"}
        columns = self.COLUMNS
        self.log = self.table("scanned", columns, properties={**forever, "table.statistics.columns": "id"})
        self.keyed = self.table("scanned_keys", columns, primary_keys=["id"], bucket_count=2)
        numbers = range(self.ROWS)
        kinds = pa.array([number % 10 for number in numbers], pa.int32())
        texts = [f"text {number}" for number in numbers]
        rows = pa.table([pa.array(numbers, pa.int64()), kinds, texts], schema=pa.schema(columns))
        with self.log.new_append().create_writer() as appends, self.keyed.new_upsert().create_writer() as upserts:
            appends.write_arrow(rows)
            upserts.write_arrow(rows)
        self.words = self._words()

    def _words(self) -> Any:
        path = fluss.TablePath(DATABASE, f"words_{self.suffix}")
        schema = (
            fluss.Schema.builder()
            .column("word", fluss.DataTypes.string())
            .column("number", fluss.DataTypes.bigint())
            .primary_key(["word"])
            .enable_auto_increment("number")
            .build()
        )
        self.admin.create_table(path, fluss.TableDescriptor(schema, properties=BOUNDED, custom_properties=BOUNDED_SIZE))
        self.numbers: dict[str, int] = {}
        return self.connection.get_table(path).new_lookup().enable_insert_if_not_exists()

    def step(self) -> None:
        wanted = self.ROWS * (self.ROWS - 1) // 2
        for table in (self.log, self.keyed):
            read = table.new_scan().project_by_name(["id"]).to_arrow()
            check((read.num_rows, pc.sum(read["id"]).as_py()), (self.ROWS, wanted), "a projected read")
        some = self.log.new_scan().filter(fluss.col("id") < 1_000).to_arrow()
        check(some.num_rows, 1_000, "a filtered read")
        table = (self.log, self.keyed)[self.number % 2]
        check(table.new_scan().to_arrow().num_rows, self.ROWS, "a whole read")
        bucket = fluss.TableBucket(self.keyed.get_table_info().table_id, 0)
        limited = self.keyed.new_scan().limit(100).create_bucket_batch_scanner(bucket).to_arrow()
        check(limited.num_rows, 100, "a limited read")
        for _ in range(20):
            word = f"word {self.random.randrange(5_000)}"
            number = self.words.lookup([word])["number"]
            check(self.numbers.setdefault(word, number), number, f"the number of {word}")
        self.number += 1
        self.rows += 3 * self.ROWS


class Visitors(Role):
    """Clients that come, do little and go; some without a word.

    A bucket remembers up to 10,000 writers for a week, so the tables are made anew now and then: how fast visitors come
    depends on the machine, and their growing number would look like a leak.
    """

    COLUMNS = (("id", pa.int64()), ("text", pa.string()))
    STEPS_A_TABLE = 100

    def prepare(self) -> None:
        self.keyed = self.table(f"visited_{self.number}", self.COLUMNS, primary_keys=["id"])
        self.log = self.table(f"visited_log_{self.number}", self.COLUMNS)
        self.appended = 0

    def step(self) -> None:
        if self.number and self.number % self.STEPS_A_TABLE == 0:
            for table in (self.keyed, self.log):
                self.admin.drop_table(table.table_path)
            self.prepare()
        left = fluss.connect(self.address)
        for _ in range(5):
            with fluss.connect(self.address) as visitor:
                self._visit(visitor)
        # Collected without being closed, with a fetch under way.
        scanner = left.get_table(self.log.table_path).new_scan().create_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        scanner.poll(1)
        del scanner
        left.close()
        self.number += 1

    def _visit(self, visitor: Any) -> None:
        text = f"visit {self.number} {self.random.random()}"
        with visitor.get_table(self.keyed.table_path).new_upsert().create_writer() as writer:
            writer.upsert([self.number % 100, text])
        found = visitor.get_table(self.keyed.table_path).new_lookup().lookup([self.number % 100])
        check(found["text"], text, "what a visitor wrote")
        with visitor.get_table(self.log.table_path).new_append().create_writer() as writer:
            writer.append([self.number, text])
        self.appended += 1
        latest = visitor.get_admin().list_offsets(self.log.table_path, [0], fluss.OffsetSpec.latest())
        check(latest[0], self.appended, "rows that visitors appended")
        self.rows += 3


ROLES: dict[str, Callable[[str, Path, str], Role]] = {
    "appends": Appends,
    "keys": Keys,
    "changelog": Changelog,
    "staged": Staged,
    "churn": Churn,
    "scans": Scans,
    "visitors": Visitors,
}


class Client:
    """Runs a role and says now and then in a file how it goes."""

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self._name = name
        self._address = address
        self._folder = folder
        self._began_s = time.monotonic()
        self._steps = self._errors = self._lives = self._rows = 0
        self._told_s = 0.0
        self._role: Role | None = None

    def run(self) -> None:
        while not self._should_stop():
            began_s = time.monotonic()
            try:
                if self._role is None:
                    self._role = self._begin()
                before = self._role.rows
                self._role.step()
                self._rows += self._role.rows - before
                self._steps += 1
            except Exception as error:
                self._failed(error)
                self._rest(REST_AFTER_ERROR_S)
            self._rest(min(REST_SHARE * (time.monotonic() - began_s), REST_S_MAX))
            self._tell()
        if self._role is not None:
            self._role.close()
        self._tell(is_last=True)

    def _begin(self) -> Role:
        self._lives += 1
        role = ROLES[self._name](self._address, self._folder, f"{self._lives}")
        role.prepare()
        return role

    def _failed(self, error: Exception) -> None:
        self._errors += 1
        text = "".join(traceback.format_exception(error))[-ERROR_CHARACTERS_MAX:]
        print(f"{time.strftime('%H:%M:%S')} step {self._steps} failed:\n{text}", flush=True)
        role, self._role = self._role, None
        try:
            if role is not None:
                role.close()
        except Exception as second:
            print(f"closing failed: {second}", flush=True)
        self._tell(is_last=True)

    def _rest(self, rest_s: float) -> None:
        until_s = time.monotonic() + rest_s
        while (left_s := until_s - time.monotonic()) > 0 and not self._should_stop():
            time.sleep(min(left_s, 0.5))

    def _should_stop(self) -> bool:
        return (self._folder / STOP_FILE).exists()

    def _tell(self, *, is_last: bool = False) -> None:
        now_s = time.monotonic()
        if not is_last and now_s - self._told_s < STATUS_S:
            return
        self._told_s = now_s
        status = {"steps": self._steps, "errors": self._errors, "rows": self._rows}
        temporary = self._folder / f"{self._name}.status.tmp"
        temporary.write_text(json.dumps(status))
        temporary.replace(self._folder / f"{self._name}.status")


if __name__ == "__main__":
    Client(sys.argv[1], sys.argv[2], Path(sys.argv[3])).run()

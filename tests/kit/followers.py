"""Random writes to a primary-key table while a reader follows it, stopped and resumed at random positions."""

from __future__ import annotations

import random
import time
from typing import Any

import pyarrow as pa

import fluss
import fluss.sync

KEYS = 150
COLUMNS = pa.schema([("id", pa.int32()), ("name", pa.string()), ("n", pa.int64())])
DEADLINE_S = 60.0

Row = dict[str, Any]
Rows = dict[int, Row]


def new_table(connection: Any, name: str, **options: Any) -> Any:
    path = fluss.TablePath("fluss", name)
    options = {"bucket_count": 2, **options}
    connection.get_admin().create_table(path, fluss.TableDescriptor(fluss.Schema(COLUMNS, ["id"]), **options))
    return connection.get_table(path)


def row(key: int, name: str = "a", n: int = 0) -> dict[str, Any]:
    return {"id": key, "name": name, "n": n}


def upsert(table: Any, rows: list[Any], deleted: list[Any] | None = None) -> None:
    writer = table.new_upsert().create_writer()
    for each in rows:
        writer.upsert(each)
    for key in deleted or []:
        writer.delete(key)
    writer.flush()


def apply(state: Rows, changes: pa.Table, *, strict: bool = True) -> None:
    """Apply changes to rows by id; each must fit what is there. Without before-images updates may be inserts."""
    for change in changes.to_pylist():
        kind = change.pop("_change_type")
        del change["_log_offset"], change["_commit_timestamp"]
        key = change["id"]
        if kind == "+I":
            assert key not in state, f"{change} was there already: {state[key]}"
        elif kind in ("-U", "-D"):
            assert state.pop(key) == change
        else:
            assert kind == "+U"
            assert not strict or key not in state, "an update without its before-image"
        if kind in ("+I", "+U"):
            state[key] = change


class Follower:
    """Writes, follows, compares. Everything is decided by the seed."""

    def __init__(self, table: Any, seed: int, *, strict: bool = True) -> None:
        self.table = table
        self.random = random.Random(seed)
        self.strict = strict
        self.rows: Rows = {}
        """What was written."""
        self.seen: Rows = {}
        """What the reader's changes leave."""
        self.writer = table.new_upsert().create_writer()
        self.changes = table.changes("snapshot")
        self.resumed = self.resumed_within_rows = 0

    def write(self) -> None:
        """Some upserts and deletes, acknowledged."""
        for _ in range(self.random.randint(1, 20)):
            key = self.random.randrange(KEYS)
            if self.random.random() < 0.3:
                self.writer.delete({"id": key})
                self.rows.pop(key, None)
            else:
                self.rows[key] = {"id": key, "name": f"n{key}", "n": self.random.randrange(1 << 40)}
                self.writer.upsert(self.rows[key])
        self.writer.flush()

    def poll(self, timeout_ms: int) -> int:
        found = self.changes.poll(timeout_ms)
        apply(self.seen, found, strict=self.strict)
        return int(found.num_rows)

    def resume(self) -> None:
        """Stop, and go on from the stored position with a new reader."""
        text = self.changes.position.to_json()
        self.changes.close()
        position = fluss.ChangesPosition.from_json(text)
        assert position == self.changes.position
        assert hash(position) == hash(self.changes.position)
        self.resumed += 1
        self.resumed_within_rows += any(item.after_key is not None for item in position.buckets)
        self.changes = self.table.changes(position)

    def check_whole_read(self) -> None:
        """A whole-table read equals the fold of the changelog up to its offsets."""
        found, offsets = self.table.new_scan().to_arrow_with_offsets()
        scanner = self.table.new_scan().create_changelog_batch_scanner()
        scanner.subscribe_buckets(dict.fromkeys([bucket.bucket for bucket in offsets], fluss.EARLIEST_OFFSET))
        log = scanner.to_arrow()
        scanner.close()
        state: Rows = {}
        bucket_of = self._buckets(log)
        keep = [
            place
            for place, (key, offset) in enumerate(
                zip(log["id"].to_pylist(), log["_log_offset"].to_pylist(), strict=True)
            )
            if offset < offsets[bucket_of[key]]
        ]
        apply(state, log.take(pa.array(keep, pa.int64())), strict=self.strict)
        assert {row["id"]: row for row in found.to_pylist()} == state
        assert found.num_rows == len(state)

    def _buckets(self, log: pa.Table) -> dict[int, fluss.TableBucket]:
        """Which bucket a key is in, as the records say."""
        scanner = self.table.new_scan().create_log_scanner()
        buckets = range(self.table.get_table_info().num_buckets)
        scanner.subscribe_buckets(dict.fromkeys(buckets, fluss.EARLIEST_OFFSET))
        found: dict[int, fluss.TableBucket] = {}
        wanted = set(log["id"].to_pylist())
        while not wanted <= found.keys():
            for bucket, records in scanner.poll(1_000).items():
                found |= {record.row["id"]: bucket for record in records}
        scanner.close()
        return found

    def start_anew(self) -> None:
        self.changes.close()
        self.seen = {}
        self.changes = self.table.changes("snapshot")

    def run(self, steps: int) -> None:
        for _ in range(steps):
            action = self.random.random()
            if action < 0.25:
                self.write()
            elif action < 0.7:
                self.poll(self.random.choice([0, 20, 100]))
            elif action < 0.85:
                self.resume()
            elif action < 0.95:
                self.start_anew()
            else:
                self.check_whole_read()
        deadline = time.monotonic() + DEADLINE_S
        while self.seen != self.rows and time.monotonic() < deadline:
            self.poll(200)
        assert self.seen == self.rows
        self.changes.close()

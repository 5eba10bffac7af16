"""One bucket between two offsets, and the rows of a primary-key table as they were at an offset."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fluss.client.client import ClientCore
from fluss.client.current import current_rows
from fluss.client.current.current_rows import BucketRows
from fluss.client.current.rows_at import RowsAt, _Patched
from fluss.client.runtime import run
from fluss.client.scan.filter import ScanFilter
from fluss.formats.changelog import fold
from fluss.formats.rows.keys import primary_key_encoder
from fluss.sync import (
    Config,
    ErrorCode,
    FlussConnection,
    FlussTable,
    InvalidRequestError,
    NotFoundError,
    OffsetSpec,
    Schema,
    TableBucket,
    TableDescriptor,
    TablePath,
    col,
)
from fluss.testing import FlussServer

LOG = Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))
KEYED = Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]), ["id"])

_numbers = itertools.count()
Rows = dict[int, str]


@pytest.fixture(scope="module")
def connection(server: FlussServer) -> Iterator[FlussConnection]:
    with FlussConnection.create(Config({"bootstrap.servers": server.bootstrap_servers})) as connected:
        yield connected


def create(connection: FlussConnection, schema: Schema, **options: Any) -> FlussTable:
    path = TablePath("fluss", f"reads_{next(_numbers)}")
    connection.get_admin().create_table(path, TableDescriptor(schema, **{"bucket_count": 1, **options}))
    return connection.get_table(path)


def bucket(table: FlussTable, partition_id: int | None = None) -> TableBucket:
    return TableBucket(table.get_table_info().table_id, 0, partition_id)


def latest(connection: FlussConnection, table: FlussTable) -> int:
    return connection.get_admin().list_offsets(table.get_table_path(), [0], OffsetSpec.latest())[0]


def append(table: FlussTable, *sizes: int) -> None:
    """Batches of rows whose ids are their offsets."""
    start = 0
    with table.new_append().create_writer() as writer:
        for size in sizes:
            ids = list(range(start, start + size))
            writer.write_arrow_batch(pa.record_batch([ids, [f"n{i}" for i in ids]], schema=table.arrow_schema))
            writer.flush()
            start += size


def rows_at(table: FlussTable, offset: int | None, target: TableBucket | None = None) -> Rows:
    batches = list(table.new_scan().read_bucket_at(target or bucket(table), offset))
    found = pa.Table.from_batches(batches, table.arrow_schema)
    rows: Rows = dict(zip(found["id"].to_pylist(), found["name"].to_pylist(), strict=True))
    assert len(rows) == found.num_rows
    return rows


class Story:
    """Random upserts and deletes of a few keys, and what was there after each of some steps."""

    def __init__(self, connection: FlussConnection, table: FlussTable, random_: random.Random) -> None:
        self._connection = connection
        self.table = table
        self._random = random_
        self._state: Rows = {}
        self.states: dict[int, Rows] = {0: {}}

    def go_on(self, steps: int, keys: int = 60) -> None:
        with self.table.new_upsert().create_writer() as writer:
            for _ in range(steps):
                for _ in range(self._random.randint(1, 30)):
                    key, name = self._random.randrange(keys), f"v{self._random.random()}"
                    if self._random.random() < 0.3:
                        writer.delete({"id": key})
                        self._state.pop(key, None)
                    else:
                        writer.upsert({"id": key, "name": name})
                        self._state[key] = name
                writer.flush()
                self.states[latest(self._connection, self.table)] = dict(self._state)


@pytest.fixture
def story(connection: FlussConnection) -> Story:
    seed = random.randrange(2**32)
    print("seed", seed)
    return Story(connection, create(connection, KEYED), random.Random(seed))


# ---- between offsets ----


@pytest.mark.parametrize(("start", "end"), [(0, 60), (0, 0), (60, 60), (7, 8), (9, 31), (10, 30), (59, 60)])
def test_ranges_are_exact(connection: FlussConnection, start: int, end: int) -> None:
    table = create(connection, LOG)
    append(table, 10, 20, 30)
    found = [i for b in table.new_scan().read_bucket(bucket(table), start, end) for i in b.column("id").to_pylist()]
    assert found == list(range(start, end))


def test_a_range_is_projected_and_filtered(connection: FlussConnection) -> None:
    table = create(connection, LOG)
    append(table, 10, 20, 30)
    scan = table.new_scan().project_by_name(["name"]).filter((col("id") < 12) | (col("id") > 27))
    batches = list(scan.read_bucket(bucket(table), 8, 29, changelog=True))
    found = pa.Table.from_batches(batches)
    assert found.schema.names == ["_change_type", "_log_offset", "_commit_timestamp", "name"]
    assert found["_log_offset"].to_pylist() == [8, 9, 10, 11, 28]
    assert found["name"].to_pylist() == ["n8", "n9", "n10", "n11", "n28"]
    assert set(found["_change_type"].to_pylist()) == {"+A"}


def test_ranges_that_are_none(connection: FlussConnection) -> None:
    table = create(connection, LOG)
    append(table, 10)
    scan = table.new_scan()
    for start, end in ((3, 2), (-1, 5)):
        with pytest.raises(InvalidRequestError, match="is not a range of offsets"):
            list(scan.read_bucket(bucket(table), start, end))
    with pytest.raises(InvalidRequestError, match="has id"):
        list(scan.read_bucket(TableBucket(10**6, 0), 0, 5))
    with pytest.raises(InvalidRequestError, match="has no bucket 1"):
        list(scan.read_bucket(TableBucket(table.get_table_info().table_id, 1), 0, 5))
    with pytest.raises(InvalidRequestError, match="no primary key"):
        scan.read_bucket_at(bucket(table), 5)


def test_batch_starts(connection: FlussConnection) -> None:
    table = create(connection, LOG)
    append(table, 10, 20, 30)
    wanted = [0, 9, 10, 29, 30, 59]
    assert table.new_scan().batch_starts(bucket(table), wanted) == [0, 0, 10, 10, 30, 30]
    assert table.new_scan().batch_starts(bucket(table), []) == []
    assert table.new_scan().batch_starts(bucket(table), [60, 1000]) == [60, 1000]


def test_batch_starts_of_indexed_logs(connection: FlussConnection) -> None:
    table = create(connection, LOG, log_format="INDEXED")
    with table.new_append().create_writer() as writer:
        for row in range(10):
            writer.append({"id": row, "name": None})
            writer.flush()
    assert table.new_scan().batch_starts(bucket(table), [0, 4, 9]) == [0, 4, 9]


def test_partitions(connection: FlussConnection) -> None:
    schema = Schema(pa.schema([("id", pa.int64()), ("name", pa.string()), ("day", pa.string())]), ["id", "day"])
    table, admin = create(connection, schema, partition_keys=["day"]), connection.get_admin()
    path = table.get_table_path()
    for day in ("a", "b"):
        admin.create_partition(path, {"day": day})
    with table.new_upsert().create_writer() as writer:
        for number in range(6):
            writer.upsert({"id": number, "name": "old", "day": "ab"[number % 2]})
    ids = {item.partition_name: item.partition_id for item in admin.list_partition_infos(path)}
    target = bucket(table, ids["b"])
    with table.new_upsert().create_writer() as writer:
        writer.upsert({"id": 3, "name": "new", "day": "b"})
    with FlussConnection.create(Config({"bootstrap.servers": connection_address(connection)})) as fresh:
        again = fresh.get_table(path)
        assert again.new_scan().batch_starts(target, [1, 4]) == [0, 3]
        assert rows_at(again, 3, target) == {1: "old", 3: "old", 5: "old"}
        assert rows_at(again, 5, target) == {1: "old", 3: "new", 5: "old"}
        assert [b.num_rows for b in again.new_scan().read_bucket(target, 1, 4)] == [2, 1]
    admin.drop_partition(path, {"day": "b"})
    for batches in (table.new_scan().read_bucket(target, 0, 3), table.new_scan().read_bucket_at(target, 3)):
        with pytest.raises(NotFoundError) as raised:
            list(batches)
        assert raised.value.error_code == ErrorCode.PARTITION_NOT_EXISTS


def connection_address(connection: FlussConnection) -> str:
    node = connection.get_admin().get_server_nodes()[0]
    return node.address


# ---- at an offset ----


def test_rows_at_every_offset_of_a_story(connection: FlussConnection, story: Story) -> None:
    story.go_on(25)
    for offset, state in story.states.items():
        assert rows_at(story.table, offset) == state, offset


def test_changes_are_folded_in_parts(
    connection: FlussConnection, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "PENDING_ROWS_MAX", 5)
    monkeypatch.setattr(current_rows, "ANSWER_SIZE_BYTES_MAX", 300)
    story.go_on(15)
    for offset, state in story.states.items():
        assert rows_at(story.table, offset) == state, offset


def test_columns_and_rows_of_an_offset(connection: FlussConnection) -> None:
    table = create(connection, KEYED)
    with table.new_upsert().create_writer() as writer:
        for number in range(10):
            writer.upsert({"id": number, "name": "old"})
        writer.flush()
        for number in range(5, 12):
            writer.upsert({"id": number, "name": "new"})
    scan = table.new_scan().project_by_name(["id"]).filter((col("name") == "old") & (col("id") > 2))
    found = pa.Table.from_batches(scan.read_bucket_at(bucket(table), 10))
    assert found.schema.names == ["id"]
    assert sorted(found["id"].to_pylist()) == list(range(3, 10))


def test_rows_go_on_exactly_when_the_server_restarts(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_rows, "ANSWER_SIZE_BYTES_MAX", 2_000)
    with (
        FlussServer(tmp_path / "data") as server,
        FlussConnection.create(Config({"bootstrap.servers": server.bootstrap_servers})) as connection,
    ):
        table = create(connection, KEYED)
        with table.new_upsert().create_writer() as writer:
            for number in range(2_000):
                writer.upsert({"id": number, "name": "old"})
        offset = latest(connection, table)
        batches = table.new_scan().read_bucket_at(bucket(table), offset)
        found = [next(batches)]
        server.restart()
        with table.new_upsert().create_writer() as writer:
            for number in range(0, 4_000, 3):
                writer.upsert({"id": number, "name": "new"})
            for number in range(0, 2_000, 7):
                writer.delete({"id": number})
        found += batches
    ids = [number for batch in found for number in batch.column("id").to_pylist()]
    assert len(found) > 2
    assert sorted(ids) == list(range(2_000))
    assert {name for batch in found for name in batch.column("name").to_pylist()} == {"old"}


class FixedRows:
    """Rows of a bucket as they were at some time, a few at a time."""

    def __init__(self, batches: list[pa.RecordBatch], keys: list[bytes], log_offset: int) -> None:
        self._batches = list(zip(batches, keys, strict=True))
        self.log_offset = log_offset
        self.last_key: bytes | None = None

    async def next(self) -> pa.RecordBatch | None:
        if not self._batches:
            return None
        batch, self.last_key = self._batches.pop(0)
        return batch

    def close(self) -> None:
        """Nothing is held."""


def test_older_rows_are_brought_forward(client: ClientCore, connection: FlussConnection, story: Story) -> None:
    """The server may have rows in its log that it has not applied to its store yet."""
    story.go_on(12)
    table = run(client.table(story.table.get_table_path()))
    keys = primary_key_encoder(table.info.descriptor)
    target = bucket(story.table)
    offsets = sorted(story.states)
    for older, wanted in itertools.combinations(offsets, 2):
        rows = pa.table({"id": list(story.states[older]), "name": list(story.states[older].values())})
        rows = rows.cast(table.arrow_schema).take(pc.sort_indices(keys.encode(_one(rows.cast(table.arrow_schema)))))
        batches = rows.to_batches(max_chunksize=7)
        opened: BucketRows = FixedRows(batches, [keys.encode(b)[-1].as_py() for b in batches], older)
        changed = run(RowsAt(client.cluster, table.info, target, wanted)._changed_since(older, wanted))
        found: Rows = {}
        patched = _Patched(opened, changed, keys, None)
        while (chunk := run(patched.next())) is not None:
            found |= dict(zip(*(column.to_pylist() for column in chunk.rows.columns), strict=True))
        assert found == story.states[wanted], (older, wanted)


def _one(rows: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in rows.columns], schema=rows.schema)


def test_a_filter_is_judged_at_the_offset(client: ClientCore, story: Story) -> None:
    story.go_on(6)
    table = run(client.table(story.table.get_table_path()))
    wanted = ScanFilter(col("id") < 30, table.info.schema)
    for offset, state in story.states.items():
        batches = RowsAt(client.cluster, table.info, bucket(story.table), offset, [0], wanted).batches()
        found = {number for batch in batches for number in batch.column("id").to_pylist()}
        assert found == {key for key in state if key < 30}


def test_what_is_not_kept(connection: FlussConnection) -> None:
    table = create(connection, KEYED, properties={"table.changelog.image": "WAL"})
    with table.new_upsert().create_writer() as writer:
        for name in ("old", "new"):
            writer.upsert({"id": 1, "name": name})
            writer.flush()
    assert rows_at(table, 2) == {1: "new"}
    with pytest.raises(InvalidRequestError, match=r"as of offset 1 are not known: table\.changelog\.image is WAL"):
        rows_at(table, 1)
    assert rows_at(table, None) == {1: "new"}


def test_an_offset_within_an_update(connection: FlussConnection) -> None:
    table = create(connection, KEYED)
    with table.new_upsert().create_writer() as writer:
        for name in ("old", "new"):
            writer.upsert({"id": 1, "name": name})
            writer.flush()
    assert rows_at(table, 1) == {1: "old"}
    with pytest.raises(InvalidRequestError, match="offset 2 are not known: it lies in the middle of an update"):
        rows_at(table, 2)


def test_a_reader_that_stops_early_lets_go(connection: FlussConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_rows, "ANSWER_SIZE_BYTES_MAX", 200)
    table = create(connection, KEYED)
    with table.new_upsert().create_writer() as writer:
        for number in range(500):
            writer.upsert({"id": number, "name": "x"})
    offset = latest(connection, table)
    # More than a server holds open at once for a bucket: each must be closed behind its reader.
    for _ in range(20):
        batches = table.new_scan().read_bucket_at(bucket(table), offset)
        assert next(batches).num_rows
        del batches
    assert len(rows_at(table, offset)) == 500

"""Batches of a query that are stored once, over every facade; on Apache Fluss an error that says why not."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pyarrow as pa
import pytest

import fluss
from tests.behaviour.conftest import Client
from tests.kit.backends import APACHE, EMBEDDED, OURS

# Apache Fluss has no staged writes.
ON_OURS = pytest.mark.parametrize("backend", [OURS, EMBEDDED], indirect=True)
COLUMNS = [("id", pa.int64()), ("name", pa.string())]
SUMS = fluss.Schema.of(
    [
        fluss.Column("id", fluss.DataTypes.bigint().not_null()),
        fluss.Column("total", fluss.DataTypes.bigint(), agg_function=fluss.AggFunction("sum")),
    ],
    ["id"],
)


def people(*ids: int, name: str = "x") -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "name": [f"{name}{number}" for number in ids]})


def stage(client: Client, write: Any, *batches: pa.RecordBatch, task: int = 0, attempt: int = 0) -> fluss.StagedTask:
    writer = write.create_writer(task, attempt)
    for batch in batches:
        client.do(writer.write_arrow_batch(batch))
    staged: fluss.StagedTask = client.do(writer.finish())
    client.do(writer.close())
    return staged


def ids(client: Client, table: Any) -> list[int]:
    return sorted(client.read(table).column("id").to_pylist())


def rows(client: Client, table: Any) -> list[dict[str, Any]]:
    found = client.do(table.new_scan().to_arrow()).to_pylist()
    return sorted(found, key=lambda row: row["id"])


@ON_OURS
def test_appends(client: Client) -> None:
    table = client.create("staged", COLUMNS, bucket_count=3)
    write = table.new_staged_write("a/../query", 0)
    tasks = [stage(client, write, people(task), people(task + 10), task=task) for task in range(4)]
    stage(client, write, people(99), task=0, attempt=1)
    assert ids(client, table) == []
    # The tasks run in other processes than the commit.
    chosen = pickle.loads(pickle.dumps(tasks))
    for repeated in (False, True):
        again = table.new_staged_write("a/../query", 0)
        assert client.do(again.commit(chosen))
        assert again.is_repeated is repeated
        assert ids(client, table) == [0, 1, 2, 3, 10, 11, 12, 13]
    following = table.new_staged_write("a/../query", 1)
    client.do(following.commit([stage(client, following, people(50))]))
    assert ids(client, table)[-1] == 50


@ON_OURS
def test_upserts_and_deletes_in_their_order(client: Client) -> None:
    table = client.create("staged_rows", COLUMNS, ["id"], bucket_count=2)
    client.upsert(table, [{"id": 1, "name": "old"}, {"id": 2, "name": "old"}])
    write = table.new_staged_write("query", 7)
    writer = write.create_writer(0, 0)
    client.do(writer.write_arrow_batch(people(1, 2, 3)))
    client.do(writer.delete_arrow_batch(people(1, 3).select(["id"])))
    client.do(writer.write_arrow_batch(people(3, name="y")))
    task = client.do(writer.finish())
    assert rows(client, table) == [{"id": 1, "name": "old"}, {"id": 2, "name": "old"}]
    client.do(write.commit([task]))
    assert rows(client, table) == [{"id": 2, "name": "x2"}, {"id": 3, "name": "y3"}]


@ON_OURS
def test_a_partial_update(client: Client) -> None:
    table = client.create("staged_parts", [("id", pa.int64()), ("a", pa.string()), ("b", pa.string())], ["id"])
    client.upsert(table, [{"id": 1, "a": "a", "b": "b"}])
    write = table.new_staged_write("query", 0)
    writer = write.create_writer(0, 0, columns=["id", "b"])
    client.do(writer.write_arrow_batch(pa.record_batch({"id": [1, 2], "b": ["new", "new"]})))
    client.do(write.commit([client.do(writer.finish())]))
    assert rows(client, table) == [{"id": 1, "a": "a", "b": "new"}, {"id": 2, "a": None, "b": "new"}]


@ON_OURS
def test_sums_are_exact(client: Client) -> None:
    table = client.create("staged_sums", SUMS, bucket_count=3, properties={"table.merge-engine": "aggregation"})
    for batch_id in range(3):
        write = table.new_staged_write("query", batch_id)
        batch = pa.record_batch({"id": [1, 2, 1], "total": [1, 10, 100]})
        tasks = [stage(client, write, batch, batch, task=task) for task in range(2)]
        for _ in range(2):
            client.do(write.commit(tasks))
    assert rows(client, table) == [{"id": 1, "total": 12 * 101}, {"id": 2, "total": 120}]


@ON_OURS
def test_partitions_are_made_where_that_is_wanted(client: Client) -> None:
    table = client.create("staged_days", [("id", pa.int64()), ("day", pa.string())], partition_keys=["day"])
    batch = pa.record_batch({"id": [1, 2, 3], "day": ["mon", "tue", "mon"]})
    with pytest.raises(fluss.NotFoundError, match="does not exist: create it"):
        stage(client, table.new_staged_write("query", 0), batch)
    settings = {
        "bootstrap.servers": client.backend.bootstrap_servers,
        "writer.dynamic-create-partition.enabled": "true",
    }
    conn = client.do(client.api.FlussConnection.create(fluss.Config(settings)))
    write = client.do(conn.get_table(table.table_path)).new_staged_write("query", 0)
    client.do(write.commit([stage(client, write, batch, attempt=1)]))
    client.do(conn.close())
    assert rows(client, table) == batch.to_pylist()
    # A partition that is made anew is another one: its id was kept by the client.
    write = table.new_staged_write("query", 1)
    client.do(write.commit([stage(client, write, batch)]))
    client.do(client.admin.drop_partition(table.table_path, {"day": "mon"}))
    client.do(client.admin.create_partition(table.table_path, {"day": "mon"}))
    write = table.new_staged_write("query", 2)
    client.do(write.commit([stage(client, write, batch)]))
    assert [row["id"] for row in rows(client, table)] == [1, 2, 2, 2, 3]


@ON_OURS
def test_an_aborted_batch_is_gone(client: Client) -> None:
    table = client.create("staged_abort", COLUMNS)
    write = table.new_staged_write("query", 0)
    task = stage(client, write, people(1))
    client.do(write.abort())
    with pytest.raises(fluss.InvalidRequestError, match="0 of 1 requests"):
        client.do(write.commit([task]))
    client.do(write.commit([stage(client, write, people(2), attempt=1)]))
    client.do(write.abort())
    assert ids(client, table) == [2]


@ON_OURS
def test_large_batches_take_several_requests(client: Client) -> None:
    table = client.create("staged_large", COLUMNS, bucket_count=2)
    write = table.new_staged_write("query", 0)
    batch = pa.record_batch({"id": pa.array(range(100_000), pa.int64()), "name": ["z" * 100] * 100_000})
    task = stage(client, write, *[batch] * 3)
    assert task.request_count > 1
    client.do(write.commit([task]))
    assert ids(client, table) == sorted(list(range(100_000)) * 3)


@ON_OURS
def test_what_is_refused(client: Client) -> None:
    table = client.create("staged_refused", COLUMNS)
    for query, batch_id in (("", 0), (5, 0), ("q", -1), ("q", 1.5), ("q", True), ("q", 2**63)):
        with pytest.raises(fluss.InvalidRequestError):
            table.new_staged_write(query, batch_id)
    write = table.new_staged_write("q", 0)
    for task, attempt in ((-1, 0), (2**31, 0), (0, -1), (0, "1")):
        with pytest.raises(fluss.InvalidRequestError):
            write.create_writer(task, attempt)
    with pytest.raises(fluss.InvalidRequestError, match="no primary key"):
        write.create_writer(0, 0, columns=["id"])
    writer = write.create_writer(0, 0)
    with pytest.raises(fluss.InvalidRequestError, match="takes no deletes"):
        client.do(writer.delete_arrow_batch(people(1)))
    with pytest.raises(fluss.SchemaMismatchError):
        client.do(writer.write_arrow_batch(pa.record_batch({"other": [1]})))
    client.do(writer.finish())
    with pytest.raises(fluss.FlussError, match="finished"):
        client.do(writer.write_arrow_batch(people(1)))


def write(client: Client, table: Any, batch_id: int, *tasks: list[pa.RecordBatch], attempt: int = 0) -> bool:
    """A batch by several tasks; whether it had been committed before."""
    staged_write = table.new_staged_write("again", batch_id)
    staged = [stage(client, staged_write, *batches, task=task, attempt=attempt) for task, batches in enumerate(tasks)]
    client.do(staged_write.commit(staged))
    repeated: bool = staged_write.is_repeated
    return repeated


FORMATS: dict[str, dict[str, Any]] = {
    "log": {"bucket_count": 3},
    "plain_log": {"bucket_count": 1, "properties": {"table.log.arrow.compression.type": "NONE"}},
    "indexed_log": {"bucket_count": 2, "properties": {"table.log.format": "INDEXED"}},
    "rows": {"bucket_count": 3, "primary_keys": ["id"]},
    "indexed_rows": {"bucket_count": 2, "primary_keys": ["id"], "properties": {"table.kv.format": "INDEXED"}},
}


@ON_OURS
@pytest.mark.parametrize("kind", FORMATS)
def test_the_last_batch_comes_again(client: Client, kind: str) -> None:
    """Cut otherwise, in another order, by other tasks, it is known; with one row more or less or other it is not."""
    table = client.create(f"again_{kind}", COLUMNS, **FORMATS[kind])
    batch = people(*range(100))
    assert not write(client, table, 3, [batch])
    shuffled = batch.take(pa.array(random.Random(1).sample(range(100), 100)))
    assert write(client, table, 3, [shuffled.slice(0, 7), shuffled.slice(7, 30)], [shuffled.slice(37)], attempt=1)
    others = (batch.slice(1), people(*range(101)), people(*range(99), 99, name="y"), people(*range(99), 100))
    for attempt, other in enumerate((*others, batch.slice(0, 0)), 2):
        with pytest.raises(
            fluss.InvalidRequestError, match=r"`fluss staged accept .* again 3`.*reset .* 2`\.$"
        ) as raised:
            write(client, table, 3, [other], attempt=attempt)
        assert not raised.value.is_retriable
    with pytest.raises(fluss.InvalidRequestError, match="is refused: batch 3 is the last one committed"):
        write(client, table, 2, [batch], attempt=9)
    assert [row["id"] for row in rows(client, table)] == list(range(100))


@ON_OURS
def test_what_a_row_is_for_counts_as_well(client: Client) -> None:
    """To delete a key, to upsert it, and to set one of its columns to null are three things."""
    columns = [("id", pa.int64()), ("a", pa.string()), ("b", pa.string())]
    table = client.create("again_kinds", columns, ["id"])
    rows = pa.record_batch({"id": [1], "a": pa.nulls(1, pa.string()), "b": pa.nulls(1, pa.string())})
    found = set()
    for attempt, names in enumerate((None, ["id", "a"], ["id", "b"], ["id", "a", "b"], ["id"], "delete")):
        chosen = None if names == "delete" else names
        writer = table.new_staged_write("again", 0).create_writer(0, attempt, columns=chosen)
        if names == "delete":
            client.do(writer.delete_arrow_batch(rows.select(["id"])))
        else:
            client.do(writer.write_arrow_batch(rows if names is None else rows.select(names)))
        task = client.do(writer.finish())
        assert task.row_count == 1
        found.add(task.digest)
    assert len(found) == 6
    # The order of columns is none of them.
    digests = []
    for attempt, names in enumerate((["id", "a"], ["a", "id"]), 10):
        writer = table.new_staged_write("again", 0).create_writer(0, attempt, columns=names)
        client.do(writer.write_arrow_batch(rows.select(names)))
        digests.append(client.do(writer.finish()).digest)
    assert digests[0] == digests[1]


@ON_OURS
def test_a_batch_comes_again_after_its_table_got_a_column(client: Client) -> None:
    table = client.create("again_altered", COLUMNS)
    assert not write(client, table, 0, [people(1, 2)])
    client.do(client.admin.alter_table(table.table_path, add_columns=[("more", fluss.DataTypes.string())]))
    altered = client.do(client.conn.get_table(table.table_path))
    more = people(2, 1).append_column("more", pa.nulls(2, pa.string()))
    assert write(client, altered, 0, [more], attempt=1)


@ON_OURS
def test_a_dropped_table(client: Client) -> None:
    table = client.create("staged_dropped", COLUMNS)
    write = table.new_staged_write("q", 0)
    task = stage(client, write, people(1))
    client.do(client.admin.drop_table(table.table_path))
    with pytest.raises(fluss.NotFoundError):
        client.do(write.commit([task]))
    with pytest.raises(fluss.NotFoundError):
        stage(client, write, people(1))


def test_apache_fluss_says_what_is_needed(client: Client) -> None:
    table = client.create("staged_where", COLUMNS)
    if client.backend.kind != APACHE:
        client.do(table.check_staged_writes())
        return
    write = table.new_staged_write("q", 0)
    for call in (
        table.check_staged_writes,
        write.abort,
        lambda: write.commit([]),
        lambda: stage(client, write, people(1)),
    ):
        with pytest.raises(fluss.InvalidRequestError, match="Flussbett server"):
            client.do(call())

"""Batches of a query that are stored once, over every facade; on Apache Fluss an error that says why not."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

import fluss
from tests.backends import APACHE
from tests.behaviour.conftest import Client

COLUMNS = [("id", pa.int64()), ("name", pa.string())]
SUMS = fluss.Schema.of(
    [
        fluss.Column("id", fluss.DataTypes.bigint().not_null()),
        fluss.Column("total", fluss.DataTypes.bigint(), agg_function=fluss.AggFunction("sum")),
    ],
    ["id"],
)


@pytest.fixture
def ours(client: Client) -> Client:
    """A client of a server that knows staged writes."""
    if client.backend.kind == APACHE:
        pytest.skip("Apache Fluss has no staged writes")
    return client


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


def test_appends(ours: Client) -> None:
    table = ours.create("staged", COLUMNS, bucket_count=3)
    write = table.new_staged_write("a/../query", 0)
    tasks = [stage(ours, write, people(task), people(task + 10), task=task) for task in range(4)]
    stage(ours, write, people(99), task=0, attempt=1)
    assert ids(ours, table) == []
    # The tasks run in other processes than the commit.
    chosen = pickle.loads(pickle.dumps(tasks))
    for repeated in (False, True):
        again = table.new_staged_write("a/../query", 0)
        assert ours.do(again.commit(chosen))
        assert again.is_repeated is repeated
        assert ids(ours, table) == [0, 1, 2, 3, 10, 11, 12, 13]
    following = table.new_staged_write("a/../query", 1)
    ours.do(following.commit([stage(ours, following, people(50))]))
    assert ids(ours, table)[-1] == 50


def test_upserts_and_deletes_in_their_order(ours: Client) -> None:
    table = ours.create("staged_rows", COLUMNS, ["id"], bucket_count=2)
    ours.upsert(table, [{"id": 1, "name": "old"}, {"id": 2, "name": "old"}])
    write = table.new_staged_write("query", 7)
    writer = write.create_writer(0, 0)
    ours.do(writer.write_arrow_batch(people(1, 2, 3)))
    ours.do(writer.delete_arrow_batch(people(1, 3).select(["id"])))
    ours.do(writer.write_arrow_batch(people(3, name="y")))
    task = ours.do(writer.finish())
    assert rows(ours, table) == [{"id": 1, "name": "old"}, {"id": 2, "name": "old"}]
    ours.do(write.commit([task]))
    assert rows(ours, table) == [{"id": 2, "name": "x2"}, {"id": 3, "name": "y3"}]


def test_a_partial_update(ours: Client) -> None:
    table = ours.create("staged_parts", [("id", pa.int64()), ("a", pa.string()), ("b", pa.string())], ["id"])
    ours.upsert(table, [{"id": 1, "a": "a", "b": "b"}])
    write = table.new_staged_write("query", 0)
    writer = write.create_writer(0, 0, columns=["id", "b"])
    ours.do(writer.write_arrow_batch(pa.record_batch({"id": [1, 2], "b": ["new", "new"]})))
    ours.do(write.commit([ours.do(writer.finish())]))
    assert rows(ours, table) == [{"id": 1, "a": "a", "b": "new"}, {"id": 2, "a": None, "b": "new"}]


def test_sums_are_exact(ours: Client) -> None:
    table = ours.create("staged_sums", SUMS, bucket_count=3, properties={"table.merge-engine": "aggregation"})
    for batch_id in range(3):
        write = table.new_staged_write("query", batch_id)
        batch = pa.record_batch({"id": [1, 2, 1], "total": [1, 10, 100]})
        tasks = [stage(ours, write, batch, batch, task=task) for task in range(2)]
        for _ in range(2):
            ours.do(write.commit(tasks))
    assert rows(ours, table) == [{"id": 1, "total": 12 * 101}, {"id": 2, "total": 120}]


def test_partitions_are_made_where_that_is_wanted(ours: Client) -> None:
    table = ours.create("staged_days", [("id", pa.int64()), ("day", pa.string())], partition_keys=["day"])
    batch = pa.record_batch({"id": [1, 2, 3], "day": ["mon", "tue", "mon"]})
    with pytest.raises(fluss.NotFoundError, match="does not exist: create it"):
        stage(ours, table.new_staged_write("query", 0), batch)
    settings = {
        "bootstrap.servers": ours.backend.bootstrap_servers,
        "writer.dynamic-create-partition.enabled": "true",
    }
    conn = ours.do(ours.api.FlussConnection.create(fluss.Config(settings)))
    write = ours.do(conn.get_table(table.table_path)).new_staged_write("query", 0)
    ours.do(write.commit([stage(ours, write, batch, attempt=1)]))
    ours.do(conn.close())
    assert rows(ours, table) == batch.to_pylist()
    # A partition that is made anew is another one: its id was kept by the client.
    write = table.new_staged_write("query", 1)
    ours.do(write.commit([stage(ours, write, batch)]))
    ours.do(ours.admin.drop_partition(table.table_path, {"day": "mon"}))
    ours.do(ours.admin.create_partition(table.table_path, {"day": "mon"}))
    write = table.new_staged_write("query", 2)
    ours.do(write.commit([stage(ours, write, batch)]))
    assert [row["id"] for row in rows(ours, table)] == [1, 2, 2, 2, 3]


def test_an_aborted_batch_is_gone(ours: Client) -> None:
    table = ours.create("staged_abort", COLUMNS)
    write = table.new_staged_write("query", 0)
    task = stage(ours, write, people(1))
    ours.do(write.abort())
    with pytest.raises(fluss.InvalidRequestError, match="0 of 1 requests"):
        ours.do(write.commit([task]))
    ours.do(write.commit([stage(ours, write, people(2), attempt=1)]))
    ours.do(write.abort())
    assert ids(ours, table) == [2]


def test_large_batches_take_several_requests(ours: Client) -> None:
    table = ours.create("staged_large", COLUMNS, bucket_count=2)
    write = table.new_staged_write("query", 0)
    batch = pa.record_batch({"id": pa.array(range(100_000), pa.int64()), "name": ["z" * 100] * 100_000})
    task = stage(ours, write, *[batch] * 3)
    assert task.request_count > 1
    ours.do(write.commit([task]))
    assert ids(ours, table) == sorted(list(range(100_000)) * 3)


def test_what_is_refused(ours: Client) -> None:
    table = ours.create("staged_refused", COLUMNS)
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
        ours.do(writer.delete_arrow_batch(people(1)))
    with pytest.raises(fluss.SchemaMismatchError):
        ours.do(writer.write_arrow_batch(pa.record_batch({"other": [1]})))
    ours.do(writer.finish())
    with pytest.raises(fluss.FlussError, match="finished"):
        ours.do(writer.write_arrow_batch(people(1)))


def test_a_dropped_table(ours: Client) -> None:
    table = ours.create("staged_dropped", COLUMNS)
    write = table.new_staged_write("q", 0)
    task = stage(ours, write, people(1))
    ours.do(ours.admin.drop_table(table.table_path))
    with pytest.raises(fluss.NotFoundError):
        ours.do(write.commit([task]))
    with pytest.raises(fluss.NotFoundError):
        stage(ours, write, people(1))


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

"""Upserting and deleting rows of primary-key tables."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import fluss
from tests.behaviour.conftest import Client
from tests.behaviour.values import EVERY_SCALAR, EVERY_VALUE, NESTED, NESTED_ROWS

COLUMNS = [("id", pa.int32()), ("name", pa.string()), ("age", pa.int64())]
# The row formats of Apache Fluss hold a time of day in milliseconds, whatever its precision.
KEPT_VALUE: dict[str, Any] = {**EVERY_VALUE, "time_us": dt.time(1, 2, 3, 456000)}


def users(client: Client, name: str = "users", **options: Any) -> Any:
    return client.create(name, COLUMNS, ["id"], **options)


def row(number: int, name: str | None, age: int | None) -> dict[str, Any]:
    return {"id": number, "name": name, "age": age}


@pytest.mark.feature("Primary keys: upsert and delete")
def test_rows_in_every_shape_replace_each_other(client: Client) -> None:
    table = users(client)
    assert table.has_primary_key()
    client.upsert(table, [row(1, "Alice", 25), [2, "Bob", 30], (3, None, None), {"id": 4}])
    client.upsert(table, [row(1, "Alice", 26), fluss.GenericRow.from_data([2, "Robert", 31])], deleted=[{"id": 3}])
    assert client.lookup(table, {"id": 1}) == row(1, "Alice", 26)
    assert client.lookup(table, [2]) == row(2, "Robert", 31)
    assert client.lookup(table, (3,)) is None
    assert client.lookup(table, {"id": 4}) == row(4, None, None)


@pytest.mark.feature("Primary keys: upsert and delete")
def test_the_builder_itself_writes(client: Client) -> None:
    table = users(client)
    writer = table.new_upsert()
    writer.upsert(row(1, "Alice", 25))
    writer.write_arrow_batch(pa.RecordBatch.from_pylist([row(2, "Bob", 30)], schema=table.arrow_schema))
    client.do(writer.flush())
    handle = writer.delete({"id": 1})
    client.do(handle.wait())
    assert client.lookup(table, {"id": 1}) is None
    assert client.lookup(table, {"id": 2}) == row(2, "Bob", 30)


@pytest.mark.feature("Primary keys: upsert and delete")
def test_a_handle_waits_for_its_rows(client: Client) -> None:
    table = users(client)
    writer = table.new_upsert().create_writer()
    client.do(writer.upsert(row(1, "a", 1)).wait())
    assert client.lookup(table, {"id": 1}) == row(1, "a", 1)
    client.do(writer.delete([1]).wait())
    assert client.lookup(table, {"id": 1}) is None


@pytest.mark.feature("Primary keys: upsert and delete")
def test_later_operations_on_a_key_win(client: Client) -> None:
    table = users(client)
    writer = table.new_upsert().create_writer()
    for age in range(50):
        writer.upsert(row(1, "one", age))
        writer.upsert(row(2, "two", age))
        writer.delete({"id": 2})
    client.do(writer.flush())
    assert client.lookup(table, {"id": 1}) == row(1, "one", 49)
    assert client.lookup(table, {"id": 2}) is None


@pytest.mark.feature("Primary keys: upsert and delete")
def test_bulk_upserts_and_deletes(client: Client) -> None:
    table = users(client, bucket_count=3)
    rows = pa.Table.from_pylist([row(n, f"n{n}", n) for n in range(5_000)], schema=table.arrow_schema)
    writer = table.new_upsert().create_writer()
    writer.write_arrow(rows)
    writer.write_pandas(pd.DataFrame({"id": [0, 1], "name": ["zero", "one"], "age": [100, 101]}))
    client.do(writer.write_arrow_batch(pa.RecordBatch.from_pylist([row(2, "two", 102)], rows.schema)).wait())
    writer.delete_arrow(rows.select(["id"]).slice(4_000))
    client.do(writer.flush())
    found = client.do(table.new_lookup().create_lookuper().lookup_many([{"id": n} for n in (0, 1, 2, 3, 3_999, 4_000)]))
    assert found.to_pylist() == [
        row(0, "zero", 100),
        row(1, "one", 101),
        row(2, "two", 102),
        row(3, "n3", 3),
        row(3_999, "n3999", 3_999),
        row(None, None, None),  # type: ignore[arg-type]
    ]


@pytest.mark.feature("Primary keys: types")
def test_every_scalar_type(client: Client) -> None:
    schema = pa.schema([("key", pa.int32()), *EVERY_SCALAR])
    table = client.create("scalars", schema, ["key"])
    client.upsert(table, [{"key": 1, **EVERY_VALUE}, {"key": 2}])
    assert client.lookup(table, {"key": 1}) == {"key": 1, **KEPT_VALUE}
    assert client.lookup(table, {"key": 2}) == {"key": 2, **dict.fromkeys(EVERY_VALUE)}


@pytest.mark.feature("Primary keys: upsert and delete")
@pytest.mark.parametrize(
    "column", [name for name in EVERY_SCALAR.names if name not in ("float", "double")], ids=lambda name: str(name)
)
def test_every_scalar_type_is_a_key(client: Client, column: str) -> None:
    schema = pa.schema([EVERY_SCALAR.field(column), pa.field("n", pa.int32())])
    table = client.create("keys", schema, [column])
    value = KEPT_VALUE[column]
    client.upsert(table, [{column: value, "n": 1}, {column: value, "n": 2}])
    assert client.lookup(table, {column: value}) == {column: value, "n": 2}
    client.upsert(table, [], deleted=[[value]])
    assert client.lookup(table, [value]) is None


@pytest.mark.feature("Primary keys: types")
def test_nested_values(client: Client) -> None:
    table = client.create("nested", NESTED, ["id"])
    client.upsert(table, NESTED_ROWS)
    assert [client.lookup(table, {"id": n}) for n in (1, 2, 3)] == NESTED_ROWS


@pytest.mark.feature("Primary keys: kv formats")
@pytest.mark.parametrize("kv_format", ["COMPACTED", "INDEXED"])
def test_kv_formats(client: Client, kv_format: str) -> None:
    table = users(client, kv_format=kv_format)
    client.upsert(table, [row(1, "a", 1), row(2, None, None)])
    client.upsert(table, [row(1, "b", 2)], deleted=[[2]])
    assert client.lookup(table, [1]) == row(1, "b", 2)
    assert client.lookup(table, [2]) is None


@pytest.mark.feature("Primary keys: partial update")
def test_partial_updates(client: Client) -> None:
    table = users(client)
    client.upsert(table, [row(1, "Alice", 25)])
    writers = [
        (table.new_upsert().partial_update_by_name(["id", "age"]).create_writer(), {"id": 1, "age": 26}),
        (table.new_upsert().partial_update_by_index([0, 1]).create_writer(), {"id": 1, "name": "Alicia"}),
        (table.new_upsert(columns=["id", "age"]), {"id": 1, "age": 27}),
        (table.new_upsert().partial_update_with_column_names(["id", "name"]).create_writer(), {"id": 2, "name": "B"}),
        (table.new_upsert().partial_update([0, 2]).create_writer(), {"id": 3, "age": 3}),
    ]
    for writer, update in writers:
        writer.upsert(update)
        client.do(writer.flush())
    assert client.lookup(table, [1]) == row(1, "Alicia", 27)
    assert client.lookup(table, [2]) == row(2, "B", None)
    assert client.lookup(table, [3]) == row(3, None, 3)


@pytest.mark.feature("Primary keys: partial update")
def test_a_partial_delete_clears_its_columns(client: Client) -> None:
    table = users(client)
    client.upsert(table, [row(1, "Alice", 25)])
    ages = table.new_upsert(columns=["id", "age"]).create_writer()
    names = table.new_upsert(columns=["id", "name"]).create_writer()
    client.do(ages.delete([1]).wait())
    assert client.lookup(table, [1]) == row(1, "Alice", None)
    client.do(names.delete([1]).wait())
    assert client.lookup(table, [1]) is None


@pytest.mark.feature("Primary keys: partial update")
def test_partial_updates_in_bulk(client: Client) -> None:
    table = users(client, bucket_count=2)
    client.upsert(table, [row(n, f"n{n}", n) for n in range(100)])
    writer = table.new_upsert(columns=["id", "age"]).create_writer()
    writer.write_arrow(pa.table({"id": pa.array(range(200), pa.int32()), "age": pa.array(range(1000, 1200))}))
    client.do(writer.flush())
    assert client.lookup(table, [99]) == row(99, "n99", 1099)
    assert client.lookup(table, [199]) == row(199, None, 1199)


@pytest.mark.feature("Primary keys: partitions")
def test_partitioned_rows(client: Client) -> None:
    columns = [("user_id", pa.int32()), ("region", pa.string()), ("score", pa.int64())]
    table = client.create("parts", columns, ["user_id", "region"], partition_keys=["region"], bucket_count=2)
    path = table.get_table_path()
    for region in ("US", "EU"):
        client.do(client.admin.create_partition(path, {"region": region}))
        client.backend.await_table(path.database_name, path.table_name, region)
    rows = [{"user_id": n, "region": region, "score": n} for n in range(20) for region in ("US", "EU")]
    client.upsert(table, rows, deleted=[{"user_id": 7, "region": "EU"}])
    assert client.lookup(table, {"user_id": 7, "region": "US"}) == rows[14]
    assert client.lookup(table, {"user_id": 7, "region": "EU"}) is None
    assert client.lookup(table, [8, "EU"]) == rows[17]
    assert client.lookup(table, {"user_id": 8, "region": "nowhere"}) is None
    writer = table.new_upsert().create_writer()
    with pytest.raises(fluss.NotFoundError, match="nowhere"):
        client.do(writer.upsert([1, "nowhere", 1]).wait())


@pytest.mark.feature("Primary keys: schema evolution")
def test_old_values_are_read_through_the_new_schema(client: Client) -> None:
    table = users(client)
    path = table.get_table_path()
    client.upsert(table, [row(1, "a", 1)])
    client.do(client.admin.alter_table(path, add_columns=[("city", fluss.DataTypes.string())]))
    newer = client.do(client.conn.get_table(path))
    client.upsert(newer, [{**row(2, "b", 2), "city": "Bern"}])
    assert client.lookup(newer, [1]) == {**row(1, "a", 1), "city": None}
    assert client.lookup(newer, [2]) == {**row(2, "b", 2), "city": "Bern"}
    # A client that does not know of the new column goes on, too.
    client.upsert(table, [row(3, "c", 3)])
    assert client.lookup(table, [2]) == row(2, "b", 2)
    assert client.lookup(newer, [3]) == {**row(3, "c", 3), "city": None}


BAD_ROWS: list[tuple[str, Callable[[Any], Any], str]] = [
    ("null key", lambda writer: writer.upsert({"id": None, "name": "x"}), "id"),
    ("missing key", lambda writer: writer.upsert({"name": "x"}), "id"),
    ("unknown column", lambda writer: writer.upsert({"id": 1, "nme": "x"}), "nme"),
    ("wrong type", lambda writer: writer.upsert({"id": "one"}), "id"),
    ("out of range", lambda writer: writer.upsert({"id": 2**31}), "id"),
    ("null key of a delete", lambda writer: writer.delete({"id": None}), "id"),
    ("no key of a delete", lambda writer: writer.delete({"name": "x"}), "id"),
    ("too many values of a key", lambda writer: writer.delete([1, 2]), "id"),
    ("arrow null key", lambda writer: writer.write_arrow(pa.table({"id": pa.array([1, None], pa.int32())})), "id"),
    ("arrow wrong type", lambda writer: writer.write_arrow(pa.table({"id": ["x"]})), "id"),
    ("arrow without key", lambda writer: writer.delete_arrow(pa.table({"name": ["x"]})), "id"),
]


@pytest.mark.feature("Primary keys: upsert and delete")
@pytest.mark.parametrize(("write", "column"), [case[1:] for case in BAD_ROWS], ids=[case[0] for case in BAD_ROWS])
def test_a_bad_row_is_refused_and_leaves_no_trace(client: Client, write: Callable[[Any], Any], column: str) -> None:
    table = users(client)
    writer = table.new_upsert().create_writer()
    writer.upsert(row(7, "good", 7))
    with pytest.raises(fluss.FlussError, match=column):
        write(writer)
    writer.upsert(row(8, "good", 8))
    client.do(writer.flush())
    assert client.changes(table, 2) == [("+I", row(7, "good", 7)), ("+I", row(8, "good", 8))]


@pytest.mark.feature("Primary keys: partial update")
def test_bad_partial_updates_are_refused(client: Client) -> None:
    table = users(client)
    with pytest.raises(fluss.InvalidRequestError, match="id"):
        table.new_upsert(columns=["name", "age"]).create_writer()
    with pytest.raises(fluss.InvalidRequestError, match="nme"):
        table.new_upsert(columns=["id", "nme"]).create_writer()
    with pytest.raises(fluss.InvalidRequestError, match="9"):
        table.new_upsert().partial_update_by_index([0, 9]).create_writer()
    schema = pa.schema([pa.field("id", pa.int32()), pa.field("must", pa.string(), nullable=False), ("may", pa.int32())])
    strict = client.create("strict", schema, ["id"])
    with pytest.raises(fluss.InvalidRequestError, match="must"):
        strict.new_upsert(columns=["id", "may"]).create_writer()
    writer = strict.new_upsert().create_writer()
    with pytest.raises(fluss.FlussError, match="must"):
        writer.upsert({"id": 1, "may": 2})
    client.do(writer.delete([1]).wait())


@pytest.mark.feature("Primary keys: upsert and delete")
def test_each_kind_of_table_has_its_own_writer(client: Client) -> None:
    log = client.create("log", COLUMNS)
    with pytest.raises(fluss.InvalidRequestError, match="primary key"):
        log.new_upsert().create_writer()
    with pytest.raises(fluss.InvalidRequestError, match="primary key"):
        log.new_lookup().create_lookuper()
    with pytest.raises(fluss.InvalidRequestError, match="primary key"):
        users(client).new_append().create_writer()

"""Nested types, builders, row objects, changed schemas, row formats."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import DataField, DataTypes
from tests.behaviour.conftest import Client
from tests.behaviour.values import NESTED, NESTED_ROWS

WAIT_MS = 20_000


@pytest.mark.feature("Nested types: ARRAY, MAP, ROW")
def test_nested_rows(client: Client) -> None:
    table = client.create("nested", NESTED)
    client.append(table, NESTED_ROWS)
    assert client.read(table).to_pylist() == NESTED_ROWS
    scanner = client.do(table.new_scan().create_log_scanner())
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    assert [record.row for record in client.do(scanner.poll(WAIT_MS))] == NESTED_ROWS
    scanner.close()


@pytest.mark.feature("Nested types: ARRAY, MAP, ROW")
def test_nested_values_in_every_shape(client: Client) -> None:
    table = client.create("shapes", NESTED)
    client.append(table, [[1, ("a",), {"k": 1}, (5, ["e"]), [(2.0,)]]])
    assert client.read(table).to_pylist() == [
        {"id": 1, "tags": ["a"], "attrs": [("k", 1)], "profile": {"age": 5, "emails": ["e"]}, "matrix": [[2.0]]}
    ]


@pytest.mark.feature("Nested types: ARRAY, MAP, ROW")
def test_nested_arrow_and_projection(client: Client) -> None:
    table = client.create("arrow", NESTED)
    writer = table.new_append().create_writer()
    writer.write_arrow(pa.Table.from_pylist(NESTED_ROWS, schema=NESTED))
    client.do(writer.flush())
    expected = [{"matrix": row["matrix"], "attrs": row["attrs"]} for row in NESTED_ROWS]
    assert client.read(table, columns=["matrix", "attrs"]).to_pylist() == expected


@pytest.mark.feature("Nested types: ARRAY, MAP, ROW")
def test_a_bad_nested_value_is_named_by_its_place(client: Client) -> None:
    table = client.create("bad", NESTED)
    writer = table.new_append().create_writer()
    with pytest.raises(fluss.SchemaMismatchError, match=r"profile.*age"):
        writer.append({"id": 1, "profile": {"age": "old"}})
    with pytest.raises(fluss.SchemaMismatchError, match="tags"):
        writer.append({"id": 1, "tags": "not a list"})
    client.do(writer.flush())
    assert client.read(table).num_rows == 0


@pytest.mark.feature("Tables")
def test_tables_from_builders(client: Client) -> None:
    schema = (
        fluss.Schema.builder()
        .column("id", DataTypes.int().not_null())
        .column("code", DataTypes.char(3))
        .column("price", DataTypes.decimal(10, 2))
        .column("place", DataTypes.row([DataField("x", DataTypes.double()), DataField("y", DataTypes.double(), "up")]))
        .build()
    )
    descriptor = (
        fluss.TableDescriptor.builder()
        .schema(schema)
        .log_format(fluss.LogFormat.ARROW)
        .distributed_by(2, ["id"])
        .property("table.log.arrow.compression.type", "NONE")
        .custom_property("a", "1")
        .custom_properties({"b": "2"})
        .comment("built")
        .build()
    )
    path = fluss.TablePath(client.database, "built")
    client.do(client.admin.create_table(path, descriptor))
    client.backend.await_table(path.database_name, path.table_name)
    table = client.do(client.conn.get_table(path))
    info = table.get_table_info()
    assert info.schema == schema
    assert (info.num_buckets, info.comment, info.custom_properties) == (2, "built", {"a": "1", "b": "2"})
    row = fluss.GenericRow(4)
    row.set_field(0, 7)
    row.set_field(1, "abc")
    client.append(table, [row, fluss.GenericRow.from_data([8, None, None, {"x": 1.0, "y": 2.0}])])
    rows = sorted(client.read(table).to_pylist(), key=lambda row: int(row["id"]))
    assert rows[0] == {"id": 7, "code": "abc", "price": None, "place": None}
    assert rows[1]["place"] == {"x": 1.0, "y": 2.0}


@pytest.mark.feature("Databases")
def test_a_database_from_a_builder(client: Client) -> None:
    name = client.database + "_b"
    descriptor = fluss.DatabaseDescriptor.builder().comment("c").custom_property("k", "v").build()
    client.do(client.admin.create_database(name, descriptor))
    found = client.do(client.admin.get_database_info(name)).database_descriptor
    assert (found.comment, found.custom_properties) == ("c", {"k": "v"})
    client.do(client.admin.drop_database(name))


@pytest.mark.feature("Schema evolution: reading rows of both schemas")
def test_a_column_is_added_while_rows_are_read_and_written(client: Client) -> None:
    old = client.create("evolving", [("id", pa.int32()), ("name", pa.string())])
    path = old.get_table_path()
    client.append(old, [[1, "a"]])
    writer = old.new_append().create_writer()
    client.do(client.admin.alter_table(path, add_columns=[("score", DataTypes.double(), "how good")]))
    writer.append([2, "b"])  # a writer of the old schema goes on
    client.do(writer.flush())
    new = client.do(client.conn.get_table(path))
    assert new.get_table_info().get_column_names() == ["id", "name", "score"]
    assert new.get_table_info().schema_id == 2
    client.append(new, [{"id": 3, "name": "c", "score": 1.5}])
    expected = [
        {"id": 1, "name": "a", "score": None},
        {"id": 2, "name": "b", "score": None},
        {"id": 3, "name": "c", "score": 1.5},
    ]
    assert client.read(new).to_pylist() == expected
    assert client.read(new, columns=["score", "id"]).to_pylist() == [
        {"score": row["score"], "id": row["id"]} for row in expected
    ]
    assert client.read(old).column_names == ["id", "name"]
    assert client.read(old)["id"].to_pylist() == [1, 2, 3]
    changing = client.do(new.new_scan().with_fixed_schema(False).create_record_batch_log_scanner())
    changing.subscribe(0, fluss.EARLIEST_OFFSET)
    widths: list[int] = []
    while sum(widths) < 2 + 2 + 3:
        widths += [batch.batch.num_columns for batch in client.do(changing.poll_record_batch(WAIT_MS))]
    assert sorted(widths) == [2, 2, 3]
    changing.close()
    first = client.do(client.admin.get_table_schema(path, 1))
    assert (first.schema_id, first.schema.column_names) == (1, ["id", "name"])


@pytest.mark.feature("Alter table: columns and properties")
def test_properties_are_set_and_reset(client: Client) -> None:
    table = client.create("options", [("id", pa.int32())], custom_properties={"kept": "1", "gone": "2"})
    path = table.get_table_path()
    client.do(client.admin.alter_table(path, set_properties={"mine": "x"}, reset_properties=["gone"]))
    assert client.do(client.admin.get_table_info(path)).custom_properties == {"kept": "1", "mine": "x"}


@pytest.mark.feature("Alter table: columns and properties")
def test_changes_that_are_refused_change_nothing(client: Client) -> None:
    table = client.create("stubborn", [("id", pa.int32())])
    path = table.get_table_path()
    attempts: list[dict[str, Any]] = [
        {"add_columns": [("id", DataTypes.int())]},
        {"add_columns": [("x", DataTypes.int().not_null())]},
        {"set_properties": {"table.log.format": "INDEXED"}},
        {"set_properties": {"table.no.such": "1"}},
    ]
    for attempt in attempts:
        with pytest.raises(fluss.FlussError):
            client.do(client.admin.alter_table(path, **attempt))
    missing = fluss.TablePath(client.database, "missing")
    with pytest.raises(fluss.NotFoundError):
        client.do(client.admin.alter_table(missing, set_properties={"a": "b"}))
    client.do(client.admin.alter_table(missing, set_properties={"a": "b"}, ignore_if_not_exists=True))
    info = client.do(client.admin.get_table_info(path))
    assert (info.schema_id, info.get_column_names(), info.custom_properties) == (1, ["id"], {})


@pytest.mark.feature("INDEXED log format")
def test_indexed_log_tables_scan_by_records(client: Client) -> None:
    columns = [("id", pa.int32()), ("name", pa.string()), ("tags", pa.list_(pa.int64()))]
    table = client.create("indexed", columns, log_format="INDEXED")
    rows = [{"id": 1, "name": "a", "tags": [1, None]}, {"id": None, "name": None, "tags": None}]
    client.append(table, rows)
    writer = table.new_append().create_writer()
    writer.write_arrow(pa.Table.from_pylist([{"id": 3, "name": "c", "tags": []}], schema=pa.schema(columns)))
    client.do(writer.flush())
    scanner = client.do(table.new_scan().create_log_scanner())
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    seen: list[dict[str, Any]] = []
    while len(seen) < 3:
        seen += [record.row for record in client.do(scanner.poll(WAIT_MS))]
    assert seen == [*rows, {"id": 3, "name": "c", "tags": []}]
    scanner.close()
    with pytest.raises(fluss.FlussError, match="INDEXED"):
        client.do(table.new_scan().create_record_batch_log_scanner())

"""What becomes of a row when another is put at its key: changelogs, merge engines, deletes, numbered columns."""

from __future__ import annotations

import decimal
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import DataTypes
from tests.behaviour.conftest import Client
from tests.kit.backends import APACHE

COLUMNS = [("id", pa.int32()), ("name", pa.string()), ("version", pa.int64())]


def row(number: int, name: str | None, version: int | None = None) -> dict[str, Any]:
    return {"id": number, "name": name, "version": version}


def table_with(client: Client, **properties: str) -> Any:
    named = {f"table.{key.replace('__', '.').replace('_', '-')}": value for key, value in properties.items()}
    return client.create("t", COLUMNS, ["id"], properties=named)


@pytest.mark.feature("Primary keys: changelog")
def test_the_changelog_of_a_plain_table(client: Client) -> None:
    table = client.create("t", COLUMNS, ["id"])
    client.upsert(table, [row(1, "a"), row(1, "b"), row(2, "c")], deleted=[[1], [9]])
    client.upsert(table, [row(2, "c")])
    assert client.changes(table, 7) == [
        ("+I", row(1, "a")),
        ("-U", row(1, "a")),
        ("+U", row(1, "b")),
        ("+I", row(2, "c")),
        ("-D", row(1, "b")),
        ("-U", row(2, "c")),
        ("+U", row(2, "c")),
    ]


@pytest.mark.feature("Primary keys: changelog")
def test_a_batch_that_changes_nothing_takes_one_offset(client: Client) -> None:
    table = client.create("t", COLUMNS, ["id"])
    client.upsert(table, [], deleted=[[1]])
    client.upsert(table, [row(1, "a")])
    scanner = client.do(table.new_scan().create_log_scanner())
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    records = client.do(scanner.poll(20_000))
    assert [(record.offset, record.change_type, record.row) for record in records] == [
        (1, fluss.ChangeType.Insert, row(1, "a"))
    ]
    scanner.close()


@pytest.mark.feature("Primary keys: changelog")
def test_the_wal_image_has_no_old_rows(client: Client) -> None:
    table = table_with(client, changelog__image="WAL")
    client.upsert(table, [row(1, "a"), row(1, "b")], deleted=[[1]])
    assert client.changes(table, 3) == [("+U", row(1, "a")), ("+U", row(1, "b")), ("-D", row(1, "b"))]


@pytest.mark.feature("Primary keys: merge engines")
def test_first_row(client: Client) -> None:
    table = table_with(client, merge_engine="first_row")
    client.upsert(table, [row(1, "a"), row(1, "b"), row(2, "c")], deleted=[[1]])
    assert client.lookup(table, [1]) == row(1, "a")
    assert client.changes(table, 2) == [("+I", row(1, "a")), ("+I", row(2, "c"))]


@pytest.mark.feature("Primary keys: merge engines")
def test_versioned(client: Client) -> None:
    table = table_with(client, merge_engine="versioned", merge_engine__versioned__ver_column="version")
    client.upsert(table, [row(1, "a", 5), row(1, "older", 4), row(1, "same", 5), row(1, "none"), row(1, "newer", 6)])
    assert client.lookup(table, [1]) == row(1, "newer", 6)
    assert [change for change, _ in client.changes(table, 5)] == ["+I", "-U", "+U", "-U", "+U"]


AGGREGATES = [
    ("total", DataTypes.bigint(), "sum", [1, None, 5], 6),
    ("product", DataTypes.int(), "product", [2, 3, None], 6),
    ("most", DataTypes.int(), "max", [3, 9, 4], 9),
    ("least", DataTypes.string(), "min", ["m", "c", "x"], "c"),
    ("last", DataTypes.string(), "last_value", ["a", "b", None], None),
    ("last_known", DataTypes.string(), "last_value_ignore_nulls", ["a", "b", None], "b"),
    ("first", DataTypes.int(), "first_value", [None, 1, 2], 1),  # a null counts as nothing yet
    ("first_known", DataTypes.int(), "first_value_ignore_nulls", [None, 1, 2], 1),
    ("list", DataTypes.string(), "listagg", ["a", None, "b"], "a,b"),
    ("every", DataTypes.boolean(), "bool_and", [True, False, None], False),
    ("some", DataTypes.boolean(), "bool_or", [None, False, True], True),
    ("money", DataTypes.decimal(10, 2), "sum", ["1.50", "2.25", None], decimal.Decimal("3.75")),
]


@pytest.mark.feature("Primary keys: merge engines")
def test_aggregation(client: Client) -> None:
    builder = fluss.Schema.builder().column("id", DataTypes.int())
    for name, data_type, function, _, _ in AGGREGATES:
        builder = builder.column(name, data_type, agg_function=function)
    schema = builder.primary_key(["id"]).build()
    table = client.create("t", schema, properties={"table.merge-engine": "aggregation"})
    for step in range(3):
        values: dict[str, Any] = {"id": 1}
        for name, _, _, given, _ in AGGREGATES:
            value: Any = given[step]  # type: ignore[index]
            values[name] = decimal.Decimal(value) if name == "money" and value is not None else value
        client.upsert(table, [values])
    assert client.lookup(table, [1]) == {"id": 1, **{name: result for name, _, _, _, result in AGGREGATES}}
    assert [change for change, _ in client.changes(table, 5)] == ["+I", "-U", "+U", "-U", "+U"]


@pytest.mark.feature("Primary keys: delete behaviour")
def test_disabled_deletes_are_refused_without_a_trace(client: Client) -> None:
    table = table_with(client, delete__behavior="disable")
    client.upsert(table, [row(1, "a")])
    writer = table.new_upsert().create_writer()
    with pytest.raises(fluss.FlussError) as error:
        client.do(writer.delete([1]).wait())
    assert error.value.error_code == fluss.ErrorCode.DELETION_DISABLED_EXCEPTION
    assert client.lookup(table, [1]) == row(1, "a")
    ignoring = client.create("ignoring", COLUMNS, ["id"], properties={"table.delete.behavior": "ignore"})
    client.upsert(ignoring, [row(1, "a")], deleted=[[1]])
    assert client.lookup(ignoring, [1]) == row(1, "a")


@pytest.mark.feature("Primary keys: auto-increment")
def test_numbered_columns(client: Client) -> None:
    schema = fluss.Schema(
        pa.schema([("key", pa.string()), ("v", pa.int32()), ("number", pa.int64())]), ["key"], "number"
    )
    table = client.create("numbered", schema)
    writer = table.new_upsert(columns=["key", "v"]).create_writer()
    for key in ("a", "b", "c"):
        writer.upsert({"key": key, "v": 1})
    writer.upsert({"key": "a", "v": 2})
    client.do(writer.flush())
    rows = [client.lookup(table, [key]) for key in ("a", "b", "c")]
    assert [found["v"] for found in rows] == [2, 1, 1]
    assert [found["number"] for found in rows] == [1, 2, 3]


@pytest.mark.feature("Primary keys: merge engines")
@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"table.merge-engine": "versioned"}, 39),
        ({"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "name"}, 39),
        ({"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "nope"}, 39),
        ({"table.merge-engine": "first_row", "table.delete.behavior": "allow"}, 39),
        ({"table.merge-engine": "nope"}, 39),
        ({"table.delete.behavior": "nope"}, 39),
    ],
)
def test_bad_rules_are_refused(client: Client, properties: dict[str, str], code: int) -> None:
    with pytest.raises(fluss.InvalidRequestError) as error:
        client.create("t", COLUMNS, ["id"], properties=properties)
    assert error.value.error_code == code
    assert not client.do(client.admin.table_exists(fluss.TablePath(client.database, "t")))


@pytest.mark.feature("Primary keys: merge engines")
def test_an_added_column_aggregates(client: Client) -> None:
    schema = fluss.Schema(pa.schema([("id", pa.int32()), ("a", pa.int64())]), ["id"], agg_functions={"a": "sum"})
    table = client.create("t", schema, properties={"table.merge-engine": "aggregation"})
    path = table.get_table_path()
    client.upsert(table, [[1, 1]])
    added = fluss.Column("b", DataTypes.bigint(), agg_function=fluss.AggFunction("sum"))
    client.do(client.admin.alter_table(path, add_columns=[added]))
    newer = client.do(client.conn.get_table(path))
    client.upsert(newer, [[1, 10, 2], [1, 100, 3]])
    # Apache Fluss 0.9.1 takes no function for an added column, so that the last value holds.
    total = 3 if client.backend.kind == APACHE else 5
    assert client.lookup(newer, [1]) == {"id": 1, "a": 111, "b": total}

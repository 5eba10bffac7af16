"""Every type, through Spark and back."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from fluss.sync import DataField, DataType, DataTypes, Schema, TablePath
from tests.spark.conftest import Backend

pytestmark = pytest.mark.spark

T = DataTypes
NOON = dt.datetime(2026, 3, 1, 12, 30, 15)
OLD = dt.datetime(1901, 12, 13, 20, 45, 51)
MICROSECONDS = {0: 0, 1: 100_000, 3: 123_000, 5: 123_450, 6: 123_456, 9: 123_456}
LAST = {0: 0, 1: 900_000, 3: 999_000, 5: 999_990, 6: 999_999, 9: 999_999}

# A type, a value with all its digits, and an extreme one.
SCALARS: dict[str, tuple[DataType, Any, Any]] = {
    "boolean": (T.boolean(), True, False),
    "tinyint": (T.tinyint(), -128, 127),
    "smallint": (T.smallint(), -(2**15), 2**15 - 1),
    "int": (T.int(), -(2**31), 2**31 - 1),
    "bigint": (T.bigint(), -(2**63), 2**63 - 1),
    "float": (T.float(), 0.5, float("inf")),
    "double": (T.double(), 0.1, -1.7976931348623157e308),
    "char": (T.char(3), "abc", "äöü"),
    "string": (T.string(), "fluss \U0001f30a", ""),
    "binary": (T.binary(3), b"\x00\xff\x01", b"abc"),
    "bytes": (T.bytes(), b"\x00\x01", b""),
    "decimal_small": (T.decimal(10, 2), Decimal("12345678.90"), Decimal("-0.01")),
    "decimal_large": (T.decimal(38, 10), Decimal("9" * 28 + "." + "9" * 10), Decimal("-1E-10")),
    "date": (T.date(), dt.date(2026, 3, 1), dt.date(1, 1, 1)),
    # Rows of primary-key tables have milliseconds of a time at most.
    **{f"time_{n}": (T.time(n), dt.time(12, 30, 15, MICROSECONDS[min(n, 3)]), dt.time.min) for n in (0, 3, 6, 9)},
    **{
        f"timestamp_{n}": (T.timestamp(n), NOON.replace(microsecond=us), OLD.replace(microsecond=LAST[n]))
        for n, us in MICROSECONDS.items()
    },
    **{
        f"ltz_{n}": (
            T.timestamp_ltz(n),
            NOON.replace(microsecond=us, tzinfo=dt.UTC),
            OLD.replace(microsecond=LAST[n], tzinfo=dt.UTC),
        )
        for n, us in MICROSECONDS.items()
    },
}
SPARK_TYPES = {
    "char": "string",
    "binary": "binary",
    "bytes": "binary",
    "decimal_small": "decimal(10,2)",
    "decimal_large": "decimal(38,10)",
    **{f"time_{digits}": "time(6)" for digits in (0, 3, 6, 9)},
    **{f"timestamp_{digits}": "timestamp_ntz" for digits in MICROSECONDS},
    **{f"ltz_{digits}": "timestamp" for digits in MICROSECONDS},
}
KEYS = (
    "tinyint",
    "bigint",
    "char",
    "string",
    "binary",
    "bytes",
    "decimal_large",
    "date",
    "time_3",
    "timestamp_9",
    "ltz_3",
)


def _schema(nested: bool, primary_key: bool = False) -> Schema:
    builder = Schema.builder().column("id", T.int())
    for name, (data_type, _, _) in SCALARS.items():
        builder = builder.column(name, data_type)
    if nested:
        scalars = {name: data_type for name, (data_type, _, _) in SCALARS.items()}
        inner = T.row([DataField(name, T.array(data_type)) for name, data_type in scalars.items()])
        builder = (
            builder.column("row", T.row([DataField(name, data_type) for name, data_type in scalars.items()]))
            .column("lists", T.array(T.array(T.row([DataField("deep", inner), DataField("n", T.int().not_null())]))))
            .column("map", T.map(T.string(), T.map(T.int(), inner)))
            .column("keys", T.row([DataField(name, T.map(scalars[name], scalars[name])) for name in KEYS]))
            .column("required", T.array(T.string().not_null()))
        )
    return (builder.primary_key(["id"]) if primary_key else builder).build()


def _rows(nested: bool) -> list[dict[str, Any]]:
    full = {name: value for name, (_, value, _) in SCALARS.items()}
    extreme = {name: value for name, (_, _, value) in SCALARS.items()}
    empty = dict.fromkeys(SCALARS)
    rows = [dict(full), dict(extreme), dict(empty), {**full, "string": None, "bigint": None}]
    if nested:
        both = {name: [full[name], None, extreme[name]] for name in SCALARS}
        columns = ("row", "lists", "map", "keys", "required")
        values: list[tuple[Any, ...]] = [
            (full, [[{"deep": both, "n": 1}], None, []], [("a", [(1, both), (2, None)]), ("b", [])], full, ["x", ""]),
            (extreme, [None, [None, {"deep": None, "n": 2}]], [("", None)], extreme, []),
            (None, None, None, None, None),
            (empty, [], [], empty, ["y"]),
        ]
        for row, (row_value, lists, maps, keys, required) in zip(rows, values, strict=True):
            maps_by_key = keys and {name: [(keys[name], keys[name])] if keys[name] is not None else [] for name in KEYS}
            row.update(zip(columns, (row_value, lists, maps, maps_by_key, required), strict=True))
    return [{"id": number, **row} for number, row in enumerate(rows)]


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


def _through_spark(backend: Backend, nested: bool, primary_key: bool) -> None:
    schema, rows = _schema(nested, primary_key), _rows(nested)
    source, target = backend.create("source", schema), backend.create("target", schema, bucket_count=2)
    given = pa.Table.from_pylist(rows, schema=backend.connection.get_table(source).arrow_schema)
    _write(backend, source, given)

    frame = backend.load(source)
    found = {name: dtype for name, dtype in frame.dtypes if name in SCALARS}
    assert found == {name: SPARK_TYPES.get(name, name) for name in SCALARS}
    backend.save(frame, target)
    assert _sorted(_read(backend, target).to_pylist()) == rows
    # A schema written out, as users do, allows nulls where the table's does not.
    shown = ", ".join(f"`{name}` {dtype}" for name, dtype in frame.dtypes)
    assert backend.load(target, schema=shown).orderBy("id").collect() == frame.orderBy("id").collect()


def _write(backend: Backend, path: TablePath, rows: pa.Table) -> None:
    table = backend.connection.get_table(path)
    keyed = table.get_table_info().has_primary_key()
    with (table.new_upsert() if keyed else table.new_append()).create_writer() as writer:
        writer.write_arrow(rows)


def _read(backend: Backend, path: TablePath) -> pa.Table:
    return backend.connection.get_table(path).new_scan().to_arrow()


@pytest.mark.parametrize("primary_key", [False, True], ids=["log", "primary key"])
def test_every_type_goes_through_spark_unchanged(ours: Backend, primary_key: bool) -> None:
    _through_spark(ours, nested=True, primary_key=primary_key)


@pytest.mark.compat
@pytest.mark.parametrize("primary_key", [False, True], ids=["log", "primary key"])
def test_every_type_goes_through_spark_to_apache_fluss(apache: Backend, primary_key: bool) -> None:
    _through_spark(apache, nested=True, primary_key=primary_key)


def test_spark_computes_with_the_values_that_were_appended(ours: Backend) -> None:
    path = ours.create("values", _schema(nested=True))
    _write(
        ours, path, pa.Table.from_pylist(_rows(nested=True)[:1], schema=ours.connection.get_table(path).arrow_schema)
    )
    conditions = {
        "boolean": "boolean",
        "tinyint": "tinyint = -128",
        "bigint": "bigint = -9223372036854775808",
        "float": "float = 0.5",
        "string": "char_length(string) = 7",
        "binary": "hex(binary) = '00FF01'",
        "decimal_large": f"decimal_large = {'9' * 28}.{'9' * 10}",
        "date": "date = DATE'2026-03-01'",
        "time_3": "time_3 = TIME'12:30:15.123'",
        "row": "row.decimal_small = 12345678.90 AND row.timestamp_9 = timestamp_9 AND row.time_3 > TIME'12:30:15'",
        "lists": "lists[0][0].deep.timestamp_3[2] = TIMESTAMP_NTZ'1901-12-13 20:45:51.999' AND lists[1] IS NULL",
        "nulls": "lists[0][0].deep.binary[1] IS NULL AND size(lists[0][0].deep.string) = 3",
        "map": "map['a'][1].char[0] = 'abc' AND map['a'][2] IS NULL AND map['z'] IS NULL",
        "keys": "keys.timestamp_9[timestamp_9] = timestamp_9 AND map_keys(keys.date) = array(date)",
        "timestamp_0": "timestamp_0 = TIMESTAMP_NTZ'2026-03-01 12:30:15'",
        "timestamp_9": "timestamp_9 = TIMESTAMP_NTZ'2026-03-01 12:30:15.123456'",
        "ltz_3": "ltz_3 = TIMESTAMP'2026-03-01 12:30:15.123 UTC'",
        "ltz_9": "ltz_9 = TIMESTAMP'2026-03-01 13:30:15.123456 +01:00'",
    }
    found = ours.load(path).select(*(f.expr(condition).alias(name) for name, condition in conditions.items())).first()
    assert found is not None
    assert {name: found[name] for name in conditions} == dict.fromkeys(conditions, True)


def test_digits_beyond_a_columns_precision_are_cut(ours: Backend) -> None:
    path = ours.create("cut", Schema.builder().column("at", T.timestamp(3)).build())
    ours.save(ours.spark.sql("SELECT TIMESTAMP_NTZ'1969-12-31 23:59:59.999999' AS at"), path)
    assert ours.rows(path).to_pylist() == [{"at": dt.datetime(1969, 12, 31, 23, 59, 59, 999_000)}]


def test_the_sessions_time_zone_does_not_move_instants(ours: Backend) -> None:
    schema = Schema.builder().column("local", T.timestamp()).column("instant", T.timestamp_ltz()).build()
    path = ours.create("zones", schema)
    ours.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        noon = "SELECT TIMESTAMP_NTZ'2026-03-01 12:00:00' AS local, TIMESTAMP'2026-03-01 12:00:00' AS instant"
        ours.save(ours.spark.sql(noon), path)
        shown = ours.load(path).selectExpr("string(local)", "string(instant)").first()
    finally:
        ours.spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert shown is not None
    assert tuple(shown) == ("2026-03-01 12:00:00", "2026-03-01 12:00:00")
    stored = {"local": dt.datetime(2026, 3, 1, 12), "instant": dt.datetime(2026, 3, 1, 3, tzinfo=dt.UTC)}
    assert ours.rows(path).to_pylist() == [stored]


def test_null_inside_a_nested_value_that_must_be_there_fails_the_write(ours: Backend) -> None:
    row = T.row([DataField("tags", T.array(T.string().not_null()))])
    path = ours.create("strict", Schema.builder().column("row", row).build())
    ours.save(ours.spark.sql("SELECT named_struct('tags', array('a')) AS row"), path)
    with pytest.raises(Exception, match=r"elements of field 'tags' of column 'row' of \S+\.strict can't be null"):
        ours.save(ours.spark.sql("SELECT named_struct('tags', array('a', NULL)) AS row"), path)
    assert ours.rows(path).to_pylist() == [{"row": {"tags": ["a"]}}]


def test_binary_of_another_length_fails_the_write(ours: Backend) -> None:
    path = ours.create("fixed", Schema.builder().column("x", T.array(T.binary(2))).build())
    with pytest.raises(Exception, match="The column 'x' can't be converted to list<item: fixed_size_binary"):
        ours.save(ours.spark.sql("SELECT array(X'01') AS x"), path)

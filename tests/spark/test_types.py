"""Every scalar type, through Spark and back."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import functions as f

from fluss.sync import DataType, DataTypes, Schema
from tests.spark.conftest import Backend

pytestmark = pytest.mark.spark

T = DataTypes
NOON = dt.datetime(2026, 3, 1, 12, 30, 15)
OLD = dt.datetime(1901, 12, 13, 20, 45, 51)

# A type, a value with all its digits, and an extreme one.
COLUMNS: dict[str, tuple[DataType, Any, Any]] = {
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
    "timestamp_0": (T.timestamp(0), NOON, OLD),
    "timestamp_3": (T.timestamp(3), NOON.replace(microsecond=123_000), OLD.replace(microsecond=999_000)),
    "timestamp_6": (T.timestamp(6), NOON.replace(microsecond=123_456), OLD.replace(microsecond=999_999)),
    "timestamp_9": (T.timestamp(9), NOON.replace(microsecond=123_456), OLD.replace(microsecond=999_999)),
    "ltz_0": (T.timestamp_ltz(0), NOON, OLD),
    "ltz_3": (T.timestamp_ltz(3), NOON.replace(microsecond=123_000), OLD.replace(microsecond=999_000)),
    "ltz_6": (T.timestamp_ltz(6), NOON.replace(microsecond=123_456), OLD.replace(microsecond=999_999)),
    "ltz_9": (T.timestamp_ltz(9), NOON.replace(microsecond=123_456), OLD.replace(microsecond=999_999)),
}
SPARK_TYPES = {
    "char": "string",
    "binary": "binary",
    "bytes": "binary",
    "decimal_small": "decimal(10,2)",
    "decimal_large": "decimal(38,10)",
    **{f"timestamp_{digits}": "timestamp_ntz" for digits in (0, 3, 6, 9)},
    **{f"ltz_{digits}": "timestamp" for digits in (0, 3, 6, 9)},
}


def _schema() -> Schema:
    builder = Schema.builder()
    for name, (data_type, _, _) in COLUMNS.items():
        builder = builder.column(name, data_type)
    return builder.build()


def _value(name: str, value: Any) -> Any:
    return value.replace(tzinfo=dt.UTC) if name.startswith("ltz") else value


def _rows() -> list[dict[str, Any]]:
    full = {name: _value(name, value) for name, (_, value, _) in COLUMNS.items()}
    extreme = {name: _value(name, value) for name, (_, _, value) in COLUMNS.items()}
    return [full, extreme, dict.fromkeys(COLUMNS), {**full, "string": None, "bigint": None}]


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


def test_every_scalar_goes_through_spark_unchanged(ours: Backend) -> None:
    source, target = ours.create("source", _schema()), ours.create("target", _schema(), bucket_count=2)
    with ours.connection.get_table(source).new_append().create_writer() as writer:
        for row in _rows():
            writer.append(row)

    frame = ours.load(source)
    assert dict(frame.dtypes) == {name: SPARK_TYPES.get(name, name) for name in COLUMNS}
    ours.save(frame, target)

    written = ours.rows(target).to_pylist()
    assert _sorted(written) == _sorted(ours.rows(source).to_pylist())
    for row in _rows():
        assert row in written


def test_spark_computes_with_the_values_that_were_appended(ours: Backend) -> None:
    path = ours.create("values", _schema())
    rows = _rows()
    with ours.connection.get_table(path).new_append().create_writer() as writer:
        writer.append(rows[0])
    conditions = {
        "boolean": "boolean",
        "tinyint": "tinyint = -128",
        "bigint": "bigint = -9223372036854775808",
        "float": "float = 0.5",
        "string": "char_length(string) = 7",
        "binary": "hex(binary) = '00FF01'",
        "decimal_large": f"decimal_large = {'9' * 28}.{'9' * 10}",
        "date": "date = DATE'2026-03-01'",
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


def test_column_without_spark_type_is_named_and_can_be_left_out(ours: Backend) -> None:
    schema = Schema.builder().column("id", T.int()).column("opens_at", T.time()).column("name", T.string()).build()
    path = ours.create("hours", schema)
    with ours.connection.get_table(path).new_append().create_writer() as writer:
        writer.append({"id": 1, "opens_at": dt.time(8, 30), "name": "harbour"})

    with pytest.raises(Exception, match="Spark has no type for the column 'opens_at' of type time"):
        ours.load(path)
    assert [tuple(row) for row in ours.load(path, columns="name, id").collect()] == [("harbour", 1)]
    assert [tuple(row) for row in ours.load(path, schema="id int").collect()] == [(1,)]

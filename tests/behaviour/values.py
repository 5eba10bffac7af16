"""Columns of every type, and rows of them."""

from __future__ import annotations

import datetime as dt
import decimal

import pyarrow as pa

EVERY_SCALAR = pa.schema(
    [
        ("boolean", pa.bool_()),
        ("tinyint", pa.int8()),
        ("smallint", pa.int16()),
        ("int", pa.int32()),
        ("bigint", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("string", pa.string()),
        ("bytes", pa.binary()),
        ("binary3", pa.binary(3)),
        ("decimal", pa.decimal128(10, 2)),
        ("big_decimal", pa.decimal128(38, 10)),
        ("date", pa.date32()),
        ("time_s", pa.time32("s")),
        ("time_ms", pa.time32("ms")),
        ("time_us", pa.time64("us")),
        ("timestamp_s", pa.timestamp("s")),
        ("timestamp_ms", pa.timestamp("ms")),
        ("timestamp_us", pa.timestamp("us")),
        ("ltz_ms", pa.timestamp("ms", tz="UTC")),
        ("ltz_us", pa.timestamp("us", tz="UTC")),
    ]
)
MOMENT = dt.datetime(2026, 2, 28, 23, 59, 58, 123000)
EVERY_VALUE = {
    "boolean": True,
    "tinyint": -128,
    "smallint": 32767,
    "int": -(2**31),
    "bigint": 2**63 - 1,
    "float": 1.5,
    "double": -2.25e300,
    "string": "h\u00e9llo \U0001f30a",
    "bytes": b"\x00\xff",
    "binary3": b"abc",
    "decimal": decimal.Decimal("-12345678.90"),
    "big_decimal": decimal.Decimal("9999999999999999999999999999.0123456789"),
    "date": dt.date(1969, 12, 31),
    "time_s": dt.time(23, 59, 59),
    "time_ms": dt.time(1, 2, 3, 4000),
    "time_us": dt.time(1, 2, 3, 456789),
    "timestamp_s": MOMENT.replace(microsecond=0),
    "timestamp_ms": MOMENT,
    "timestamp_us": MOMENT.replace(year=1901, microsecond=123456),
    "ltz_ms": MOMENT.replace(tzinfo=dt.UTC),
    "ltz_us": MOMENT.replace(microsecond=1, tzinfo=dt.UTC),
}


NESTED = pa.schema(
    [
        ("id", pa.int32()),
        ("tags", pa.list_(pa.string())),
        ("attrs", pa.map_(pa.string(), pa.int64())),
        ("profile", pa.struct([("age", pa.int32()), ("emails", pa.list_(pa.string()))])),
        ("matrix", pa.list_(pa.list_(pa.float64()))),
    ]
)
NESTED_ROWS = [
    {
        "id": 1,
        "tags": ["a", None, "longer than seven"],
        "attrs": [("k", 7), ("other", None)],
        "profile": {"age": 30, "emails": ["x@example.org"]},
        "matrix": [[1.5, None], [], None],
    },
    {"id": 2, "tags": [], "attrs": [], "profile": {"age": None, "emails": None}, "matrix": []},
    {"id": 3, "tags": None, "attrs": None, "profile": None, "matrix": None},
]

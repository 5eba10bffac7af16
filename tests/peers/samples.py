"""Rows that exercise every type, and a small table for everything else.

The pyfluss driver imports this file where `fluss` is another package.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

Row = dict[str, Any]

COLUMNS = {
    "flag": "BOOLEAN",
    "tiny": "TINYINT",
    "small": "SMALLINT",
    "number": "INT",
    "big": "BIGINT",
    "single": "FLOAT",
    "exact": "DOUBLE",
    "text": "STRING",
    "blob": "BYTES",
    "fixed": "BINARY(4)",
    "price": "DECIMAL(10, 2)",
    "huge": "DECIMAL(38, 10)",
    "day": "DATE",
    "clock": "TIME(3)",
    "wall": "TIMESTAMP(6)",
    "wall_ms": "TIMESTAMP(3)",
    "instant": "TIMESTAMP_LTZ(6)",
    "instant_ms": "TIMESTAMP_LTZ(3)",
}
FULL: Row = {
    "flag": True,
    "tiny": -128,
    "small": 32_767,
    "number": -(2**31),
    "big": 2**63 - 1,
    "single": 1.5,
    "exact": 2.718281828459045,
    "text": "Stra\u00dfe, \u6cb3, \U0001f30a",
    "blob": b"\x00\x01\xfe\xff",
    "fixed": b"abcd",
    "price": Decimal("-12345678.90"),
    "huge": Decimal("1234567890123456789012345678.0123456789"),
    "day": dt.date(1969, 12, 31),
    "clock": dt.time(23, 59, 59, 999_000),
    "wall": dt.datetime(2026, 2, 28, 12, 34, 56, 123_456),
    "wall_ms": dt.datetime(1999, 12, 31, 23, 59, 59, 999_000),
    "instant": dt.datetime(2026, 2, 28, 12, 34, 56, 654_321, tzinfo=dt.UTC),
    "instant_ms": dt.datetime(1901, 2, 28, 12, 34, 56, 654_000, tzinfo=dt.UTC),
}
EMPTY: Row = dict.fromkeys(COLUMNS)
SMALL = {"id": "INT", "name": "STRING"}

NESTED = {
    "numbers": "ARRAY<INT>",
    "words": "ARRAY<STRING>",
    "prices": "ARRAY<DECIMAL(20, 3)>",
    "times": "ARRAY<TIMESTAMP(6)>",
    "grid": "ARRAY<ARRAY<BIGINT>>",
    "counts": "MAP<STRING, INT>",
    "lists": "MAP<INT, ARRAY<STRING>>",
    "person": "ROW<name STRING, age INT, score DOUBLE, born DATE>",
    "deep": "ROW<tags ARRAY<STRING>, attrs MAP<STRING, BIGINT>, inner ROW<flag BOOLEAN, blob BYTES>>",
    "people": "ARRAY<ROW<name STRING, age INT>>",
}
NESTED_FULL: Row = {
    "numbers": [1, None, -(2**31)],
    "words": ["short", "longer than seven", None, ""],
    "prices": [Decimal("1.500"), None, Decimal("-12345678901234567.891")],
    "times": [dt.datetime(2026, 2, 28, 12, 34, 56, 123_456), None],
    "grid": [[1, 2], [], None, [None, 2**63 - 1]],
    "counts": [("a", 1), ("b", None)],
    "lists": [(1, ["x", None]), (2, []), (3, None)],
    "person": {"name": "Stra\u00dfe", "age": None, "score": 1.5, "born": dt.date(1969, 12, 31)},
    "deep": {"tags": ["t", None], "attrs": [("k", 7)], "inner": {"flag": True, "blob": b"\x00\xff"}},
    "people": [{"name": "a", "age": 1}, None, {"name": None, "age": None}],
}
NESTED_EMPTY: Row = dict.fromkeys(NESTED)
NESTED_HOLLOW: Row = {
    "numbers": [],
    "words": [],
    "prices": [],
    "times": [],
    "grid": [],
    "counts": [],
    "lists": [],
    "person": {"name": None, "age": None, "score": None, "born": None},
    "deep": {"tags": [], "attrs": None, "inner": None},
    "people": [],
}

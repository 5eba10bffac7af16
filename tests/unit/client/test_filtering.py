"""Filters on Arrow batches against the same question asked in Python, and what the server is told."""

from __future__ import annotations

import datetime as dt
import math
import operator
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fluss.client.scan.filter import PUSHED_LITERALS_MAX, ScanFilter
from fluss.model.errors import SchemaMismatchError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.forms.predicate_text import parse_predicate
from fluss.model.predicates import Predicate, col
from fluss.model.schema import Column, Schema
from fluss.model.types import DataField, DataType, DataTypes
from fluss.protocol import messages_pb2 as pb

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less_than": operator.lt,
    "less_or_equal": operator.le,
    "greater_than": operator.gt,
    "greater_or_equal": operator.ge,
}
DAY = dt.date(2024, 5, 1)
NOON = dt.datetime(2024, 5, 1, 12, 0, 0, 250_000)
NOON_UTC = NOON.replace(tzinfo=dt.UTC)
MS, US = dt.timedelta(milliseconds=1), dt.timedelta(microseconds=1)

# type, values of the column, values to compare with
CASES: list[tuple[DataType, list[Any], list[Any]]] = [
    (DataTypes.boolean(), [True, False], [True, False]),
    (DataTypes.tinyint(), [-128, 0, 127], [-128, 5, 127]),
    (DataTypes.smallint(), [-5, 0, 32767], [0, 32767]),
    (DataTypes.int(), [-(2**31), 0, 7], [0, 7, 8]),
    (DataTypes.bigint(), [-(2**63), 0, 2**63 - 1], [0, 2**63 - 1]),
    (DataTypes.float(), [-1.5, 0.0, -0.0, 2.5, math.inf, math.nan], [0.0, 2.5, -math.inf]),
    (DataTypes.double(), [-1.5, 0.0, -0.0, 0.1, math.inf, math.nan], [0.0, 0.1, math.inf]),
    (DataTypes.string(), ["", "a", "b", "é", "z" * 100], ["", "a", "é", "zz"]),
    (DataTypes.char(2), ["ab", "ac"], ["ab", "b"]),
    (DataTypes.bytes(), [b"", b"\x00", b"\xff"], [b"", b"\x80", b"\xff"]),
    (DataTypes.binary(2), [b"ab", b"\xff\x00"], [b"ab", b"abc", b"a"]),
    (DataTypes.decimal(10, 2), [Decimal("-1.50"), Decimal("3.25")], [Decimal("3.25"), Decimal("-1.5"), 3]),
    (DataTypes.decimal(30, 4), [Decimal("-1E20"), Decimal("0.0001")], [Decimal("0.0001"), Decimal("-1E20")]),
    (DataTypes.date(), [DAY, dt.date(1960, 1, 1)], [DAY, dt.date(1960, 1, 2)]),
    (DataTypes.time(0), [dt.time(1), dt.time(2)], [dt.time(1), dt.time(1, 0, 0, 1)]),
    (DataTypes.time(3), [dt.time(1, 0, 0, 5000), dt.time(2)], [dt.time(1, 0, 0, 5000), dt.time(1, 0, 0, 5001)]),
    (DataTypes.time(6), [dt.time(1, 0, 0, 5), dt.time(2)], [dt.time(1, 0, 0, 5), dt.time(2)]),
    (DataTypes.time(9), [dt.time(1, 0, 0, 5), dt.time(2)], [dt.time(1, 0, 0, 5), dt.time(2)]),
    (DataTypes.timestamp(0), [NOON.replace(microsecond=0)], [NOON, NOON.replace(microsecond=0)]),
    (DataTypes.timestamp(3), [NOON, NOON - MS, dt.datetime(1, 1, 1)], [NOON, NOON + US]),
    (DataTypes.timestamp(6), [NOON, NOON - US], [NOON, NOON + US]),
    (DataTypes.timestamp(9), [NOON, NOON - US], [NOON, NOON + US]),
    (DataTypes.timestamp_ltz(3), [NOON_UTC, NOON_UTC - MS], [NOON_UTC + US, NOON_UTC]),
    (
        DataTypes.timestamp_ltz(6),
        [NOON_UTC, NOON_UTC - US],
        [NOON_UTC.astimezone(dt.timezone(dt.timedelta(hours=5))), NOON_UTC],
    ),
]


def matching(predicate: Predicate, schema: Schema, columns: dict[str, list[Any]]) -> list[bool]:
    batch = pa.record_batch(columns, schema=arrow_schema(schema))
    return [bool(value) for value in ScanFilter(predicate, schema).mask(batch.column).to_pylist()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[0]))
def test_comparisons_answer_as_python_does_and_null_never_matches(
    case: tuple[DataType, list[Any], list[Any]],
) -> None:
    data_type, values, literals = case
    schema = Schema.of([Column("c", data_type)])
    column = [*values, None]
    for literal in literals:
        for name, compare in COMPARISONS.items():
            expected = [value is not None and compare(value, literal) for value in column]
            assert matching(getattr(col("c"), name)(literal), schema, {"c": column}) == expected, (name, literal)
            opposite = [value is not None and not compare(value, literal) for value in column]
            assert matching(~getattr(col("c"), name)(literal), schema, {"c": column}) == opposite, (name, literal)
    for chosen in (literals, literals[:1], []):
        inside = [value is not None and value in chosen for value in column]
        outside = [value is not None and value not in chosen for value in column]
        assert matching(col("c").is_in(chosen), schema, {"c": column}) == inside, chosen
        assert matching(col("c").not_in(chosen), schema, {"c": column}) == outside, chosen
        assert matching(~col("c").is_in(chosen), schema, {"c": column}) == outside, chosen
    assert matching(col("c").is_null(), schema, {"c": column}) == [value is None for value in column]
    assert matching(col("c").is_not_null(), schema, {"c": column}) == [value is not None for value in column]


def test_parts_of_strings() -> None:
    schema = Schema.of([Column("c", DataTypes.string())])
    column = {"c": ["high", "sigh", "hi.h", "", None]}
    assert matching(col("c").starts_with("hi"), schema, column) == [True, False, True, False, False]
    assert matching(col("c").ends_with("gh"), schema, column) == [True, True, False, False, False]
    assert matching(col("c").contains("i.h"), schema, column) == [False, False, True, False, False]
    assert matching(col("c").contains(""), schema, column) == [True, True, True, True, False]
    assert matching(~col("c").starts_with("hi"), schema, column) == [False, True, False, True, False]
    assert matching(~~col("c").starts_with("hi"), schema, column) == [True, False, True, False, False]


def test_fields_of_rows() -> None:
    inner = DataTypes.row([DataField("city", DataTypes.string()), DataField("no", DataTypes.int())])
    schema = Schema.of([Column("a", DataTypes.row([DataField("at", inner)])), Column("a.b", DataTypes.int())])
    rows = [{"at": {"city": "Kiel", "no": 1}}, {"at": {"city": None, "no": 2}}, {"at": None}, None]
    columns = {"a": rows, "a.b": [1, 2, 3, 4]}
    assert matching(col("a.at.city") == "Kiel", schema, columns) == [True, False, False, False]
    assert matching(~(col("a.at.no") > 1), schema, columns) == [True, False, False, False]
    assert matching(col("a.at.city").is_null(), schema, columns) == [False, True, True, True]
    assert matching(col("a.b") == 4, schema, columns) == [False, False, False, True]
    assert matching(parse_predicate("a.at.no >= 2 OR a.at.city LIKE 'K%'", schema), schema, columns)[:2] == [True, True]
    assert ScanFilter(col("a.at.no") == 1, schema).message is None
    for name, problem in (("a.at.x", "has no field 'x'"), ("a.at.no.x", "has no field 'x'"), ("b.at", "table lacks")):
        with pytest.raises(SchemaMismatchError, match=problem):
            ScanFilter(col(name) == 1, schema)


def test_and_or_with_null_as_in_sql() -> None:
    schema = Schema.of([Column("a", DataTypes.int()), Column("b", DataTypes.int())])
    column = {"a": [1, 1, None, None, 0], "b": [1, None, 1, None, 1]}
    assert matching((col("a") == 1) & (col("b") == 1), schema, column) == [True, False, False, False, False]
    assert matching((col("a") == 1) | (col("b") == 1), schema, column) == [True, True, True, False, True]
    assert matching(~((col("a") == 1) & (col("b") == 1)), schema, column) == [False, False, False, False, True]


def test_random_predicates_answer_as_python_does() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    names = ["a", "b", "c"]
    schema = Schema.of([Column(name, DataTypes.int()) for name in names])

    def build(depth: int) -> tuple[Predicate, Callable[[dict[str, Any]], bool | None]]:
        if depth == 0 or rng.random() < 0.3:
            name, value = rng.choice(names), rng.randrange(4)
            method, compare = rng.choice(list(COMPARISONS.items()))
            predicate = getattr(col(name), method)(value)
            return predicate, lambda row: None if row[name] is None else compare(row[name], value)
        (left, ask_left), (right, ask_right) = build(depth - 1), build(depth - 1)
        if rng.random() < 0.5:
            return left & right, lambda row: _and(ask_left(row), ask_right(row))
        return left | right, lambda row: _or(ask_left(row), ask_right(row))

    rows = {name: [rng.choice([None, 0, 1, 2, 3]) for _ in range(200)] for name in names}
    for _ in range(50):
        predicate, ask = build(4)
        expected = [ask(dict(zip(names, row, strict=True))) is True for row in zip(*rows.values(), strict=True)]
        assert matching(predicate, schema, rows) == expected, predicate


def _and(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _or(left: bool | None, right: bool | None) -> bool | None:
    if left or right:
        return True
    return None if left is None or right is None else False


def message(predicate: Predicate, *columns: Column) -> pb.PbPredicate | None:
    return ScanFilter(predicate, Schema.of(columns)).message


@pytest.mark.parametrize(
    ("data_type", "value", "code", "fields"),
    [
        (DataTypes.boolean(), True, 0, {"boolean_value": True}),
        (DataTypes.tinyint(), -2, 1, {"int_value": -2}),
        (DataTypes.smallint(), 300, 2, {"int_value": 300}),
        (DataTypes.int(), 300, 3, {"int_value": 300}),
        (DataTypes.bigint(), -1, 4, {"bigint_value": -1}),
        (DataTypes.float(), 1.5, 5, {"float_value": 1.5}),
        (DataTypes.double(), -2.5, 6, {"double_value": -2.5}),
        (DataTypes.char(3), "abc", 7, {"string_value": "abc"}),
        (DataTypes.string(), "é", 8, {"string_value": "é"}),
        (DataTypes.decimal(10, 2), Decimal("123.45"), 9, {"decimal_value": 12345}),
        (DataTypes.decimal(20, 2), Decimal("-1.28"), 9, {"decimal_bytes": b"\x80"}),
        (DataTypes.decimal(20, 2), Decimal("1.28"), 9, {"decimal_bytes": b"\x00\x80"}),
        (DataTypes.date(), dt.date(1969, 12, 31), 10, {"bigint_value": -1}),
        (DataTypes.time(3), dt.time(1, 30, 2, 199_000), 11, {"int_value": 5402199}),
        (
            DataTypes.timestamp(6),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
            12,
            {"timestamp_millis_value": -1, "timestamp_nano_of_millis_value": 999_000},
        ),
        (
            DataTypes.timestamp_ltz(6),
            dt.datetime(1970, 1, 1, 2, 0, 0, 1_001, dt.timezone(dt.timedelta(hours=2))),
            13,
            {"timestamp_millis_value": 1, "timestamp_nano_of_millis_value": 1_000},
        ),
        (DataTypes.binary(2), b"\x01\x02", 14, {"binary_value": b"\x01\x02"}),
        (DataTypes.bytes(), b"\xff", 15, {"binary_value": b"\xff"}),
    ],
    ids=str,
)
def test_literals_on_the_wire(data_type: DataType, value: Any, code: int, fields: dict[str, Any]) -> None:
    told = message(col("c") >= value, Column("other", DataTypes.int()), Column("c", data_type))
    assert told is not None
    assert (told.type, told.leaf.function, told.leaf.field_id) == (0, 5, 1)
    (literal,) = told.leaf.literals
    assert literal == pb.PbLiteralValue(literal_type=code, is_null=False, **fields)


def test_compounds_and_field_ids_on_the_wire() -> None:
    nested = Column("n", DataTypes.row([]))
    told = message((col("a") == 1) & (col("b").is_null() | col("b").is_in(["x", "y"])), *_columns(nested))
    assert told is not None
    assert (told.type, told.compound.function, len(told.compound.children)) == (1, 0, 2)
    first, second = told.compound.children
    assert (first.leaf.field_id, second.compound.function) == (0, 1)
    assert [child.leaf.function for child in second.compound.children] == [6, 11]
    assert [literal.string_value for literal in second.compound.children[1].leaf.literals] == ["x", "y"]


def _columns(*between: Column) -> list[Column]:
    return [Column("a", DataTypes.int()), *between, Column("b", DataTypes.string())]


@pytest.mark.parametrize(
    "untold",
    [
        col("f") >= 0.0,
        col("t") > dt.time(1),
        col("m") > dt.time(1, 0, 0, 1),
        col("i").is_in(list(range(PUSHED_LITERALS_MAX + 1))),
    ],
    ids=str,
)
def test_what_a_server_could_get_wrong_it_is_not_told(untold: Predicate) -> None:
    columns = [
        Column("i", DataTypes.int()),
        Column("f", DataTypes.double()),
        Column("t", DataTypes.time(6)),
        Column("m", DataTypes.time(3)),
    ]
    assert message(untold, *columns) is None
    assert message(untold | (col("i") == 1), *columns) is None
    told = message(untold & (col("i") == 1), *columns)
    assert told is not None
    assert [child.leaf.field_id for child in told.compound.children] == [0]

"""Filters as text: what they mean, and where they are wrong."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal

import pytest

from fluss.model.errors import InvalidRequestError
from fluss.model.forms.predicate_text import TEXT_LENGTH_MAX, parse_predicate
from fluss.model.predicates import Compound, CompoundFunction, Leaf, LeafFunction, Predicate, col
from fluss.model.schema import Column, Schema
from fluss.model.types import DataTypes

SCHEMA = Schema.of(
    [
        Column("id", DataTypes.bigint()),
        Column("tiny", DataTypes.tinyint()),
        Column("name", DataTypes.string()),
        Column("price", DataTypes.decimal(10, 2)),
        Column("real", DataTypes.double()),
        Column("paid", DataTypes.boolean()),
        Column("date", DataTypes.date()),
        Column("time", DataTypes.time()),
        Column("at", DataTypes.timestamp(9)),
        Column("instant", DataTypes.timestamp_ltz()),
        Column("raw", DataTypes.bytes()),
        Column("odd `name`", DataTypes.int()),
        Column("tags", DataTypes.array(DataTypes.string())),
    ]
)
NOON = dt.datetime(2026, 1, 31, 12)


def parsed(text: str) -> str:
    return repr(parse_predicate(text, SCHEMA))


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("id = 5", col("id") == 5),
        ("id == 5", col("id") == 5),
        ("id<>5", col("id") != 5),
        ("id != -5", col("id") != -5),
        ("id < +5", col("id") < 5),
        ("id <= 5", col("id") <= 5),
        ("id > 5", col("id") > 5),
        ("id >= 5", col("id") >= 5),
        ("5 < id", col("id") > 5),
        ("5 >= id", col("id") <= 5),
        ("5 = id", col("id") == 5),
        ("id = 1e3", col("id") == 1000),
        ("id in (1, 2,3)", col("id").is_in([1, 2, 3])),
        ("id NOT IN (1)", col("id").not_in([1])),
        ("id BETWEEN 1 AND 5 AND paid", (col("id") >= 1) & (col("id") <= 5) & (col("paid") == True)),  # noqa: E712
        ("id NOT BETWEEN 1 AND 5", (col("id") < 1) | (col("id") > 5)),
        ("name IS NULL", col("name").is_null()),
        ("tags is not null", col("tags").is_not_null()),
        ("name LIKE 'a%'", col("name").starts_with("a")),
        ("name LIKE '%a'", col("name").ends_with("a")),
        ("name LIKE '%a%'", col("name").contains("a")),
        ("name LIKE 'a'", col("name") == "a"),
        ("name LIKE ''", col("name") == ""),
        ("name LIKE '%'", col("name").is_not_null()),
        ("name NOT LIKE 'a'", col("name") != "a"),
        ("name NOT LIKE 'a%'", ~col("name").starts_with("a")),
        ("NOT name LIKE '%'", ~col("name").contains("")),
        ("name = 'it''s'", col("name") == "it's"),
        ("name = 'DATE'", col("name") == "DATE"),
        ("price = 1.5", col("price") == Decimal("1.5")),
        ("price = 2", col("price") == 2),
        ("real > .5", col("real") > 0.5),
        ("real > 7", col("real") > 7.0),
        ("paid", col("paid") == True),  # noqa: E712
        ("NOT paid", col("paid") != True),  # noqa: E712
        ("paid = false", col("paid") == False),  # noqa: E712
        ("raw = X'00fF'", col("raw") == b"\x00\xff"),
        ("`odd ``name``` = 1", col("odd `name`") == 1),
        ("`id` = 1", col("id") == 1),
        ("date = DATE '2026-01-31'", col("date") == NOON.date()),
        ("date = '2026-01-31'", col("date") == NOON.date()),
        ("time < TIME '12:00:00'", col("time") < dt.time(12)),
        ("at >= TIMESTAMP '2026-01-31 12:00:00'", col("at") >= NOON),
        ("at >= '2026-01-31T12:00:00.000001'", col("at") >= NOON.replace(microsecond=1)),
        ("at < DATE '2026-01-31'", col("at") < NOON.replace(hour=0)),
        ("instant > TIMESTAMP '2026-01-31 12:00:00'", col("instant") > NOON.replace(tzinfo=dt.UTC)),
        ("instant > '2026-01-31 12:00:00Z'", col("instant") > NOON.replace(tzinfo=dt.UTC)),
    ],
)
def test_questions(text: str, meaning: Predicate) -> None:
    assert parsed(text) == repr(meaning)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("id = 1 OR id = 2 AND id = 3", "id = 1 OR (id = 2 AND id = 3)"),
        ("NOT id = 1 AND id = 2", "(NOT id = 1) AND id = 2"),
        ("NOT (id = 1 AND id = 2)", "id <> 1 OR id <> 2"),
        ("NOT (id = 1 OR name IS NULL)", "id <> 1 AND name IS NOT NULL"),
        ("NOT NOT (id < 1 AND NOT (id >= 2 OR id IN (3)))", "id < 1 AND id < 2 AND id NOT IN (3)"),
        ("NOT id BETWEEN 1 AND 2 AND paid", "(id < 1 OR id > 2) AND paid"),
        ("id=1\n\tand\r id=2", "id = 1 AND id = 2"),
        ("((id = 1))", "id = 1"),
    ],
)
def test_combinations(text: str, same: str) -> None:
    assert parsed(text) == parsed(same)


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 1, "expected a column, but it ends"),
        ("id", 3, "expected a comparison, IN, BETWEEN, LIKE or IS, but it ends"),
        ("id >", 5, "expected a value, but it ends"),
        ("id = = 1", 6, "expected a value, not '='"),
        ("ident = 1", 1, "the table has no column 'ident'; its columns are id, tiny, name"),
        ("id = 1 or", 10, "expected a column, but it ends"),
        ("id = 1 id = 2", 8, "expected AND, OR or the end, not 'id'"),
        ("id = 1; DROP", 7, "can't read '; DROP'"),
        ("name = 'abc", 8, "can't read \"'abc\""),
        ("(id = 1", 8, r"expected \), but it ends"),
        ("id IN ()", 8, "expected a value, not '\\)'"),
        ("id IN (1, 2", 12, r"expected \), but it ends"),
        ("id IS 5", 7, "expected NULL, not '5'"),
        ("id BETWEEN 1 OR 2", 14, "expected AND, not 'OR'"),
        ("id = NULL", 6, "a comparison with NULL never matches; ask IS NULL"),
        ("5 = 5", 5, "expected a column, not '5'"),
        ("id = - name", 8, "expected a number, not 'name'"),
        ("id = 12abc", 6, "can't read '12abc'"),
        ("id = 'a'", 6, "column 'id' of type bigint takes an int"),
        ("id = 1.5", 6, "column 'id' of type bigint takes an int"),
        ("id = 1e999999999", 6, "column 'id' of type bigint takes an int"),
        ("tiny = 1000", 8, "out of range for column 'tiny'"),
        ("price = 1.234", 9, "more decimal places than column 'price'"),
        ("id = DATE '2026-01-31'", 6, "'id' of type bigint is not compared with a DATE"),
        ("date = TIMESTAMP '2026-01-31'", 8, "'date' of type date is not compared with a TIMESTAMP"),
        ("date = 'yesterday'", 8, "'yesterday' is not a value of type date"),
        ("at = '2026-01-31 12:00:00.1234567'", 6, "microseconds are the finest"),
        ("at = '2026-01-31 12:00:00Z'", 6, "takes a datetime without time zone"),
        ("name LIKE 'a_b'", 11, "LIKE takes '%' at the beginning and at the end only"),
        ("name LIKE 'a%b'", 11, "LIKE takes '%' at the beginning and at the end only"),
        ("name LIKE 5", 11, "LIKE takes a text"),
        ("id LIKE 'a%'", 9, "needs a string column"),
        ("tags = 'a'", 8, "a filter can only ask whether it is null"),
        ("(" * 60 + "id = 1" + ")" * 60, 51, "at most 50 deep"),
    ],
)
def test_mistakes_are_shown_by_position(text: str, position: int, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"is wrong at position {position}: .*{problem}"):
        parse_predicate(text, SCHEMA)


def test_texts_have_a_limit() -> None:
    with pytest.raises(InvalidRequestError, match="at most 100000 characters"):
        parse_predicate("id = 1".ljust(TEXT_LENGTH_MAX + 1), SCHEMA)


def test_random_predicates_come_back() -> None:
    """What a predicate says, written as text, is read as the same predicate."""
    seed = random.randrange(2**32)
    print("seed", seed)
    source = random.Random(seed)
    for _ in range(300):
        predicate = _random_predicate(source, 4)
        assert parsed(_text(predicate.node)) == repr(predicate)


def _random_predicate(source: random.Random, depth: int) -> Predicate:
    if depth == 0 or source.random() < 0.3:
        number = source.randint(-5, 5)
        return source.choice([col("id") >= number, col("name") == f"it's {number}", col("price").is_null()])
    left, right = _random_predicate(source, depth - 1), _random_predicate(source, depth - 1)
    return left & right if source.random() < 0.5 else left | right


def _text(node: Leaf | Compound) -> str:
    if isinstance(node, Compound):
        word = " AND " if node.function is CompoundFunction.AND else " or "
        return word.join(f"({_text(child)})" for child in node.children)
    if node.function is LeafFunction.IS_NULL:
        return f"{node.column} is null"
    symbol = "=" if node.function is LeafFunction.EQUAL else ">="
    value = node.literals[0]
    quoted = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
    return f"{node.column} {symbol} {quoted}"

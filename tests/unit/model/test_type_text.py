"""Types and columns as SQL text."""

from __future__ import annotations

import random

import pytest

from fluss.model.errors import InvalidRequestError
from fluss.model.forms.type_text import parse_schema, parse_type, type_text
from fluss.model.schema import Column
from fluss.model.types import DataField, DataType, DataTypes, TypeRoot

PLAIN = [
    DataTypes.boolean(),
    DataTypes.tinyint(),
    DataTypes.smallint(),
    DataTypes.int(),
    DataTypes.bigint(),
    DataTypes.float(),
    DataTypes.double(),
    DataTypes.string(),
    DataTypes.bytes(),
    DataTypes.date(),
    DataTypes.char(5),
    DataTypes.binary(16),
    DataTypes.decimal(38, 10),
    DataTypes.time(3),
    DataTypes.timestamp(),
    DataTypes.timestamp(9),
    DataTypes.timestamp_ltz(0),
]


@pytest.mark.parametrize(
    ("text", "data_type"),
    [
        ("INTEGER", DataTypes.int()),
        ("decimal( 10 , 2 )", DataTypes.decimal(10, 2)),
        ("numeric(10)", DataTypes.decimal(10, 0)),
        ("varchar", DataTypes.string()),
        ("bigint not null", DataTypes.bigint().not_null()),
        ("bigint null", DataTypes.bigint()),
        ("array<int not null>", DataTypes.array(DataTypes.int().not_null())),
        ("map<string, array<double>>", DataTypes.map(DataTypes.string(), DataTypes.array(DataTypes.double()))),
        (
            "struct<a: int, `b c` string>",
            DataTypes.row([DataField("a", DataTypes.int()), DataField("b c", DataTypes.string())]),
        ),
        ("row(\"x\"\"y\" int comment 'it''s')", DataTypes.row([DataField('x"y', DataTypes.int(), "it's")])),
    ],
)
def test_types(text: str, data_type: DataType) -> None:
    assert parse_type(text) == data_type


def test_what_is_printed_can_be_read() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(300):
        data_type = _random_type(chance, 3)
        assert parse_type(type_text(data_type)) == data_type


def _random_type(chance: random.Random, depth: int) -> DataType:
    kind = chance.choice(("plain", "array", "map", "row")) if depth else "plain"
    if kind == "plain":
        found = chance.choice(PLAIN)
    elif kind == "array":
        found = DataTypes.array(_random_type(chance, depth - 1))
    elif kind == "map":
        found = DataTypes.map(_random_type(chance, depth - 1), _random_type(chance, depth - 1))
    else:
        names = chance.sample(["a", "b c", "x`y", "not", "1st", "ü", "it's"], chance.randint(1, 3))
        comments = (None, "it's", "")
        found = DataTypes.row([DataField(n, _random_type(chance, depth - 1), chance.choice(comments)) for n in names])
    return found.not_null() if chance.random() < 0.3 else found


def test_columns() -> None:
    schema = parse_schema("id int not null comment 'key', `the name` string, at timestamp_ltz(3), PRIMARY KEY (id)")
    assert schema.columns == [
        Column("id", DataTypes.int().not_null(), "key"),
        Column("the name", DataTypes.string()),
        Column("at", DataTypes.timestamp_ltz(3)),
    ]
    assert schema.get_primary_keys() == ["id"]
    assert parse_schema("a int, b int primary key").get_primary_keys() == ["b"]
    assert parse_schema("a int").columns[0].data_type.root is TypeRoot.INTEGER


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "position 1: expected the name of a column, but it ends"),
        ("id", "position 3: expected a type"),
        ("id int,", "position 8: expected the name"),
        ("id int name string", "position 8: expected a comma or the end, not 'name'"),
        ("id decimal", "decimal(10,2)"),
        ("id decimal(50,2)", "precision from 1 to 38"),
        ("id array<int", "expected >, but it ends"),
        ("id map<int>", "expected ,"),
        ("id int primary", "expected KEY"),
        ("id int primary key, primary key (id)", "already"),
        ("id int comment 5", "expected a 'text'"),
        ("id int; drop", "can't read '; drop'"),
        ("id int, id int", "occurs twice"),
        ("id " + "array<" * 40, "nested deeper"),
    ],
)
def test_mistakes_say_where(text: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_schema(text)
    assert problem in caught.value.message

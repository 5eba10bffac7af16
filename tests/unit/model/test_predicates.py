"""Predicates: building, combining, and what binding them to a schema refuses."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest

from fluss.model.errors import InvalidRequestError, SchemaMismatchError
from fluss.model.predicates import DEPTH_MAX, Compound, Leaf, LeafFunction, Predicate, col
from fluss.model.schema import Column, Schema
from fluss.model.tables.literals import BoundLeaf, bind, columns_of
from fluss.model.types import DataTypes

SCHEMA = Schema.of(
    [
        Column("yes", DataTypes.boolean()),
        Column("tiny", DataTypes.tinyint()),
        Column("id", DataTypes.int()),
        Column("big", DataTypes.bigint()),
        Column("real", DataTypes.float()),
        Column("double", DataTypes.double()),
        Column("name", DataTypes.string()),
        Column("code", DataTypes.char(3)),
        Column("raw", DataTypes.bytes()),
        Column("fixed", DataTypes.binary(2)),
        Column("price", DataTypes.decimal(5, 2)),
        Column("day", DataTypes.date()),
        Column("at", DataTypes.time(3)),
        Column("local", DataTypes.timestamp(3)),
        Column("nano", DataTypes.timestamp(9)),
        Column("instant", DataTypes.timestamp_ltz(6)),
        Column("list", DataTypes.array(DataTypes.int())),
    ]
)
NOON = dt.datetime(2024, 5, 1, 12)


@pytest.mark.parametrize(
    ("by_operator", "by_name", "function"),
    [
        (col("a") == 1, col("a").equal(1), LeafFunction.EQUAL),
        (col("a") != 1, col("a").not_equal(1), LeafFunction.NOT_EQUAL),
        (col("a") < 1, col("a").less_than(1), LeafFunction.LESS_THAN),
        (col("a") <= 1, col("a").less_or_equal(1), LeafFunction.LESS_OR_EQUAL),
        (col("a") > 1, col("a").greater_than(1), LeafFunction.GREATER_THAN),
        (col("a") >= 1, col("a").greater_or_equal(1), LeafFunction.GREATER_OR_EQUAL),
        (1 < col("a"), col("a") > 1, LeafFunction.GREATER_THAN),  # noqa: SIM300
    ],
)
def test_operators_and_methods_are_the_same(by_operator: Predicate, by_name: Predicate, function: LeafFunction) -> None:
    assert by_operator.node == by_name.node == Leaf(function, "a", (1,))


def test_predicates_combine_from_the_right_too() -> None:
    left, right = col("a") > 1, col("b") == "x"
    assert right.__rand__(left).node == (left & right).node
    assert right.__ror__(left).node == (left | right).node
    with pytest.raises(TypeError):
        True & right  # type: ignore[operator]


def test_combining_keeps_one_level_per_kind() -> None:
    both = (col("a") > 1) & (col("b") == "x") & col("c").is_null()
    assert isinstance(both.node, Compound)
    assert [leaf.column for leaf in both.node.children if isinstance(leaf, Leaf)] == ["a", "b", "c"]
    assert ((col("a") > 1) & (col("b") > 2)).node == (col("a") > 1).and_(col("b") > 2).node
    assert ((col("a") > 1) | (col("b") > 2)).node == (col("a") > 1).or_(col("b") > 2).node


def test_reprs() -> None:
    assert repr(col("a")) == "ColumnRef(a)"
    assert repr((col("a") > 1) & col("b").is_in(["x"])) == "Predicate((col('a') > 1) & (col('b').is_in(['x'])))"
    assert repr(col("a").is_null() | col("a").starts_with("h")) == (
        "Predicate((col('a').is_null()) | (col('a').starts_with('h')))"
    )


def test_a_predicate_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match="& and"):
        bool(col("a") > 1)
    with pytest.raises(TypeError, match="compare it"):
        bool(col("a"))
    with pytest.raises(TypeError, match="& and"):
        _ = 1 < col("a") < 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(col("a"))


@pytest.mark.parametrize(
    "build",
    [
        lambda: (col("a") > 1) & 5,
        lambda: (col("a") > 1).and_(5),
        lambda: (col("a") > 1).or_(True),
        lambda: col(5),
        lambda: col("a").starts_with(1),
        lambda: col("a").is_in(5),
        lambda: col("a").is_in("ab"),
    ],
)
def test_what_is_no_predicate(build: Any) -> None:
    with pytest.raises(TypeError):
        build()


def test_nesting_has_a_limit_and_long_chains_do_not() -> None:
    chain = col("id") == 0
    for number in range(2_000):
        chain = chain | (col("id") == number)
    bind(chain, SCHEMA)
    deep = col("id") == 0
    with pytest.raises(InvalidRequestError, match=f"{DEPTH_MAX} deep"):
        for _ in range(DEPTH_MAX):
            deep = (deep & (col("id") > 1)) | (col("id") > 2)


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (col("yes") == True, (True,)),  # noqa: E712
        (col("tiny") == -128, (-128,)),
        (col("big") == 2**63 - 1, (2**63 - 1,)),
        (col("real") == 0.1, (0.10000000149011612,)),
        (col("double") == 3, (3.0,)),
        (col("name") == "é", ("é",)),
        (col("code").contains("b"), ("b",)),
        (col("fixed") == bytearray(b"abc"), (b"abc",)),
        (col("price") == Decimal("1.5"), (Decimal("1.50"),)),
        (col("price") == 1.1, (Decimal("1.10"),)),
        (col("real") == Decimal("0.5"), (0.5,)),
        (col("price") == -3, (Decimal("-3.00"),)),
        (col("price") == Decimal("1.500"), (Decimal("1.50"),)),
        (col("price") == Decimal("0E+99999999"), (Decimal("0.00"),)),
        (col("day") == dt.date(2024, 5, 1), (dt.date(2024, 5, 1),)),
        (col("at") == dt.time(1, 2, 3, 4), (dt.time(1, 2, 3, 4),)),
        (col("local") == NOON, (NOON,)),
        (col("id").is_in([1, 2]), (1, 2)),
        (col("id").not_in([]), ()),
        (col("list").is_null(), ()),
    ],
)
def test_literals_take_their_columns_type(predicate: Predicate, expected: tuple[Any, ...]) -> None:
    bound = bind(predicate, SCHEMA)
    assert isinstance(bound, BoundLeaf)
    assert bound.literals == expected
    assert list(map(type, bound.literals)) == list(map(type, expected))


@pytest.mark.parametrize(
    ("predicate", "error", "text"),
    [
        (col("nope") == 1, SchemaMismatchError, "column 'nope'"),
        (col("id") == "1", SchemaMismatchError, "column 'id' of type int takes an int, not str '1'"),
        (col("id") == True, SchemaMismatchError, "'id'"),  # noqa: E712
        (col("id") == 1.0, SchemaMismatchError, "'id'"),
        (col("yes") == 1, SchemaMismatchError, "'yes'"),
        (col("id") == None, InvalidRequestError, "'id' compares with None.*is_null"),  # noqa: E711
        (col("id").is_in([1, None]), InvalidRequestError, "'id' compares with None"),
        (col("id") == 2**31, InvalidRequestError, "2147483648 is out of range for column 'id'"),
        (col("tiny") < -129, InvalidRequestError, "out of range for column 'tiny'"),
        (col("double") < float("nan"), InvalidRequestError, "'double' compares with NaN"),
        (col("double") == 2**53 + 1, InvalidRequestError, "'double'"),
        (col("double") == 10**400, InvalidRequestError, "out of range for column 'double'"),
        (col("real") == 1e300, InvalidRequestError, "out of range for column 'real'"),
        (col("name") == b"x", SchemaMismatchError, "'name'"),
        (col("name") == "\ud800", InvalidRequestError, "'name' is not valid Unicode"),
        (col("raw") == "x", SchemaMismatchError, "'raw'"),
        (col("price") == 0.1 + 0.2, InvalidRequestError, "decimal places than column 'price'"),
        (col("price") == float("nan"), InvalidRequestError, "out of range for column 'price'"),
        (col("list.x") == 1, SchemaMismatchError, "no field 'x'"),
        (col("price") == Decimal("1.505"), InvalidRequestError, "decimal places than column 'price'"),
        (col("price") == 1000, InvalidRequestError, "out of range for column 'price'"),
        (col("price") == Decimal("1E+999999999"), InvalidRequestError, "out of range for column 'price'"),
        (col("price") == Decimal("nan"), InvalidRequestError, "out of range for column 'price'"),
        (col("day") == NOON, SchemaMismatchError, "'day'"),
        (col("at") == dt.time(1, tzinfo=dt.UTC), SchemaMismatchError, "'at'"),
        (col("local") == NOON.replace(tzinfo=dt.UTC), SchemaMismatchError, "'local'.*without time zone"),
        (col("instant") == NOON, SchemaMismatchError, "'instant'.*with a time zone"),
        (col("nano") == dt.datetime(2500, 1, 1), InvalidRequestError, "out of range for column 'nano'"),
        (col("id").starts_with("1"), SchemaMismatchError, "string column, but 'id'"),
        (col("list") == [1], SchemaMismatchError, "'list'.*null"),
        (col("list").is_in([[1]]), SchemaMismatchError, "'list'"),
    ],
)
def test_what_does_not_fit_names_the_column(predicate: Predicate, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        bind((col("id") > 0) & predicate, SCHEMA)


def test_columns_of_a_filter() -> None:
    bound = bind((col("id") > 0) & ((col("name") == "x") | col("yes").is_null()), SCHEMA)
    assert columns_of(bound) == {0, 2, 6}


def test_something_else_is_no_filter() -> None:
    with pytest.raises(InvalidRequestError, match="not a bool"):
        bind(True, SCHEMA)  # type: ignore[arg-type]


def test_building_a_predicate_loads_no_arrow() -> None:
    code = "import sys; from fluss import col; col('a') > 1; assert not {'pyarrow', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

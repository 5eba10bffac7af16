"""Table options that say what puts do, and those that do not go together."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from fluss.model.aggregation import AggFunction
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import InvalidRequestError
from fluss.model.schema import Column, Schema
from fluss.model.tables import merge_rules
from fluss.model.tables.merge_rules import ChangelogImage, DeleteBehavior, MergeEngine, MergeRules
from fluss.model.types import DataTypes

ENGINE, VERSION = "table.merge-engine", "table.merge-engine.versioned.ver-column"
DELETES, IMAGE = "table.delete.behavior", "table.changelog.image"
COLUMNS = [Column("id", DataTypes.int()), Column("v", DataTypes.bigint()), Column("s", DataTypes.string())]


def table(properties: dict[str, str], columns: list[Column] = COLUMNS, **schema: Any) -> TableDescriptor:
    return TableDescriptor(Schema.of(columns, schema.pop("keys", ["id"]), **schema), properties=properties)


@pytest.mark.parametrize(
    ("properties", "rules", "deletes"),
    [
        ({}, MergeRules(), "ALLOW"),
        ({DELETES: "ignore"}, MergeRules(delete_behavior=DeleteBehavior.IGNORE), "IGNORE"),
        (
            {IMAGE: "wal", DELETES: "Disable"},
            MergeRules(None, "", DeleteBehavior.DISABLE, ChangelogImage.WAL),
            "DISABLE",
        ),
        ({ENGINE: "first_row"}, MergeRules(MergeEngine.FIRST_ROW), "IGNORE"),
        ({ENGINE: "VERSIONED", VERSION: "v"}, MergeRules(MergeEngine.VERSIONED, "v"), "IGNORE"),
        ({ENGINE: "aggregation"}, MergeRules(MergeEngine.AGGREGATION), "IGNORE"),
        (
            {ENGINE: "aggregation", DELETES: "allow"},
            MergeRules(MergeEngine.AGGREGATION, "", DeleteBehavior.ALLOW),
            "ALLOW",
        ),
    ],
)
def test_rules_of_options(properties: dict[str, str], rules: MergeRules, deletes: str) -> None:
    assert MergeRules.of(table(properties)) == rules
    assert rules.deletes == deletes


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({ENGINE: "first_row", DELETES: "allow"}, "FIRST_ROW has no deletes"),
        ({ENGINE: "versioned", VERSION: "v", DELETES: "allow"}, "VERSIONED has no deletes"),
        ({ENGINE: "aggregation", IMAGE: "wal"}, "AGGREGATION needs table.changelog.image FULL"),
        ({ENGINE: "versioned"}, f"VERSIONED needs {VERSION}"),
        ({ENGINE: "versioned", VERSION: "x"}, "version column 'x' is not among"),
        ({ENGINE: "versioned", VERSION: "s"}, "version column 's' is string; use INT"),
    ],
)
def test_options_that_do_not_go_together(properties: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        MergeRules.of(table(properties))
    assert caught.value.error_code == 39


@pytest.mark.parametrize("properties", [{ENGINE: "first_row"}, {DELETES: "ignore"}])
def test_log_tables_have_no_engine(properties: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match="needs a primary key") as caught:
        MergeRules.of(table(properties, keys=[]))
    assert caught.value.error_code == 39
    assert MergeRules.of(table({}, keys=[])) == MergeRules()


def test_aggregate_functions_need_the_engine_and_the_type() -> None:
    sums = [COLUMNS[0], Column("v", DataTypes.bigint(), None, AggFunction("sum"))]
    MergeRules.of(table({ENGINE: "aggregation"}, sums))
    with pytest.raises(InvalidRequestError, match="'v' has the aggregate function sum: set table"):
        MergeRules.of(table({}, sums))
    with pytest.raises(InvalidRequestError, match="sum of 's' takes TINYINT"):
        MergeRules.of(
            table({ENGINE: "aggregation"}, [*sums, Column("s", DataTypes.string(), None, AggFunction("sum"))])
        )


def test_bitmaps(monkeypatch: pytest.MonkeyPatch) -> None:
    def columns(name: str) -> list[Column]:
        return [COLUMNS[0], Column("b", DataTypes.bytes(), None, AggFunction(name))]

    with pytest.raises(InvalidRequestError, match="rbm64, whose bytes only one Java library") as caught:
        MergeRules.of(table({ENGINE: "aggregation"}, columns("rbm64")))
    assert caught.value.error_code == 39
    monkeypatch.setattr(merge_rules, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequestError, match="needs the package pyroaring"):
        MergeRules.of(table({ENGINE: "aggregation"}, columns("rbm32")))
    monkeypatch.setattr(merge_rules, "find_spec", lambda name: importlib.util.find_spec("json"))
    MergeRules.of(table({ENGINE: "aggregation"}, columns("rbm32")))


def test_numbered_columns_need_partial_updates() -> None:
    MergeRules.of(table({}, auto_increment_column="v"))
    MergeRules.of(table({ENGINE: "aggregation"}, auto_increment_column="v"))
    for properties in ({ENGINE: "first_row"}, {ENGINE: "versioned", VERSION: "v"}):
        with pytest.raises(InvalidRequestError, match="can't have an auto-increment column"):
            MergeRules.of(table(properties, auto_increment_column="v"))


@pytest.mark.parametrize(
    ("keys", "column", "message"),
    [
        ([], "v", "'v' needs a table with a primary key"),
        (["id"], "id", "'id' can't be part of the primary key"),
        (["id"], "s", "'s' must be INT or BIGINT, not string"),
        (["id"], "x", "'x' is not among the columns"),
    ],
)
def test_numbered_columns_that_can_not_be(keys: list[str], column: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"The auto-increment column {message}") as caught:
        Schema.of(COLUMNS, keys, column)
    assert caught.value.error_code == 15


def test_one_numbered_column_at_most() -> None:
    value = Schema.of(COLUMNS, ["id"], "v").to_json() | {"auto_increment_column": ["v", "v"]}
    with pytest.raises(InvalidRequestError, match="at most one auto-increment column"):
        Schema.from_json(value)
    built = Schema.builder().column("id", DataTypes.int()).column("v", DataTypes.int()).primary_key(["id"])
    assert built.enable_auto_increment("v").build().get_auto_increment_columns() == ["v"]

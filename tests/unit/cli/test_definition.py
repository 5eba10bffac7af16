"""Table definitions as files."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from fluss.cli.commands.definition import definition_of, descriptor_of, read_definition, to_toml
from fluss.model.aggregation import AggFunction
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import FlussError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath
from fluss.model.schema import Column, Schema
from fluss.model.types import DataField, DataTypes

NASTY = 'a "b"\n\\ ü \x7f'
DESCRIPTOR = TableDescriptor(
    Schema.of(
        [
            Column("id", DataTypes.bigint(), NASTY),
            Column("day", DataTypes.string()),
            Column("number", DataTypes.int()),
            Column("all", DataTypes.string(), None, AggFunction("listagg", {"delimiter": "|"})),
            Column(NASTY, DataTypes.row([DataField("x y", DataTypes.decimal(5, 2).not_null(), "it's")])),
        ],
        ["id", "day"],
        "number",
    ),
    partition_keys=["day"],
    bucket_keys=["id"],
    bucket_count=4,
    comment=NASTY,
    properties={"table.log.ttl": "7 d"},
    custom_properties={NASTY: NASTY},
)


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_both_ways(tmp_path: Path, suffix: str) -> None:
    definition = definition_of(TableInfo(TablePath("d", "t"), 1, 1, DESCRIPTOR, 4, 0, 0))
    path = tmp_path / f"t{suffix}"
    path.write_text(json.dumps(definition) if suffix == ".json" else to_toml(definition), encoding="utf-8")
    assert read_definition(path) == DESCRIPTOR


def test_columns_as_a_table() -> None:
    content = tomllib.loads('primary_key = ["id"]\n[columns]\nid = "int"\nname = "string"\n')
    assert descriptor_of(content).schema.get_columns() == [("id", "int NOT NULL"), ("name", "string")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("columns = []", "needs 'columns'"),
        ("colums = []", "Unknown key 'colums'"),
        ('buckets = "4"', "buckets can't be '4'"),
        ('columns = [{ name = "id" }]', "A column is like"),
        ('columns = [{ name = "id", type = "foo" }]', "Column 'id': The type 'foo' is wrong"),
        ('columns = [{ name = "id", type = "int", nullable = false }]', "unknown key 'nullable'"),
        ('primary_key = ["x"]\n[columns]\nid = "int"', "'x' is not among the columns"),
        ("columns = [", "is not TOML"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(FlussError) as caught:
        read_definition(path)
    assert "bad.toml" in caught.value.message
    assert problem in caught.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FlussError, match="can't be read: No such file"):
        read_definition(tmp_path / "none.toml")

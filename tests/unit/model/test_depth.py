"""What is nested too deep is an error that names the bound, wherever it comes in, and never one of the interpreter."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fluss.cli.commands.definition import read_definition
from fluss.model.descriptor import DatabaseDescriptor, TableDescriptor, schema_from_bytes
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.model.forms.arrow_types import from_arrow, to_arrow
from fluss.model.forms.predicate_text import parse_predicate
from fluss.model.forms.type_text import parse_schema, parse_type, type_text
from fluss.model.positions import ChangesPosition, Positions
from fluss.model.schema import Column, Schema
from fluss.model.types import (
    DEPTH_MAX,
    NESTING_DEPTH_MAX,
    DataField,
    DataType,
    DataTypes,
    parse_json,
    type_from_json,
    type_to_json,
)
from tests.kit.deep_types import TYPE_TEXTS, json_text, schema_json, table_json

LEVELS = [NESTING_DEPTH_MAX + 1, 150, 300, 900, 5_000, 100_000]
Wrap = Callable[[Any], Any]


def nested(wrap: Wrap, leaf: Any, levels: int) -> Any:
    for _ in range(levels):
        leaf = wrap(leaf)
    return leaf


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("kind", TYPE_TEXTS)
@pytest.mark.parametrize("read", [schema_from_bytes, TableDescriptor.from_json])
def test_json_of_a_schema(kind: str, levels: int, read: Callable[[bytes], object]) -> None:
    text = (schema_json if read is schema_from_bytes else table_json)(kind, levels)
    with pytest.raises(InvalidRequestError, match=r"nested deeper than \d+ levels|larger than"):
        read(text)


@pytest.mark.parametrize("kind", TYPE_TEXTS)
def test_as_deep_as_may_be(kind: str) -> None:
    """Every way through the house, there and back."""
    schema = schema_from_bytes(schema_json(kind, NESTING_DEPTH_MAX))
    data_type = schema.columns[0].data_type
    assert data_type.depth == NESTING_DEPTH_MAX
    assert type_from_json(type_to_json(data_type)) == data_type
    assert parse_type(type_text(data_type)) == data_type
    assert from_arrow(to_arrow(data_type)) == data_type
    assert pickle.loads(pickle.dumps(data_type)) == data_type
    assert data_type.not_null().depth == NESTING_DEPTH_MAX
    descriptor = TableDescriptor(schema)
    assert TableDescriptor.from_json(descriptor.to_json()).schema == schema


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize(
    "wrap",
    [
        DataTypes.array,
        lambda inner: DataTypes.map(DataTypes.int(), inner),
        lambda inner: DataTypes.row([DataField("a", inner)]),
    ],
)
def test_types_made_by_hand(wrap: Callable[[DataType], DataType], levels: int) -> None:
    with pytest.raises(InvalidRequestError, match="nested deeper than 32 levels"):
        nested(wrap, DataTypes.int(), levels)
    Schema.of([Column("a", nested(wrap, DataTypes.int(), NESTING_DEPTH_MAX))])


@pytest.mark.parametrize("levels", LEVELS[:-1])
@pytest.mark.parametrize(
    "wrap", [pa.list_, lambda inner: pa.map_(pa.int32(), inner), lambda inner: pa.struct([("a", inner)])]
)
def test_arrow_types(wrap: Wrap, levels: int) -> None:
    with pytest.raises(InvalidRequestError, match="nested deeper than 32 levels"):
        Schema(pa.schema([("a", nested(wrap, pa.int32(), levels))]))


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize(("opening", "closing"), [("array<", ">"), ("map<int,", ">"), ("row<a ", ">"), ("row(a ", ")")])
def test_texts_of_types(opening: str, closing: str, levels: int) -> None:
    text = opening * levels + "int" + closing * levels
    with pytest.raises(InvalidRequestError, match="nested deeper than 32 levels"):
        parse_type(text)
    with pytest.raises(InvalidRequestError, match="nested deeper than 32 levels"):
        parse_schema(f"a {text}")


@pytest.mark.parametrize("levels", [DEPTH_MAX + 1, 900, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_json(opening: str, closing: str, levels: int, tmp_path: Path) -> None:
    text = json_text(opening, "1", closing, levels)
    with pytest.raises(ValueError, match=f"nested deeper than {DEPTH_MAX} levels"):
        parse_json(text)
    inside = b'{"version":1,"comment":"","custom_properties":{"a":' + text + b"}}"
    for read in (
        Positions.from_json,
        ChangesPosition.from_json,
        lambda _: DatabaseDescriptor.from_json(inside),
        lambda _: TableDescriptor.from_json(inside),
    ):
        with pytest.raises(InvalidRequestError, match="nested deeper than"):
            read(text)
    path = tmp_path / "table.json"
    path.write_bytes(text)
    with pytest.raises(FlussError, match="nested deeper than"):
        read_definition(path)


def test_json_up_to_the_bound() -> None:
    text = json_text("[", "1", "]", DEPTH_MAX)
    assert json.dumps(parse_json(text)).encode() == text
    assert parse_json(b"[]") == []


@pytest.mark.parametrize("levels", [60, 900, 40_000])
@pytest.mark.parametrize(("opening", "closing"), [("(", ")"), ("not ", "")])
def test_texts_of_filters(opening: str, closing: str, levels: int) -> None:
    with pytest.raises(InvalidRequestError, match=r"at most 50 deep|at most 100000 characters"):
        parse_predicate(opening * levels + "id = 1" + closing * levels, parse_schema("id bigint"))

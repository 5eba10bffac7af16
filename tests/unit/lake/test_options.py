from __future__ import annotations

from pathlib import Path

import pytest

from fluss.lake.options import LakeOptions
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath
from fluss.model.schema import Schema
from fluss.model.types import DataTypes


def info_of(**properties: str) -> TableInfo:
    schema = Schema.builder().column("id", DataTypes.int()).build()
    named = {f"table.datalake.iceberg.{key.replace('_', '-')}": value for key, value in properties.items()}
    return TableInfo(TablePath("a", "b"), 1, 1, TableDescriptor(schema, properties=named), 1, 0, 0)


def test_what_the_server_says_counts_unless_something_is_given() -> None:
    info = info_of(type="jdbc", uri="jdbc:sqlite:/data/lake.db", warehouse="/data/lake", s3_region="x")
    found = LakeOptions.of(info)
    assert (found.type, found.warehouse, found.name) == ("jdbc", "/data/lake", "fluss-iceberg-catalog")
    assert found.sqlite_path == Path("/data/lake.db")
    assert found.sqlalchemy_uri == "sqlite:////data/lake.db"
    assert found.properties == {"s3-region": "x"}
    given = LakeOptions.of(info, warehouse="/other")
    assert (given.type, given.sqlite_path, given.properties) == ("sql", Path("/other/catalog.db"), {})
    rest = LakeOptions.of(info, catalog={"type": "rest", "uri": "http://127.0.0.1:8181"})
    assert (rest.type, rest.uri, rest.sqlite_path) == ("rest", "http://127.0.0.1:8181", None)


def test_options_travel_as_properties_of_a_table() -> None:
    options = LakeOptions.from_properties({"type": "jdbc", "uri": "jdbc:sqlite:/x.db", "warehouse": "/w", "k": "v"})
    properties = {
        key.removeprefix("table.datalake.iceberg."): value for key, value in options.table_properties().items()
    }
    assert LakeOptions.from_properties(properties) == options


@pytest.mark.parametrize(
    ("location", "path"),
    [("/a b/c", "/a b/c/catalog.db"), ("file:///a%20b/c", "/a b/c/catalog.db"), ("file:/a/c", "/a/c/catalog.db")],
)
def test_a_warehouse_is_a_folder_or_a_file_address(location: str, path: str) -> None:
    options = LakeOptions.from_properties({"warehouse": location})
    assert options.sqlite_path == Path(path)
    assert " " not in options.sqlalchemy_uri


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({}, "needs a warehouse"),
        ({"type": "hadoop", "warehouse": "/x"}, "'hadoop' can't be used; there are sql, jdbc, rest"),
        ({"type": "rest"}, "needs an uri"),
        ({"type": "jdbc", "warehouse": "/x"}, "needs an uri"),
    ],
)
def test_options_that_name_no_catalog(properties: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        LakeOptions.from_properties(properties)


def test_a_warehouse_elsewhere_needs_a_catalog() -> None:
    with pytest.raises(InvalidRequestError, match="name the catalog's type and uri"):
        _ = LakeOptions.from_properties({"warehouse": "s3://bucket/lake"}).sqlite_path


def test_a_table_without_a_lake() -> None:
    with pytest.raises(InvalidRequestError, match=r"a\.b has no lake.*'table.datalake.enabled'"):
        LakeOptions.of(info_of())

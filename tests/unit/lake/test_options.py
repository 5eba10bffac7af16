from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fluss.lake.options import LakeOptions
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath
from fluss.model.schema import Schema
from fluss.model.trust import Trust
from fluss.model.types import DataTypes


def info_of(**properties: str) -> TableInfo:
    schema = Schema.builder().column("id", DataTypes.int()).build()
    named = {f"table.datalake.iceberg.{key.replace('_', '.')}": value for key, value in properties.items()}
    return TableInfo(TablePath("a", "b"), 1, 1, TableDescriptor(schema, properties=named), 1, 0, 0)


def test_what_the_server_says_counts_unless_something_is_given() -> None:
    info = info_of(type="jdbc", uri="jdbc:sqlite:/data/lake.db", warehouse="/data/lake", s3_region="x")
    found = LakeOptions.of(info, trust=Trust(listed=("/data",)))
    assert (found.type, found.warehouse, found.name) == ("jdbc", "/data/lake", "fluss-iceberg-catalog")
    assert found.sqlite_path == Path("/data/lake.db")
    assert found.sqlalchemy_uri == "sqlite:////data/lake.db"
    assert found.properties == {"s3.region": "x"}
    given = LakeOptions.of(info, warehouse="/other")
    assert (given.type, given.sqlite_path, given.properties) == ("sql", Path("/other/catalog.db"), {})
    rest = LakeOptions.of(info, catalog={"type": "rest", "uri": "http://127.0.0.1:8181"})
    assert (rest.type, rest.uri, rest.sqlite_path) == ("rest", "http://127.0.0.1:8181", None)


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


LOCAL = Trust(frozenset({"127.0.0.1"}), is_local=True)


def paths_of_others(folder: Path) -> dict[str, dict[str, str]]:
    """What a server on this machine may not name, though all of it belongs to whoever runs this."""
    database = folder / "precious.db"
    os.mkfifo(folder / "pipe")
    (folder / "pipes").mkdir()
    os.mkfifo(folder / "pipes" / "catalog.db")
    (folder / "linked").mkdir()
    (folder / "linked" / "catalog.db").symlink_to(database)
    (folder / "full").mkdir()
    (folder / "full" / "letter").write_text("dear")
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE letters (text)")
    new = {"warehouse": str(folder / "new")}
    return {
        "a folder with other files": {"warehouse": str(folder / "full")},
        "a folder with a pipe": {"warehouse": str(folder / "pipes")},
        "a folder with a link": {"warehouse": str(folder / "linked")},
        "a database with other tables": {"uri": f"sqlite:///{database}", **new},
        "the same by the JVM": {"type": "jdbc", "uri": f"jdbc:sqlite:{database}", **new},
        "the same, of a file": {"type": "jdbc", "uri": f"jdbc:sqlite:file:{database}?cache=shared", **new},
        "a text": {"uri": f"sqlite:///{folder}/full/letter", **new},
        "a pipe": {"uri": f"sqlite:///{folder}/pipe", **new},
        "a device": {"uri": "sqlite:////dev/zero", **new},
        "a folder of the system": {"warehouse": "/proc/self/cwd/new"},
        "the root": {"warehouse": "/"},
        "a step up": {"warehouse": f"{folder}/full/../new"},
        "a step up, encoded": {"warehouse": f"file://{folder}/full/%2e%2e/new"},
        "a fragment": {"warehouse": f"{folder}/new#x"},
        "a relative path": {"warehouse": "new"},
        "another driver": {"uri": f"sqlite+pysqlite:///{folder}/new/x.db", **new},
        "a driver that runs scripts": {"type": "jdbc", "uri": "jdbc:h2:mem:x;INIT=RUNSCRIPT FROM 'x'", **new},
        "no service": {"type": "rest", "uri": f"file://{folder}", **new},
        "a name that is none": {"name": "x.io-impl", **new},
    }


def test_paths_that_a_server_on_this_machine_may_not_name(tmp_path: Path) -> None:
    named = paths_of_others(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for kind, lake in named.items():
        with pytest.raises(InvalidRequestError, match="The server names"):
            print(kind, LakeOptions.of(info_of(**lake), trust=LOCAL))
    assert sorted(tmp_path.rglob("*")) == before


def test_of_a_server_little_is_taken(tmp_path: Path) -> None:
    warehouse = str(tmp_path / "lake")
    said = {"type": "sql", "warehouse": warehouse, "name": "theirs", "s3.region": "r", "s3.endpoint": "http://x"}
    info = info_of(**{**said, "py-io-impl": "a.B", "token": "t", "init_catalog_tables": "false"})
    found = LakeOptions.of(info, trust=LOCAL)
    assert (found.name, found.properties, found.is_named_by_server) == ("theirs", {"s3.region": "r"}, True)
    assert found.places == (warehouse,)
    login = info_of(type="jdbc", uri="jdbc:postgresql://u:p@127.0.0.1/lake?sslkey=/x", warehouse=warehouse)
    assert LakeOptions.of(login, trust=LOCAL).sqlalchemy_uri == "postgresql://127.0.0.1/lake"


def test_of_the_user_everything_is_taken() -> None:
    given = {"type": "rest", "uri": "http://anywhere", "warehouse": "name", "py-io-impl": "a.B", "token": "t"}
    found = LakeOptions.of(info_of(), catalog=given, trust=Trust(listed=("host", "/data", "s3://bucket")))
    assert found.properties == {"py-io-impl": "a.B", "token": "t"}
    assert found.places == ("/data", "s3://bucket")

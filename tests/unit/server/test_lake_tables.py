"""Which tables can be tiered, and where clients are told that the lake is."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fluss.model.errors import InvalidRequestError
from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from fluss.server.config import ServerConfig, effective_settings, load_config
from tests.kit.thread_server import RunningServer, Wire, WireError, create_table, descriptor, path

LAKE = {"table.datalake.enabled": "true"}
ICEBERG = "table.datalake.iceberg."


def shown(wire: Wire, name: str = "t") -> dict[str, str]:
    """A table's properties, which are the same wherever they go out."""
    info = wire.call(api_keys.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path(name)))
    (table,) = wire.call(api_keys.METADATA, pb.MetadataRequest(table_path=[path(name)])).table_metadata
    assert info.table_json == table.table_json
    properties: dict[str, str] = json.loads(info.table_json)["properties"]
    return properties


def iceberg(properties: dict[str, str]) -> dict[str, str]:
    return {key.removeprefix(ICEBERG): value for key, value in properties.items() if key.startswith(ICEBERG)}


def stored(server: RunningServer) -> dict[str, str]:
    (entry,) = server.look(server.server.context.storage.catalog.all_tables)
    properties: dict[str, str] = json.loads(entry.table_json)["properties"]
    return properties


def create(wire: Wire, columns: list[tuple[str, str]] | None = None, key: list[str] | None = None, **more: Any) -> None:
    table = json.loads(descriptor(columns, **{"bucket_count": 2, "bucket_key": [], **more}))
    if key is not None:
        table["schema"]["primary_key"] = key
    request = pb.CreateTableRequest(table_path=path(), table_json=json.dumps(table).encode(), ignore_if_exists=False)
    wire.call(api_keys.CREATE_TABLE, request)


def alter(wire: Wire, key: str, value: str | None) -> None:
    change = pb.PbAlterConfig(config_key=key, op_type=0 if value is not None else 1)
    if value is not None:
        change.config_value = value
    request = pb.AlterTableRequest(table_path=path(), ignore_if_not_exists=False, config_changes=[change])
    wire.call(api_keys.ALTER_TABLE, request)


def test_without_settings_the_lake_lies_in_the_data_directory(server: RunningServer, wire: Wire) -> None:
    create_table(wire, properties=LAKE)
    assert stored(server) == {"table.replication.factor": "1", **LAKE, "table.datalake.format": "iceberg"}
    assert iceberg(shown(wire)) == {"type": "sql", "warehouse": str(server.config.data_dir.absolute() / "lake")}
    alter(wire, "table.datalake.enabled", "false")
    assert not iceberg(shown(wire))


def test_a_table_that_is_not_tiered_says_nothing_of_the_lake(wire: Wire) -> None:
    create_table(wire)
    create_table(wire, "formatted", properties={"table.datalake.format": "iceberg"})
    assert not iceberg(shown(wire))
    assert not iceberg(shown(wire, "formatted"))


def test_settings_go_out_with_the_table_but_for_secrets(tmp_path: Path) -> None:
    settings = {
        "type": "rest",
        "uri": "http://127.0.0.1:8181",
        "s3.endpoint": "http://127.0.0.1:9000",
        "s3.secret-access-key": "1",
        "s3.access-key-id": "2",
        "Token": "3",
        "jdbc.password": "4",
        "credential": "5",
    }
    with RunningServer(tmp_path, datalake_iceberg=settings) as server, server.connect() as wire:
        create_table(wire, properties=LAKE)
        assert iceberg(shown(wire)) == {
            "type": "rest",
            "uri": "http://127.0.0.1:8181",
            "s3.endpoint": "http://127.0.0.1:9000",
        }
        assert iceberg(stored(server)) == {}
        assert not any(key.startswith("datalake.iceberg") for key, _ in effective_settings(server.config))


FORBIDDEN = [
    "table.datalake.iceberg.uri",
    "table.datalake.iceberg.py-io-impl",
    "Table.DataLake.Iceberg.URI",
    "iceberg.py-io-impl",
    "iceberg.write.py-location-provider.impl",
    "ICEBERG.s3.endpoint",
    "paimon.metastore.uri",
    "datalake.iceberg.warehouse",
]


@pytest.mark.parametrize("key", FORBIDDEN)
def test_users_do_not_say_where_a_lake_is(server: RunningServer, wire: Wire, key: str) -> None:
    kinds = ["custom_properties", "properties"] if key.startswith(ICEBERG) else ["custom_properties"]
    for kind in kinds:
        with pytest.raises(WireError, match=r"can't be made.*operator.*fluss\.toml") as raised:
            create(wire, **{kind: {key: "x"}})
        assert raised.value.code == 39
        assert key in str(raised.value)
    create_table(wire, properties=LAKE)
    before = shown(wire)
    with pytest.raises(WireError, match=r"can't be altered.*operator.*fluss\.toml") as raised:
        alter(wire, key, "x")
    assert raised.value.code == 56
    assert shown(wire) == before


def test_tables_that_were_told_of_a_lake_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By users of an earlier version: it does not go out, and can be taken away."""
    with RunningServer(tmp_path) as server, server.connect() as wire:
        create_table(wire, properties=LAKE)
        before = iceberg(shown(wire))
    [database] = tmp_path.rglob("catalog.db")
    database.with_name("marks").unlink()  # which know the catalog's checksum
    with closing(sqlite3.connect(database)) as connection, connection:
        [[text]] = connection.execute("SELECT json FROM tables")
        table = json.loads(text)
        table["properties"] |= {f"{ICEBERG}uri": "http://evil", f"{ICEBERG}py-io-impl": "a.B"}
        connection.execute("UPDATE tables SET json = ?", (json.dumps(table, separators=(",", ":")).encode(),))
    with RunningServer(tmp_path) as server, server.connect() as wire:
        assert iceberg(stored(server)) == {"uri": "http://evil", "py-io-impl": "a.B"}
        for _ in range(2):
            assert iceberg(shown(wire)) == before
        assert caplog.text.count(f"{ICEBERG}uri='http://evil'") == 1
        alter(wire, "table.datalake.freshness", "1 min")
        alter(wire, "table.datalake.enabled", "false")
        assert not iceberg(shown(wire))
        for key in ("uri", "py-io-impl"):
            alter(wire, ICEBERG + key, None)
        assert not iceberg(stored(server))


COLUMNS = [("id", "INTEGER"), ("name", "STRING"), ("day", "DATE"), ("score", "DOUBLE"), ("small", "TINYINT")]


@pytest.mark.parametrize(
    ("table", "code", "text"),
    [
        ({"bucket_key": ["id", "name"]}, 15, "set bucket.key to one column"),
        ({"bucket_key": ["score"]}, 15, "no buckets by score"),
        ({"bucket_key": ["small"]}, 15, "no buckets by small"),
        ({"partition_key": ["day"]}, 15, "'day' of a table that is tiered must be STRING"),
        ({"partition_key": ["name", "id"]}, 15, "'id' of a table"),
        ({"properties": {**LAKE, "table.datalake.format": "paimon"}}, 39, "needs table.datalake.format iceberg"),
        ({"properties": {**LAKE, "table.datalake.format": "lance"}, "key": ["id"]}, 39, "nothing is tiered to lance"),
        ({"columns": [("__offset", "BIGINT")]}, 15, "reserved"),
    ],
)
def test_tables_that_can_not_be_tiered(server: RunningServer, table: dict[str, Any], code: int, text: str) -> None:
    with server.connect() as wire:
        with pytest.raises(WireError, match=text) as raised:
            create(wire, **{"columns": COLUMNS, "properties": LAKE, **table})
        assert raised.value.code == code
        if "columns" in table:
            return
        # Nor later.
        create(wire, **{"columns": COLUMNS, **table, "properties": {"table.datalake.format": "iceberg"}})
        if "properties" not in table:
            with pytest.raises(WireError, match=text):
                alter(wire, "table.datalake.enabled", "true")
            assert "table.datalake.enabled" not in stored(server)


def test_tables_that_can_be_tiered(wire: Wire) -> None:
    keyed = [("id", "INTEGER"), ("name", "STRING"), ("score", "DOUBLE")]
    create(wire, keyed, key=["id", "name"], bucket_key=["id"], partition_key=["name"], properties=LAKE)
    assert shown(wire)["table.datalake.format"] == "iceberg"


def config(directory: Path, text: str) -> ServerConfig:
    file = directory / "fluss.toml"
    file.write_text(text)
    return load_config(file, {})


def test_settings_of_the_catalog(tmp_path: Path) -> None:
    expected = {"type": "jdbc", "uri": "sqlite:////x", "s3.path_style": "true"}
    for text in (
        '"datalake.iceberg.type" = "jdbc"\n"datalake.iceberg.uri" = "sqlite:////x"\n'
        '"datalake.iceberg.s3.path_style" = "true"',
        '[datalake.iceberg]\ntype = "jdbc"\nuri = "sqlite:////x"\n"s3.path_style" = "true"',
    ):
        assert config(tmp_path, text).datalake_iceberg == expected
    assert config(tmp_path, "").datalake_iceberg == {}
    many = "\n".join(f'"datalake.iceberg.k{number}" = ""' for number in range(65))
    for text, problem in (
        ("datalake.iceberg.port = 1", "must be a string"),
        ('datalake.format = "paimon"\ndatalake.iceberg.type = "rest"', "leave one of them out"),
        ('datalake.iceberg."" = "x"', "empty"),
        (f'datalake.iceberg.uri = "{"x" * 5_000}"', "4096"),
        (many, "64 keys"),
    ):
        with pytest.raises(InvalidRequestError, match=problem):
            config(tmp_path, text)

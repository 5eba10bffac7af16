"""Requests about tables, with their error codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from tests.kit.deep_types import TYPE_TEXTS, json_text, table_json
from tests.kit.thread_server import COLUMNS, RunningServer, Wire, WireError, create_table, descriptor, path


def create(wire: Wire, table_json: bytes, name: str = "t", database: str = "fluss", ignore: bool = False) -> None:
    request = pb.CreateTableRequest(table_path=path(name, database), table_json=table_json, ignore_if_exists=ignore)
    wire.call(api_keys.CREATE_TABLE, request)


def info(wire: Wire, name: str = "t") -> pb.GetTableInfoResponse:
    return wire.call(api_keys.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path(name)))


def tables(wire: Wire) -> list[str]:
    return list(wire.call(api_keys.LIST_TABLES, pb.ListTablesRequest(database_name="fluss")).table_name)


def exists(wire: Wire, name: str = "t") -> bool:
    return wire.call(api_keys.TABLE_EXISTS, pb.TableExistsRequest(table_path=path(name))).exists


def drop(wire: Wire, name: str = "t", ignore: bool = False) -> None:
    wire.call(api_keys.DROP_TABLE, pb.DropTableRequest(table_path=path(name), ignore_if_not_exists=ignore))


def test_defaults_are_stored_with_the_table(wire: Wire) -> None:
    create(wire, descriptor(comment="c", custom_properties={"k": "v"}, properties={}))
    answer = info(wire)
    stored = json.loads(answer.table_json)
    assert (answer.table_id, answer.schema_id) == (0, 1)
    assert stored["bucket_count"] == 1
    assert stored["bucket_key"] == []
    assert stored["partition_key"] == []
    assert stored["properties"] == {"table.replication.factor": "1", "table.log.ttl": "0 s"}
    assert stored["custom_properties"] == {"k": "v"}
    assert stored["comment"] == "c"
    assert [column["name"] for column in stored["schema"]["columns"]] == ["id", "name", "score"]
    assert answer.created_time == answer.modified_time > 0


def test_given_values_stay(wire: Wire) -> None:
    properties = {"table.replication.factor": "1", "table.log.format": "arrow", "table.log.ttl": "3 d"}
    create(wire, descriptor(bucket_count=4, bucket_key=["id"], properties=properties))
    stored = json.loads(info(wire).table_json)
    assert (stored["bucket_count"], stored["bucket_key"]) == (4, ["id"])
    assert stored["properties"] == properties


def test_when_rows_of_new_tables_expire(tmp_path: Path) -> None:
    for default in ("0 s", "7 d"):
        with RunningServer(tmp_path / default[0], retention_default_ttl=default) as server, server.connect() as wire:
            create_table(wire, "log")
            create_table(wire, "lake", properties={"table.datalake.enabled": "true"})
            create_table(wire, "named", properties={"table.log.ttl": "3 d"})
            found = {name: json.loads(info(wire, name).table_json)["properties"] for name in tables(wire)}
            ttls = {name: properties.get("table.log.ttl") for name, properties in found.items()}
            assert ttls == {"log": default, "lake": None, "named": "3 d"}


def test_default_bucket_number_is_a_setting(tmp_path: Path) -> None:
    with RunningServer(tmp_path, default_bucket_number=5) as server, server.connect() as wire:
        create(wire, descriptor())
        assert json.loads(info(wire).table_json)["bucket_count"] == 5


def test_nested_columns_pass(wire: Wire) -> None:
    value = json.loads(descriptor())
    array = {"type": "ARRAY", "element_type": {"type": "INTEGER"}}
    value["schema"]["columns"][1]["data_type"] = array
    create(wire, json.dumps(value).encode())
    schema = wire.call(api_keys.GET_TABLE_SCHEMA, pb.GetTableSchemaRequest(table_path=path()))
    assert json.loads(schema.schema_json)["columns"][1]["data_type"] == array


@pytest.mark.parametrize(
    "properties",
    [
        {"table.log.format": "indexed"},
        {"table.statistics.columns": "*"},
        {"table.statistics.columns": "id, name"},
        {"table.log.ttl": "36h", "table.log.tiered.local-segments": "4", "table.log.local-ttl": "36h"},
        {"table.log.local-ttl": "6 h"},
        {"table.log.ttl": "0 s", "table.log.local-ttl": "100 d"},
        {"table.datalake.format": "iceberg", "table.datalake.enabled": "false"},
        {"table.datalake.format": "Paimon", "table.datalake.enabled": "false", "table.datalake.freshness": "5 min"},
        {"table.datalake.auto-compaction": "true", "table.datalake.auto-expire-snapshot": "false"},
    ],
    ids=str,
)
def test_accepted_properties(wire: Wire, properties: dict[str, str]) -> None:
    create(wire, descriptor(properties=properties))
    assert json.loads(info(wire).table_json)["properties"] == {
        "table.replication.factor": "1",
        "table.log.ttl": "0 s",
        **properties,
    }


def test_the_lake_format_is_stamped_on_new_tables(tmp_path: Path) -> None:
    with RunningServer(tmp_path, datalake_format="ICEBERG") as server, server.connect() as wire:
        create(wire, descriptor(properties={"table.datalake.enabled": "true"}))
        create(wire, descriptor(properties={"table.datalake.format": "paimon"}), "own")
        with pytest.raises(WireError, match="paimon, but the server's") as raised:
            own = {"table.datalake.format": "paimon", "table.datalake.enabled": "true"}
            create(wire, descriptor(properties=own), "other")
        assert raised.value.code == 39
    with RunningServer(tmp_path) as server, server.connect() as wire:
        assert json.loads(info(wire).table_json)["properties"]["table.datalake.format"] == "iceberg"
        assert json.loads(info(wire, "own").table_json)["properties"]["table.datalake.format"] == "paimon"


def test_schema_by_id_and_latest(wire: Wire) -> None:
    create_table(wire)
    latest = wire.call(api_keys.GET_TABLE_SCHEMA, pb.GetTableSchemaRequest(table_path=path()))
    by_id = wire.call(api_keys.GET_TABLE_SCHEMA, pb.GetTableSchemaRequest(table_path=path(), schema_id=1))
    assert latest == by_id
    assert json.loads(latest.schema_json)["highest_field_id"] == 2
    with pytest.raises(WireError) as raised:
        wire.call(api_keys.GET_TABLE_SCHEMA, pb.GetTableSchemaRequest(table_path=path(), schema_id=9))
    assert raised.value.code == 9


def test_list_exists_drop(wire: Wire) -> None:
    create_table(wire, "b")
    create_table(wire, "a")
    assert tables(wire) == ["a", "b"]
    assert exists(wire, "a")
    drop(wire, "a")
    assert tables(wire) == ["b"]
    assert not exists(wire, "a")
    drop(wire, "a", ignore=True)


def test_a_dropped_name_comes_back_with_a_new_id(wire: Wire) -> None:
    first = create_table(wire)
    drop(wire)
    assert create_table(wire) > first


@pytest.mark.parametrize(
    ("overrides", "code", "text"),
    [
        ({"properties": {"table.nonsense": "1"}}, 39, "table.nonsense"),
        ({"properties": {"mine": "1"}}, 39, "custom_properties"),
        ({"properties": {"table.log.format": "BOGUS"}}, 39, "ARROW"),
        ({"properties": {"table.log.format": "COMPACTED"}}, 15, "use ARROW or INDEXED"),
        ({"properties": {"table.replication.factor": "3"}}, 17, "set it to 1"),
        ({"properties": {"table.datalake.iceberg.": "x"}}, 39, "Unknown"),
        ({"properties": {"table.datalake.format": "parquet"}}, 39, "PAIMON"),
        ({"properties": {"table.merge-engine": "first_row"}}, 39, "primary key"),
        ({"properties": {"table.delete.behavior": "ignore"}}, 39, "primary key"),
        ({"properties": {"table.log.ttl": "7"}}, 39, "with a unit"),
        ({"properties": {"table.log.ttl": "-1 d"}}, 39, "duration"),
        ({"properties": {"table.datalake.freshness": "often"}}, 39, "duration"),
        ({"properties": {"table.statistics.columns": "nope"}}, 39, "nope"),
        ({"properties": {"table.statistics.columns": " , "}}, 39, "names no column"),
        ({"properties": {"table.statistics.columns": "id,raw"}}, 39, "raw"),
        ({"properties": {"table.auto-partition.enabled": "true"}}, 39, "partition keys"),
        ({"partition_key": ["nope"]}, 15, "partition"),
        ({"bucket_key": ["nope"], "bucket_count": 1}, 15, "nope"),
        ({"bucket_key": [], "bucket_count": 0}, 15, "bucket_count"),
        ({"bucket_key": [], "bucket_count": 1_000_000}, 49, "bucket_count"),
        ({"schema": {}}, 15, "columns"),
        ({"schema": {"columns": []}}, 15, "at least one column"),
    ],
)
def test_refused_descriptors(wire: Wire, overrides: dict[str, Any], code: int, text: str) -> None:
    with pytest.raises(WireError, match=text) as raised:
        create(wire, descriptor([*COLUMNS, ("raw", "BYTES")], **overrides))
    assert raised.value.code == code
    assert tables(wire) == []


@pytest.mark.parametrize("table_json", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"schema":' * 5_000])
def test_descriptors_that_are_no_json(wire: Wire, table_json: bytes) -> None:
    with pytest.raises(WireError) as raised:
        create(wire, table_json)
    assert raised.value.code == 15
    assert tables(wire) == []


def test_error_codes(wire: Wire) -> None:
    create_table(wire)
    create(wire, descriptor(), ignore=True)
    for action, code in (
        (lambda: create(wire, descriptor()), 8),
        (lambda: create(wire, descriptor(), database="missing"), 4),
        (lambda: info(wire, "missing"), 7),
        (lambda: drop(wire, "missing"), 7),
        (lambda: wire.call(api_keys.GET_TABLE_SCHEMA, pb.GetTableSchemaRequest(table_path=path("missing"))), 7),
    ):
        with pytest.raises(WireError) as raised:
            action()
        assert raised.value.code == code, raised.value


def test_tables_survive_a_restart(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, server.connect() as wire:
        table_id = create_table(wire, buckets=2)
        before = info(wire)
    with RunningServer(tmp_path) as server, server.connect() as wire:
        assert info(wire) == before
        assert create_table(wire, "other") > table_id


@pytest.mark.parametrize("levels", [33, 150, 300, 900, 10_000])
@pytest.mark.parametrize("kind", TYPE_TEXTS)
def test_a_schema_that_is_nested_too_deep(wire: Wire, kind: str, levels: int) -> None:
    request = pb.CreateTableRequest(
        table_path=path("deep"), table_json=table_json(kind, levels), ignore_if_exists=False
    )
    with pytest.raises(WireError, match=r"nested deeper than \d+ levels") as raised:
        wire.call(api_keys.CREATE_TABLE, request)
    assert raised.value.code == 15
    create_table(wire)
    column = json.loads(table_json(kind, 0))["schema"]["columns"][0]
    opening, closing = TYPE_TEXTS[kind]
    added = pb.PbAddColumn(
        column_name="new",
        data_type_json=json_text(opening, json.dumps(column["data_type"]), closing, levels),
        column_position_type=0,
    )
    with pytest.raises(WireError, match=r"nested deeper than \d+ levels") as raised:
        wire.call(
            api_keys.ALTER_TABLE,
            pb.AlterTableRequest(table_path=path(), ignore_if_not_exists=False, add_columns=[added]),
        )
    assert raised.value.code == 15
    assert wire.call(api_keys.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path())).schema_id == 1

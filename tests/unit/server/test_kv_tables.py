"""Which primary-key tables are made, and what the server adds to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from tests.kit.kv_requests import KV_SCHEMA, create_kv_table, kv_batch, kv_descriptor, put
from tests.kit.thread_server import RunningServer, Wire, WireError, batch, create_table, path, produce


def create(wire: Wire, table_json: bytes) -> dict[str, Any]:
    request = pb.CreateTableRequest(table_path=path(), table_json=table_json, ignore_if_exists=False)
    wire.call(api_keys.CREATE_TABLE, request)
    value: dict[str, Any] = json.loads(table_json_of(wire))
    return value


def table_json_of(wire: Wire, name: str = "t") -> bytes:
    return wire.call(api_keys.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path(name))).table_json


def schema(*, keys: tuple[str, ...] = ("id",), numbered: str | None = None, **columns: Any) -> dict[str, Any]:
    """The test schema with other keys and more columns; a column is a type, or a type and a function."""
    value = KV_SCHEMA.to_json()
    for name, column in columns.items():
        kind, function = column if isinstance(column, tuple) else (column, None)
        item: dict[str, Any] = {"name": name, "data_type": {"type": kind}, "id": len(value["columns"])}
        if function is not None:
            item["agg_function"] = function
        value["columns"].append(item)
    value["highest_field_id"] = len(value["columns"]) - 1
    value["primary_key"] = list(keys)
    if numbered is not None:
        value["auto_increment_column"] = [numbered]
    return value


def test_what_is_left_out_is_added(wire: Wire) -> None:
    table = create(wire, kv_descriptor())
    assert table["bucket_key"] == ["id"]
    assert table["bucket_count"] == 1
    assert table["properties"] == {"table.replication.factor": "1", "table.kv.format-version": "2"}


def test_the_bucket_key_of_a_partitioned_table_has_no_partition_keys(wire: Wire) -> None:
    table = create(wire, kv_descriptor(schema=schema(keys=("name", "id")), partition_key=["name"]))
    assert table["bucket_key"] == ["id"]


def test_a_bucket_key_and_a_format_version_are_kept(wire: Wire) -> None:
    properties = {"table.kv.format-version": "1"}
    table = create(
        wire, kv_descriptor(properties, schema=schema(keys=("id", "name")), bucket_key=["id"], bucket_count=3)
    )
    assert table["bucket_key"] == ["id"]
    assert table["properties"]["table.kv.format-version"] == "1"


@pytest.mark.parametrize("engine", ["first_row", "VERSIONED", "aggregation"])
def test_merge_engines_ignore_deletes_unless_told_otherwise(wire: Wire, engine: str) -> None:
    properties = {"table.merge-engine": engine, "table.merge-engine.versioned.ver-column": "id"}
    assert create(wire, kv_descriptor(properties))["properties"]["table.delete.behavior"] == "IGNORE"


ENGINE = "table.merge-engine"
VERSION = "table.merge-engine.versioned.ver-column"
DELETES = "table.delete.behavior"


@pytest.mark.parametrize(
    ("properties", "overrides", "code", "text"),
    [
        ({ENGINE: "nonsense"}, {}, 39, "FIRST_ROW"),
        ({ENGINE: "versioned"}, {}, 39, "ver-column"),
        ({ENGINE: "versioned", VERSION: "nope"}, {}, 39, "nope"),
        ({ENGINE: "versioned", VERSION: "name"}, {}, 39, "'name' is .*use INT, BIGINT"),
        ({ENGINE: "first_row", DELETES: "allow"}, {}, 39, DELETES),
        ({ENGINE: "versioned", VERSION: "id", DELETES: "allow"}, {}, 39, DELETES),
        ({DELETES: "sometimes"}, {}, 39, "ALLOW"),
        ({ENGINE: "aggregation", "table.changelog.image": "wal"}, {}, 39, "table.changelog.image FULL"),
        ({"table.kv.format": "COMPACTED", "table.log.format": "INDEXED"}, {}, 39, "ARROW or COMPACTED"),
        ({"table.kv.format": "ARROW"}, {}, 39, "COMPACTED"),
        ({"table.kv.format-version": "3"}, {}, 39, "format-version"),
        ({"table.statistics.columns": "*"}, {}, 39, "log tables"),
        ({"table.auto-increment.cache-size": "0"}, {}, 39, "cache-size"),
        ({}, {"bucket_key": ["name"], "bucket_count": 1}, 15, "'name' must be part of the primary key"),
        ({}, {"partition_key": ["name"]}, 15, "'name' must be part of the primary key"),
        ({}, {"partition_key": ["id"]}, 15, "partition keys only"),
        ({}, {"schema": schema(keys=("nope",))}, 15, "nope"),
        ({}, {"schema": schema(keys=("id", "id"))}, 15, "twice"),
        ({}, {"schema": schema(numbered="nope")}, 15, "nope"),
        ({}, {"schema": schema(numbered="id")}, 15, "'id' can't be part of the primary key"),
        ({}, {"schema": schema(numbered="score")}, 15, "'score' must be INT or BIGINT"),
        ({}, {"schema": schema(total=("BIGINT", {"type": "sum"}))}, 39, "'total'.*AGGREGATION"),
        ({ENGINE: "aggregation"}, {"schema": schema(total=("STRING", {"type": "sum"}))}, 39, "'total'"),
        ({ENGINE: "aggregation"}, {"schema": schema(total=("BIGINT", {"type": "nope"}))}, 39, "nope"),
        ({ENGINE: "aggregation"}, {"schema": schema(total=("BIGINT", "sum"))}, 39, "type"),
        ({"table.datalake.format": "iceberg"}, {"schema": schema(keys=("id", "name"))}, 15, "Iceberg"),
    ],
)
def test_refused_tables(
    wire: Wire, properties: dict[str, str], overrides: dict[str, Any], code: int, text: str
) -> None:
    with pytest.raises(WireError, match=text) as raised:
        create(wire, kv_descriptor(properties, **overrides))
    assert raised.value.code == code
    assert not wire.call(api_keys.TABLE_EXISTS, pb.TableExistsRequest(table_path=path())).exists


def test_an_auto_increment_column_needs_a_primary_key(wire: Wire) -> None:
    value = schema(numbered="id")
    del value["primary_key"]
    with pytest.raises(WireError, match="'id' needs a table with a primary key") as raised:
        create(wire, kv_descriptor(schema=value))
    assert raised.value.code == 15


@pytest.mark.parametrize(
    "properties",
    [
        {"table.kv.format": "INDEXED"},
        {"table.kv.format": "INDEXED", "table.log.format": "INDEXED"},
        {"table.log.format": "COMPACTED"},
        {"table.changelog.image": "WAL"},
        {"table.merge-engine": "aggregation", "table.delete.behavior": "allow"},
        {"table.delete.behavior": "disable"},
    ],
)
def test_formats_and_options_that_go_together(wire: Wire, properties: dict[str, str]) -> None:
    table = create(wire, kv_descriptor(properties))
    assert properties.items() <= table["properties"].items()


def _add_column(wire: Wire, name: str, kind: str, function: str | None = None, **parameters: str) -> None:
    request = pb.AlterTableRequest(table_path=path(), ignore_if_not_exists=False)
    column = request.add_columns.add(
        column_name=name,
        data_type_json=json.dumps({"type": kind}).encode(),
        column_position_type=0,
        agg_function_type=function,
    )
    for key, value in parameters.items():
        column.agg_function_params.add(key=key, value=value)
    wire.call(api_keys.ALTER_TABLE, request)


def test_columns_are_added_with_their_functions(wire: Wire) -> None:
    create(wire, kv_descriptor({ENGINE: "aggregation"}))
    _add_column(wire, "total", "BIGINT", "sum")
    _add_column(wire, "names", "STRING", "listagg", delimiter="|")
    columns = json.loads(table_json_of(wire))["schema"]["columns"]
    assert columns[3]["agg_function"] == {"type": "sum"}
    assert columns[4]["agg_function"] == {"type": "listagg", "parameters": {"delimiter": "|"}}
    for name, kind, function in (("bad", "STRING", "sum"), ("worse", "BIGINT", "nope")):
        with pytest.raises(WireError) as raised:
            _add_column(wire, name, kind, function)
        assert raised.value.code == 39
    assert len(json.loads(table_json_of(wire))["schema"]["columns"]) == 5


def test_functions_need_the_engine(wire: Wire) -> None:
    create(wire, kv_descriptor())
    with pytest.raises(WireError, match="'total'") as raised:
        _add_column(wire, "total", "BIGINT", "sum")
    assert raised.value.code == 39


def test_rows_are_not_appended_to_a_primary_key_table(wire: Wire) -> None:
    table_id = create_kv_table(wire)
    with pytest.raises(WireError, match="upserted") as raised:
        produce(wire, table_id, batch())
    assert raised.value.code == 15
    assert put(wire, table_id, kv_batch([(1, "a", 1.0)])) == 1


def test_a_server_of_log_tables_loads_no_store(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, server.connect() as wire:
        table_id = create_table(wire)
        with pytest.raises(WireError) as raised:
            put(wire, table_id, kv_batch([(1, "a", 1.0)]))
        assert raised.value.code == 20
        assert server.look(lambda: server.server.context.storage._kv) is None

"""AlterTable: what it changes, what stays, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fluss.protocol import api_keys
from fluss.protocol import messages_pb2 as pb
from tests.kit.thread_server import (
    RunningServer,
    Wire,
    WireError,
    batch,
    create_table,
    fetch,
    headers,
    path,
    produce,
)
from tests.unit.server.calls import APPEND, RESET, alter, config

LAST, FIRST, AFTER = 0, 1, 3


def column(name: str, data_type: Any = None, comment: str | None = None, position: int = LAST) -> pb.PbAddColumn:
    json_type = json.dumps({"type": "INTEGER"} if data_type is None else data_type).encode()
    return pb.PbAddColumn(column_name=name, data_type_json=json_type, comment=comment, column_position_type=position)


def info(wire: Wire, name: str = "t") -> pb.GetTableInfoResponse:
    return wire.call(api_keys.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path(name)))


def stored(wire: Wire) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(info(wire).table_json)
    return value


def schema(wire: Wire, schema_id: int | None = None) -> dict[str, Any]:
    request = pb.GetTableSchemaRequest(table_path=path(), schema_id=schema_id)
    value: dict[str, Any] = json.loads(wire.call(api_keys.GET_TABLE_SCHEMA, request).schema_json)
    return value


def refused(wire: Wire, **changes: Any) -> WireError:
    before = info(wire)
    with pytest.raises(WireError) as raised:
        alter(wire, **changes)
    assert info(wire) == before, "a refused change leaves nothing"
    return raised.value


def test_a_column_is_added_at_the_end(wire: Wire) -> None:
    create_table(wire)
    before = info(wire)
    alter(wire, add_columns=[column("extra", comment="why"), column("more", {"type": "STRING"})])
    after = info(wire)
    assert (after.schema_id, after.table_id, after.created_time) == (2, before.table_id, before.created_time)
    assert after.modified_time >= before.modified_time
    columns = schema(wire)["columns"]
    assert [(item["name"], item["id"]) for item in columns] == [
        ("id", 0), ("name", 1), ("score", 2), ("extra", 3), ("more", 4),
    ]  # fmt: skip
    assert columns[3] == {"name": "extra", "data_type": {"type": "INTEGER"}, "comment": "why", "id": 3}
    assert schema(wire)["highest_field_id"] == 4
    assert stored(wire)["schema"] == schema(wire, 2) == schema(wire)
    assert len(schema(wire, 1)["columns"]) == 3, "the first version stays"
    assert wire.call(api_keys.METADATA, pb.MetadataRequest(table_path=[path()])).table_metadata[0].schema_id == 2


def test_nested_columns_get_ids_of_their_own(wire: Wire) -> None:
    create_table(wire)
    row = {
        "type": "ROW",
        "fields": [
            {"name": "x", "field_type": {"type": "INTEGER", "nullable": False}},
            {"name": "y", "field_type": {"type": "ARRAY", "element_type": {"type": "STRING"}}},
        ],
    }
    alter(wire, add_columns=[column("nested", {"type": "MAP", "key_type": {"type": "INTEGER"}, "value_type": row})])
    alter(wire, add_columns=[column("last")])
    nested, last = schema(wire)["columns"][3:]
    assert nested["id"] == 3
    assert [item["field_id"] for item in nested["data_type"]["value_type"]["fields"]] == [4, 5]
    assert last["id"] == schema(wire)["highest_field_id"] == 6
    assert schema(wire, 2)["highest_field_id"] == 5


def test_batches_of_all_schemas_there_are(wire: Wire) -> None:
    table_id = create_table(wire)
    produce(wire, table_id, batch(2))
    with pytest.raises(WireError) as raised:
        produce(wire, table_id, batch(1, schema_id=2))
    assert raised.value.code == 15
    alter(wire, add_columns=[column("extra")])
    produce(wire, table_id, batch(3))
    with pytest.raises(WireError) as raised:
        produce(wire, table_id, batch(1, schema_id=3))
    assert raised.value.code == 15
    assert [header.schema_id for header in headers(fetch(wire, table_id).records)] == [1, 1]


@pytest.mark.parametrize(
    ("addition", "code", "text"),
    [
        (column("name"), 56, "already"),
        (column("x", {"type": "INTEGER", "nullable": False}), 56, "nullable"),
        (column("x", position=FIRST), 56, "last"),
        (column("x", position=AFTER), 56, "last"),
        (column("__offset"), 15, "reserved"),
        (column(""), 15, "empty"),
        (column("x", {"type": "NONSENSE"}), 15, "NONSENSE"),
        (column("x", []), 15, "type"),
        (pb.PbAddColumn(column_name="x", data_type_json=b"{", column_position_type=0), 15, "can't be read"),
        (pb.PbAddColumn(column_name="x", data_type_json=b"\xff", column_position_type=0), 15, "can't be read"),
        (pb.PbAddColumn(column_name="x", data_type_json=b"[" * 100_000, column_position_type=0), 15, "can't be read"),
        (
            column("x", {"type": "ROW", "fields": [{"name": "\ud800", "field_type": {"type": "DATE"}}]}),
            15,
            "can't be read",
        ),
    ],
    ids=str,
)
def test_columns_that_can_not_be_added(wire: Wire, addition: pb.PbAddColumn, code: int, text: str) -> None:
    create_table(wire)
    error = refused(wire, add_columns=[column("good"), addition])
    assert error.code == code
    assert text in error.text


def test_two_new_columns_of_one_name(wire: Wire) -> None:
    create_table(wire)
    assert refused(wire, add_columns=[column("x"), column("x")]).code == 56


def test_other_changes_of_columns_are_refused(wire: Wire) -> None:
    create_table(wire)
    for changes, word in (
        ({"drop_columns": [pb.PbDropColumn(column_name="name")]}, "dropped"),
        ({"rename_columns": [pb.PbRenameColumn(old_column_name="name", new_column_name="n")]}, "renamed"),
        ({"modify_columns": [pb.PbModifyColumn(column_name="name")]}, "modified"),
    ):
        error = refused(wire, add_columns=[column("x")], **changes)
        assert error.code == 56
        assert word in error.text


def test_columns_and_properties_are_not_mixed(wire: Wire) -> None:
    create_table(wire)
    assert refused(wire, add_columns=[column("x")], config_changes=[config("mine", "1")]).code == 56


def test_a_missing_table(wire: Wire) -> None:
    for changes in ({"add_columns": [column("x")]}, {"config_changes": [config("mine", "1")]}, {}):
        with pytest.raises(WireError) as raised:
            alter(wire, "missing", **changes)
        assert raised.value.code == 7
        alter(wire, "missing", ignore=True, **changes)


def test_properties_are_set_and_reset(wire: Wire) -> None:
    create_table(wire, custom_properties={"old": "1", "stays": "1"})
    original = stored(wire)
    alter(
        wire,
        config_changes=[
            config("table.log.ttl", "3 d"),
            config("table.log.tiered.local-segments", "5"),
            config("new", "2"),
            config("old", operation=RESET),
            config("never there", operation=RESET),
        ],
    )
    assert stored(wire)["properties"] == {
        **original["properties"],
        "table.log.ttl": "3 d",
        "table.log.tiered.local-segments": "5",
    }
    assert stored(wire)["custom_properties"] == {"stays": "1", "new": "2"}
    assert info(wire).schema_id == 1, "properties are no part of the schema"
    alter(wire, config_changes=[config("table.log.ttl", operation=RESET), config("new", operation=RESET)])
    assert stored(wire)["properties"]["table.log.ttl"] == "0 s", "that of new tables"
    assert stored(wire)["custom_properties"] == {"stays": "1"}


def test_a_change_that_changes_nothing_touches_nothing(wire: Wire) -> None:
    create_table(wire, custom_properties={"a": "1"})
    before = info(wire)
    alter(wire, config_changes=[config("a", "1"), config("b", operation=RESET)])
    alter(wire)
    assert info(wire) == before


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        (config("table.log.format", "INDEXED"), 56, "table.log.ttl"),
        (config("table.replication.factor", operation=RESET), 56, "can't be changed"),
        (config("table.datalake.format", "paimon"), 56, "can't be changed"),
        (config("table.nonsense", "1"), 56, "table.nonsense"),
        (config("table.datalake.enabled", "true"), 56, "table.datalake.format"),
        (config("table.datalake.freshness", "1 min"), 56, "table.datalake.format"),
        (config("table.log.ttl", "soon"), 39, "duration"),
        (config("table.log.ttl", "7"), 39, "unit"),
        (config("table.log.tiered.local-segments", "0"), 39, "integer"),
        (config("table.auto-partition.enabled", "true"), 39, "partition keys"),
        (config("table.statistics.columns", "nope"), 39, "nope"),
        (config("mine", "1", operation=APPEND), 56, "operation 2"),
        (config("mine"), 56, "missing"),
        (config("mine", "x" * 5_000), 15, "4096"),
    ],
    ids=str,
)
def test_properties_that_can_not_be_changed(wire: Wire, change: pb.PbAlterConfig, code: int, text: str) -> None:
    create_table(wire)
    error = refused(wire, config_changes=[config("good", "1"), change])
    assert error.code == code, error
    assert text in error.text


def test_rows_stay_near_no_longer_than_they_are_kept(wire: Wire) -> None:
    create_table(wire)
    alter(wire, config_changes=[config("table.log.local-ttl", "8 d")])  # rows are kept without end
    error = refused(wire, config_changes=[config("table.log.ttl", "7 d")])
    assert error.code == 39
    assert "table.log.local-ttl is longer than table.log.ttl" in error.text
    alter(wire, config_changes=[config("table.log.ttl", "8 d")])


def test_a_description_stays_small_enough_to_be_read(wire: Wire) -> None:
    create_table(wire)
    for number in range(3):
        alter(wire, config_changes=[config(f"key-{number}-{item}", "x" * 4_000) for item in range(80)])
    error = refused(wire, config_changes=[config(f"last-{item}", "x" * 4_000) for item in range(80)])
    assert error.code == 15
    assert "1048576" in error.text


def test_statistics_columns_follow(wire: Wire) -> None:
    create_table(wire)
    alter(wire, config_changes=[config("table.statistics.columns", "id, name")])
    assert stored(wire)["properties"]["table.statistics.columns"] == "id, name"
    alter(wire, config_changes=[config("table.statistics.columns", "*")])


def test_tiering_is_switched_on_a_table_with_a_lake_format(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, server.connect() as wire:
        create_table(wire, "old")
    with RunningServer(tmp_path, datalake_format="iceberg") as server, server.connect() as wire:
        create_table(wire)
        alter(wire, config_changes=[config("table.datalake.enabled", "true")])
        assert stored(wire)["properties"]["table.datalake.enabled"] == "true"
        with pytest.raises(WireError, match="make the table anew") as raised:
            alter(wire, "old", config_changes=[config("table.datalake.enabled", "true")])
        assert raised.value.code == 56


def test_changes_survive_a_restart(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, server.connect() as wire:
        create_table(wire)
        alter(wire, add_columns=[column("extra")])
        alter(wire, config_changes=[config("mine", "1")])
        before = info(wire)
        schemas = [schema(wire, schema_id) for schema_id in (1, 2)]
    with RunningServer(tmp_path) as server, server.connect() as wire:
        assert info(wire) == before
        assert [schema(wire, schema_id) for schema_id in (1, 2)] == schemas

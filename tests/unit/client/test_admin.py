"""Partitions, schema changes, statistics and settings, on a real server."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from fluss.client.admin import alter_request, column_of
from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.model.errors import AlreadyExistsError, FlussError, InvalidRequestError, NotFoundError
from fluss.model.partitions import PartitionSpec
from fluss.model.paths import TablePath
from fluss.model.schema import Column
from fluss.model.types import DataTypes
from tests.kit.client_tables import everything, make_table
from tests.kit.scripted import PATH

PARTITIONED = pa.schema([("id", pa.int64()), ("region", pa.string()), ("year", pa.string())])


def test_partitions_are_made_listed_and_dropped(client: ClientCore) -> None:
    admin, path = client.admin, make_table(client, 1, PARTITIONED, partition_keys=["region", "year"]).info.table_path
    specs = [PartitionSpec({"year": year, "region": region}) for region in ("US", "EU") for year in ("2025", "2026")]
    for spec in specs:
        run(admin.create_partition(path, spec))
    infos = run(admin.list_partition_infos(path))
    assert {info.partition_name for info in infos} == {"US$2025", "US$2026", "EU$2025", "EU$2026"}
    assert {info.partition_spec for info in infos} == set(specs)
    some = run(admin.list_partition_infos(path, PartitionSpec({"year": "2025"})))
    assert {info.partition_name for info in some} == {"US$2025", "EU$2025"}
    with pytest.raises(AlreadyExistsError) as exists:
        run(admin.create_partition(path, specs[0]))
    assert exists.value.error_code == 42
    run(admin.create_partition(path, specs[0], ignore_if_exists=True))
    run(admin.drop_partition(path, specs[0]))
    with pytest.raises(NotFoundError) as missing:
        run(admin.drop_partition(path, specs[0]))
    assert missing.value.error_code == 36
    run(admin.drop_partition(path, specs[0], ignore_if_not_exists=True))


def test_an_old_writer_goes_on_and_a_new_table_sees_the_new_column(client: ClientCore) -> None:
    table = make_table(client)
    path = table.info.table_path
    old = table.append_writer()
    old.append([1, "a", 0.5]).result(10)
    run(client.admin.alter_table(path, add_columns=[("score", pa.int32(), "how good"), pa.field("tag", pa.string())]))
    old.append([2, "b", 0.5]).result(10)
    new = run(client.table(path))
    new.append_writer().append({"id": 3, "score": 9, "tag": "x"}).result(10)
    rows = everything(new).to_pylist()
    assert [(row["id"], row["score"], row["tag"]) for row in rows] == [(1, None, None), (2, None, None), (3, 9, "x")]
    first, latest = (run(client.admin.get_table_schema(path, schema_id)) for schema_id in (1, None))
    assert (first.schema_id, first.schema.column_names) == (1, ["id", "name", "value"])
    assert latest.schema.column_names == ["id", "name", "value", "score", "tag"]
    assert latest.schema.columns[3].comment == "how good"
    with pytest.raises(NotFoundError) as caught:
        run(client.admin.get_table_schema(path, 99))
    assert caught.value.error_code == 9


def test_properties_are_set_and_reset(client: ClientCore) -> None:
    path = make_table(client, custom_properties={"kept": "1", "gone": "2"}).info.table_path
    run(client.admin.alter_table(path, set_properties={"mine": "x"}, reset_properties=["gone"]))
    assert run(client.admin.get_table_info(path)).custom_properties == {"kept": "1", "mine": "x"}
    missing = TablePath("fluss", "missing")
    with pytest.raises(NotFoundError):
        run(client.admin.alter_table(missing, set_properties={"a": "b"}))
    run(client.admin.alter_table(missing, set_properties={"a": "b"}, ignore_if_not_exists=True))


@pytest.mark.parametrize(
    "item",
    [
        ("c", DataTypes.int(), "why"),
        ("c", pa.int32(), "why"),
        Column("c", DataTypes.int(), "why"),
    ],
)
def test_spellings_of_a_column(item: Any) -> None:
    assert column_of(item) == Column("c", DataTypes.int(), "why")
    assert column_of(pa.field("c", pa.int32())) == Column("c", DataTypes.int())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "Nothing to alter"),
        ({"add_columns": [("a", pa.int32())], "set_properties": {"k": "v"}}, "one call"),
        ({"set_properties": {"k": "v"}, "reset_properties": ["k"]}, "'k'"),
        ({"set_properties": {"k": 1}}, "strings"),
        ({"reset_properties": "k"}, "list"),
        ({"add_columns": [("a", DataTypes.int().not_null())]}, "'a' must be nullable"),
        ({"add_columns": [pa.field("a", pa.int32(), nullable=False)]}, "'a' must be nullable"),
        ({"add_columns": [("a", "int")]}, "column 'a'"),
        ({"add_columns": ["a"]}, "not 'a'"),
    ],
)
def test_changes_that_are_none(arguments: dict[str, Any], said: str) -> None:
    everything_else = {"add_columns": None, "set_properties": None, "reset_properties": None}
    with pytest.raises(InvalidRequestError, match=said) as caught:
        alter_request(PATH, **(everything_else | arguments), ignore_if_not_exists=False)
    assert caught.value.error_code == 56


def test_row_counts(client: ClientCore) -> None:
    table = make_table(client, 3)
    writer = table.append_writer()
    writer.write_batch(pa.record_batch({"id": list(range(10))}))
    run(writer.flush())
    stats = run(client.admin.get_table_stats(table.info.table_path))
    assert stats.row_count == sum(stats.bucket_row_counts.values()) == 10
    assert set(stats.bucket_row_counts) == {0, 1, 2}


def test_the_lake_and_the_settings(client: ClientCore) -> None:
    path = make_table(client).info.table_path
    with pytest.raises(FlussError) as caught:
        run(client.admin.get_latest_lake_snapshot(path))
    assert caught.value.error_code == 53
    assert "\n" not in caught.value.message
    assert all(entry.key and entry.source for entry in run(client.admin.describe_cluster_configs()))

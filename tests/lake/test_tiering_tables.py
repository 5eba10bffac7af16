"""Tiering of tables of all kinds, in rounds with random writes in between, against what their logs have."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fluss.formats.changelog import fold as changelog_fold
from fluss.lake import fold
from fluss.lake.report import Status
from fluss.sync import FlussTable
from tests.kit.lake.lake import Lake
from tests.kit.lake.random_rows import COLUMNS, PARTITIONS, write
from tests.kit.lake.tiered import check_lake, check_no_orphans, iceberg_table, tier_here

ROUNDS = 3
KINDS: Mapping[str, Mapping[str, Any]] = {
    "log": {"buckets": 3},
    "log with a bucket key": {"buckets": 3, "bucket_keys": ["id"]},
    "partitioned log": {"buckets": 2, "partition_keys": ["part"]},
    "log of rows": {"properties": {"table.log.format": "INDEXED"}},
    "one bucket": {"keys": ["id"]},
    "several buckets": {"keys": ["id"], "buckets": 3},
    "key of two columns": {"keys": ["part", "id"], "bucket_keys": ["id"], "buckets": 2},
    "partitioned": {"keys": ["part", "id"], "buckets": 2, "partition_keys": ["part"]},
    "first row": {"keys": ["id"], "buckets": 2, "properties": {"table.merge-engine": "first_row"}},
    "versioned": {
        "keys": ["id"],
        "properties": {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "version"},
    },
    "write-ahead image": {"keys": ["id"], "buckets": 2, "properties": {"table.changelog.image": "WAL"}},
    "partial updates": {"keys": ["id"], "buckets": 2},
}


def test_random_rounds(lake: Lake, kind: str) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    table = lake.create("t", COLUMNS, **KINDS[kind])
    if "partition_keys" in KINDS[kind]:
        for part in PARTITIONS:
            lake.connection.get_admin().create_partition(table.get_table_info().table_path, {"part": part})
    for _ in range(ROUNDS):
        write(table, dice, kind)
        [report] = tier_here(lake, table)
        assert report.status is Status.TIERED, report
        check_lake(lake, table)
        [report] = tier_here(lake, table)
        assert report.status is Status.NOTHING_NEW, report
    check_no_orphans(lake, table)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_sums_are_tiered(lake: Lake) -> None:
    """A table that aggregates: the lake has the sums."""
    from fluss.sync import DataTypes, Schema, TableDescriptor, TablePath

    path = TablePath(lake.database, "sums")
    schema = (
        Schema.builder()
        .column("id", DataTypes.int())
        .column("total", DataTypes.bigint(), agg_function="sum")
        .primary_key(["id"])
        .build()
    )
    properties = {"table.datalake.enabled": "true", "table.merge-engine": "aggregation"}
    lake.connection.get_admin().create_table(path, TableDescriptor(schema, properties=properties))
    table = lake.connection.get_table(path)
    for _ in range(2):
        with table.new_upsert().create_writer() as writer:
            for number in range(10):
                writer.upsert({"id": number % 4, "total": number})
        tier_here(lake, table)
        check_lake(lake, table)
    found = iceberg_table(lake.warehouse, path).scan().to_arrow().sort_by("id")
    assert found["total"].to_pylist() == [24, 30, 16, 20]


KEYS = {
    "string": (pa.string(), ["", "a", "grün"]),
    "boolean": (pa.bool_(), [True, False]),
    "tinyint": (pa.int8(), [-128, 0, 127]),
    "date": (pa.date32(), [dt.date(1960, 1, 1), dt.date(2026, 1, 1)]),
    "time": (pa.time32("ms"), [dt.time(0), dt.time(23, 59, 59, 999000)]),
    "timestamp": (pa.timestamp("us"), [dt.datetime(1960, 1, 1, microsecond=7), dt.datetime(2026, 1, 1)]),
    "local": (pa.timestamp("ms", "UTC"), [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]),
    "decimal": (pa.decimal128(30, 5), [Decimal("-1.50000"), Decimal("12345678901234567890.12345")]),
    "binary": (pa.binary(3), [b"\0\0\0", b"abc"]),
    "bytes": (pa.binary(), [b"", b"\xff\0"]),
}


def test_keys_of_all_types(lake: Lake) -> None:
    """Rows of a second round replace those of the first, whatever their keys are."""
    schema = pa.schema(
        [("id", pa.int32()), *((name, kind) for name, (kind, _) in KEYS.items()), ("value", pa.list_(pa.int16()))]
    )
    table = lake.create("t", schema, keys=["id", *KEYS], bucket_keys=["id"], buckets=2)
    rows = [
        {"id": number, **{name: values[number % len(values)] for name, (_, values) in KEYS.items()}}
        for number in range(12)
    ]
    for value, some in (([1, None], rows), ([2], rows[3:9]), ([], rows[:1])):
        with table.new_upsert().create_writer() as writer:
            for item in some:
                writer.upsert({**item, "value": value})
        [report] = tier_here(lake, table)
        assert (report.status, report.row_count) == (Status.TIERED, len(some)), report
        check_lake(lake, table)


@pytest.mark.parametrize(("kind", "word"), [(pa.timestamp("ns"), "microseconds"), (pa.float64(), "DECIMAL")])
def test_keys_that_the_lake_does_not_have(lake: Lake, kind: pa.DataType, word: str) -> None:
    schema = pa.schema([("id", pa.int32()), ("fine", kind)])
    table = lake.create("t", schema, keys=["id", "fine"], bucket_keys=["id"])
    [report] = tier_here(lake, table)
    assert report.status is Status.FAILED
    assert "'fine'" in str(report.reason)
    assert word in str(report.reason)


def test_a_long_changelog_is_folded_in_steps(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of earlier steps are merged into later ones, and none stays behind."""
    monkeypatch.setattr(changelog_fold, "PENDING_ROWS_MAX", 7)
    monkeypatch.setattr(fold, "FOLDED_ROWS_MAX", 15)
    monkeypatch.setattr(fold, "LOOKED_UP_ROWS", 10)
    seed = random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    table = lake.create("t", COLUMNS, keys=["id"], buckets=2)
    for _ in range(ROUNDS):
        for _ in range(6):
            write(table, dice, "several buckets")
        [report] = tier_here(lake, table)
        assert report.status is Status.TIERED, report
        check_lake(lake, table)
    check_no_orphans(lake, table)


def test_files_without_changed_keys_stay(lake: Lake) -> None:
    table = lake.create("t", pa.schema([("id", pa.int64()), ("v", pa.int64())]), keys=["id"])
    for start in (0, 100, 200):
        upsert(table, range(start, start + 100))
        assert [item.files_removed for item in tier_here(lake, table)] == [0]
    upsert(table, [150, 300])
    [report] = tier_here(lake, table)
    assert (report.files_added, report.files_removed) == (1, 1)
    check_lake(lake, table)


def test_all_rows_deleted(lake: Lake) -> None:
    table = lake.create("t", pa.schema([("id", pa.int64()), ("v", pa.int64())]), keys=["id"])
    upsert(table, range(10))
    tier_here(lake, table)
    with table.new_upsert().create_writer() as writer:
        for number in range(10):
            writer.delete({"id": number})
    [report] = tier_here(lake, table)
    assert (report.files_added, report.files_removed) == (0, 1)
    check_lake(lake, table)


@pytest.mark.parametrize("keys", [[], ["id"]], ids=["log", "primary key"])
def test_columns_that_are_added(lake: Lake, keys: list[str]) -> None:
    table = lake.create("t", pa.schema([("id", pa.int64()), ("v", pa.int64())]), keys=keys)
    path = table.get_table_info().table_path
    upsert(table, range(10))
    tier_here(lake, table)
    lake.connection.get_admin().alter_table(path, add_columns=[("more", pa.struct([("x", pa.int8())]))])
    upsert(table, range(5, 8))  # as a writer that does not know yet
    upsert(lake.connection.get_table(path), [8, 20], more={"x": 1})
    [report] = tier_here(lake, table)
    assert report.status is Status.TIERED, report
    check_lake(lake, table)
    found = iceberg_table(lake.warehouse, path).scan().to_arrow()
    assert found.schema.names == ["id", "v", "more", "__bucket", "__offset", "__timestamp"]
    assert found["more"].null_count == found.num_rows - 2


def upsert(table: FlussTable, ids: Any, **values: Any) -> None:
    """Rows by their ids, upserted or appended."""
    if table.get_table_info().has_primary_key():
        with table.new_upsert().create_writer() as upserter:
            for number in ids:
                upserter.upsert({"id": number, "v": number, **values})
    else:
        with table.new_append().create_writer() as appender:
            for number in ids:
                appender.append({"id": number, "v": number, **values})


@pytest.mark.parametrize("is_empty", [False, True], ids=["with rows", "empty"])
def test_a_partition_made_again_replaces_its_rows(lake: Lake, is_empty: bool) -> None:
    admin, table = lake.connection.get_admin(), _partitioned(lake, ["part", "id"])
    path = table.get_table_info().table_path
    admin.drop_partition(path, {"part": "a"})
    admin.create_partition(path, {"part": "a"})
    if not is_empty:
        _write_part(table, "a", [3, 50])
    [report] = tier_here(lake, table)
    assert report.status is Status.TIERED, report
    check_lake(lake, table)


def test_a_partition_of_a_log_made_again_keeps_its_rows(lake: Lake) -> None:
    admin, table = lake.connection.get_admin(), _partitioned(lake, [])
    path = table.get_table_info().table_path
    admin.drop_partition(path, {"part": "a"})
    admin.create_partition(path, {"part": "a"})
    _write_part(table, "a", [50])
    tier_here(lake, table)
    found = iceberg_table(lake.warehouse, path).scan().to_arrow().to_pylist()
    assert sorted((row["part"], row["id"]) for row in found) == [
        *(("a", number) for number in (*range(10), 50)),
        *(("b", number) for number in range(10)),
    ]


@pytest.mark.parametrize("keys", [[], ["part", "id"]], ids=["log", "primary key"])
def test_rows_of_a_dropped_partition_stay(lake: Lake, keys: list[str]) -> None:
    table = _partitioned(lake, keys)
    path = table.get_table_info().table_path
    lake.connection.get_admin().drop_partition(path, {"part": "a"})
    assert [item.status for item in tier_here(lake, table)] == [Status.NOTHING_NEW]
    _write_part(table, "b", [50])
    assert [item.status for item in tier_here(lake, table)] == [Status.TIERED]
    found = iceberg_table(lake.warehouse, path).scan().to_arrow().to_pylist()
    assert sorted((row["part"], row["id"]) for row in found) == [
        *(("a", number) for number in range(10)),
        *(("b", number) for number in (*range(10), 50)),
    ]


def _partitioned(lake: Lake, keys: list[str]) -> FlussTable:
    """A table with ten rows in each of two partitions, tiered."""
    schema = pa.schema([("id", pa.int64()), ("part", pa.string()), ("v", pa.int64())])
    table = lake.create("t", schema, keys=keys, partition_keys=["part"])
    for part in ("a", "b"):
        lake.connection.get_admin().create_partition(table.get_table_info().table_path, {"part": part})
        _write_part(table, part, range(10))
    assert [item.status for item in tier_here(lake, table)] == [Status.TIERED]
    check_lake(lake, table)
    return table


def _write_part(table: FlussTable, part: str, ids: Any) -> None:
    upsert(table, ids, part=part)

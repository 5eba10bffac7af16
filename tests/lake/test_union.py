"""Union reads of tables of all kinds: columns, types, partitions, modes, filters, and the three facades."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import fluss
import fluss.aio
from fluss.api.operations import LakeRegistry
from fluss.lake.options import LakeOptions
from fluss.lake.union.plan import OvertakenError, UnionPlanner, plan_union
from fluss.lake.union.reader import UnionReader
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.sync import Config, FlussConnection, FlussTable, OffsetSpec, TableBucket, col
from fluss.testing import FlussServer
from tests.kit.lake.lake import Lake
from tests.kit.lake.tiered import tier_here
from tests.kit.lake.unions import WAYS, read_union, tier_fully, tier_halfway

ID = pa.field("id", pa.int64(), nullable=False)
PLAIN = pa.schema([ID, ("text", pa.string())])
RETENTION_DEADLINE_S = 60.0

ALL_TYPES = pa.schema(
    [
        ID,
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("small", pa.int16()),
        ("whole", pa.int32()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("fixed", pa.binary(3)),
        ("price", pa.decimal128(10, 2)),
        ("large", pa.decimal128(38, 10)),
        ("day", pa.date32()),
        ("clock", pa.time32("ms")),
        ("at", pa.timestamp("ms")),
        ("at_micros", pa.timestamp("us")),
        ("at_nanos", pa.timestamp("ns")),
        ("moment", pa.timestamp("us", tz="UTC")),
        ("list", pa.list_(pa.int16())),
        ("map", pa.map_(pa.string(), pa.int8())),
        ("row", pa.struct([("x", pa.int8()), ("y", pa.list_(pa.string()))])),
    ]
)
FULL = {
    "flag": True,
    "tiny": -7,
    "small": 300,
    "whole": -70_000,
    "single": 1.5,
    "double": -2.25,
    "text": "Käse [x] \N{GRINNING FACE}",
    "raw": b"\x00\xff",
    "fixed": b"abc",
    "price": Decimal("12.50"),
    "large": Decimal("-1234567890.0123456789"),
    "day": dt.date(1969, 7, 20),
    "clock": dt.time(23, 59, 59, 1000),
    "at": dt.datetime(2026, 2, 3, 4, 5, 6, 7000),
    "at_micros": dt.datetime(1960, 2, 3, 4, 5, 6, 7),
    "at_nanos": dt.datetime(2026, 2, 3, 4, 5, 6, 8),
    "moment": dt.datetime(2026, 2, 3, 4, 5, 6, 9, tzinfo=dt.UTC),
    "list": [1, None, -3],
    "map": [("a", 1), ("b", None)],
    "row": {"x": 1, "y": ["p", None]},
}


def write(table: FlussTable, rows: list[dict[str, Any]], deleted: list[dict[str, Any]] | None = None) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=table.arrow_schema)
    if not table.has_primary_key():
        with table.new_append().create_writer() as writer:
            writer.append_arrow_batch(batch)
        return
    with table.new_upsert().create_writer() as upserts:
        upserts.write_arrow_batch(batch)
        for key in deleted or []:
            upserts.delete(key)


def texts(numbers: range, text: str, **more: Any) -> list[dict[str, Any]]:
    return [{"id": number, "text": f"{text} {number}", **more} for number in numbers]


def by_id(found: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = sorted(found.to_pylist(), key=lambda row: row["id"])
    return rows


@pytest.mark.parametrize("keys", [None, ["id"]], ids=["log", "key"])
def test_all_types(lake: Lake, keys: list[str] | None) -> None:
    table = lake.create("types", ALL_TYPES, keys=keys, buckets=2)
    rows = [{"id": 1, **FULL}, {"id": 2, **dict.fromkeys(FULL)}, {"id": 3, **FULL}]
    fresh = [{"id": 3, **dict.fromkeys(FULL)}, {"id": 4, **FULL}]
    write(table, rows)
    tier_fully(lake, table)
    write(table, fresh)
    kept = rows[:2] if keys else rows
    wanted = pa.Table.from_pylist([*kept, *fresh], table.arrow_schema).to_pylist()
    for way in WAYS:
        found = read_union(table, way)
        assert found.schema.equals(table.arrow_schema)
        assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, wanted)), way


def test_duckdb_keeps_the_types_it_has(lake: Lake) -> None:
    table = lake.create("types", ALL_TYPES)
    write(table, [{"id": 1, **FULL}])
    tier_fully(lake, table)
    found = table.new_scan().union().to_duckdb().to_arrow_table().schema
    other = {"fixed": pa.binary(), "clock": pa.time64("us")}
    for item in table.arrow_schema:
        if item.name not in ("list", "map", "row", "moment"):  # names inside, and the zone, are DuckDB's
            assert found.field(item.name).type == other.get(item.name, item.type)


def test_times_finer_than_the_lake_are_cut(lake: Lake) -> None:
    table = lake.create("nanos", pa.schema([ID, ("at", pa.timestamp("ns"))]))
    columns = [pa.array([1]), pa.array([1_999], pa.timestamp("ns"))]
    with table.new_append().create_writer() as writer:
        writer.append_arrow_batch(pa.RecordBatch.from_arrays(columns, schema=table.arrow_schema))
    for nanoseconds in (1_999, 1_000):
        for way in WAYS:
            assert read_union(table, way)["at"].cast(pa.int64()).to_pylist() == [nanoseconds]
        tier_fully(lake, table)


@pytest.mark.parametrize("way", WAYS)
def test_columns_that_come_later(lake: Lake, way: str) -> None:
    table = lake.create("grown", PLAIN, keys=["id"], buckets=2)
    write(table, texts(range(4), "old"))
    tier_fully(lake, table)
    lake.connection.get_admin().alter_table(table.table_path, add_columns=[pa.field("more", pa.int32())])
    grown = lake.connection.get_table(table.table_path)
    assert [row["more"] for row in by_id(read_union(grown, way))] == [None] * 4
    only = grown.new_scan().project_by_name(["more"]).union()
    assert only.to_arrow().column_names == only.to_duckdb().columns == ["more"]
    assert only.to_arrow().num_rows == len(only.to_duckdb().fetchall()) == 4
    write(grown, texts(range(3, 5), "new", more=7))
    for _ in range(2):
        assert [row["more"] for row in by_id(read_union(grown, way))] == [None] * 3 + [7] * 2
        # Whoever looked the table up before the change goes on with the columns of then.
        assert by_id(read_union(table, way)) == [*texts(range(3), "old"), *texts(range(3, 5), "new")]
        tier_fully(lake, grown)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("keys", [None, ["id", "region"]], ids=["log", "key"])
def test_partitions(lake: Lake, way: str, keys: list[str] | None) -> None:
    columns = pa.schema([ID, pa.field("region", pa.string(), nullable=False), ("text", pa.string())])
    table = lake.create(
        "parts", columns, keys=keys, buckets=2, bucket_keys=["id"] if keys else None, partition_keys=["region"]
    )
    admin = lake.connection.get_admin()
    regions = ("east", "west", "north")
    for region in regions:
        admin.create_partition(table.table_path, {"region": region})
        write(table, texts(range(4), "old", region=region))
    tier_fully(lake, table)
    admin.drop_partition(table.table_path, {"region": "north"})
    admin.create_partition(table.table_path, {"region": "south"})
    for region in ("east", "south"):
        write(table, texts(range(3, 6), "new", region=region))
    old = {region: texts(range(4), "old", region=region) for region in regions}
    new = {region: texts(range(3, 6), "new", region=region) for region in ("east", "south")}
    east = old["east"][:3] if keys else old["east"]
    wanted = [*east, *new["east"], *old["west"], *old["north"], *new["south"]]
    for _ in range(2):
        found = read_union(table, way).to_pylist()
        assert sorted(map(repr, found)) == sorted(map(repr, [{n: row[n] for n in columns.names} for row in wanted]))
        tier_fully(lake, table)


def test_a_partition_that_comes_again_with_a_key(lake: Lake) -> None:
    columns = pa.schema([ID, pa.field("region", pa.string(), nullable=False), ("text", pa.string())])
    table = lake.create("again", columns, keys=["id", "region"], bucket_keys=["id"], partition_keys=["region"])
    admin = lake.connection.get_admin()
    admin.create_partition(table.table_path, {"region": "east"})
    write(table, texts(range(4), "old", region="east"))
    tier_fully(lake, table)
    admin.drop_partition(table.table_path, {"region": "east"})
    assert read_union(table, "arrow").num_rows == 4
    admin.create_partition(table.table_path, {"region": "east"})
    write(table, texts(range(1), "new", region="east"))
    for _ in range(2):
        assert [row["text"] for row in read_union(table, "duckdb").to_pylist()] == ["new 0"]
        tier_fully(lake, table)


def test_chosen_partitions_are_planned_alone(lake: Lake) -> None:
    columns = pa.schema([ID, pa.field("region", pa.string(), nullable=False)])
    table = lake.create("chosen", columns, partition_keys=["region"])
    admin = lake.connection.get_admin()
    for region in ("east", "west", "north"):
        admin.create_partition(table.table_path, {"region": region})
        write(table, [{"id": 1, "region": region}])
    tier_fully(lake, table)
    admin.drop_partition(table.table_path, {"region": "north"})
    chosen = [{"region": "west"}, {"region": "north"}]
    plan = plan_union(lake.connection, table, partitions=chosen)
    assert [(item.partition, item.partition_name, item.start_offset) for item in plan.buckets] == [
        (("west",), "west", 1),
        (("north",), "north", None),
    ]
    assert pa.Table.from_batches(UnionReader(table).batches(plan)).num_rows == 2
    plain = lake.create("plain", PLAIN)
    with pytest.raises(InvalidRequestError, match="no partitions"):
        plan_union(lake.connection, plain, partitions=chosen)


@pytest.mark.parametrize("keys", [None, ["id"]], ids=["log", "key"])
def test_filter_and_projection(lake: Lake, keys: list[str] | None) -> None:
    table = lake.create("narrow", PLAIN, keys=keys, buckets=2)
    write(table, texts(range(10), "old"))
    tier_fully(lake, table)
    # 4 no longer matches, 5 still does, 11 is new, 6 is gone.
    fresh = [{"id": 4, "text": "out"}, {"id": 5, "text": "old five"}, {"id": 11, "text": "old 11"}]
    write(table, fresh, deleted=[{"id": 6}])
    scan = table.new_scan().filter((col("id") >= 3) & col("text").starts_with("old")).project_by_name(["text"])
    kept = [3, 7, 8, 9] if keys else [3, 4, 5, 6, 7, 8, 9]
    wanted = sorted([*(f"old {number}" for number in kept), "old five", "old 11"])
    union = scan.union()
    assert union.to_arrow().column_names == ["text"]
    assert sorted(union.to_arrow()["text"].to_pylist()) == wanted
    assert sorted(text for (text,) in union.to_duckdb().fetchall()) == wanted
    unfiltered = table.new_scan().project_by_name(["text"]).union().to_duckdb()
    assert len(unfiltered.fetchall()) == (10 if keys else 13)


@pytest.mark.parametrize("keys", [None, ["id"]], ids=["log", "key"])
def test_modes(lake: Lake, keys: list[str] | None) -> None:
    table = lake.create("modes", PLAIN, keys=keys)
    write(table, texts(range(3), "old"))
    for mode, row_count in (("auto", 3), ("none", 3), ("only", 0)):
        for way in WAYS:
            assert read_union(table, way, mode=mode).num_rows == row_count
    tier_fully(lake, table)
    write(table, texts(range(3, 5), "new"))
    for mode, row_count in (("auto", 5), ("none", 5), ("only", 3)):
        for way in WAYS:
            assert read_union(table, way, mode=mode).num_rows == row_count
    with pytest.raises(InvalidRequestError, match="'auto', 'none', 'only', not 'lake'"):
        table.new_scan().union(mode="lake")
    with pytest.raises(InvalidRequestError, match="takes no limit"):
        table.new_scan().limit(3).union()
    with pytest.raises(InvalidRequestError, match="with_fixed_schema"):
        table.new_scan().with_fixed_schema(False).union()


@pytest.mark.parametrize("keys", [None, ["id"]], ids=["log", "key"])
def test_a_table_without_a_lake(lake: Lake, keys: list[str] | None) -> None:
    table = lake.create("dry", PLAIN, keys=keys, properties={"table.datalake.enabled": "false"})
    write(table, texts(range(3), "old"))
    write(table, texts(range(2, 4), "new"), deleted=[{"id": 0}])
    for way in WAYS:
        assert read_union(table, way).num_rows == (3 if keys else 5)
        assert read_union(table, way, mode="only").num_rows == 0


def test_a_changelog_without_rows_from_before(lake: Lake) -> None:
    table = lake.create("wal", PLAIN, keys=["id"], properties={"table.changelog.image": "WAL"})
    for start, ids in ((0, [1, 2, 3]), (2, [1, 3, 4, 5])):
        write(table, texts(range(start, start + 4), "text"), deleted=[{"id": start}])
        for way in WAYS:
            assert [row["id"] for row in by_id(read_union(table, way))] == ids
        tier_fully(lake, table)


@pytest.mark.parametrize("way", WAYS)
def test_changes_that_changed_nothing(lake: Lake, way: str) -> None:
    table = lake.create("idle", PLAIN, keys=["id"])
    with table.new_upsert().create_writer() as writer:
        writer.upsert({"id": 1, "text": "a"})
    tier_fully(lake, table)
    with table.new_upsert().create_writer() as writer:
        writer.delete({"id": 2})  # takes an offset all the same
    assert table.new_scan().bucket_offsets(OffsetSpec.latest()) == {TableBucket(table.get_table_info().table_id, 0): 2}
    assert read_union(table, way).to_pylist() == [{"id": 1, "text": "a"}]


def test_a_named_warehouse(lake: Lake) -> None:
    table = lake.create("elsewhere", PLAIN, keys=["id"])
    write(table, texts(range(3), "old"))
    tier_here(lake, table)
    write(table, texts(range(2, 4), "new"))
    for arguments in ({"warehouse": str(lake.warehouse)}, {"catalog": {"warehouse": str(lake.warehouse)}}):
        for way in WAYS:
            assert read_union(table, way, **arguments).num_rows == 4
    with pytest.raises(OvertakenError, match="another warehouse"):
        read_union(table, "arrow", warehouse=str(lake.warehouse / "none"))
    assert not (lake.warehouse / "none").exists()
    with pytest.raises(InvalidRequestError, match="type 'hive'"):
        table.new_scan().union(catalog={"type": "hive"})


def test_what_the_server_does_not_know_of_does_not_count(lake: Lake) -> None:
    table = lake.create("ahead", PLAIN)
    write(table, texts(range(3), "old"))
    tier_halfway(lake, table, is_committed=True)
    assert plan_union(lake.connection, table).snapshot_id is None
    assert read_union(table, "arrow").num_rows == 3
    tier_fully(lake, table)
    write(table, texts(range(3, 5), "new"))
    tier_halfway(lake, table, is_committed=True)
    plan = plan_union(lake.connection, table)
    assert [(item.start_offset, item.end_offset) for item in plan.buckets] == [(3, 5)]
    assert read_union(table, "duckdb").num_rows == 5


def test_an_expired_snapshot_is_told(lake: Lake) -> None:
    table = lake.create("expired", PLAIN)
    write(table, texts(range(3), "old"))
    tier_fully(lake, table)
    write(table, texts(range(3), "new"))
    tier_halfway(lake, table, is_committed=True)
    stored = LakeOptions(warehouse=str(lake.warehouse)).open().load_table(table.table_path)
    registered = LakeRegistry(lake.connection).latest(table.table_path)
    assert stored is not None
    assert registered is not None
    stored.expire([registered.snapshot_id])
    with pytest.raises(OvertakenError, match="was it expired"):
        read_union(table, "arrow")


def test_files_named_like_patterns(lake: Lake) -> None:
    table = lake.create("patterns", PLAIN)
    write(table, texts(range(3), "old"))
    warehouse = str(lake.warehouse / "we[ird]*? it's")
    tier_here(Lake(lake.server, lake.connection, lake.database, Path(warehouse)), table)
    assert read_union(table, "duckdb", warehouse=warehouse).num_rows == 3


def test_columns_that_differ_in_case_alone(lake: Lake) -> None:
    columns = pa.schema([ID, ("a", pa.int32()), ("A", pa.string())])
    table = lake.create("cases", columns)
    write(table, [{"id": 1, "a": 2, "A": "x"}])
    tier_fully(lake, table)
    assert table.new_scan().union().to_duckdb().fetchall() == [(1, 2, "x")]


async def test_facades(lake: Lake) -> None:
    table = lake.create("facades", PLAIN)
    write(table, texts(range(3), "old"))
    tier_fully(lake, table)
    write(table, texts(range(3, 4), "new"))
    config = Config({"bootstrap.servers": lake.address})
    async with (
        await fluss.FlussConnection.create(config) as plain,
        await fluss.aio.FlussConnection.create(config) as aio,
    ):
        union = (await plain.get_table(table.table_path)).new_scan().union()
        assert union.to_arrow().num_rows == len(union.to_pandas()) == len(union.to_polars()) == 4
        assert len(union.to_duckdb().fetchall()) == pa.table(union).num_rows == 4
        awaited = (await aio.get_table(table.table_path)).new_scan().union()
        assert (
            (await awaited.to_arrow()).num_rows == len(await awaited.to_pandas()) == len(await awaited.to_polars()) == 4
        )
        assert len((await awaited.to_duckdb()).fetchall()) == awaited.to_arrow_batch_reader().read_all().num_rows == 4
    assert repr(union) == repr(awaited) == f"UnionScan({table.table_path}, mode='auto')"


def test_a_relation_reads_only_what_it_needs(lake: Lake) -> None:
    table = lake.create("lazy", PLAIN, keys=["id"])
    write(table, texts(range(3), "old"))
    tier_fully(lake, table)
    write(table, texts(range(2, 4), "new"), deleted=[{"id": 0}])
    with duckdb.connect() as connection:
        relation = table.new_scan().union().to_duckdb(connection)
        for _ in range(2):  # it can be read again
            assert relation.aggregate("count(*), max(text)").fetchall() == [(3, "old 1")]
        assert relation.filter("id > 2").select("text").fetchall() == [("new 3",)]
        assert connection.execute("SELECT count(*) FROM information_schema.tables").fetchall() == [(0,)]


def test_retention_leaves_to_the_lake_what_it_has(tmp_path: Path) -> None:
    config = tmp_path / "fluss.toml"
    config.write_text(
        "log.segment.file-size = 1000\nlog.retention.check-interval-ms = 20\nlog.retention.size-bytes = 1\n"
    )
    with (
        FlussServer(tmp_path / "data", args=["--config", str(config)]) as server,
        FlussConnection.create(Config({"bootstrap.servers": server.bootstrap_servers})) as connection,
    ):
        connection.get_admin().create_database("old")
        lake = Lake(server, connection, "old", tmp_path / "unused")
        table = lake.create("short", PLAIN)
        for start in range(0, 100, 10):
            write(table, texts(range(start, start + 10), "text"))
        tier_fully(lake, table)
        before = LakeRegistry(connection).latest(table.table_path)
        for start in range(100, 200, 10):
            write(table, texts(range(start, start + 10), "text"))
        assert _log_start(table) <= 100
        tier_fully(lake, table)
        write(table, texts(range(200, 210), "text"))
        deadline = dt.datetime.now() + dt.timedelta(seconds=RETENTION_DEADLINE_S)
        while _log_start(table) <= 100:
            assert dt.datetime.now() < deadline, "retention did not come"
        for way in WAYS:
            assert [row["id"] for row in by_id(read_union(table, way))] == list(range(210))
        assert read_union(table, "arrow", mode="none").num_rows < 110
        with pytest.raises(OvertakenError, match="up to offset 100, and its log begins at"):
            UnionPlanner(connection, table, None, None, "auto").plan(before)
        with pytest.raises(OvertakenError, match="was tiered while its read was planned"):
            UnionPlanner(connection, table, None, None, "auto").plan(None)


def _log_start(table: FlussTable) -> int:
    [offset] = table.new_scan().bucket_offsets(OffsetSpec.earliest()).values()
    return offset


def test_a_dropped_table_is_told(lake: Lake) -> None:
    table = lake.create("gone", PLAIN)
    union = table.new_scan().union()
    lake.connection.get_admin().drop_table(table.table_path)
    with pytest.raises(FlussError):
        union.to_arrow()

"""Primary-key tables read: changelogs, limits, whole tables; in every facade."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import col
from fluss.testing import FlussServer
from tests.unit.api.conftest import Client

COLUMNS = pa.schema([("id", pa.int32()), ("name", pa.string()), ("age", pa.int64())])
CHANGE_COLUMNS = ["_change_type", "_log_offset", "_commit_timestamp"]


def row(key: int, name: str | None = "a", age: int | None = 0) -> dict[str, Any]:
    return {"id": key, "name": name, "age": age}


def upsert(client: Client, table: Any, rows: list[Any], deleted: list[Any] | None = None) -> None:
    writer = table.new_upsert().create_writer()
    for each in rows:
        writer.upsert(each)
    for key in deleted or []:
        writer.delete(key)
    client.do(writer.flush())


def changelog(client: Client, scan: Any, buckets: int = 1, offset: int = fluss.EARLIEST_OFFSET) -> Any:
    scanner = client.do(scan.create_changelog_batch_scanner())
    scanner.subscribe_buckets(dict.fromkeys(range(buckets), offset))
    return scanner


@pytest.fixture(params=["ARROW", "INDEXED", "COMPACTED"])
def table(client: Client, request: pytest.FixtureRequest) -> Any:
    """Rows 1 (updated) and 3, inserted; 2 inserted and deleted; in one bucket of each log format."""
    properties = {"table.log.format": request.param}
    if request.param == "INDEXED":
        properties["table.kv.format"] = "INDEXED"
    made = client.table(COLUMNS, ["id"], properties=properties)
    upsert(client, made, [row(1, "a", 10), row(2, "b", 20)])
    upsert(client, made, [], [{"id": 77}])  # changes nothing, but takes an offset
    upsert(client, made, [row(1, "a2", 30), row(3, "c", None)], [{"id": 2}])
    return made


HISTORY = [
    ("+I", 0, row(1, "a", 10)),
    ("+I", 1, row(2, "b", 20)),
    ("-U", 3, row(1, "a", 10)),
    ("+U", 4, row(1, "a2", 30)),
    ("+I", 5, row(3, "c", None)),
    ("-D", 6, row(2, "b", 20)),
]


def test_records_of_a_changelog(client: Client, table: Any) -> None:
    scanner = client.record_scanner(table.new_scan())
    records = client.poll(scanner, len(HISTORY))
    assert [(each.change_type.short_string(), each.offset, each.row) for each in records] == HISTORY
    assert all(each.timestamp > 0 for each in records)
    assert list(scanner.positions().values()) == [7]
    projected = client.record_scanner(table.new_scan().project([2, 0]))
    assert [each.row for each in client.poll(projected, len(HISTORY))] == [
        {"age": each["age"], "id": each["id"]} for _, _, each in HISTORY
    ]


def test_an_empty_batch_moves_the_position(client: Client, table: Any) -> None:
    upsert(client, table, [], [{"id": 55}])
    scanner = client.do(table.new_scan().create_log_scanner())
    scanner.subscribe(0, 7)
    for _ in range(20):
        assert client.do(scanner.poll(500)).is_empty()
        if list(scanner.positions().values()) == [8]:
            return
    raise AssertionError(scanner.positions())


def test_changes_as_arrow(client: Client, table: Any) -> None:
    scanner = changelog(client, table.new_scan())
    found = client.do(scanner.to_arrow())
    assert found.schema.names == [*CHANGE_COLUMNS, *COLUMNS.names]
    assert [(each["_change_type"], each["_log_offset"]) for each in found.to_pylist()] == [
        (kind, offset) for kind, offset, _ in HISTORY
    ]
    assert found.select(COLUMNS.names).to_pylist() == [each for _, _, each in HISTORY]
    assert found["_commit_timestamp"].type == pa.timestamp("ms", tz="UTC")
    assert found["_commit_timestamp"].null_count == 0
    assert len(client.do(scanner.to_pandas())) == len(HISTORY)
    assert scanner.to_arrow_batch_reader().read_all() == found
    assert client.do(scanner.poll_arrow(10_000)) == found
    scanner.subscribe(0, 4)
    (batch,) = client.do(scanner.poll_record_batch(10_000))
    assert (batch.base_offset, batch.last_offset, batch.num_records) == (4, 6, 3)
    assert batch.batch.schema == found.schema
    with pytest.raises(fluss.InvalidRequestError, match="record scanner"):
        client.do(scanner.poll(10))


def test_projections_and_filters_of_changes(client: Client, table: Any) -> None:
    projected = client.do(changelog(client, table.new_scan().project_by_name(["age"]), offset=4).to_arrow())
    assert projected.drop_columns(["_commit_timestamp"]).to_pylist() == [
        {"_change_type": kind, "_log_offset": offset, "age": each["age"]} for kind, offset, each in HISTORY[3:]
    ]
    # Row 1 leaves what matches: its -U comes alone.
    filtered = client.do(changelog(client, table.new_scan().filter(col("age") == 10)).to_arrow())
    assert filtered.select(CHANGE_COLUMNS[:2]).to_pylist() == [
        {"_change_type": "+I", "_log_offset": 0},
        {"_change_type": "-U", "_log_offset": 3},
    ]


def test_changes_of_a_log_table(client: Client) -> None:
    table = client.table(COLUMNS)
    client.append(table, pa.record_batch([[1, 2], ["a", "b"], [0, 0]], schema=COLUMNS))
    found = client.do(changelog(client, table.new_scan()).to_arrow())
    assert found["_change_type"].to_pylist() == ["+A", "+A"]
    assert found["_log_offset"].to_pylist() == [0, 1]


def test_whole_tables(client: Client, table: Any) -> None:
    scan = table.new_scan()
    found, offsets = client.do(scan.to_arrow_with_offsets())
    assert found.schema == table.arrow_schema
    assert found.sort_by("id").to_pylist() == [row(1, "a2", 30), row(3, "c", None)]
    assert offsets == {fluss.TableBucket(table.get_table_info().table_id, 0): 7}
    assert client.do(scan.project([2, 0]).filter(col("name") == "c").to_arrow()).to_pylist() == [{"age": None, "id": 3}]
    assert client.do(scan.filter(col("age") > 100).to_arrow()).num_rows == 0
    assert sorted(client.do(scan.to_pandas())["name"]) == ["a2", "c"]


def test_limit_scans(client: Client, table: Any) -> None:
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    scan = table.new_scan()
    found = client.do(scan.limit(100).create_bucket_batch_scanner(bucket).to_arrow())
    assert found.to_pylist() == [row(1, "a2", 30), row(3, "c", None)]
    assert found.schema == table.arrow_schema
    first = scan.project_by_name(["name"]).limit(1).create_bucket_batch_scanner(bucket)
    assert client.do(first.to_arrow()).to_pylist() == [{"name": "a2"}]


def test_a_limit_scan_of_nothing(client: Client) -> None:
    table = client.table(COLUMNS, ["id"])
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    scanner = table.new_scan().project([1]).limit(5).create_bucket_batch_scanner(bucket)
    assert client.do(scanner.to_arrow()).to_pydict() == {"name": []}
    assert client.do(table.new_scan().to_arrow()) == table.arrow_schema.empty_table()


def test_rows_of_older_and_newer_schemas(client: Client) -> None:
    table = client.table(COLUMNS, ["id"])
    path = table.get_table_path()
    upsert(client, table, [row(1, "old", 1)])
    client.do(client.admin.alter_table(path, add_columns=[("city", pa.string())]))
    newer = client.do(client.connection.get_table(path))
    upsert(client, newer, [{**row(2, "new", 2), "city": "Ulm"}])
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    expected = [row(1, "old", 1), row(2, "new", 2)]
    for reader, rows in (
        (table, expected),
        (newer, [{**each, "city": city} for each, city in zip(expected, [None, "Ulm"], strict=True)]),
    ):
        assert client.do(reader.new_scan().to_arrow()).sort_by("id").to_pylist() == rows
        limited = reader.new_scan().limit(10).create_bucket_batch_scanner(bucket)
        assert client.do(limited.to_arrow()).to_pylist() == rows
        found = client.do(changelog(client, reader.new_scan()).to_arrow())
        assert found.drop_columns(CHANGE_COLUMNS).to_pylist() == rows


def test_many_buckets_and_partitions(client: Client) -> None:
    columns = pa.schema([("id", pa.int32()), ("region", pa.string())])
    for keys in (["id", "region"], None):
        table = client.table(columns, keys, partition_keys=["region"], bucket_count=3)
        assert client.do(table.new_scan().to_arrow_with_offsets()) == (table.arrow_schema.empty_table(), {})
        rows = [{"id": number, "region": region} for region in ("eu", "us") for number in range(50)]
        for region in ("eu", "us"):
            client.do(client.admin.create_partition(table.get_table_path(), {"region": region}))
        if keys:
            upsert(client, table, rows)
        else:
            client.append(table, pa.RecordBatch.from_pylist(rows, schema=columns))
        found, offsets = client.do(table.new_scan().to_arrow_with_offsets())
        assert found.sort_by([("region", "ascending"), ("id", "ascending")]).to_pylist() == rows
        assert len(offsets) == 6
        assert sum(offsets.values()) == 100


@pytest.mark.parametrize("keys", [None, ["id", "region"]])
def test_some_rows_and_their_number(client: Client, keys: list[str] | None) -> None:
    columns = pa.schema([("region", pa.string()), ("id", pa.int32()), ("name", pa.string())])
    table = client.table(columns, keys, partition_keys=["region"], bucket_count=2)
    assert client.do(table.new_scan().limit(5).to_arrow()).schema.names == columns.names
    assert client.do(table.new_scan().count()) == 0
    for region in ("EU", "US"):
        client.do(client.admin.create_partition(table.get_table_path(), {"region": region}))
    rows = [{"region": ("EU", "US")[i % 2], "id": i, "name": str(i % 5)} for i in range(40)]
    if keys:
        upsert(client, table, rows)
    else:
        client.append(table, pa.RecordBatch.from_pylist(rows, schema=columns))
    scan = table.new_scan()
    some = client.do(scan.limit(25).to_arrow()).to_pylist()
    assert len(some) == 25
    assert all(row in rows for row in some)
    assert len({row["id"] for row in some}) == 25
    assert client.do(scan.head()).num_rows == 5
    assert client.do(scan.limit(99).to_pandas()).shape == (40, 3)
    matching = scan.filter(col("name") == "3").project_by_name(["id"])
    assert {row["id"] % 5 for row in client.do(matching.head(3)).to_pylist()} == {3}
    assert (client.do(scan.count()), client.do(scan.limit(7).count()), client.do(matching.count())) == (40, 7, 8)
    assert client.do(matching.to_polars()).shape == (8, 1)
    assert client.do(matching.to_duckdb()).aggregate("count(*)").fetchall() == [(8,)]


def test_what_does_not_go_together(client: Client) -> None:
    table = client.table(COLUMNS, ["id"])
    with pytest.raises(fluss.InvalidRequestError, match="create_changelog_batch_scanner"):
        client.do(table.new_scan().create_record_batch_log_scanner())
    with pytest.raises(fluss.InvalidRequestError, match="takes no limit"):
        client.do(table.new_scan().limit(1).to_arrow_with_offsets())
    with pytest.raises(fluss.InvalidRequestError, match="takes no limit"):
        client.do(table.new_scan().limit(1).create_changelog_batch_scanner())
    with pytest.raises(fluss.InvalidRequestError, match="with_fixed_schema"):
        client.do(table.new_scan().with_fixed_schema(False).to_arrow())
    client.do(client.admin.drop_table(table.get_table_path()))
    with pytest.raises(fluss.NotFoundError):
        client.do(table.new_scan().to_arrow())


def test_whole_reads_in_the_awaiting_facade_leave_the_loop_free(api_server: FlussServer) -> None:
    async def read() -> int:
        async with await fluss.aio.FlussConnection.create(
            fluss.Config({"bootstrap.servers": api_server.bootstrap_servers})
        ) as connection:
            path = fluss.TablePath("fluss", "awaited_reads")
            descriptor = fluss.TableDescriptor(fluss.Schema(COLUMNS, ["id"]), bucket_count=2)
            await connection.get_admin().create_table(path, descriptor)
            table = await connection.get_table(path)
            writer = table.new_upsert().create_writer()
            writer.write_arrow(pa.table({"id": range(1_000), "name": ["a"] * 1_000, "age": [1] * 1_000}))
            await writer.flush()
            tables = await asyncio.gather(*(table.new_scan().to_arrow() for _ in range(5)))
            return sum(found.num_rows for found in tables)

    assert asyncio.run(read()) == 5_000

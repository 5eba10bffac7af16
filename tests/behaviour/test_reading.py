"""Filters, limits, lazy reading, iteration, stored positions, other data frames."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import col
from tests.behaviour.conftest import Client

COLUMNS = [("id", pa.int32()), ("name", pa.string()), ("score", pa.float64())]
WAIT_MS = 20_000


def filled(client: Client, name: str, count: int = 100, buckets: int = 1) -> Any:
    table = client.create(name, COLUMNS, bucket_count=buckets)
    writer = table.new_append().create_writer()
    for start in range(0, count, 20):
        rows = {
            "id": list(range(start, start + 20)),
            "name": [f"n{i}" if i % 10 else None for i in range(start, start + 20)],
            "score": [i / 2 for i in range(start, start + 20)],
        }
        client.do(writer.write_arrow_batch(pa.RecordBatch.from_pydict(rows, schema=table.arrow_schema)).wait())
    return table


def read_ids(client: Client, scan: Any) -> list[int]:
    scanner = client.do(scan.create_record_batch_log_scanner())
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    try:
        ids: list[int] = client.do(scanner.to_arrow())["id"].to_pylist()
        return ids
    finally:
        scanner.close()


@pytest.mark.feature("Filters")
@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (col("id") < 3, [0, 1, 2]),
        ((col("id") >= 97) | (col("id") == 5), [5, 97, 98, 99]),
        ((col("id") > 10) & col("name").is_null(), [20, 30, 40, 50, 60, 70, 80, 90]),
        (col("name").starts_with("n9") & (col("score") != 46.0), [9, 91, 93, 94, 95, 96, 97, 98, 99]),
        (col("name").ends_with("7").and_(col("id").less_than(40)), [7, 17, 27, 37]),
        (col("name").contains("55").or_(col("id").is_in([1, 2])), [1, 2, 55]),
        (col("id").not_in(list(range(1, 100))), [0]),
        (col("name").equal("n42"), [42]),
        (col("id").greater_than(10**6), []),
    ],
    ids=str,
)
def test_filters_are_exact(client: Client, predicate: fluss.Predicate, expected: list[int]) -> None:
    table = filled(client, "filtered")
    assert read_ids(client, table.new_scan().filter(predicate)) == expected


@pytest.mark.feature("Filters")
def test_a_filter_on_a_column_that_is_not_read(client: Client) -> None:
    table = filled(client, "hidden")
    scan = table.new_scan().project_by_name(["name"]).filter(col("id") == 7)
    scanner = client.do(scan.create_log_scanner())
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    records = client.do(scanner.poll(WAIT_MS))
    assert [(record.offset, record.row) for record in records] == [(7, {"name": "n7"})]
    scanner.close()


@pytest.mark.feature("Filters")
@pytest.mark.parametrize(
    "predicate", [col("nope") == 1, col("id") == "text", col("name").starts_with("a") & (col("score") == b"x")], ids=str
)
def test_filters_that_do_not_fit_are_refused(client: Client, predicate: fluss.Predicate) -> None:
    table = client.create("unfit", COLUMNS)
    with pytest.raises(fluss.FlussError) as error:
        client.do(table.new_scan().filter(predicate).create_log_scanner())
    assert any(name in error.value.message for name in ("nope", "id", "score"))


@pytest.mark.feature("Filters")
def test_predicates_have_no_truth(client: Client) -> None:
    with pytest.raises(TypeError):
        bool(col("id") == 1)


@pytest.mark.feature("Limit scan")
def test_limit_reads_the_last_rows_of_a_bucket(client: Client) -> None:
    table = filled(client, "limited")
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    scanner = table.new_scan().limit(7).create_bucket_batch_scanner(bucket)
    assert scanner.bucket == bucket
    assert client.do(scanner.to_arrow())["id"].to_pylist() == list(range(93, 100))
    scanner = table.new_scan().project([0]).limit(3).create_bucket_batch_scanner(bucket)
    batch = client.do(scanner.next_batch())
    assert batch.batch.to_pydict() == {"id": [97, 98, 99]}
    assert client.do(scanner.next_batch()) is None
    scanner = table.new_scan().limit(1000).create_bucket_batch_scanner(bucket)
    assert sum(batch.num_records for batch in client.do(scanner.collect_all_batches())) == 100
    scanner = table.new_scan().limit(2).create_bucket_batch_scanner(bucket)
    assert list(client.do(scanner.to_pandas())["id"]) == [98, 99]


@pytest.mark.feature("Limit scan")
def test_limits_that_make_no_sense(client: Client) -> None:
    table = client.create("nolimit", COLUMNS)
    info = table.get_table_info()
    for wrong in (0, -1):
        with pytest.raises(fluss.FlussError):
            table.new_scan().limit(wrong)
    with pytest.raises(fluss.FlussError):
        client.do(table.new_scan().limit(3).create_log_scanner())
    for bucket in (fluss.TableBucket(info.table_id + 1000, 0), fluss.TableBucket(info.table_id, 5)):
        with pytest.raises(fluss.FlussError):
            table.new_scan().limit(3).create_bucket_batch_scanner(bucket)
    with pytest.raises(fluss.FlussError):
        table.new_scan().create_bucket_batch_scanner(fluss.TableBucket(info.table_id, 0))
    empty = table.new_scan().limit(3).create_bucket_batch_scanner(fluss.TableBucket(info.table_id, 0))
    assert client.do(empty.to_arrow()).num_rows == 0


@pytest.mark.feature("Batch reader, record batches, pandas")
def test_a_batch_reader_is_lazy_and_complete(client: Client) -> None:
    table = filled(client, "lazy", buckets=1)
    scanner = client.batch_scanner(table)
    reader = scanner.to_arrow_batch_reader()
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.schema.names == ["id", "name", "score"]
    assert pa.Table.from_batches(list(reader))["id"].to_pylist() == list(range(100))
    scanner.close()


@pytest.mark.feature("Iteration over scanners")
def test_iterating_over_a_scanner(client: Client) -> None:
    table = filled(client, "iterated")
    scanner = client.do(table.new_scan().create_log_scanner())
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    batches = client.batch_scanner(table)

    async def by_async_for() -> tuple[list[int], int]:
        records, rows = [], 0
        async for record in scanner:
            records.append(record.row["id"])
            if len(records) == 100:
                break
        async for batch in batches:
            rows += batch.num_records
            if rows == 100:
                break
        return records, rows

    def by_for() -> tuple[list[int], int]:
        records, rows = [], 0
        for record in scanner:
            records.append(record.row["id"])
            if len(records) == 100:
                break
        for batch in batches:
            rows += batch.num_records
            if rows == 100:
                break
        return records, rows

    found = client.do(by_async_for()) if client.api.__name__ == "fluss.aio" else by_for()
    assert found == (list(range(100)), 100)
    scanner.close()
    batches.close()


@pytest.mark.feature("Stored positions")
def test_reading_goes_on_from_stored_positions(client: Client) -> None:
    table = filled(client, "stored")
    scanner = client.do(table.new_scan().create_log_scanner())
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    seen = [record.row["id"] for record in client.do(scanner.poll(WAIT_MS))]
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    positions = scanner.positions()
    assert positions == {bucket: len(seen)}
    assert scanner.get_subscribed_buckets() == [(bucket, len(seen))]
    assert not scanner.is_partitioned()
    scanner.close()
    again = client.do(table.new_scan().create_log_scanner())
    again.subscribe_positions(positions)
    while len(seen) < 100:
        seen += [record.row["id"] for record in client.do(again.poll(WAIT_MS))]
    assert seen == list(range(100))
    again.close()


@pytest.mark.feature("Results as pandas, polars, DuckDB")
def test_other_data_frames(client: Client) -> None:
    table = filled(client, "frames", count=20)
    scanner = client.batch_scanner(table)
    assert client.do(scanner.to_polars())["id"].to_list() == list(range(20))
    assert client.do(scanner.to_duckdb()).fetchall()[3][0] == 3
    assert list(client.do(scanner.to_pandas())["id"]) == list(range(20))
    scanner.close()


@pytest.mark.feature("Appends: rows, Arrow, data frames")
def test_polars_frames_are_written(client: Client) -> None:
    import polars as pl

    table = client.create("polars", COLUMNS)
    writer = table.new_append().create_writer()
    writer.write_arrow(pl.DataFrame({"id": [1, 2], "name": ["a", None], "score": [0.5, 1.5]}))
    client.do(writer.flush())
    assert client.read(table).to_pylist()[0] == {"id": 1, "name": "a", "score": 0.5}


@pytest.mark.feature("Lake snapshot of a table that has none")
def test_lake_snapshots_are_an_error_without_a_lake(client: Client) -> None:
    table = client.create("nolake", COLUMNS)
    with pytest.raises(fluss.FlussError) as error:
        client.do(client.admin.get_latest_lake_snapshot(table.get_table_path()))
    assert error.value.error_code == fluss.ErrorCode.LAKE_SNAPSHOT_NOT_EXIST


@pytest.mark.feature("Table statistics")
def test_table_statistics(client: Client) -> None:
    table = filled(client, "stats", buckets=3)
    stats = client.do(client.admin.get_table_stats(table.get_table_path()))
    assert stats.row_count == 100
    assert json.dumps(stats.bucket_row_counts)

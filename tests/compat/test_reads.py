"""Reading on a real Apache Fluss: other schemas, filters, limits, positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import fluss.sync as fluss
from fluss.testing import ApacheFluss

pytestmark = pytest.mark.compat

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("value", pa.float64())])
MakeTable = Callable[..., fluss.FlussTable]


@pytest.fixture
def connection(apache_fluss: ApacheFluss) -> Iterator[fluss.FlussConnection]:
    with fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": apache_fluss.bootstrap_servers})) as opened:
        yield opened


@pytest.fixture
def make(apache_fluss: ApacheFluss, connection: fluss.FlussConnection, new_name: Callable[[str], str]) -> MakeTable:
    def make(**options: object) -> fluss.FlussTable:
        path = fluss.TablePath("fluss", new_name("reads"))
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1, **options)  # type: ignore[arg-type]
        connection.get_admin().create_table(path, descriptor)
        apache_fluss.await_table("fluss", path.table_name)
        return connection.get_table(path)

    return make


def rows(first: int, count: int) -> pa.RecordBatch:
    ids = range(first, first + count)
    return pa.record_batch({"id": list(ids), "name": [f"n{i}" for i in ids], "value": [i / 2 for i in ids]})


def append(table: fluss.FlussTable, *batches: pa.RecordBatch) -> None:
    writer = table.new_append().create_writer()
    for batch in batches:
        writer.write_arrow_batch(batch)
        writer.flush()


def read(scan: fluss.TableScan) -> pa.Table:
    with scan.create_record_batch_log_scanner() as scanner:
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        return scanner.to_arrow()


def test_older_batches_are_padded_also_where_the_server_can_not_project_them(
    connection: fluss.FlussConnection, make: MakeTable
) -> None:
    before = make()
    append(before, rows(0, 10))
    connection.get_admin().alter_table(before.table_path, add_columns=[("extra", pa.int32())])
    after = connection.get_table(before.table_path)
    assert after.arrow_schema.names == ["id", "name", "value", "extra"]
    append(after, rows(10, 10).append_column("extra", pa.array(range(10, 20), pa.int32())))
    extra = [None] * 10 + list(range(10, 20))

    assert read(after.new_scan())["extra"].to_pylist() == extra
    assert read(after.new_scan().project_by_name(["extra", "id"])).to_pydict() == {"extra": extra, "id": [*range(20)]}
    assert read(after.new_scan().project_by_name(["name"]))["name"].to_pylist() == [f"n{i}" for i in range(20)]
    assert read(before.new_scan()) == pa.Table.from_batches([rows(0, 10), rows(10, 10)])
    assert read(before.new_scan().project([2, 0]))["id"].to_pylist() == list(range(20))
    chosen = fluss.col("extra").is_null() & (fluss.col("id") > 7)
    assert read(after.new_scan().project_by_name(["value"]).filter(chosen)).to_pydict() == {"value": [4.0, 4.5]}
    with after.new_scan().project_by_name(["extra"]).create_log_scanner() as scanner:
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        records: list[fluss.ScanRecord] = []
        while len(records) < 20:
            records.extend(scanner.poll(10_000))
        assert [record.row for record in records] == [{"extra": value} for value in extra]


def test_filters_are_exact_and_offsets_stay(make: MakeTable) -> None:
    table = make()
    append(table, rows(0, 50), rows(50, 50))
    chosen = fluss.col("name").is_in(["n7", "n77"]) | (fluss.col("value") > 49.0)
    with table.new_scan().project_by_name(["id"]).filter(chosen).create_log_scanner() as scanner:
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        records: list[fluss.ScanRecord] = []
        while len(records) < 3:
            records.extend(scanner.poll(10_000))
        assert [(record.offset, record.row) for record in records] == [
            (7, {"id": 7}),
            (77, {"id": 77}),
            (99, {"id": 99}),
        ]
        assert list(scanner.positions().values()) == [100]


def test_limits_and_positions(make: MakeTable) -> None:
    table = make()
    append(table, rows(0, 50), rows(50, 50))
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    batch = table.new_scan().project_by_name(["id"]).limit(5).create_bucket_batch_scanner(bucket).next_batch()
    assert batch is not None
    assert batch.batch.to_pydict() == {"id": [95, 96, 97, 98, 99]}
    assert (batch.base_offset, batch.last_offset) == (95, 99)
    with table.new_scan().create_log_scanner() as scanner:
        scanner.subscribe_positions(fluss.Positions({bucket: 98}))
        assert [record.offset for record in scanner.poll(10_000)] == [98, 99]
        assert scanner.get_subscribed_buckets() == [(bucket, 100)]


def test_an_indexed_log_is_read_by_records(make: MakeTable) -> None:
    table = make(log_format="INDEXED")
    append(table, rows(0, 50))
    scan = table.new_scan().project_by_name(["value", "id"]).filter(fluss.col("id") >= 45)
    with scan.create_log_scanner() as scanner:
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        records = list(scanner.poll(10_000))
        assert [(record.offset, record.row) for record in records] == [
            (i, {"value": i / 2, "id": i}) for i in range(45, 50)
        ]

"""Scans through the three facades: filters, limits, readers, positions, partitions, other schemas."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

import fluss
import fluss.aio
from fluss import EARLIEST_OFFSET, Positions, TableBucket, col
from fluss.client.runtime import run
from fluss.client.table import TableCore
from tests.unit.api.conftest import Client

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("value", pa.float64())])


def rows(first: int, count: int) -> pa.RecordBatch:
    ids = range(first, first + count)
    return pa.record_batch({"id": list(ids), "name": [f"n{i % 10}" for i in ids], "value": [i / 2 for i in ids]})


@pytest.fixture
def table(client: Client) -> Any:
    made = client.table(SCHEMA)
    client.append(made, rows(0, 40), rows(40, 40), rows(80, 20))
    return made


# ---- filters ----


def test_a_filter_gives_matching_rows_only(client: Client, table: Any) -> None:
    chosen = (col("id") >= 30) & (col("id") < 90) & (col("name") == "n3")
    scanner = client.batch_scanner(table.new_scan().filter(chosen))
    assert client.do(scanner.to_arrow())["id"].to_pylist() == [33, 43, 53, 63, 73, 83]
    assert client.do(scanner.to_arrow()).schema == SCHEMA
    batches = client.do(scanner.poll_record_batch(10_000))
    assert (batches[0].base_offset, batches[0].last_offset) == (33, 33)
    assert batches[0].batch["id"].to_pylist() == [33]


def test_records_of_a_filtered_scan_keep_their_offsets(client: Client, table: Any) -> None:
    scanner = client.record_scanner(table.new_scan().filter(col("name").is_in(["n1", "n2"])))
    records = client.poll(scanner, 20)
    expected = [i for i in range(100) if i % 10 in (1, 2)]
    assert [record.offset for record in records] == expected
    assert [record.row["id"] for record in records] == expected


def test_positions_move_over_rows_that_do_not_match(client: Client, table: Any) -> None:
    scanner = client.batch_scanner(table.new_scan().filter(col("id") < 0))
    assert client.do(scanner.poll_record_batch(300)) == []
    assert list(scanner.positions().values()) == [100]
    assert client.do(scanner.to_arrow()).num_rows == 0


def test_a_filtered_poll_is_cut_between_matching_rows(client: Client, table: Any) -> None:
    core = client.record_scanner(table.new_scan().filter(col("name") == "n5"))._core
    taken: list[int] = []
    while len(taken) < 10:
        batches = run(core.poll_batches(10_000, 3))
        assert sum(fetched.row_count for fetched in batches) <= 3
        for fetched in batches:
            taken.extend(fetched.offsets.to_pylist())
            assert (fetched.base_offset, fetched.last_offset) == (taken[-fetched.row_count], taken[-1])
        (position,) = core.positions().values()
        assert taken[-1] < position <= min(taken[-1] + 10, 100)
    assert taken == list(range(5, 100, 10))


def test_a_filter_on_a_column_that_is_not_projected(client: Client, table: Any) -> None:
    scan = table.new_scan().project_by_name(["value"]).filter(col("id") == 7)
    result = client.do(client.batch_scanner(scan).to_arrow())
    assert result.to_pydict() == {"value": [3.5]}


def test_a_second_filter_narrows_the_first(client: Client, table: Any) -> None:
    scan = table.new_scan().filter(col("id") < 10).filter(col("id") > 7)
    assert client.do(client.batch_scanner(scan).to_arrow())["id"].to_pylist() == [8, 9]


def test_a_filter_that_does_not_fit_is_refused_at_once(client: Client, table: Any) -> None:
    scan = table.new_scan()
    with pytest.raises(fluss.SchemaMismatchError, match="'nope'"):
        scan.filter(col("nope") == 1)
    with pytest.raises(fluss.SchemaMismatchError, match="'id'"):
        scan.filter(col("id") == "1")
    with pytest.raises(fluss.InvalidRequestError, match="not a bool"):
        scan.filter(True)


def test_statistics_let_the_server_skip_and_the_rows_stay_exact(client: Client) -> None:
    table = client.table(SCHEMA, properties={"table.statistics.columns": "*"})
    client.append(table, *(rows(first, 50) for first in range(0, 1_000, 50)))
    scanner = client.record_scanner(table.new_scan().filter((col("id") == 777) | (col("id") == 5)))
    assert [record.offset for record in client.poll(scanner, 2)] == [5, 777]
    assert client.do(scanner.poll(300)).is_empty()
    assert list(scanner.positions().values()) == [1_000]


# ---- limits ----


def test_a_limit_reads_the_last_rows_of_a_bucket_once(client: Client, table: Any) -> None:
    bucket = TableBucket(table.get_table_info().table_id, 0)
    scanner = table.new_scan().limit(30).create_bucket_batch_scanner(bucket)
    assert scanner.bucket == bucket
    batch = client.do(scanner.next_batch())
    assert batch.batch["id"].to_pylist() == list(range(70, 100))
    assert (batch.bucket, batch.base_offset, batch.last_offset) == (bucket, 70, 99)
    assert client.do(scanner.next_batch()) is None
    assert client.do(scanner.collect_all_batches()) == []
    assert client.do(scanner.to_arrow()).num_rows == 0


def test_a_limit_with_projection_and_more_rows_than_there_are(client: Client, table: Any) -> None:
    bucket = TableBucket(table.get_table_info().table_id, 0)
    scan = table.new_scan().project_by_name(["value", "id"]).limit(1_000)
    result = client.do(scan.create_bucket_batch_scanner(bucket).to_arrow())
    assert result == pa.Table.from_batches([rows(0, 100)]).select(["value", "id"])
    (batch,) = client.do(scan.create_bucket_batch_scanner(bucket).collect_all_batches())
    assert batch.num_records == 100
    assert client.do(scan.create_bucket_batch_scanner(bucket).to_pandas())["id"].tolist() == list(range(100))


def test_a_limit_on_an_empty_bucket(client: Client) -> None:
    table = client.table(SCHEMA, bucket_count=2)
    scan = table.new_scan().project([1]).limit(5)
    bucket = TableBucket(table.get_table_info().table_id, 1)
    assert client.do(scan.create_bucket_batch_scanner(bucket).to_arrow()).schema.names == ["name"]
    assert client.do(scan.create_bucket_batch_scanner(bucket).next_batch()).num_records == 0


def test_what_a_limit_does_not_go_with(client: Client, table: Any) -> None:
    table_id = table.get_table_info().table_id
    scan = table.new_scan()
    for bad in (0, -5, 2**31, "3", True):
        with pytest.raises(fluss.InvalidRequestError, match="limit"):
            scan.limit(bad)
    with pytest.raises(fluss.InvalidRequestError, match=r"limit\(n\)"):
        scan.create_bucket_batch_scanner(TableBucket(table_id, 0))
    for bucket in (
        TableBucket(table_id + 999, 0),
        TableBucket(table_id, 9),
        TableBucket.with_partition(table_id, 1, 0),
    ):
        with pytest.raises(fluss.InvalidRequestError):
            scan.limit(1).create_bucket_batch_scanner(bucket)
    with pytest.raises(fluss.InvalidRequestError, match="filter"):
        scan.limit(1).filter(col("id") > 1).create_bucket_batch_scanner(TableBucket(table_id, 0))
    with pytest.raises(fluss.InvalidRequestError, match="fixed_schema"):
        scan.limit(1).with_fixed_schema(False).create_bucket_batch_scanner(TableBucket(table_id, 0))
    for call in (scan.limit(1).create_log_scanner, scan.limit(1).create_record_batch_log_scanner):
        with pytest.raises(fluss.InvalidRequestError, match="create_bucket_batch_scanner"):
            client.do(call())


# ---- readers and iteration ----


def test_a_batch_reader_is_lazy_and_works_in_any_thread(client: Client, table: Any) -> None:
    scanner = client.batch_scanner(table.new_scan())
    reader = scanner.to_arrow_batch_reader()
    client.append(table, rows(100, 5))
    assert reader.schema == SCHEMA
    first = reader.read_next_batch()
    assert first["id"].to_pylist()[0] == 0
    rest: list[pa.RecordBatch] = []
    thread = threading.Thread(target=lambda: rest.extend(reader))
    thread.start()
    thread.join(30)
    assert pa.Table.from_batches([first, *rest])["id"].to_pylist() == list(range(100))
    assert list(scanner.positions().values()) == [EARLIEST_OFFSET]


def test_batches_tell_when_they_were_stored(client: Client, table: Any) -> None:
    scanner = client.batch_scanner(table.new_scan())
    records = client.poll(client.record_scanner(table.new_scan()), 100)
    stamps = {record.timestamp for record in records}
    found: list[fluss.RecordBatch] = []
    while not found or found[-1].last_offset < 99:
        found += client.do(scanner.poll_record_batch(10_000))
    assert {batch.commit_timestamp for batch in found} == stamps
    assert min(stamps) > 0
    users = client.table(SCHEMA, ["id"])
    bucket = TableBucket(users.get_table_info().table_id, 0)
    current = client.do(users.new_scan().limit(1).create_bucket_batch_scanner(bucket).next_batch())
    assert current.commit_timestamp == fluss.NO_COMMIT_TIMESTAMP == -1


def test_only_fluss_aio_lends_a_scanner_to_its_reader(client: Client, table: Any) -> None:
    """As in pyfluss: programs for it find out by an error that they change what a reader still reads."""
    scanner = client.batch_scanner(table.new_scan())
    reader = scanner.to_arrow_batch_reader()
    changes = (
        lambda: scanner.subscribe(0, EARLIEST_OFFSET),
        lambda: scanner.unsubscribe(0),
        scanner.to_arrow_batch_reader,
    )
    if client.facade is not fluss.aio:
        for change in changes[:1]:
            change()
        assert reader.read_all().num_rows == 100
        return
    for change in changes:
        with pytest.raises(fluss.InvalidRequestError, match="RecordBatchLogReader is active"):
            change()
    assert reader.read_all().num_rows == 100
    scanner.subscribe(0, 60)  # the reader that was read to its end is still there
    assert scanner.to_arrow_batch_reader().read_all().num_rows == 40
    assert [bucket.bucket_id for bucket in scanner.positions()] == [0], "a reader read to its end took subscriptions"


def test_a_reader_of_fluss_aio_that_is_dropped_takes_its_subscriptions_with_it(client: Client, table: Any) -> None:
    scanner = client.batch_scanner(table.new_scan())
    for read_count in (0, 1):
        reader = scanner.to_arrow_batch_reader()
        for _ in range(read_count):
            reader.read_next_batch()
        del reader
        if client.facade is fluss.aio:
            with pytest.raises(fluss.InvalidRequestError, match="No buckets subscribed"):
                scanner.to_arrow_batch_reader()
            scanner.subscribe(0, EARLIEST_OFFSET)
    assert scanner.to_arrow_batch_reader().read_all().num_rows == 100


def test_who_has_unsubscribed_everything_polls_no_rows(client: Client, table: Any) -> None:
    scanner = client.batch_scanner(table.new_scan())
    scanner.unsubscribe(0)
    assert client.do(scanner.poll_arrow(1)).num_rows == 0
    scanner.subscribe(0, 60)
    assert client.do(scanner.poll_arrow(10_000))["id"].to_pylist()[0] == 60
    with pytest.raises(fluss.InvalidRequestError, match="No buckets subscribed"):
        client.do(client.do(table.new_scan().create_record_batch_log_scanner()).poll_arrow(1))


def test_results_speak_arrows_stream_interface(client: Client, table: Any) -> None:
    scanner = client.batch_scanner(table.new_scan())
    assert pa.RecordBatchReader.from_stream(scanner).read_all()["id"].to_pylist() == list(range(100))
    (batch, *_) = client.do(scanner.poll_record_batch(10_000))
    assert pa.record_batch(batch) == batch.batch


def test_a_reader_of_a_closed_scanner_says_so(client: Client, table: Any) -> None:
    scanner = client.batch_scanner(table.new_scan())
    reader = scanner.to_arrow_batch_reader()
    scanner.close()
    with pytest.raises(fluss.FlussError, match="closed"):
        reader.read_all()


def test_a_reader_that_is_dropped_stops_reading(client: Client, table: Any) -> None:
    async def prefetches() -> set[asyncio.Task[Any]]:
        return {task for task in asyncio.all_tasks() if "Prefetcher" in str(task.get_coro())}

    scanner = client.batch_scanner(table.new_scan())
    before = run(prefetches())
    reader = scanner.to_arrow_batch_reader()
    client.append(table, rows(100, 1))
    reader.read_next_batch()
    del reader
    deadline = time.monotonic() + 5
    while run(prefetches()) - before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_readers_need_a_batch_scanner_and_one_schema(client: Client, table: Any) -> None:
    records = client.record_scanner(table.new_scan())
    for call in ("to_arrow_batch_reader", "to_arrow", "to_pandas", "to_polars", "to_duckdb"):
        with pytest.raises(fluss.InvalidRequestError, match="create_record_batch_log_scanner"):
            client.do(getattr(records, call)())
    loose = client.batch_scanner(table.new_scan().with_fixed_schema(False))
    with pytest.raises(fluss.InvalidRequestError, match="with_fixed_schema"):
        loose.to_arrow_batch_reader()


@pytest.mark.parametrize("library", ["polars", "duckdb"])
def test_other_libraries_are_extras(client: Client, table: Any, library: str) -> None:
    scanner = client.batch_scanner(table.new_scan())
    try:
        __import__(library)
    except ImportError:
        with pytest.raises(fluss.FlussError, match=rf"install flussbett\[{library}\]"):
            client.do(getattr(scanner, f"to_{library}")())
    else:
        assert len(client.do(getattr(scanner, f"to_{library}")())) == 100


def test_iteration_yields_records_or_batches_without_end(client: Client, table: Any) -> None:
    records = client.record_scanner(table.new_scan())
    batches = client.batch_scanner(table.new_scan())
    if hasattr(records, "__iter__"):
        assert [record.offset for record in islice(records, 100)] == list(range(100))
        assert [batch.num_records for batch in islice(batches, 3)] == [40, 40, 20]
        records = client.record_scanner(table.new_scan())
        batches = client.batch_scanner(table.new_scan())

    async def take(scanner: Any, count: int) -> list[Any]:
        items: list[Any] = []
        async for item in scanner:
            items.append(item)
            if len(items) == count:
                break
        return items

    assert [record.offset for record in client.do(take(records, 100))] == list(range(100))
    assert [batch.num_records for batch in client.do(take(batches, 3))] == [40, 40, 20]


def test_a_poll_without_time_returns_what_is_there(client: Client, table: Any) -> None:
    scanner = client.record_scanner(table.new_scan())
    began = time.monotonic()
    seen = client.do(scanner.poll(0)).count()
    assert time.monotonic() - began < 2
    assert seen + len(client.poll(scanner, 100 - seen)) == 100
    with pytest.raises(fluss.InvalidRequestError, match="0 or more"):
        client.do(scanner.poll(-1))


def test_old_spellings(client: Client, table: Any) -> None:
    scanner = client.do(table.new_scan().create_batch_scanner())
    scanner.subscribe(0, EARLIEST_OFFSET)
    assert client.do(scanner.poll_batches(10_000))[0].base_offset == 0


# ---- positions ----


def test_reading_goes_on_from_stored_positions(client: Client, table: Any) -> None:
    scanner = client.record_scanner(table.new_scan())
    first = client.poll(scanner, 1)
    stored = scanner.positions().to_json()
    scanner.close()
    later = client.do(table.new_scan().create_log_scanner())
    later.subscribe_positions(Positions.from_json(stored))
    assert later.get_subscribed_buckets() == [(TableBucket(table.get_table_info().table_id, 0), len(first))]
    client.append(table, rows(100, 3))
    rest = client.poll(later, 103 - len(first))
    assert [record.offset for record in [*first, *rest]] == list(range(103))


def test_positions_of_another_table_are_refused(client: Client, table: Any) -> None:
    other = client.batch_scanner(client.table(SCHEMA).new_scan())
    scanner = client.do(table.new_scan().create_log_scanner())
    with pytest.raises(fluss.InvalidRequestError, match="dropped and created again"):
        scanner.subscribe_positions(other.positions())
    assert scanner.positions() == {}
    for text in ("", "{}x", "[[1, 2]]", '[["1", null, 0, 0]]', "[1]", "[[1, null, 0, true]]"):
        with pytest.raises(fluss.InvalidRequestError, match="are not positions of a scanner"):
            Positions.from_json(text)


# ---- other tables ----


def test_what_has_no_batch_scanner_says_what_to_use(client: Client, table: Any) -> None:
    def scan_of(descriptor: fluss.TableDescriptor) -> Any:
        info = fluss.TableInfo(table.get_table_path(), 7, 1, descriptor, 1, 0, 0)
        return type(table)(TableCore(client.connection._core, info)).new_scan()

    with_key = scan_of(fluss.TableDescriptor(fluss.Schema(SCHEMA, primary_keys=["id"]), bucket_count=1))
    with pytest.raises(fluss.InvalidRequestError, match=r"create_changelog_batch_scanner\(\)"):
        client.do(with_key.create_record_batch_log_scanner())
    client.do(with_key.create_log_scanner()).close()
    indexed = scan_of(fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1, log_format="INDEXED"))
    with pytest.raises(fluss.InvalidRequestError, match=r"INDEXED.*create_log_scanner\(\)"):
        client.do(indexed.create_record_batch_log_scanner())
    with pytest.raises(fluss.InvalidRequestError, match="INDEXED"):
        indexed.limit(1).create_bucket_batch_scanner(TableBucket(7, 0))
    client.do(indexed.create_log_scanner()).close()


def test_partitions_are_read_bucket_by_bucket(client: Client) -> None:
    schema = SCHEMA.append(pa.field("region", pa.string()))
    table = client.table(schema, partition_keys=["region"], bucket_count=2)
    path = table.get_table_path()
    for region in ("eu", "us"):
        client.do(client.admin.create_partition(path, {"region": region}))
    ids = {info.partition_name: info.partition_id for info in client.do(client.admin.list_partition_infos(path))}
    writer = table.new_append().create_writer()
    for i in range(50):
        writer.append({"id": i, "name": None, "value": 0.5, "region": "eu" if i % 2 else "us"})
    client.do(writer.flush())

    scanner = client.do(table.new_scan().project_by_name(["id"]).create_record_batch_log_scanner())
    assert scanner.is_partitioned()
    scanner.subscribe_partition_buckets({(ids["eu"], bucket): EARLIEST_OFFSET for bucket in range(2)})
    assert sorted(client.do(scanner.to_arrow())["id"].to_pylist()) == list(range(1, 50, 2))
    for bucket in range(2):
        scanner.subscribe_partition(ids["us"], bucket, EARLIEST_OFFSET)
    assert sorted(client.do(scanner.to_arrow())["id"].to_pylist()) == list(range(50))
    for bucket in range(2):
        scanner.unsubscribe_partition(ids["eu"], bucket)
    assert sorted(client.do(scanner.to_arrow())["id"].to_pylist()) == list(range(0, 50, 2))
    assert {bucket.partition_id for bucket in scanner.positions()} == {ids["us"]}
    again = client.do(table.new_scan().create_record_batch_log_scanner())
    again.subscribe_positions(Positions.from_json(scanner.positions().to_json()))
    assert client.do(again.to_arrow()).num_rows == 25

    table_id = table.get_table_info().table_id
    limited = [
        client.do(
            table.new_scan()
            .limit(100)
            .create_bucket_batch_scanner(TableBucket.with_partition(table_id, ids["eu"], bucket))
            .to_arrow()
        )
        for bucket in range(2)
    ]
    assert sorted(pa.concat_tables(limited)["id"].to_pylist()) == list(range(1, 50, 2))


def test_partition_mistakes_are_errors_and_a_dropped_partition_is_noticed(client: Client) -> None:
    schema = SCHEMA.append(pa.field("region", pa.string()))
    table = client.table(schema, partition_keys=["region"])
    path = table.get_table_path()
    client.do(client.admin.create_partition(path, {"region": "eu"}))
    (partition,) = client.do(client.admin.list_partition_infos(path))
    scanner = client.do(table.new_scan().create_log_scanner())
    with pytest.raises(fluss.InvalidRequestError, match="partition"):
        scanner.subscribe(0, 0)
    with pytest.raises(fluss.NotFoundError, match="987654"):
        scanner.subscribe_partition(987654, 0, 0)
    with pytest.raises(fluss.InvalidRequestError, match="no bucket 7"):
        scanner.unsubscribe_partition(partition.partition_id, 7)
    scanner.subscribe_partition(partition.partition_id, 0, EARLIEST_OFFSET)
    assert client.do(scanner.poll(50)).is_empty()
    client.do(client.admin.drop_partition(path, {"region": "eu"}))
    deadline = time.monotonic() + 10
    with pytest.raises(fluss.NotFoundError, match="partition"):
        while time.monotonic() < deadline:
            client.do(scanner.poll(100))
    plain = client.do(client.table(SCHEMA).new_scan().create_log_scanner())
    assert not plain.is_partitioned()
    with pytest.raises(fluss.InvalidRequestError, match="no partitions"):
        plain.subscribe_partition(1, 0, 0)


# ---- schema evolution ----


def evolved(client: Client) -> tuple[Any, Any]:
    """A table with ten rows of its first schema and ten of its second, as it was and as it is."""
    before = client.table(SCHEMA)
    client.append(before, rows(0, 10))
    client.do(client.admin.alter_table(before.get_table_path(), add_columns=[("extra", pa.int32())]))
    after = client.do(client.connection.get_table(before.get_table_path()))
    newer = rows(10, 10).append_column("extra", pa.array(range(10, 20), pa.int32()))
    client.append(after, newer)
    return before, after


def test_batches_of_other_schemas_are_padded_or_cut(client: Client) -> None:
    before, after = evolved(client)
    padded = client.do(client.batch_scanner(after.new_scan()).to_arrow())
    assert padded.schema.names == ["id", "name", "value", "extra"]
    assert padded["id"].to_pylist() == list(range(20))
    assert padded["extra"].to_pylist() == [None] * 10 + list(range(10, 20))
    cut = client.do(client.batch_scanner(before.new_scan()).to_arrow())
    assert cut == pa.Table.from_batches([rows(0, 10), rows(10, 10)])


def test_projections_and_filters_over_schemas(client: Client) -> None:
    before, after = evolved(client)
    scan = after.new_scan().project_by_name(["extra", "id"])
    projected = client.do(client.batch_scanner(scan).to_arrow())
    assert projected.to_pydict() == {"extra": [None] * 10 + list(range(10, 20)), "id": list(range(20))}
    only_new = client.do(client.batch_scanner(after.new_scan().project_by_name(["extra"])).to_arrow())
    assert only_new["extra"].to_pylist() == [None] * 10 + list(range(10, 20))
    old = client.do(client.batch_scanner(before.new_scan().project_by_name(["value", "id"])).to_arrow())
    assert old["id"].to_pylist() == list(range(20))
    for predicate, expected in (
        (col("extra") >= 15, [15, 16, 17, 18, 19]),
        (col("extra").is_null() & (col("id") > 7), [8, 9]),
        (col("extra").is_null() | (col("extra") == 12), [*range(10), 12]),
    ):
        scan = after.new_scan().project_by_name(["id"]).filter(predicate)
        assert client.do(client.batch_scanner(scan).to_arrow())["id"].to_pylist() == expected
    bucket = TableBucket(after.get_table_info().table_id, 0)
    limited = client.do(after.new_scan().limit(12).create_bucket_batch_scanner(bucket).to_arrow())
    assert limited["extra"].to_pylist() == [None, None, *range(10, 20)]


def test_without_a_fixed_schema_batches_keep_their_columns(client: Client) -> None:
    before, after = evolved(client)
    for table in (before, after):
        scanner = client.batch_scanner(table.new_scan().with_fixed_schema(False))
        batches: list[Any] = []
        while len(batches) < 2:
            batches.extend(client.do(scanner.poll_record_batch(10_000)))
        assert [batch.batch.num_columns for batch in batches] == [3, 4]
        whole = client.do(scanner.to_arrow())
        assert whole["extra"].to_pylist() == [None] * 10 + list(range(10, 20))
        records = client.poll(client.record_scanner(table.new_scan().with_fixed_schema(False)), 20)
        assert "extra" not in records[0].row
        assert records[-1].row["extra"] == 19
    fixed = client.poll(client.record_scanner(after.new_scan()), 20)
    assert fixed[0].row["extra"] is None


# ---- row formats ----


def test_an_indexed_log_is_read_by_records(client: Client) -> None:
    table = client.table(SCHEMA, log_format="INDEXED")
    client.append(table, rows(0, 40), rows(40, 40))
    records = client.poll(client.record_scanner(table.new_scan()), 80)
    assert [record.row for record in records] == [*rows(0, 40).to_pylist(), *rows(40, 40).to_pylist()]
    assert [record.offset for record in records] == list(range(80))
    scan = table.new_scan().project_by_name(["value", "id"]).filter(col("name") == "n3")
    chosen = client.poll(client.record_scanner(scan), 8)
    assert [(record.offset, record.row) for record in chosen] == [
        (i, {"value": i / 2, "id": i}) for i in range(3, 80, 10)
    ]
    with pytest.raises(fluss.InvalidRequestError, match="INDEXED"):
        client.do(table.new_scan().create_record_batch_log_scanner())


def test_tables_are_named_by_texts(client: Client, table: Any) -> None:
    path = table.get_table_path()
    for name in (str(path), path.table_name):
        assert client.do(client.connection.get_table(name)).get_table_path() == path
        assert client.do(client.admin.get_table_info(name)).table_path == path
        assert client.do(client.admin.table_exists(name))
        assert client.do(client.admin.get_table_stats(name)).row_count == client.do(table.new_scan().count())
    client.do(client.admin.drop_table(str(path)))
    with pytest.raises(fluss.NotFoundError):
        client.do(client.connection.get_table(str(path)))
    with pytest.raises(fluss.InvalidRequestError, match="Invalid table name"):
        client.do(client.admin.table_exists("a.b.c"))
    with pytest.raises(fluss.InvalidRequestError, match=r'a TablePath, or by "database\.table", not by int'):
        client.do(client.connection.get_table(5))

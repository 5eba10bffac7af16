"""Append rows and Arrow, scan and tail them."""

from __future__ import annotations

import threading

import pandas as pd
import pyarrow as pa
import pytest

import fluss
from tests.behaviour.conftest import Client
from tests.behaviour.values import EVERY_SCALAR, EVERY_VALUE

COLUMNS = [("id", pa.int32()), ("name", pa.string()), ("score", pa.float64())]
WAIT_MS = 20_000


@pytest.mark.feature("Appends: rows, Arrow, data frames")
def test_rows_in_every_shape(client: Client) -> None:
    table = client.create("shapes", COLUMNS)
    client.append(table, [{"id": 1, "name": "Alice", "score": 95.5}, [2, "Bob", 87], (3, None, None), {"id": 4}])
    assert client.read(table).to_pylist() == [
        {"id": 1, "name": "Alice", "score": 95.5},
        {"id": 2, "name": "Bob", "score": 87.0},
        {"id": 3, "name": None, "score": None},
        {"id": 4, "name": None, "score": None},
    ]


@pytest.mark.feature("Scalar types")
def test_every_scalar_type_with_nulls(client: Client) -> None:
    table = client.create("scalars", EVERY_SCALAR)
    nothing = dict.fromkeys(EVERY_VALUE)
    client.append(table, [EVERY_VALUE, nothing])
    assert client.read(table).to_pylist() == [EVERY_VALUE, nothing]
    scanner = client.do(table.new_scan().create_log_scanner())
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    assert [record.row for record in poll(client, scanner, 2)] == [EVERY_VALUE, nothing]
    scanner.close()


@pytest.mark.feature("Compression: none, LZ4, ZSTD")
@pytest.mark.parametrize("codec", ["NONE", "LZ4_FRAME", "ZSTD"])
def test_arrow_in_every_codec(client: Client, codec: str) -> None:
    table = client.create(codec.lower(), COLUMNS, properties={"table.log.arrow.compression.type": codec})
    data = pa.table({"id": pa.array(range(10_000), pa.int32()), "name": ["x" * 40] * 10_000, "score": [0.5] * 10_000})
    writer = table.new_append().create_writer()
    writer.write_arrow(data)
    handle = writer.write_arrow_batch(data.to_batches()[0].slice(7, 3))
    client.do(handle.wait())
    writer.write_pandas(pd.DataFrame({"id": pd.array([-1], "int32"), "name": ["p"], "score": [1.0]}))
    client.do(writer.flush())
    result = client.read(table)
    assert result.schema.names == ["id", "name", "score"]
    assert result["id"].to_pylist() == [*range(10_000), 7, 8, 9, -1]
    assert set(result["name"].to_pylist()) == {"x" * 40, "p"}


@pytest.mark.feature("Appends: rows, Arrow, data frames")
def test_other_arrow_layouts_are_cast_or_refused_by_name(client: Client) -> None:
    table = client.create("layouts", COLUMNS)
    writer = table.new_append().create_writer()
    wide = pa.table(
        {
            "score": pa.array([1.5], pa.float32()),
            "name": pa.array(["a"], pa.large_string()).dictionary_encode(),
            "id": pa.array([1], pa.uint64()),
        }
    )
    writer.write_arrow(wide)
    client.do(writer.flush())
    assert client.read(table).to_pylist() == [{"id": 1, "name": "a", "score": 1.5}]
    with pytest.raises(fluss.SchemaMismatchError, match="id"):
        writer.write_arrow(pa.table({"id": pa.array([2**40], pa.int64()), "name": ["a"], "score": [1.0]}))
    with pytest.raises(fluss.SchemaMismatchError, match="other"):
        writer.write_arrow(pa.table({"id": pa.array([1], pa.int32()), "other": ["a"]}))
    client.do(writer.flush())
    assert client.read(table).num_rows == 1, "a refused write leaves nothing behind"


@pytest.mark.feature("Bad values are refused by column")
@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"id": "1"}, "id"),
        ({"id": 2**31}, "id"),
        ({"id": True}, "id"),
        ({"name": 5}, "name"),
        ({"score": "high"}, "score"),
        ({"unknown": 5}, "unknown"),
    ],
)
def test_bad_rows_are_refused_by_column_and_leave_nothing(client: Client, row: dict[str, object], column: str) -> None:
    table = client.create("bad", COLUMNS)
    writer = table.new_append().create_writer()
    writer.append({"id": 1})
    with pytest.raises(fluss.SchemaMismatchError, match=column):
        writer.append(row)
    with pytest.raises(fluss.SchemaMismatchError):
        writer.append([1, "too short"])
    client.do(writer.flush())
    assert client.read(table)["id"].to_pylist() == [1]


def poll(client: Client, scanner: object, count: int) -> list[fluss.ScanRecord]:
    """At least `count` records, or what came within the limit."""
    records: list[fluss.ScanRecord] = []
    while len(records) < count:
        got = client.do(scanner.poll(WAIT_MS))  # type: ignore[attr-defined]
        if got.is_empty():
            break
        records.extend(got)
    return records


@pytest.mark.feature("Record scanner: offsets, timestamps, change types")
def test_records_have_offsets_times_and_change_types(client: Client) -> None:
    table = client.create("records", COLUMNS)
    client.append(table, [[i, str(i), None] for i in range(1_200)])
    scanner = client.do(table.new_scan().create_log_scanner())
    scanner.subscribe(bucket_id=0, start_offset=5)
    first = client.do(scanner.poll(WAIT_MS))
    assert 0 < first.count() <= 500, "max-poll-records"
    records = [*first, *poll(client, scanner, 1_195 - first.count())]
    assert [record.offset for record in records] == list(range(5, 1_200))
    assert [record.row["id"] for record in records] == list(range(5, 1_200))
    assert {record.change_type for record in records} == {fluss.ChangeType.AppendOnly}
    assert all(record.timestamp > 1_700_000_000_000 for record in records)
    assert first.buckets() == [fluss.TableBucket(table.get_table_info().table_id, 0)]
    scanner.close()


@pytest.mark.feature("Batch reader, record batches, pandas")
def test_batches_have_bucket_and_offsets(client: Client) -> None:
    table = client.create("batches", COLUMNS, bucket_count=2, bucket_keys=["id"])
    client.append(table, [[i, None, None] for i in range(100)])
    scanner = client.batch_scanner(table)
    seen: dict[int, list[int]] = {0: [], 1: []}
    rows = 0
    while rows < 100:
        batches = client.do(scanner.poll_record_batch(WAIT_MS))
        assert batches, "all rows come within the limit"
        for batch in batches:
            seen[batch.bucket.bucket_id].extend(range(batch.base_offset, batch.last_offset + 1))
            assert batch.batch.num_rows == batch.last_offset - batch.base_offset + 1 == batch.num_records
            rows += batch.num_records
    assert all(offsets == list(range(len(offsets))) and offsets for offsets in seen.values())
    scanner.close()


@pytest.mark.feature("Projection by index and name")
def test_projection(client: Client) -> None:
    table = client.create("projected", COLUMNS)
    client.append(table, [[i, f"n{i}", i / 2] for i in range(10)])
    by_name = client.read(table, columns=["score", "id"])
    assert by_name.to_pylist() == [{"score": i / 2, "id": i} for i in range(10)]
    scanner = client.do(table.new_scan().project([1]).create_log_scanner())
    scanner.subscribe(0, 8)
    assert [record.row for record in poll(client, scanner, 2)] == [{"name": "n8"}, {"name": "n9"}]
    scanner.close()
    for bad in ([3], [-1], [], [0, 0]):
        with pytest.raises(fluss.InvalidRequestError):
            table.new_scan().project(bad)
    with pytest.raises(fluss.InvalidRequestError, match="nothing"):
        table.new_scan().project_by_name(["nothing"])


@pytest.mark.feature("Subscriptions")
def test_tailing_sees_new_rows_and_latest_skips_old_ones(client: Client) -> None:
    table = client.create("tail", COLUMNS)
    client.append(table, [[i, None, None] for i in range(3)])
    scanner = client.batch_scanner(table, offset=fluss.LATEST_OFFSET)
    assert client.do(scanner.poll_arrow(50)).num_rows == 0
    for round_number in range(3):
        client.append(table, [[100 + round_number, "new", None]])
        got = client.do(scanner.poll_arrow(WAIT_MS))
        assert got.to_pylist() == [{"id": 100 + round_number, "name": "new", "score": None}]
    scanner.close()


@pytest.mark.feature("Batch reader, record batches, pandas")
def test_to_arrow_starts_over_and_leaves_the_poll_position(client: Client) -> None:
    table = client.create("twice", COLUMNS)
    client.append(table, [[i, None, None] for i in range(10)])
    scanner = client.batch_scanner(table)
    assert client.do(scanner.to_arrow()).num_rows == 10
    assert len(client.do(scanner.to_pandas())) == 10
    rows = 0
    while rows < 10:
        rows += client.do(scanner.poll_arrow(WAIT_MS)).num_rows
    assert rows == 10
    assert client.do(scanner.to_arrow()).num_rows == 10
    scanner.close()


@pytest.mark.feature("Subscriptions")
def test_unsubscribe(client: Client) -> None:
    table = client.create("unsubscribed", COLUMNS, bucket_count=2, bucket_keys=["id"])
    client.append(table, [[i, None, None] for i in range(50)])
    scanner = client.batch_scanner(table)
    scanner.unsubscribe(bucket_id=0)
    assert [bucket.bucket_id for bucket, _ in scanner.get_subscribed_buckets()] == [1]
    only_one = client.do(scanner.to_arrow())
    latest = client.do(client.admin.list_offsets(table.get_table_path(), [1], fluss.OffsetSpec.latest()))
    assert only_one.num_rows == latest[1]
    scanner.close()


@pytest.mark.feature("Errors that say what is missing")
def test_wrong_calls_say_what_to_use(client: Client) -> None:
    table = client.create("wrong", COLUMNS)
    records = client.do(table.new_scan().create_log_scanner())
    batches = client.do(table.new_scan().create_batch_scanner())
    with pytest.raises(fluss.FlussError, match="create_record_batch_log_scanner"):
        client.do(records.to_arrow())
    with pytest.raises(fluss.FlussError, match="create_log_scanner"):
        client.do(batches.poll(10))
    with pytest.raises(fluss.FlussError, match="bucket"):
        batches.subscribe(9, 0)
    with pytest.raises(fluss.FlussError):
        client.do(batches.to_arrow())  # nothing subscribed
    for scanner in (records, batches):
        scanner.close()


@pytest.mark.feature("Subscriptions")
def test_an_offset_beyond_the_end_is_an_error(client: Client) -> None:
    table = client.create("beyond", COLUMNS)
    client.append(table, [[1, None, None]])
    scanner = client.do(table.new_scan().create_record_batch_log_scanner())
    scanner.subscribe(0, 1_000)
    with pytest.raises(fluss.FlussError) as error:
        for _ in range(5):
            client.do(scanner.poll_arrow(2_000))
    assert error.value.error_code == fluss.ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
    scanner.close()


@pytest.mark.feature("Appends: many writers")
def test_many_writers_in_threads(client: Client) -> None:
    table = client.create("threads", COLUMNS, bucket_count=3)
    writer = table.new_append().create_writer()

    def work(start: int) -> None:
        for i in range(start, start + 500):
            writer.append((i, "t", None))

    threads = [threading.Thread(target=work, args=(n * 500,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.do(writer.flush())
    assert sorted(client.read(table)["id"].to_pylist()) == list(range(2_000))


@pytest.mark.feature("The older guide's spellings")
def test_old_spellings(client: Client) -> None:
    table = client.create("old", COLUMNS)
    writer = client.do(table.new_append_writer())
    client.do(writer.append({"id": 1}).wait())
    scanner = client.do(table.new_scan().create_batch_scanner())
    scanner.subscribe(0, 0)
    assert client.do(scanner.poll_batches(WAIT_MS))[0].num_records == 1
    scanner.close()
    again = client.do(client.api.FlussConnection.connect(client.conn.config))
    with again as conn:
        assert client.do(client.do(conn.get_admin()).table_exists(table.table_path))

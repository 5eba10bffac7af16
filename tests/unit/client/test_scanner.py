"""Reading logs from a real server."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fluss.client.client import ClientCore
from fluss.client.net.connection import Connection, ConnectionPool
from fluss.client.runtime import run
from fluss.client.scan.batches import to_record_batches, to_records, to_table
from fluss.client.scan.scanner import LogScannerCore
from fluss.client.table import TableCore
from fluss.model.config import Config
from fluss.model.errors import FlussError, InvalidRequestError, NotFoundError
from fluss.model.offsets import EARLIEST_OFFSET, LATEST_OFFSET, OffsetSpec
from fluss.model.paths import TableBucket, TablePath
from fluss.model.records import ChangeType
from fluss.testing import FlussServer
from tests.kit.client_tables import everything, make_table


def rows(first: int, count: int) -> pa.RecordBatch:
    ids = range(first, first + count)
    return pa.record_batch({"id": list(ids), "name": [f"n{i}" for i in ids], "value": [i / 2 for i in ids]})


def scanner_of(table: TableCore, projection: list[int] | None = None, offset: int = EARLIEST_OFFSET) -> LogScannerCore:
    scanner = table.log_scanner(projection)
    run(scanner.subscribe({(None, bucket): offset for bucket in range(table.info.num_buckets)}))
    return scanner


def fill(table: TableCore, *batches: pa.RecordBatch) -> None:
    """Each batch becomes a log batch of its own."""
    writer = table.append_writer()
    for batch in batches:
        writer.write_batch(batch)
        run(writer.flush())


def poll_ids(scanner: LogScannerCore, count: int, max_records: int | None = None) -> list[int]:
    ids: list[int] = []
    deadline = time.monotonic() + 10
    while len(ids) < count:
        assert time.monotonic() < deadline
        for fetched in run(scanner.poll_batches(1_000, max_records)):
            ids.extend(fetched.batch.column("id").to_pylist())
    return ids


def test_a_poll_returns_rows_with_their_place_and_time(client: ClientCore) -> None:
    table = make_table(client)
    before_ms = time.time() * 1000
    fill(table, rows(0, 3), rows(3, 2))
    records = to_records(run(scanner_of(table).poll_batches(5_000, 500)))
    assert [record.offset for record in records] == [0, 1, 2, 3, 4][: len(records)]
    first = records[0]
    assert (first.change_type, first.row) == (ChangeType.AppendOnly, {"id": 0, "name": "n0", "value": 0.0})
    assert before_ms - 1_000 <= first.timestamp <= time.time() * 1000 + 1_000
    assert records.buckets() == [TableBucket(table.info.table_id, 0)]


def test_max_records_cuts_batches_and_positions_follow(client: ClientCore) -> None:
    table = make_table(client)
    fill(table, rows(0, 10))
    scanner = scanner_of(table)
    bucket = TableBucket(table.info.table_id, 0)
    taken: list[int] = []
    while len(taken) < 10:
        batches = run(scanner.poll_batches(5_000, 3))
        taken.extend(number for fetched in batches for number in fetched.batch.column("id").to_pylist())
        assert scanner.positions() == {bucket: len(taken)}
        (batch,) = to_record_batches(batches)
        assert (batch.base_offset, batch.last_offset) == (len(taken) - batch.num_records, len(taken) - 1)
    assert taken == list(range(10))


@pytest.mark.parametrize("offset", [0, 1, 4, 5, 7, 9, 10])
def test_a_scan_begins_inside_a_batch(client: ClientCore, offset: int) -> None:
    table = make_table(client)
    fill(table, rows(0, 5), rows(5, 5))
    scanner = scanner_of(table, offset=offset)
    assert poll_ids(scanner, 10 - offset) == list(range(offset, 10))
    assert to_table(run(scanner.read_to_latest()), scanner.arrow_schema)["id"].to_pylist() == list(range(offset, 10))


def test_an_empty_poll_ends_at_its_timeout(client: ClientCore) -> None:
    scanner = scanner_of(make_table(client))
    began = time.monotonic()
    assert run(scanner.poll_batches(100, None)) == []
    assert 0.09 < time.monotonic() - began < 2
    assert to_table([], scanner.arrow_schema).num_rows == 0


def test_a_waiting_poll_is_woken_by_an_append(client: ClientCore) -> None:
    table = make_table(client)
    scanner = scanner_of(table, offset=LATEST_OFFSET)
    timer = threading.Timer(0.1, fill, (table, rows(0, 1)))
    timer.start()
    began = time.monotonic()
    assert poll_ids(scanner, 1) == [0]
    assert time.monotonic() - began < 5
    timer.join()


def test_latest_is_where_the_log_ends_when_subscribe_is_called(client: ClientCore) -> None:
    table = make_table(client)
    fill(table, rows(0, 5))
    scanner = scanner_of(table, offset=LATEST_OFFSET)
    fill(table, rows(5, 2))
    assert poll_ids(scanner, 2) == [5, 6]


def test_read_to_latest_does_not_move_the_poll_position(client: ClientCore) -> None:
    table = make_table(client, 3, bucket_keys=["id"])
    fill(table, rows(0, 1_000))
    scanner = scanner_of(table)
    for _ in range(2):
        result = to_table(run(scanner.read_to_latest()), scanner.arrow_schema)
        assert sorted(result["id"].to_pylist()) == list(range(1_000))
    assert sorted(poll_ids(scanner, 1_000)) == list(range(1_000))
    assert run(scanner.read_to_latest())


def test_read_to_latest_of_an_empty_table(client: ClientCore) -> None:
    table = make_table(client, 2)
    assert everything(table).num_rows == 0
    assert everything(table).schema == table.arrow_schema


def test_projection_reads_the_columns_asked_for_in_their_order(client: ClientCore) -> None:
    table = make_table(client, 2)
    fill(table, rows(0, 100))
    scanner = scanner_of(table, [2, 0])
    result = to_table(run(scanner.read_to_latest()), scanner.arrow_schema)
    assert result.schema == pa.schema([("value", pa.float64()), ("id", pa.int64())])
    assert result.sort_by("id").to_pydict() == {"value": [i / 2 for i in range(100)], "id": list(range(100))}
    reordered = scanner_of(table, [1, 2, 0])
    assert reordered.arrow_schema.names == ["name", "value", "id"]
    assert sorted(poll_ids(reordered, 100)) == list(range(100))


def test_many_small_fetches_and_cut_batches_lose_nothing(client: ClientCore, server: object) -> None:
    settings = {
        "bootstrap.servers": client.config.bootstrap_servers,
        "scanner.log.fetch.max-bytes": 3_000,
        "scanner.log.fetch.max-bytes-for-bucket": 1_000,
    }
    table = make_table(client, 3)
    for number in range(30):
        fill(table, rows(number * 50, 50))
    small = run(ClientCore.connect(Config(settings)))
    scanner = scanner_of(run(small.table(table.info.table_path)))
    assert sorted(poll_ids(scanner, 1_500)) == list(range(1_500))
    assert sorted(to_table(run(scanner.read_to_latest()), scanner.arrow_schema)["id"].to_pylist()) == list(range(1_500))
    run(small.close())


def test_what_is_ready_is_taken_in_any_thread(client: ClientCore) -> None:
    table = make_table(client, 2)
    fill(table, *(rows(number * 100, 100) for number in range(20)))
    scanner = scanner_of(table)
    seen: list[tuple[TableBucket, int]] = []

    def read() -> None:
        deadline = time.monotonic() + 10
        while len(seen) < 2_000 and time.monotonic() < deadline:
            ready = scanner.ready_batches(0, 7) or run(scanner.poll_batches(50, 7))
            seen.extend((fetched.bucket, id) for fetched in ready for id in fetched.batch.column("id").to_pylist())

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(id for _, id in seen) == list(range(2_000))
    assert sum(scanner.positions().values()) == 2_000
    with pytest.raises(InvalidRequestError, match="timeout_ms"):
        scanner.ready_batches(-1)


def test_long_values_fill_the_buffer_of_a_scanner_of_records(server: FlussServer) -> None:
    fetch_bytes_max, row_bytes, row_count = 100_000, 50_000, 40
    config = Config({"bootstrap.servers": server.bootstrap_servers, "scanner.log.fetch.max-bytes": fetch_bytes_max})
    client = run(ClientCore.connect(config))
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    table = make_table(client, schema=schema, properties={"table.log.arrow.compression.type": "NONE"})
    fill(table, *(pa.record_batch({"id": [number], "text": ["x" * row_bytes]}) for number in range(row_count)))
    scanner = table.log_scanner(None, records=True)
    run(scanner.subscribe({(None, 0): 0}))
    seen = [record.row["id"] for record in to_records(run(scanner.poll_batches(5_000, 1)))]
    time.sleep(0.5)
    ahead_bytes = row_bytes * len(scanner._session._prefetcher._ready)
    assert ahead_bytes <= 4 * fetch_bytes_max
    while len(seen) < row_count:
        seen += [record.row["id"] for record in to_records(run(scanner.poll_batches(5_000)))]
    assert seen == list(range(row_count))
    run(client.close())


def test_a_full_buffer_is_filled_again_when_another_thread_has_emptied_it(client: ClientCore) -> None:
    table = make_table(client)
    fill(table, *(rows(number * 1_000, 1_000) for number in range(10)))
    settings = {"bootstrap.servers": client.config.bootstrap_servers, "scanner.log.fetch.max-bytes": 20_000}
    small = run(ClientCore.connect(Config(settings)))
    scanner = scanner_of(run(small.table(table.info.table_path)))
    ids: list[int] = []
    began = time.monotonic()
    while len(ids) < 10_000:
        ready = scanner.ready_batches(5_000) or run(scanner.poll_batches(5_000))
        ids += [id for fetched in ready for id in fetched.batch.column("id").to_pylist()]
        assert time.monotonic() - began < 5
    assert ids == list(range(10_000))
    run(small.close())


def test_few_buckets_are_fetched_in_larger_pieces_unless_a_limit_is_set(client: ClientCore) -> None:
    fetcher = scanner_of(make_table(client))._fetcher
    assert [fetcher._bucket_bytes_max(count) >> 20 for count in (1, 4, 8, 16, 100)] == [4, 4, 2, 1, 1]
    settings = {"bootstrap.servers": client.config.bootstrap_servers}
    limit = {"scanner.log.fetch.max-bytes-for-bucket": 1 << 20}
    limited = run(ClientCore.connect(Config(settings | limit)))
    assert make_table(limited).log_scanner(None)._fetcher._bucket_bytes_max(1) == 1 << 20
    run(limited.close())


def test_a_server_that_is_gone_is_tried_with_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FlussServer(tmp_path / "data") as gone:
        client = run(ClientCore.connect(Config({"bootstrap.servers": gone.bootstrap_servers})))
        scanner = scanner_of(make_table(client))
        assert run(scanner.poll_batches(100)) == []
    tries = 0
    connect = ConnectionPool._connect

    async def counted(*args: Any) -> Connection:
        nonlocal tries
        tries += 1
        return await connect(*args)

    monkeypatch.setattr(ConnectionPool, "_connect", counted)
    assert run(scanner.poll_batches(1_000)) == []
    assert 1 < tries < 100
    run(client.close())


def test_an_offset_that_does_not_exist_names_the_valid_range(client: ClientCore) -> None:
    table = make_table(client)
    fill(table, rows(0, 5))
    scanner = scanner_of(table, offset=99)
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="has offsets 0 to 5") as caught:
            run(scanner.poll_batches(5_000, None))
    assert caught.value.error_code == 19
    run(scanner.subscribe({(None, 0): 3}))
    assert poll_ids(scanner, 2) == [3, 4]


def test_what_can_not_be_subscribed_is_refused(client: ClientCore) -> None:
    scanner = make_table(client, 2).log_scanner(None)
    with pytest.raises(InvalidRequestError, match="buckets are 0 to 1"):
        run(scanner.subscribe({(None, 2): 0}))
    with pytest.raises(InvalidRequestError, match="no partitions"):
        run(scanner.subscribe({(5, 0): 0}))
    with pytest.raises(InvalidRequestError, match="not an offset"):
        run(scanner.subscribe({(None, 0): -3}))
    with pytest.raises(InvalidRequestError, match="call subscribe first"):
        run(scanner.poll_batches(10, None))
    with pytest.raises(InvalidRequestError, match="Column index 3"):
        make_table(client).log_scanner([3])


def test_unsubscribe_drops_what_was_read_ahead(client: ClientCore) -> None:
    table = make_table(client, 2, bucket_keys=["id"])
    fill(table, rows(0, 100))
    per_bucket = run(client.admin.list_offsets(table.info.table_path, [0, 1], OffsetSpec.latest()))
    scanner = scanner_of(table)
    run(scanner.poll_batches(5_000, 1))
    scanner.unsubscribe(None, 0)
    assert list(scanner.positions()) == [TableBucket(table.info.table_id, 1)]
    run(scanner.subscribe({(None, 1): 0}))
    assert len(poll_ids(scanner, per_bucket[1])) == per_bucket[1]
    assert run(scanner.poll_batches(50, None)) == []


def test_a_bucket_subscribed_during_a_long_poll_is_read_at_once(client: ClientCore) -> None:
    table = make_table(client, 2, bucket_keys=["id"])
    fill(table, rows(0, 100))
    per_bucket = run(client.admin.list_offsets(table.info.table_path, [0, 1], OffsetSpec.latest()))
    scanner = table.log_scanner(None)
    run(scanner.subscribe({(None, 0): LATEST_OFFSET}))
    assert run(scanner.poll_batches(50, None)) == []
    began = time.monotonic()
    run(scanner.subscribe({(None, 1): 0}))
    assert len(poll_ids(scanner, per_bucket[1])) == per_bucket[1]
    assert time.monotonic() - began < 0.4


def test_a_closed_scanner_says_so(client: ClientCore) -> None:
    scanner = scanner_of(make_table(client))
    scanner.close()
    scanner.close()
    with pytest.raises(FlussError, match="closed"):
        run(scanner.poll_batches(10, None))


def test_closing_ends_a_waiting_poll(client: ClientCore) -> None:
    scanner = scanner_of(make_table(client))
    threading.Timer(0.05, scanner.close).start()
    began = time.monotonic()
    assert run(scanner.poll_batches(10_000, None)) == []
    assert time.monotonic() - began < 5


def test_a_poll_in_a_cancelled_task_leaves_the_scanner_usable(client: ClientCore) -> None:
    import asyncio

    table = make_table(client)
    scanner = scanner_of(table)

    async def cancelled() -> None:
        task = asyncio.ensure_future(scanner.poll_batches(10_000, None))
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(cancelled())
    fill(table, rows(0, 3))
    assert poll_ids(scanner, 3) == [0, 1, 2]


def test_a_missing_table_and_a_dropped_one(client: ClientCore) -> None:
    with pytest.raises(NotFoundError, match=r"fluss\.nowhere") as caught:
        run(client.table(TablePath("fluss", "nowhere")))
    assert caught.value.error_code == 7
    table = make_table(client)
    scanner = scanner_of(table)
    assert run(scanner.poll_batches(50, None)) == []
    run(client.admin.drop_table(table.info.table_path))
    deadline = time.monotonic() + 10
    with pytest.raises(NotFoundError):
        while time.monotonic() < deadline:
            run(scanner.poll_batches(100, None))

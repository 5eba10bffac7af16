"""Rows that a real Apache Fluss has moved to its remote storage: small segments, tiering every second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from hashlib import shake_128
from pathlib import Path

import pyarrow as pa
import pytest

import fluss.sync as fluss
from fluss.testing import ApacheFluss

pytestmark = pytest.mark.compat

ROWS = 30_000
BATCH_ROWS = 500
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("value", pa.float64()), ("region", pa.string())])
SETTINGS = {
    "log.segment.file-size": "1mb",
    "remote.log.task-interval-duration": "1s",
    "log.index.interval-size": "64kb",
}
TIERING_S_MAX = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheFluss]:
    with ApacheFluss(tmp_path_factory.mktemp("remote"), config=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def connection(cluster: ApacheFluss) -> Iterator[fluss.FlussConnection]:
    config = fluss.Config({"bootstrap.servers": cluster.bootstrap_servers, "scanner.log.fetch.max-bytes": 1 << 20})
    with fluss.FlussConnection.create(config) as opened:
        yield opened


def rows(first: int, count: int, region: str = "x") -> pa.RecordBatch:
    """About 300 bytes each, hard to compress."""
    ids = range(first, first + count)
    text = [shake_128(str(i).encode()).hexdigest(128) for i in ids]
    return pa.record_batch([list(ids), text, [i / 4 for i in ids], [region] * count], schema=SCHEMA)


def create(
    cluster: ApacheFluss, connection: fluss.FlussConnection, name: str, compression: str, partition: str | None = None
) -> fluss.FlussTable:
    path = fluss.TablePath("fluss", name)
    properties = {"table.log.arrow.compression.type": compression, "table.log.tiered.local-segments": "1"}
    keys = ["region"] if partition else []
    descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1, partition_keys=keys, properties=properties)
    admin = connection.get_admin()
    admin.create_table(path, descriptor)
    if partition:
        admin.create_partition(path, {"region": partition})
    cluster.await_table("fluss", name, partition)
    return connection.get_table(path)


def fill(table: fluss.FlussTable, region: str = "x") -> None:
    writer = table.new_append().create_writer()
    for first in range(0, ROWS, BATCH_ROWS):
        writer.write_arrow_batch(rows(first, BATCH_ROWS, region))
        writer.flush()


def await_tiering(cluster: ApacheFluss, table: str) -> None:
    """Wait until the first segment of the table is in the remote storage only."""
    first_segment = f"{0:020d}.log"
    deadline = time.monotonic() + TIERING_S_MAX

    def segments(root: str) -> list[Path]:
        return [p for p in (cluster.data_dir / root).rglob(first_segment) if f"{table}-" in str(p)]

    while not segments("remote") or segments("tablet-0"):
        assert time.monotonic() < deadline, f"{table} was not tiered: {segments('remote')}, {segments('tablet-0')}"
        time.sleep(0.2)


def ids_of(table: pa.Table) -> list[int]:
    result: list[int] = table["id"].to_pylist()
    return result


@pytest.mark.parametrize("compression", ["NONE", "ZSTD"])
def test_all_rows_come_from_the_earliest_offset(
    cluster: ApacheFluss, connection: fluss.FlussConnection, compression: str
) -> None:
    name = f"remote_{compression.lower()}"
    table = create(cluster, connection, name, compression)
    fill(table)
    await_tiering(cluster, name)
    expected = pa.Table.from_batches([rows(0, ROWS)])

    with table.new_scan().create_record_batch_log_scanner() as scanner:
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        assert scanner.to_arrow() == expected
        batches = list(scanner.to_arrow_batch_reader())
        assert pa.Table.from_batches(batches) == expected
        polled: list[pa.Table] = []
        while sum(part.num_rows for part in polled) < ROWS:
            part = scanner.poll_arrow(10_000)
            assert part.num_rows
            polled.append(part)
        assert pa.concat_tables(polled) == expected
        assert list(scanner.positions().values()) == [ROWS]

    with table.new_scan().project_by_name(["value", "id"]).create_record_batch_log_scanner() as scanner:
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        assert scanner.to_arrow() == expected.select(["value", "id"])

    start = BATCH_ROWS * 3 + 7
    with table.new_scan().create_log_scanner() as scanner:
        scanner.subscribe(0, start)
        records = list(scanner.poll(10_000))
        assert [record.offset for record in records] == list(range(start, start + len(records)))
        assert [record.row["id"] for record in records] == list(range(start, start + len(records)))

    chosen = (fluss.col("id") >= 1_234) & (fluss.col("id") < 1_240)
    with table.new_scan().filter(chosen).project_by_name(["text"]).create_record_batch_log_scanner() as scanner:
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        assert scanner.to_arrow() == expected.slice(1_234, 6).select(["text"])


def test_a_partition_whose_rows_are_remote(cluster: ApacheFluss, connection: fluss.FlussConnection) -> None:
    table = create(cluster, connection, "remote_parts", "ZSTD", "north")
    fill(table, "north")
    await_tiering(cluster, "remote_parts")
    (partition,) = connection.get_admin().list_partition_infos(table.table_path)
    with table.new_scan().create_record_batch_log_scanner() as scanner:
        scanner.subscribe_partition(partition.partition_id, 0, fluss.EARLIEST_OFFSET)
        assert ids_of(scanner.to_arrow()) == list(range(ROWS))


def test_a_limit_beyond_the_local_rows_says_why_it_fails(
    cluster: ApacheFluss, connection: fluss.FlussConnection
) -> None:
    table = connection.get_table(fluss.TablePath("fluss", "remote_none"))
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    few = table.new_scan().limit(10).create_bucket_batch_scanner(bucket).to_arrow()
    assert ids_of(few) == list(range(ROWS - 10, ROWS))
    with pytest.raises(fluss.InvalidRequestError, match="remote storage"):
        table.new_scan().limit(ROWS).create_bucket_batch_scanner(bucket).next_batch()


def test_remote_files_that_can_not_be_reached_are_an_error(
    cluster: ApacheFluss, connection: fluss.FlussConnection
) -> None:
    """Last: it takes the files away."""
    table = connection.get_table(fluss.TablePath("fluss", "remote_none"))
    log = cluster.data_dir / "remote" / "log"
    log.rename(log.with_name("moved"))
    try:
        with table.new_scan().create_record_batch_log_scanner() as scanner:
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            began = time.monotonic()
            with pytest.raises(fluss.FlussError, match="a directory that this machine lacks"):
                scanner.to_arrow()
            assert time.monotonic() - began < 10
    finally:
        log.with_name("moved").rename(log)

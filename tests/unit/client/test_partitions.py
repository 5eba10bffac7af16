"""Writing to partitioned tables on a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.client.table import TableCore
from fluss.client.write.writer import AppendWriterCore
from fluss.model.config import Config
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, NotFoundError, SchemaMismatchError
from fluss.model.offsets import OffsetSpec
from fluss.model.partitions import PartitionBound, PartitionSpec
from fluss.testing import FlussServer
from tests.kit.client_tables import everything, make_table
from tests.unit.client.partitioned import SCHEMA, create, drop, ids


def partitioned(client: ClientCore, *regions: str, buckets: int = 1, bucket_keys: list[str] | None = None) -> TableCore:
    table = make_table(client, buckets, SCHEMA, partition_keys=["region"], bucket_keys=bucket_keys)
    for region in regions:
        create(client, table, region)
    return table


def test_rows_of_mixed_partitions_go_where_they_belong_in_order(client: ClientCore) -> None:
    table = partitioned(client, "US", "EU")
    writer = table.append_writer()
    for number in range(1_000):
        writer.append([number, ("US", "EU")[number % 2], None])
    regions = ["US" if number % 3 else "EU" for number in range(5_000)]
    writer.write_batch(pa.record_batch({"id": list(range(1_000, 6_000)), "region": regions}))
    run(writer.flush())
    expected: dict[str, list[int]] = {"US": list(range(0, 1_000, 2)), "EU": list(range(1, 1_000, 2))}
    for number, region in enumerate(regions, 1_000):
        expected[region].append(number)
    assert ids(client, table, "US") == [expected["US"]]
    assert ids(client, table, "EU") == [expected["EU"]]


def test_keyed_rows_keep_their_order_in_each_bucket(client: ClientCore) -> None:
    table = partitioned(client, "US", "EU", buckets=3, bucket_keys=["id"])
    writer = table.append_writer()
    numbers = list(range(2_000))
    writer.write_batch(pa.record_batch({"id": numbers, "region": [("US", "EU")[n // 7 % 2] for n in numbers]}))
    run(writer.flush())
    found = [ids(client, table, region) for region in ("US", "EU")]
    assert all(bucket and bucket == sorted(bucket) for buckets in found for bucket in buckets)
    assert sorted(number for buckets in found for bucket in buckets for number in bucket) == numbers


def test_a_missing_partition_fails_its_rows_alone_and_says_what_to_call(client: ClientCore) -> None:
    table = partitioned(client, "US")
    writer = table.append_writer()
    lost, kept = writer.append([1, "Mars", None]), writer.append([2, "US", None])
    with pytest.raises(
        NotFoundError, match=r"1 row for bucket 0 of partition 'Mars' of table .*create_partition"
    ) as caught:
        lost.result(10)
    assert caught.value.error_code == 36
    assert "\n" not in caught.value.message
    kept.result(10)
    run(writer.flush())  # the failure was told already
    assert ids(client, table, "US") == [[2]]


def test_flush_tells_a_failure_that_nobody_awaited_though_others_were_awaited(client: ClientCore) -> None:
    table = partitioned(client, "US")
    writer = table.append_writer()
    writer.append([1, "Mars", None])
    writer.append([2, "US", None]).result(10)
    with pytest.raises(NotFoundError, match="Mars"):
        run(writer.flush())
    run(writer.flush())


def test_one_arrow_batch_fails_when_one_of_its_partitions_does(client: ClientCore) -> None:
    table = partitioned(client, "US")
    writer = table.append_writer()
    good = writer.write_batch(pa.record_batch({"id": [1], "region": ["US"]}))
    bad = writer.write_batch(pa.record_batch({"id": [2, 3], "region": ["US", "Venus"]}))
    with pytest.raises(NotFoundError, match="Venus"):
        bad.result(10)
    good.result(10)
    assert ids(client, table, "US") == [[1, 2]]


def test_a_partition_made_after_the_failure_is_found(client: ClientCore) -> None:
    table = partitioned(client)
    writer = table.append_writer()
    with pytest.raises(NotFoundError):
        writer.append([1, "US", None]).result(10)
    create(client, table, "US")
    writer.append([2, "US", None]).result(10)
    assert ids(client, table, "US") == [[2]]


def test_a_partition_dropped_and_made_anew_under_a_writer(client: ClientCore) -> None:
    table = partitioned(client, "US", "EU")
    writer = table.append_writer()
    for number in range(3):
        writer.append([number, "US", None]).result(10)
    drop(client, table, "US")
    create(client, table, "US")
    for number in range(10, 13):
        writer.append([number, "US", None]).result(10)
    writer.append([0, "EU", None]).result(10)
    assert ids(client, table, "US") == [[10, 11, 12]]
    assert ids(client, table, "EU") == [[0]]


def test_a_partition_dropped_under_a_writer_fails_its_rows_alone(client: ClientCore) -> None:
    table = partitioned(client, "US", "EU")
    writer = table.append_writer()
    for region in ("US", "EU"):
        writer.append([0, region, None]).result(10)
    drop(client, table, "US")
    lost, kept = writer.append([1, "US", None]), writer.append([1, "EU", None])
    with pytest.raises(NotFoundError, match="'US'"):
        lost.result(10)
    kept.result(10)
    assert ids(client, table, "EU") == [[0, 1]]


def test_partitions_are_made_where_the_option_is_on(server: FlussServer, client: ClientCore) -> None:
    table = partitioned(client)
    settings = {"bootstrap.servers": server.bootstrap_servers, "client.writer.dynamic-create-partition.enabled": "true"}
    other = run(ClientCore.connect(Config(settings)))
    writer = run(other.table(table.info.table_path)).append_writer()
    regions = [f"r{number % 20}" for number in range(1_000)]
    writer.write_batch(pa.record_batch({"id": list(range(1_000)), "region": regions}))
    run(writer.flush())
    infos = run(client.admin.list_partition_infos(table.info.table_path))
    assert {info.partition_name for info in infos} == set(regions)
    assert ids(client, table, "r7") == [list(range(7, 1_000, 20))]
    run(other.close())


@pytest.mark.parametrize("region", ["a b", "", "a$b", "__x", "é"])
def test_a_value_that_can_not_name_a_partition_fails_alone(client: ClientCore, region: str) -> None:
    table = partitioned(client, "US")
    writer = table.append_writer()
    lost, kept = writer.append([1, region, None]), writer.append([2, "US", None])
    with pytest.raises(InvalidRequestError, match="region") as caught:
        lost.result(10)
    assert caught.value.error_code == 43
    kept.result(10)


def test_a_null_partition_value_names_its_column(client: ClientCore) -> None:
    writer = partitioned(client, "US").append_writer()
    rows: list[Any] = [{"id": 1}, {"id": 1, "region": None}, [1, None, None]]
    for row in rows:
        with pytest.raises(SchemaMismatchError, match="'region'"):
            writer.append(row)
    with pytest.raises(SchemaMismatchError, match="'region'"):
        writer.write_batch(pa.record_batch({"id": [1, 2], "region": ["US", None]}))
    with pytest.raises(SchemaMismatchError, match="'region'"):
        writer.write_table(pa.table({"id": [1]}))
    assert writer.pending_rows == 0


def test_several_writers_and_coroutines_share_a_partition(client: ClientCore) -> None:
    table = partitioned(client, "US")
    writers: list[AppendWriterCore] = [table.append_writer() for _ in range(4)]

    async def write(writer: AppendWriterCore, first: int) -> None:
        for number in range(first, first + 50):
            await writer.append([number, "US", None]).wait()

    async def all_of_them() -> None:
        await asyncio.gather(*(write(writer, 100 * index) for index, writer in enumerate(writers)))

    run(all_of_them())
    ((found),) = ids(client, table, "US")
    assert len(found) == 200
    for first in range(0, 400, 100):
        assert [number for number in found if number // 100 * 100 == first] == list(range(first, first + 50))


def test_offsets_and_row_counts_of_partitions(client: ClientCore) -> None:
    table = partitioned(client, "US", "EU", buckets=2)
    path = table.info.table_path
    writer = table.append_writer()
    writer.write_batch(pa.record_batch({"id": list(range(7)), "region": ["US"] * 5 + ["EU"] * 2}))
    run(writer.flush())
    for region, count in (("US", 5), ("EU", 2)):
        latest = run(client.admin.list_partition_offsets(path, region, [0, 1], OffsetSpec.latest()))
        assert sum(latest.values()) == count
        assert run(client.admin.get_table_stats(path, region)).row_count == count
    stats = run(client.admin.get_table_stats(path))
    assert stats.row_count == sum(stats.bucket_row_counts.values()) == 7
    with pytest.raises(NotFoundError, match="'Mars'") as caught:
        run(client.admin.list_partition_offsets(path, "Mars", [0], OffsetSpec.latest()))
    assert caught.value.error_code == 36
    plain = make_table(client)
    with pytest.raises(FlussError, match="no partitions") as plain_error:
        run(client.admin.list_partition_offsets(plain.info.table_path, "US", [0], OffsetSpec.latest()))
    assert plain_error.value.error_code == 37


@pytest.mark.parametrize("log_format", ["INDEXED", "ARROW"])
def test_log_formats(client: ClientCore, log_format: str) -> None:
    table = make_table(client, 2, SCHEMA, bucket_keys=["id"], log_format=log_format)
    writer = table.append_writer()
    writer.append([0, "first", None])
    writer.write_batch(pa.record_batch({"id": list(range(1, 1_000)), "region": ["x"] * 999}))
    run(writer.flush())
    rows = everything(table).sort_by("id")
    assert rows["id"].to_pylist() == list(range(1_000))
    assert rows["region"].to_pylist() == ["first"] + ["x"] * 999


def test_statistics_are_written_where_the_table_asks_for_them(client: ClientCore) -> None:
    table = make_table(client, 1, SCHEMA, properties={"table.statistics.columns": "id,region"})
    writer = table.append_writer()
    writer.write_batch(pa.record_batch({"id": [3, 1, 2], "region": ["b", None, "a"]}))
    run(writer.flush())
    assert everything(table)["id"].to_pylist() == [3, 1, 2]


def test_a_partition_is_created_within_a_bound_of_new_ones(client: ClientCore) -> None:
    table = partitioned(client, "old")
    (old,) = run(client.admin.list_partition_infos(table.info.table_path))
    bound = PartitionBound(old.partition_id, 1)

    def create_bounded(region: str) -> None:
        run(client.admin.create_partition(table.info.table_path, PartitionSpec({"region": region}), True, bound))

    for _ in range(2):
        create_bounded("new")
    with pytest.raises(FlussError, match=r"has 1 partitions newer than .* asks for 1 more") as caught:
        create_bounded("newer")
    assert caught.value.error_code == ErrorCode.PARTITION_MAX_NUM_EXCEPTION
    drop(client, table, "new")
    create_bounded("newer")

"""Partitioned tables: creating, listing, writing across partitions, reading some of them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

import fluss
from tests.behaviour.conftest import Client

COLUMNS = [("id", pa.int32()), ("region", pa.string()), ("year", pa.int32())]
WAIT_MS = 20_000


def partitioned(client: Client, name: str, keys: list[str], specs: list[dict[str, str]], buckets: int = 1) -> Any:
    table = client.create(name, COLUMNS, partition_keys=keys, bucket_count=buckets)
    path = table.get_table_path()
    for spec in specs:
        client.do(client.admin.create_partition(path, spec))
        client.backend.await_table(path.database_name, path.table_name, "$".join(spec[key] for key in keys))
    return table


def ids(client: Client, table: Any) -> dict[str, int]:
    infos = client.do(client.admin.list_partition_infos(table.get_table_path()))
    return {info.partition_name: info.partition_id for info in infos}


def rows_of(client: Client, table: Any, names: list[str], buckets: int = 1) -> list[dict[str, Any]]:
    known = ids(client, table)
    scanner = client.do(table.new_scan().create_record_batch_log_scanner())
    subscribed = {(known[name], bucket): fluss.EARLIEST_OFFSET for name in names for bucket in range(buckets)}
    scanner.subscribe_partition_buckets(subscribed)
    try:
        rows: list[dict[str, Any]] = client.do(scanner.to_arrow()).to_pylist()
    finally:
        scanner.close()
    return sorted(rows, key=lambda row: int(row["id"]))


@pytest.mark.feature("Partitions: create, list, drop")
def test_partitions_are_made_listed_and_dropped(client: Client) -> None:
    table = partitioned(client, "p", ["region"], [{"region": "US"}, {"region": "EU"}])
    path = table.get_table_path()
    assert table.get_table_info().is_partitioned()
    assert table.get_table_info().get_partition_keys() == ["region"]
    assert set(ids(client, table)) == {"US", "EU"}
    with pytest.raises(fluss.AlreadyExistsError) as error:
        client.do(client.admin.create_partition(path, {"region": "US"}))
    assert error.value.error_code == fluss.ErrorCode.PARTITION_ALREADY_EXISTS
    client.do(client.admin.create_partition(path, fluss.PartitionSpec({"region": "US"}), ignore_if_exists=True))
    client.do(client.admin.drop_partition(path, {"region": "EU"}))
    assert set(ids(client, table)) == {"US"}
    with pytest.raises(fluss.NotFoundError) as error:
        client.do(client.admin.drop_partition(path, {"region": "EU"}))
    assert error.value.error_code == fluss.ErrorCode.PARTITION_NOT_EXISTS
    client.do(client.admin.drop_partition(path, {"region": "EU"}, ignore_if_not_exists=True))


@pytest.mark.feature("Partitions: create, list, drop")
def test_listing_by_some_of_the_columns(client: Client) -> None:
    specs = [{"region": region, "year": year} for region in ("US", "EU") for year in ("2025", "2026")]
    columns = [("id", pa.int32()), ("region", pa.string()), ("year", pa.string())]
    table = client.create("p2", columns, partition_keys=["region", "year"], bucket_count=1)
    path = table.get_table_path()
    for spec in specs:
        client.do(client.admin.create_partition(path, spec))
    assert set(ids(client, table)) == {"US$2025", "US$2026", "EU$2025", "EU$2026"}
    some = client.do(client.admin.list_partition_infos(path, {"region": "US"}))
    assert {info.partition_name for info in some} == {"US$2025", "US$2026"}
    some = client.do(client.admin.list_partition_infos_with_spec(path, fluss.PartitionSpec({"year": "2025"})))
    assert {info.get_partition_name() for info in some} == {"US$2025", "EU$2025"}
    assert {info.partition_spec.get_spec_map()["year"] for info in some} == {"2025"}


@pytest.mark.feature("Partitions: create, list, drop")
@pytest.mark.parametrize("spec", [{}, {"region": "U S"}, {"region": "../x"}, {"region": "__a"}, {"country": "US"}])
def test_bad_specs_are_refused(client: Client, spec: dict[str, str]) -> None:
    table = partitioned(client, "bad", ["region"], [])
    with pytest.raises(fluss.FlussError) as error:
        client.do(client.admin.create_partition(table.get_table_path(), spec))
    assert error.value.error_code == fluss.ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION
    assert ids(client, table) == {}


@pytest.mark.feature("Partitions: create, list, drop")
def test_a_table_without_partitions_says_so(client: Client) -> None:
    table = client.create("plain", COLUMNS)
    path = table.get_table_path()
    for call in (
        lambda: client.admin.create_partition(path, {"region": "US"}),
        lambda: client.admin.list_partition_infos(path),
    ):
        with pytest.raises(fluss.FlussError) as error:
            client.do(call())
        assert error.value.error_code == fluss.ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION


@pytest.mark.feature("Partitions: rows and offsets")
def test_rows_and_batches_of_mixed_partitions_are_routed(client: Client) -> None:
    table = partitioned(client, "mixed", ["region"], [{"region": "US"}, {"region": "EU"}])
    writer = table.new_append().create_writer()
    for i in range(10):
        writer.append({"id": i, "region": ("US", "EU")[i % 2], "year": 2026})
    batch = pa.RecordBatch.from_pydict(
        {"id": list(range(10, 20)), "region": ["US", "US", "EU", "EU", "US"] * 2, "year": [2026] * 10},
        schema=table.arrow_schema,
    )
    client.do(writer.write_arrow_batch(batch).wait())
    client.do(writer.flush())
    everything = rows_of(client, table, ["US", "EU"])
    assert [row["id"] for row in everything] == list(range(20))
    assert {row["region"] for row in rows_of(client, table, ["US"])} == {"US"}
    assert len(rows_of(client, table, ["US"])) + len(rows_of(client, table, ["EU"])) == 20


@pytest.mark.feature("Partitions: rows and offsets")
def test_partitions_by_other_types(client: Client) -> None:
    columns = [("id", pa.int32()), ("day", pa.date32())]
    table = client.create("days", columns, partition_keys=["day"], bucket_count=1)
    path = table.get_table_path()
    for day in ("2026-02-28", "2026-03-01"):
        client.do(client.admin.create_partition(path, {"day": day}))
        client.backend.await_table(path.database_name, path.table_name, day)
    client.append(table, [[1, dt.date(2026, 2, 28)], [2, dt.date(2026, 3, 1)]])
    assert rows_of(client, table, ["2026-03-01"]) == [{"id": 2, "day": dt.date(2026, 3, 1)}]


@pytest.mark.feature("Partitions: rows and offsets")
def test_a_missing_partition_is_an_error_that_names_it(client: Client) -> None:
    table = partitioned(client, "missing", ["region"], [{"region": "US"}])
    writer = table.new_append().create_writer()
    lost = writer.append([1, "Mars", 2026])
    kept = writer.append([2, "US", 2026])
    with pytest.raises(fluss.NotFoundError, match="Mars") as error:
        client.do(lost.wait())
    assert error.value.error_code == fluss.ErrorCode.PARTITION_NOT_EXISTS
    client.do(kept.wait())
    assert [row["id"] for row in rows_of(client, table, ["US"])] == [2]


@pytest.mark.feature("Partitions: rows and offsets")
def test_a_null_partition_value_is_refused(client: Client) -> None:
    table = partitioned(client, "nulls", ["region"], [{"region": "US"}])
    writer = table.new_append().create_writer()
    with pytest.raises(fluss.FlussError, match="region"):
        client.do(writer.append([1, None, 2026]).wait())


@pytest.mark.feature("Partitions: created by the first row")
def test_missing_partitions_are_made_where_the_option_is_on(client: Client) -> None:
    partitioned(client, "dynamic", ["region"], [])
    config = client.conn.config.copy()
    config.writer_dynamic_create_partition_enabled = True
    conn = client.do(client.api.FlussConnection.create(config))
    try:
        table = client.do(conn.get_table(fluss.TablePath(client.database, "dynamic")))
        client.append(table, [[1, "DE", 2026], [2, "FR", 2026]])
        assert set(ids(client, table)) == {"DE", "FR"}
        assert [row["id"] for row in rows_of(client, table, ["DE", "FR"])] == [1, 2]
    finally:
        client.do(conn.close())


@pytest.mark.feature("Partitions: rows and offsets")
def test_offsets_by_partition(client: Client) -> None:
    table = partitioned(client, "offsets", ["region"], [{"region": "US"}, {"region": "EU"}], buckets=2)
    path = table.get_table_path()
    client.append(table, [[i, "US", 2026] for i in range(7)])
    offsets = client.do(client.admin.list_partition_offsets(path, "US", [0, 1], fluss.OffsetSpec.latest()))
    assert sum(offsets.values()) == 7
    assert client.do(client.admin.list_partition_offsets(path, "US", [0], fluss.OffsetSpec.earliest())) == {0: 0}
    latest = client.do(client.admin.list_partition_offsets(path, "EU", [0, 1], offset_type="latest"))
    assert latest == {0: 0, 1: 0}
    with pytest.raises(fluss.NotFoundError):
        client.do(client.admin.list_partition_offsets(path, "Mars", [0], fluss.OffsetSpec.latest()))


@pytest.mark.feature("Partitions: rows and offsets")
def test_following_partitions(client: Client) -> None:
    table = partitioned(client, "follow", ["region"], [{"region": "US"}, {"region": "EU"}])
    known = ids(client, table)
    scanner = client.do(table.new_scan().create_log_scanner())
    scanner.subscribe_partition(known["US"], 0, fluss.EARLIEST_OFFSET)
    scanner.subscribe_partition(partition_id=known["EU"], bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
    client.append(table, [[1, "US", 2026], [2, "EU", 2026]])
    seen: dict[int, str] = {}
    while len(seen) < 2:
        records = client.do(scanner.poll(WAIT_MS))
        assert not records.is_empty()
        for bucket, found in records.items():
            for record in found:
                seen[record.row["id"]] = record.row["region"]
                assert bucket.partition_id == known[record.row["region"]]
    scanner.unsubscribe_partition(known["EU"], 0)
    client.append(table, [[3, "EU", 2026], [4, "US", 2026]])
    assert [record.row["id"] for record in client.do(scanner.poll(WAIT_MS))] == [4]
    with pytest.raises(fluss.FlussError):
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    scanner.close()


@pytest.mark.feature("Partitions: rows and offsets")
def test_a_dropped_partition_ends_its_readers_and_comes_back_empty(client: Client) -> None:
    table = partitioned(client, "again", ["region"], [{"region": "US"}])
    path = table.get_table_path()
    client.append(table, [[1, "US", 2026]])
    client.do(client.admin.drop_partition(path, {"region": "US"}))
    client.do(client.admin.create_partition(path, {"region": "US"}))
    client.backend.await_table(path.database_name, path.table_name, "US")
    client.append(table, [[2, "US", 2026]])
    assert [row["id"] for row in rows_of(client, table, ["US"])] == [2]

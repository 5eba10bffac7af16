"""Upserts and deletes on a real Apache Fluss cluster, followed in its changelog."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import fluss.sync as fluss
from fluss.testing import ApacheFluss

pytestmark = pytest.mark.compat

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("age", pa.int32())])
QUIET_POLLS = 3
_numbers = itertools.count()


@pytest.fixture
def conn(apache_fluss: ApacheFluss) -> Iterator[fluss.FlussConnection]:
    with fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": apache_fluss.bootstrap_servers})) as opened:
        yield opened


def keyed(
    conn: fluss.FlussConnection, columns: pa.Schema = COLUMNS, keys: tuple[str, ...] = ("id",), **options: Any
) -> Any:
    path = fluss.TablePath("fluss", f"upserts_{next(_numbers)}")
    schema = fluss.Schema(columns, list(keys), **options.pop("schema", {}))
    conn.get_admin().create_table(path, fluss.TableDescriptor(schema, **{"bucket_count": 1, **options}))
    return conn.get_table(path)


def changes(table: fluss.FlussTable, partition_id: int | None = None) -> list[tuple[Any, ...]]:
    """All changes so far."""
    scanner = table.new_scan().create_log_scanner()
    for bucket in range(table.get_table_info().num_buckets):
        if partition_id is None:
            scanner.subscribe(bucket, fluss.EARLIEST_OFFSET)
        else:
            scanner.subscribe_partition(partition_id, bucket, fluss.EARLIEST_OFFSET)
    found: list[tuple[Any, ...]] = []
    quiet = 0
    while quiet < QUIET_POLLS:
        records = list(scanner.poll(500))
        quiet = 0 if records else quiet + 1
        found.extend((record.change_type.short_string(), *record.row.values()) for record in records)
    return found


def rows_of(table: fluss.FlussTable, partition_id: int | None = None) -> dict[Any, tuple[Any, ...]]:
    """The table's rows by the first column, from its changelog."""
    rows: dict[Any, tuple[Any, ...]] = {}
    for change, *row in changes(table, partition_id):
        if change in ("+I", "+U"):
            rows[row[0]] = tuple(row)
        elif change == "-D":
            del rows[row[0]]
    return rows


@pytest.mark.parametrize("kv_format", ["COMPACTED", "INDEXED"])
def test_random_operations_end_as_in_a_dict(conn: fluss.FlussConnection, kv_format: str) -> None:
    chance = random.Random(11)
    table = keyed(conn, bucket_count=3, kv_format=kv_format)
    whole, ages = table.new_upsert().create_writer(), table.new_upsert(["id", "age"]).create_writer()
    model: dict[int, tuple[Any, ...]] = {}
    for number in range(3_000):
        key, fate = chance.randrange(400), chance.random()
        if fate < 0.2:
            whole.delete([key])
            model.pop(key, None)
        elif fate < 0.8:
            whole.upsert([key, f"n{number}", number])
            model[key] = (key, f"n{number}", number)
        else:
            whole.flush()  # two writers have no order between them
            ages.upsert({"id": key, "age": number})
            ages.flush()
            model[key] = (key, model[key][1] if key in model else None, number)
    numbers = list(range(1_000, 6_000))
    whole.write_arrow(pa.table({"id": numbers, "age": numbers}))
    whole.delete_arrow(pa.table({"id": numbers[::2]}))
    whole.flush()
    model.update({number: (number, None, number) for number in numbers[1::2]})
    assert rows_of(table) == model


def test_many_types_and_a_key_of_several_columns(conn: fluss.FlussConnection) -> None:
    columns = pa.schema(
        [
            ("text", pa.string()),
            ("amount", pa.decimal128(20, 3)),
            ("day", pa.date32()),
            ("at", pa.timestamp("us")),
            ("raw", pa.binary()),
            ("tags", pa.list_(pa.string())),
        ]
    )
    table = keyed(conn, columns, ("day", "text"), bucket_count=2, bucket_keys=["text"])
    day = dt.date(2026, 11, 15)
    row = {"text": "ä", "amount": decimal.Decimal("-1.250"), "day": day, "raw": b"\0", "tags": ["x", None]}
    other = {**row, "text": "c", "day": dt.date(1969, 1, 1)}
    batch = pa.RecordBatch.from_pylist([row, {**row, "text": "b"}, other], columns)
    writer = table.new_upsert()
    writer.write_arrow_batch(batch)
    writer.delete([day, "b"])
    writer.delete(other)
    writer.flush()
    assert rows_of(table) == {"ä": ("ä", decimal.Decimal("-1.250"), day, None, b"\0", ["x", None])}


def test_partitions(conn: fluss.FlussConnection) -> None:
    columns = pa.schema([("id", pa.int64()), ("region", pa.string()), ("score", pa.int64())])
    table = keyed(conn, columns, ("region", "id"), partition_keys=["region"], bucket_count=2)
    admin = conn.get_admin()
    for region in ("US", "EU"):
        admin.create_partition(table.table_path, {"region": region})
    writer = table.new_upsert().create_writer()
    for number in range(1_000):
        writer.upsert([number, "US" if number % 2 else "EU", number])
    lost, kept = writer.delete(["Mars", 1]), writer.delete(["US", 1])
    with pytest.raises(fluss.NotFoundError, match="'Mars'"):
        lost.wait()
    kept.wait()
    writer.flush()
    ids = {info.partition_name: info.partition_id for info in admin.list_partition_infos(table.table_path)}
    assert set(rows_of(table, ids["EU"])) == set(range(0, 1_000, 2))
    assert set(rows_of(table, ids["US"])) == set(range(3, 1_000, 2))


def test_partial_updates_and_deletes(conn: fluss.FlussConnection) -> None:
    table = keyed(conn)
    table.new_upsert().upsert([1, "a", 1]).wait()
    ages = table.new_upsert().partial_update_by_index([2, 0])
    for row in ([2, 1], {"id": 2, "age": 3}, [3, None, 4]):
        ages.upsert(row).wait()
    ages.delete([1]).wait()
    ages.delete([2]).wait()
    assert changes(table) == [
        ("+I", 1, "a", 1),
        ("-U", 1, "a", 1),
        ("+U", 1, "a", 2),
        ("+I", 2, None, 3),
        ("+I", 3, None, 4),
        ("-U", 1, "a", 2),
        ("+U", 1, "a", None),
        ("-D", 2, None, 3),
    ]


def test_a_numbered_column(conn: fluss.FlussConnection) -> None:
    columns = pa.schema([("id", pa.int64()), ("name", pa.string()), ("number", pa.int64())])
    table = keyed(conn, columns, schema={"auto_increment_column": "number"})
    writer = table.new_upsert()
    for row in ({"id": 7, "name": "a"}, [8, "b"], [7, "c", None]):
        writer.upsert(row).wait()
    assert rows_of(table) == {7: (7, "c", 1), 8: (8, "b", 2)}


def test_past_the_merge_engine(conn: fluss.FlussConnection) -> None:
    table = keyed(conn, properties={"table.merge-engine": "first_row"})
    writer = table.new_upsert()
    for age in (1, 2):
        writer.upsert([1, "a", age]).wait()
    writer.merge_mode(fluss.MergeMode.OVERWRITE).upsert([1, "a", 3]).wait()
    assert rows_of(table) == {1: (1, "a", 3)}


@pytest.mark.parametrize("lake_format", ["PAIMON", "ICEBERG"])
def test_keys_of_lake_tables(conn: fluss.FlussConnection, lake_format: str) -> None:
    table = keyed(conn, bucket_count=3, properties={"table.datalake.format": lake_format})
    writer = table.new_upsert()
    writer.write_arrow(pa.table({"id": list(range(300))}))
    for number in range(0, 300, 2):
        writer.delete([number])
    writer.flush()
    assert set(rows_of(table)) == set(range(1, 300, 2))

"""Batch reads of lake and log together: each row once, whatever was tiered when, in all combinations of options."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fluss.lake import parquet
from fluss.spark.read.parts import BucketRange, BucketRowsAt, LakeBucket, LakeRows
from fluss.sync import (
    Config,
    DataTypes,
    FlussConnection,
    FlussError,
    InvalidRequestError,
    OffsetSpec,
    Schema,
    TablePath,
)
from fluss.testing import FlussServer
from tests.spark.union_steps import BY_DAY, KEYED, KEYED_BY_DAY, LOG, Unions

pytestmark = pytest.mark.spark

ONLY = {"lake.mode": "only"}
NONE = {"lake.mode": "none"}


@pytest.fixture
def unions(spark_server: FlussServer, new_name: Callable[[str], str]) -> Iterator[Unions]:
    address = spark_server.bootstrap_servers
    with FlussConnection.create(Config({"bootstrap.servers": address})) as connection:
        yield Unions(address, connection, TablePath("fluss", new_name("union")))


def kinds(parts: list[Any]) -> set[type]:
    return {type(part) for part in parts}


# ---- log tables ----


def test_each_row_once_at_every_moment(unions: Unions) -> None:
    unions.create(LOG, bucket_count=2)
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    count, planned = 0, []
    for _ in range(12):
        if chance.random() < 0.6:
            size = chance.randrange(1, 40)
            unions.append(count, size)
            count += size
        elif count:
            unions.append(count, 1)
            count += 1
            unions.tier()
        assert sorted(unions.ids()) == list(range(count))
        planned.append((count, unions.plan()))
    for expected, parts in planned:  # however late they are read
        assert sorted(unions.read(parts)["id"].to_pylist() if parts else []) == list(range(expected))


def test_modes(unions: Unions) -> None:
    unions.create(LOG)
    unions.append(0, 10)
    assert kinds(unions.plan()) == {BucketRange}  # nothing is in the lake yet
    with pytest.raises(InvalidRequestError, match=r"Nothing of .* is in the lake yet"):
        unions.plan(**ONLY)
    unions.tier()
    assert kinds(unions.plan()) == {LakeRows}
    unions.append(10, 5)
    assert kinds(unions.plan()) == {LakeRows, BucketRange}
    assert unions.ids() == list(range(15))
    assert kinds(unions.plan(**ONLY)) == {LakeRows}
    assert unions.ids(**ONLY) == list(range(10))
    assert kinds(unions.plan(**NONE)) == {BucketRange}
    assert unions.ids(**NONE) == list(range(15))
    with pytest.raises(InvalidRequestError, match=r"'lake\.mode' is one of auto, none, only, not 'both'"):
        unions.plan(**{"lake.mode": "both"})


def test_a_table_without_a_lake_is_not_looked_for_in_one(unions: Unions, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any) -> None:
        raise AssertionError("the server was asked for a snapshot")

    monkeypatch.setattr("fluss.api.operations.LakeRegistry.latest", asked)
    unions.create(LOG, properties={"table.datalake.enabled": "false"})
    unions.append(0, 3)
    assert unions.ids() == [0, 1, 2]


def test_columns_and_filter(unions: Unions) -> None:
    unions.create(LOG)
    unions.append(0, 100)
    unions.tier()
    unions.append(100, 100)
    assert unions.sorted(columns="name", filter="id IN (3, 150, 250) OR name = 'n7'") == [("n150",), ("n3",), ("n7",)]
    assert unions.plan(filter="id < 0")  # parts are there, rows are not
    assert unions.ids(filter="id < 0") == []


def test_rows_as_changes(unions: Unions) -> None:
    unions.create(LOG)
    unions.append(0, 10)
    unions.tier()
    unions.append(10, 5)
    assert unions.sorted(changelog="true") == unions.sorted(changelog="true", **NONE)
    assert unions.sorted(changelog="true", columns="_log_offset, id", filter="id > 8") == [
        (number, number) for number in range(9, 15)
    ]


def test_offsets(unions: Unions) -> None:
    unions.create(LOG)
    unions.append(0, 20)
    unions.tier()
    unions.append(20, 10)
    for start, end in [(0, 30), (5, 12), (15, 25), (20, 30), (22, 24), (0, 0), (30, 30)]:
        limits = {"scan.start.offsets": f'{{"0": {start}}}', "scan.end.offsets": f'{{"0": {end}}}'}
        assert unions.ids(**limits) == list(range(start, end))
    assert kinds(unions.plan(**{"scan.start.offsets": '{"0": 20}'})) == {BucketRange}
    assert unions.ids(**ONLY, **{"scan.start.offsets": '{"0": 15}'}) == list(range(15, 20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scan.start.offsets": '{"1": 0}'}, "names bucket 1, which the read of this table does not have"),
        ({"scan.start.offsets": '{"0": 31}'}, "has offset 31 for bucket 0; there are 0 to 30"),
        ({"scan.start.offsets": '{"0": 9}', "scan.end.offsets": '{"0": 5}'}, "starts at offset 9, after its end at 5"),
        ({"scan.end.offsets": '{"0": 9}', "scan.incremental.end.timestamp": "5"}, "Give one of the options"),
        ({"scan.incremental.start.timestamp": "9", "scan.incremental.end.timestamp": "5"}, "a time after its end"),
        ({"partitions": "day=1"}, "has no partitions"),
        ({"filter": "ident > 5"}, "the table has no column 'ident'"),
    ],
)
def test_what_does_not_fit(unions: Unions, options: dict[str, str], message: str) -> None:
    unions.create(LOG)
    unions.append(0, 20)
    unions.tier()
    unions.append(20, 10)
    with pytest.raises(InvalidRequestError, match=message):
        unions.plan(**options)


def test_times(unions: Unions) -> None:
    unions.create(LOG)
    starts_ms: list[int] = []
    for first in range(0, 40, 10):
        # Commit times are in milliseconds: let the next one come.
        now_ms = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == now_ms:
            pass
        starts_ms.append(time.time_ns() // 1_000_000)
        unions.append(first, 10)
        if first == 10:
            unions.tier()

    def between(start: int, end: int) -> list[int]:
        times = {"scan.incremental.start.timestamp": str(start), "scan.incremental.end.timestamp": str(end)}
        return unions.ids(**times)

    assert between(starts_ms[1], starts_ms[3]) == list(range(10, 30))
    assert between(starts_ms[0], starts_ms[1]) == list(range(10))
    assert between(starts_ms[2], starts_ms[3]) == list(range(20, 30))
    assert between(starts_ms[1], 2**42) == list(range(10, 40))
    assert between(0, 1) == []


def test_history_that_the_log_no_longer_has(tmp_path: Path) -> None:
    settings = tmp_path / "fluss.toml"
    settings.write_text(
        '"log.segment.file-size" = 1000\n"log.retention.size-bytes" = 1\n"log.retention.check-interval-ms" = 5\n'
    )
    with FlussServer(tmp_path / "data", args=["--config", str(settings)]) as server:
        address = server.bootstrap_servers
        with FlussConnection.create(Config({"bootstrap.servers": address})) as connection:
            unions = Unions(address, connection, TablePath("fluss", "expiring"))
            unions.create(LOG)
            count, first = 0, 0
            while first < 100:
                unions.append(count, 50)
                count += 50
                unions.tier()
                first = connection.get_admin().list_offsets(unions.path, [0], OffsetSpec.earliest())[0]
            unions.append(count, 50)
            assert sorted(unions.ids()) == list(range(count + 50))
            assert unions.ids(**NONE)[0] >= 100
            limits = {"scan.start.offsets": '{"0": 10}', "scan.end.offsets": f'{{"0": {count + 5}}}'}
            assert sorted(unions.ids(**limits)) == list(range(10, count + 5))
            stream = unions.stream(maxRowsPerTrigger="20")
            assert stream.ids() == list(range(count + 20))
            assert stream.ids() == list(range(count + 20, count + 40))
            assert len(unions.stream(**{"scan.startup.mode": "earliest"}).ids()) <= count - 50


def test_large_files_are_cut_and_small_ones_joined(unions: Unions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 100)
    unions.create(LOG)
    unions.append(0, *[100] * 10)
    unions.tier()
    for start in range(1000, 1100, 10):
        unions.append(start, 10)
        unions.tier()
    parts = unions.plan(**{"scan.maxRecordsPerPartition": "300"})
    assert all(isinstance(part, LakeRows) for part in parts)
    assert len(parts) == 5
    assert sorted(unions.read(parts)["id"].to_pylist()) == list(range(1100))
    assert len(unions.plan()) == 1


def test_partitions(unions: Unions) -> None:
    unions.create(BY_DAY, partition_keys=["day"], bucket_count=2)
    admin = unions.connection.get_admin()
    for number, day in enumerate(("d1", "d2")):
        admin.create_partition(unions.path, {"day": day})
        unions.write(*({"id": 10 * number + row, "day": day} for row in range(10)))
    unions.tier()
    unions.write({"id": 100, "day": "d1"}, {"id": 101, "day": "d2"})
    admin.create_partition(unions.path, {"day": "d3"})  # of which the lake has nothing
    unions.write({"id": 102, "day": "d3"})
    assert sorted(unions.ids()) == [*range(20), 100, 101, 102]
    assert sorted(unions.ids(partitions="day=d2")) == [*range(10, 20), 101]
    unions.tier()
    admin.drop_partition(unions.path, {"day": "d1"})
    assert sorted(unions.ids()) == [*range(20), 100, 101, 102]  # what was dropped is history
    assert sorted(unions.ids(partitions="day=d1")) == [*range(10), 100]
    assert 0 not in unions.ids(**NONE)
    admin.create_partition(unions.path, {"day": "d1"})
    unions.write({"id": 200, "day": "d1"})
    assert sorted(unions.ids(partitions="day=d1")) == [*range(10), 100, 200]
    unions.tier()
    assert sorted(unions.ids(partitions="day=d1, day=d3")) == [*range(10), 100, 102, 200]
    with pytest.raises(InvalidRequestError, match="names bucket 0 of partition 'd9'"):
        unions.plan(**{"scan.start.offsets": '{"d9": {"0": 1}}'})


def test_columns_that_came_later(unions: Unions) -> None:
    unions.create(LOG)
    unions.append(0, 3)
    unions.tier()
    unions.connection.get_admin().alter_table(unions.path, add_columns=[("size", DataTypes.int())])
    assert unions.sorted(filter="size IS NULL", columns="size, id") == [(None, 0), (None, 1), (None, 2)]
    unions.write({"id": 3, "name": "n3", "size": 7})
    assert unions.sorted(filter="size = 7") == [(3, "n3", 7)]
    unions.tier()
    unions.write({"id": 4, "name": "n4", "size": 8})
    assert [row[2] for row in unions.sorted()] == [None, None, None, 7, 8]


def test_all_types_come_back_as_they_were(unions: Unions) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("tiny", pa.int8()),
            ("small", pa.int16()),
            ("fixed", pa.binary(3)),
            ("amount", pa.decimal128(10, 2)),
            ("day", pa.date32()),
            ("at", pa.timestamp("ms")),
            ("moment", pa.timestamp("us", "UTC")),
            ("list", pa.list_(pa.int16())),
            ("map", pa.map_(pa.string(), pa.int8())),
            ("row", pa.struct([("x", pa.int8()), ("y", pa.list_(pa.string()))])),
            ("flag", pa.bool_()),
            ("ratio", pa.float32()),
        ]
    )
    unions.create(Schema(schema))
    full = {"id": 1, "tiny": -2, "small": 300, "fixed": b"abc", "amount": 12, "day": 7, "at": 99, "moment": 1234567}
    nested = {"list": [1, None], "map": [("k", 1)], "row": {"x": 1, "y": ["a", None]}, "flag": True, "ratio": 1.5}
    rows = pa.Table.from_pylist([{**full, **nested}, {"id": 2}], schema)
    with unions.connection.get_table(unions.path).new_append().create_writer() as writer:
        writer.write_arrow(rows)
    unions.tier()
    assert unions.read().to_pylist() == unions.read(**NONE).to_pylist()
    assert unions.ids(filter="tiny = -2 AND fixed = X'616263'") == [1]


def test_the_lake_is_where_the_options_say(unions: Unions, tmp_path: Path) -> None:
    unions.create(LOG)
    unions.append(0, 5)
    unions.tier()
    with pytest.raises(InvalidRequestError, match="does not have snapshot"):
        unions.plan(**{"lake.warehouse": str(tmp_path)})
    found = unions.connection.get_admin().get_table_info(unions.path).properties
    prefix = "table.datalake.iceberg."
    named = {f"lake.catalog.{key.removeprefix(prefix)}": text for key, text in found.items() if prefix in key}
    assert unions.ids(**named) == list(range(5))
    with pytest.raises(InvalidRequestError, match=r"'lake\.catalog\.uri' is for reading"):
        unions.source(**{"lake.catalog.uri": "x"}).writer(None, overwrite=False)


def test_without_pyiceberg(unions: Unions, monkeypatch: pytest.MonkeyPatch) -> None:
    unions.create(LOG)
    unions.append(0, 5)
    unions.tier()
    monkeypatch.setitem(sys.modules, "pyiceberg.exceptions", None)
    with pytest.raises(FlussError, match=r"flussbett\[lake\].*'lake.mode', 'none'"):
        unions.plan()
    assert unions.ids(**NONE) == list(range(5))


# ---- primary-key tables ----


def test_keys_at_every_moment(unions: Unions) -> None:
    unions.create(KEYED, bucket_count=2)
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    rows: dict[int, str] = {}
    planned = []
    for turn in range(10):
        changed = {chance.randrange(60): f"t{turn}-{number}" for number in range(chance.randrange(1, 20))}
        unions.upsert(changed)
        rows |= changed
        gone = [key for key in rows if chance.random() < 0.1]
        unions.delete(*({"id": key} for key in gone))
        rows = {key: name for key, name in rows.items() if key not in gone}
        if chance.random() < 0.4:
            unions.tier()
        assert unions.sorted() == sorted(rows.items())
        planned.append((sorted(rows.items()), unions.plan()))
    for expected, parts in planned:
        assert unions.sorted(parts) == expected


def test_a_filter_sees_rows_as_they_are_now(unions: Unions) -> None:
    unions.create(KEYED)
    unions.upsert({1: "a", 2: "a", 3: "a"})
    unions.tier()
    unions.upsert({1: "b"})
    assert unions.sorted(filter="name = 'a'") == [(2, "a"), (3, "a")]
    assert unions.sorted(filter="name = 'b'", columns="name") == [("b",)]
    assert unions.sorted(columns="name") == [("a",), ("a",), ("b",)]
    assert unions.sorted(**ONLY) == [(1, "a"), (2, "a"), (3, "a")]


def test_kinds_of_parts_of_a_key_table(unions: Unions) -> None:
    unions.create(KEYED)
    unions.upsert({1: "a"})
    assert kinds(unions.plan()) == {BucketRowsAt}
    unions.tier()
    assert kinds(unions.plan()) == {LakeRows}
    unions.upsert({2: "a"})
    assert kinds(unions.plan()) == {LakeBucket}
    assert kinds(unions.plan(changelog="true")) == {BucketRange}  # the lake has no changes
    assert kinds(unions.plan(**{"scan.end.offsets": '{"0": 1}'})) == {BucketRowsAt}
    assert unions.sorted(**{"scan.end.offsets": '{"0": 1}'}) == [(1, "a")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"changelog": "true", **ONLY}, "The lake has no changes of a table with a primary key"),
        ({"scan.end.offsets": '{"0": 1}', **ONLY}, "The lake has its rows of one moment only"),
        ({"scan.start.offsets": '{"0": 1}'}, "a read of its rows has an end, not a start"),
    ],
)
def test_what_the_lake_does_not_have_of_keys(unions: Unions, options: dict[str, str], message: str) -> None:
    unions.create(KEYED)
    unions.upsert({1: "a"})
    unions.tier()
    with pytest.raises(InvalidRequestError, match=message):
        unions.plan(**options)


def test_keys_in_partitions(unions: Unions) -> None:
    unions.create(KEYED_BY_DAY, partition_keys=["day"])
    admin = unions.connection.get_admin()
    for day in ("d1", "d2"):
        admin.create_partition(unions.path, {"day": day})
        unions.write({"id": 1, "day": day, "name": "old"}, {"id": 2, "day": day, "name": "old"})
    unions.tier()
    unions.write({"id": 1, "day": "d2", "name": "new"})
    admin.create_partition(unions.path, {"day": "d3"})
    unions.write({"id": 1, "day": "d3", "name": "new"})
    assert kinds(unions.plan()) == {LakeRows, LakeBucket, BucketRowsAt}
    day_1 = [(1, "d1", "old"), (2, "d1", "old")]
    others = [(1, "d2", "new"), (1, "d3", "new"), (2, "d2", "old")]
    assert unions.sorted() == sorted([*day_1, *others])
    assert unions.sorted(partitions="day=d2", filter="name = 'new'") == [(1, "d2", "new")]
    admin.drop_partition(unions.path, {"day": "d1"})
    assert unions.sorted() == sorted([*day_1, *others])
    admin.create_partition(unions.path, {"day": "d1"})  # the new one replaces what the lake has of the old one
    unions.write({"id": 3, "day": "d1", "name": "again"})
    assert unions.sorted() == sorted([(3, "d1", "again"), *others])
    unions.tier()
    assert unions.sorted() == sorted([(3, "d1", "again"), *others])

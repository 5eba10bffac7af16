"""What a batch read reads and in which parts, asked from the source as Spark does, without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from fluss.lake import log_ranges
from fluss.spark.read import parts as ranges
from fluss.spark.read.parts import BucketPart, BucketRange, BucketRowsAt
from fluss.sync import (
    Config,
    FlussConnection,
    InvalidRequestError,
    OffsetSpec,
    Schema,
    SchemaMismatchError,
    TablePath,
)
from fluss.testing import FlussServer
from tests.spark.reads import Reads

pytestmark = pytest.mark.spark

LOG = Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))
KEYED = Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]), ["id"])
BY_DAY = Schema(pa.schema([("id", pa.int64()), ("day", pa.string()), ("region", pa.string())]))


@pytest.fixture
def reads(spark_server: FlussServer, new_name: Callable[[str], str]) -> Iterator[Reads]:
    address = spark_server.bootstrap_servers
    with FlussConnection.create(Config({"bootstrap.servers": address})) as connection:
        yield Reads(address, connection, TablePath("fluss", new_name("planned")))


def edges(parts: list[BucketPart]) -> list[tuple[int, int]]:
    return [(part.start_offset, part.end_offset) for part in parts if isinstance(part, BucketRange)]


# ---- parts ----


def test_long_logs_are_cut_between_batches(reads: Reads) -> None:
    reads.create(LOG)
    reads.append(0, *[100] * 10)
    parts = reads.plan(**{"scan.maxRecordsPerPartition": "250"})
    assert edges(parts) == [(0, 200), (200, 500), (500, 700), (700, 1000)]
    assert reads.read(parts)["id"].to_pylist() == list(range(1000))
    assert edges(reads.plan()) == [(0, 1000)]
    assert edges(reads.plan(**{"scan.maxRecordsPerPartition": "1000"})) == [(0, 1000)]


def test_as_many_parts_as_use_all_cores(reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_ranges, "PART_ROWS_MIN", 10)
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    reads.create(LOG)
    reads.append(0, *[10] * 100)
    parts = reads.plan()
    assert edges(parts) == [(start, start + 100) for start in range(0, 1000, 100)]


def test_more_cuts_than_are_asked_about(reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_ranges, "ALIGNED_CUTS_MAX", 2)
    reads.create(LOG)
    reads.append(0, *[100] * 3)
    parts = reads.plan(**{"scan.maxRecordsPerPartition": "70"})
    assert edges(parts) == [(0, 60), (60, 120), (120, 180), (180, 240), (240, 300)]
    assert reads.read(parts)["id"].to_pylist() == list(range(300))


def test_one_batch_is_one_part(reads: Reads) -> None:
    reads.create(LOG)
    reads.append(0, 1000)
    assert edges(reads.plan(**{"scan.maxRecordsPerPartition": "10"})) == [(0, 1000)]


def test_buckets_without_rows_make_no_parts(reads: Reads) -> None:
    reads.create(LOG, bucket_count=3)
    assert reads.plan() == []
    reads.append(0, 10)
    assert [part.end_offset - part.start_offset for part in reads.plan() if isinstance(part, BucketRange)] == [10]


def test_small_batches_are_joined(reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "BATCH_ROWS", 250)
    reads.create(LOG)
    reads.append(0, *[100] * 7)
    source = reads.source()
    reader = source.reader(source.schema())
    (part,) = reader.partitions()
    assert [batch.num_rows for batch in reader.read(part)] == [300, 300, 100]


# ---- ranges ----


def test_offset_ranges(reads: Reads) -> None:
    reads.create(LOG)
    reads.append(0, 30, 30)
    assert reads.ids(**{"scan.start.offsets": '{"0": 25}'}) == list(range(25, 60))
    assert reads.ids(**{"scan.end.offsets": '{"0": 35}'}) == list(range(35))
    assert reads.ids(**{"scan.start.offsets": '{"0": 25}', "scan.end.offsets": '{"0": 35}'}) == list(range(25, 35))
    assert reads.plan(**{"scan.start.offsets": '{"0": 60}'}) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scan.start.offsets": '{"1": 0}'}, "names bucket 1, which the read of this table does not have"),
        ({"scan.start.offsets": '{"a": {"0": 0}}'}, "names bucket 0 of partition 'a', which"),
        ({"scan.start.offsets": '{"0": 61}'}, "has offset 61 for bucket 0; there are 0 to 60"),
        ({"scan.end.offsets": '{"0": 99}'}, "has offset 99 for bucket 0; there are 0 to 60"),
        (
            {"scan.start.offsets": '{"0": 9}', "scan.end.offsets": '{"0": 5}'},
            "bucket 0 starts at offset 9, after its end at 5",
        ),
        (
            {"scan.start.offsets": '{"0": 9}', "scan.incremental.start.timestamp": "5"},
            "one of the options 'scan.start.offsets' and 'scan.incremental.start.timestamp'",
        ),
        ({"partitions": "day=1"}, "has no partitions: leave out the option 'partitions'"),
        ({"filter": "ident > 5"}, "the table has no column 'ident'"),
        ({"scan.startup.mode": "latest"}, "'scan.startup.mode' is for streams"),
        ({"maxRowsPerTrigger": "5"}, "'maxRowsPerTrigger' is for streams"),
        ({"columns": "_change_type, id"}, "has no column '_change_type'"),
    ],
)
def test_ranges_and_options_that_do_not_fit(reads: Reads, options: dict[str, str], message: str) -> None:
    reads.create(LOG)
    reads.append(0, 60)
    with pytest.raises(InvalidRequestError, match=message):
        reads.plan(**options)


def test_time_ranges(reads: Reads) -> None:
    reads.create(LOG)
    starts_ms: list[int] = []
    for first in range(0, 40, 10):
        # Commit times are in milliseconds: let the next one come.
        now_ms = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 == now_ms:
            pass
        starts_ms.append(time.time_ns() // 1_000_000)
        reads.append(first, 10)
    after = {"scan.incremental.start.timestamp": str(starts_ms[1])}
    before = {"scan.incremental.end.timestamp": str(starts_ms[3])}
    assert reads.ids(**after) == list(range(10, 40))
    assert reads.ids(**before) == list(range(30))
    assert reads.ids(**after, **before) == list(range(10, 30))
    assert reads.ids(**after, **{"scan.incremental.end.timestamp": "2999-01-01T00:00:00Z"}) == list(range(10, 40))
    assert reads.ids(**{"scan.incremental.start.timestamp": "2999-01-01T00:00:00Z"}) == []
    with pytest.raises(InvalidRequestError, match="after its end"):
        reads.plan(**{"scan.incremental.start.timestamp": str(starts_ms[3]), "scan.incremental.end.timestamp": "1"})


def test_a_log_that_expired_before_it_was_read(tmp_path: Path, new_name: Callable[[str], str]) -> None:
    config = tmp_path / "fluss.toml"
    config.write_text(
        '"log.segment.file-size" = 1000\n"log.retention.size-bytes" = 1\n"log.retention.check-interval-ms" = 5\n'
    )
    with FlussServer(tmp_path / "data", args=["--config", str(config)]) as server:
        address = server.bootstrap_servers
        with FlussConnection.create(Config({"bootstrap.servers": address})) as connection:
            reads = Reads(address, connection, TablePath("fluss", "expiring"))
            reads.create(LOG)
            reads.append(0, 5)
            parts = reads.plan()
            while not connection.get_admin().list_offsets(reads.path, [0], OffsetSpec.earliest())[0]:
                reads.append(0, 50)
            with pytest.raises(
                InvalidRequestError, match=r"bucket 0, from offset 0 on .* expired .*Load the table again"
            ):
                reads.read(parts)


# ---- partitions ----


def _by_day(reads: Reads) -> None:
    reads.create(BY_DAY, partition_keys=["day", "region"])
    admin = reads.connection.get_admin()
    with reads.connection.get_table(reads.path).new_append().create_writer() as writer:
        for number, (day, region) in enumerate([("d1", "EU"), ("d1", "US"), ("d2", "EU"), ("d2", "US")]):
            admin.create_partition(reads.path, {"day": day, "region": region})
            for row in range(10):
                writer.append({"id": 10 * number + row, "day": day, "region": region})


def test_partitions_are_chosen(reads: Reads) -> None:
    _by_day(reads)
    assert sorted(reads.ids()) == list(range(40))
    assert sorted(reads.ids(partitions="day=d1/region=US")) == list(range(10, 20))
    assert sorted(reads.ids(partitions="region=EU")) == [*range(10), *range(20, 30)]
    assert sorted(reads.ids(partitions="day=d2, region=EU / day=d1")) == [*range(10), *range(20, 40)]
    assert reads.ids(partitions="day=d3") == []
    start = {"scan.start.offsets": '{"d1$US": {"0": 7}}'}
    assert sorted(reads.ids(**start, partitions="day=d1")) == [*range(10), 17, 18, 19]
    with pytest.raises(InvalidRequestError, match=r"names bucket 0 of partition 'd1\$US', which the read"):
        reads.plan(**start, partitions="day=d2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is like day=2026-01-01/region=EU"),
        ("day", "is like day=2026-01-01/region=EU"),
        ("day=", "is like day=2026-01-01/region=EU"),
        ("day=d1,", "is like day=2026-01-01/region=EU"),
        ("day=d1/day=d2", "is like day=2026-01-01/region=EU"),
        ("id=5", "names 'id'; the partition columns are day, region"),
    ],
)
def test_partitions_that_are_none(reads: Reads, text: str, message: str) -> None:
    _by_day(reads)
    with pytest.raises(InvalidRequestError, match=message):
        reads.plan(partitions=text)


def test_a_partition_that_was_dropped_before_it_was_read(reads: Reads) -> None:
    _by_day(reads)
    parts = reads.plan(partitions="day=d1/region=EU")
    reads.connection.get_admin().drop_partition(reads.path, {"day": "d1", "region": "EU"})
    with pytest.raises(InvalidRequestError, match=r"of partition d1\$EU, .* gone with their partition\. Load"):
        reads.read(parts)


# ---- many partitions ----

DAYS = [f"d{number:02}" for number in range(40)]


def _of_many_days(reads: Reads, primary_keys: list[str]) -> None:
    schema = Schema(pa.schema([("id", pa.int64()), ("day", pa.string())]), primary_keys)
    reads.create(schema, bucket_count=2, partition_keys=["day"])
    for day in DAYS:
        reads.connection.get_admin().create_partition(reads.path, {"day": day})
    ids = list(range(len(DAYS) * 10))
    table = reads.connection.get_table(reads.path)
    with (table.new_upsert() if primary_keys else table.new_append()).create_writer() as writer:
        writer.write_arrow(pa.table({"id": ids, "day": DAYS * 10}, table.arrow_schema))


@pytest.mark.parametrize("primary_keys", [[], ["id", "day"]])
def test_small_buckets_of_many_partitions_are_read_together(reads: Reads, primary_keys: list[str]) -> None:
    _of_many_days(reads, primary_keys)
    parts, singles = reads.plan(), reads.plan(**{"scan.maxRecordsPerPartition": "10"})
    assert len(singles) >= len(DAYS)
    assert len(parts) < len(singles) / 10
    assert sorted(reads.read(parts)["id"].to_pylist()) == list(range(len(DAYS) * 10))
    assert reads.read(parts).sort_by("id") == reads.read(singles).sort_by("id")
    assert len(reads.plan(partitions="day=d01, day=d02")) in range(2, 5)  # few parts stay as they are
    changes = reads.plan(changelog="true")
    assert len(changes) < len(singles) / 10
    assert sorted(reads.read(changes, changelog="true")["id"].to_pylist()) == list(range(len(DAYS) * 10))


def test_one_of_many_partitions_that_was_dropped_before_it_was_read(reads: Reads) -> None:
    _of_many_days(reads, [])
    parts = reads.plan()
    reads.connection.get_admin().drop_partition(reads.path, {"day": "d07"})
    with pytest.raises(InvalidRequestError, match=r"of partition d07, .* gone with their partition\. Load"):
        reads.read(parts)


# ---- primary-key tables and changes ----


def test_rows_of_a_key_table_as_they_were_when_it_was_planned(reads: Reads) -> None:
    reads.create(KEYED, bucket_count=2)
    reads.upsert(dict.fromkeys(range(20), "old"))
    parts = reads.plan()
    assert {type(part) for part in parts} == {BucketRowsAt}
    reads.upsert(dict.fromkeys(range(10, 30), "new"))
    with reads.connection.get_table(reads.path).new_upsert().create_writer() as writer:
        writer.delete({"id": 0})
    found = reads.read(parts)
    assert sorted(found["id"].to_pylist()) == list(range(20))
    assert set(found["name"].to_pylist()) == {"old"}
    assert sorted(reads.ids()) == list(range(1, 30))
    assert sorted(reads.ids(filter="name = 'new' AND id < 20", columns="id")) == list(range(10, 20))


def test_rows_of_a_key_table_at_an_earlier_offset(reads: Reads) -> None:
    reads.create(KEYED)
    reads.upsert({1: "a", 2: "b"})
    reads.upsert({2: "c", 3: "d"})
    assert reads.read(**{"scan.end.offsets": '{"0": 2}'})["name"].to_pylist() == ["a", "b"]
    assert sorted(reads.read()["name"].to_pylist()) == ["a", "c", "d"]
    assert reads.plan(**{"scan.end.offsets": '{"0": 0}'}) == []
    with pytest.raises(InvalidRequestError, match=r"a read of its rows has an end, not a start"):
        reads.plan(**{"scan.start.offsets": '{"0": 2}'})


def test_changes_of_a_key_table(reads: Reads) -> None:
    reads.create(KEYED)
    reads.upsert({1: "a", 2: "b"})
    reads.upsert({2: "c"})
    with reads.connection.get_table(reads.path).new_upsert().create_writer() as writer:
        writer.delete({"id": 1})
    found = reads.read(changelog="true")
    assert found.schema.names == ["_change_type", "_log_offset", "_commit_timestamp", "id", "name"]
    assert found["_change_type"].to_pylist() == ["+I", "+I", "-U", "+U", "-D"]
    assert found["_log_offset"].to_pylist() == [0, 1, 2, 3, 4]
    assert found["name"].to_pylist() == ["a", "b", "b", "c", "a"]
    tail = {"changelog": "true", "scan.start.offsets": '{"0": 3}'}
    assert reads.read(**tail)["_change_type"].to_pylist() == ["+U", "-D"]
    chosen = reads.read(columns="name, _log_offset", filter="id = 2", **tail)
    assert chosen.to_pylist() == [{"name": "c", "_log_offset": 3}]
    assert reads.read(columns="id", **tail).schema.names == found.schema.names[:4]


def test_changes_of_a_bucket_stay_in_one_part(reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_ranges, "PART_ROWS_MIN", 2)
    reads.create(KEYED)
    for value in range(10):
        reads.upsert({1: str(value)})
    assert edges(reads.plan(changelog="true")) == [(0, 19)]
    assert len(reads.plan(changelog="true", **{"scan.maxRecordsPerPartition": "5"})) > 1


def test_columns_of_changes_alone(reads: Reads) -> None:
    from pyspark.sql import types as st

    reads.create(LOG)
    reads.append(0, 3)
    source = reads.source(changelog="true")
    reader = source.reader(st.StructType([st.StructField("_change_type", st.StringType())]))
    assert [b.to_pydict() for part in reader.partitions() for b in reader.read(part)] == [{"_change_type": ["+A"] * 3}]
    wrong = source.reader(st.StructType([st.StructField("_log_offset", st.StringType())]))
    with pytest.raises(SchemaMismatchError, match="'_log_offset' is bigint in Spark; the schema says string"):
        wrong.partitions()
    without = reads.source().reader(st.StructType([st.StructField("_log_offset", st.LongType())]))
    with pytest.raises(InvalidRequestError, match=r"is of changes: add \.option\('changelog', 'true'\)"):
        without.partitions()


def test_batches_say_what_may_be_null_as_the_schema_does(reads: Reads) -> None:
    from pyspark.sql import types as st

    reads.create(KEYED)
    reads.upsert({1: "a"})
    reader = reads.source().reader(st.StructType([st.StructField("id", st.LongType())]))
    (part,) = reader.partitions()
    assert [batch.schema.field("id").nullable for batch in reader.read(part)] == [True]
    (batch,) = reads.read().to_batches()
    assert [field.nullable for field in batch.schema] == [False, True]


def test_a_part_that_spark_makes_up_is_empty(reads: Reads) -> None:
    from pyspark.sql.datasource import InputPartition

    reads.create(LOG)
    source = reads.source()
    assert [*source.reader(source.schema()).read(InputPartition(None))] == []

"""Positions of streams: where they begin and go on, limits, partitions that come and go, logs that expire."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fluss.lake import log_ranges
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.spark.columns import spark_schema
from fluss.spark.source_options import SourceOptions
from fluss.spark.stream.reader_41 import RememberingStreamReader
from fluss.testing import ApacheFluss, FlussServer
from tests.spark.stream_steps import KEYED, KEYED_BY_DAY, NUMBERS, SALES, Tables


@pytest.fixture
def tables(spark_server: FlussServer, new_name: Callable[[str], str]) -> Iterator[Tables]:
    yield from _tables(spark_server, new_name("steps"))


def _tables(server: FlussServer | ApacheFluss, database: str) -> Iterator[Tables]:
    tables = Tables(server.bootstrap_servers, database)
    tables.admin.create_database(database)
    yield tables
    tables.admin.drop_database(database)
    tables.connection.close()


def test_every_row_once_and_nothing_where_nothing_is_new(tables: Tables) -> None:
    path = tables.create("numbers", NUMBERS, bucket_count=2)
    stream = tables.stream(path)
    assert stream.ids() == []
    assert stream.end == stream.begin
    tables.append(path, 0, 100)
    tables.append(path, 100, 130)
    assert stream.ids() == list(range(130))
    assert stream.ids() == []
    assert stream.end == stream.begin
    tables.append(path, 130, 140)
    assert stream.ids() == list(range(130, 140))


@pytest.mark.parametrize(("mode", "expected"), [("full", 30), ("earliest", 30), ("latest", 0)])
def test_start(tables: Tables, mode: str, expected: int) -> None:
    path = tables.create("numbers", NUMBERS)
    tables.append(path, 0, 30)
    stream = tables.stream(path, **{"scan.startup.mode": mode})
    assert len(stream.ids()) == expected
    tables.append(path, 30, 40)
    assert stream.ids() == list(range(30, 40))


def test_start_at_a_time(tables: Tables) -> None:
    path = tables.create("numbers", NUMBERS)
    tables.append(path, 0, 10)
    changes = tables.stream(path, changelog="true")
    first_ms = int(changes.step()[0]["_commit_timestamp"].timestamp() * 1000)
    later_ms = first_ms
    while later_ms == first_ms:
        tables.append(path, 10, 20)
        later_ms = int(changes.step()[-1]["_commit_timestamp"].timestamp() * 1000)
    at = {"scan.startup.mode": "timestamp", "scan.startup.timestamp": str(later_ms)}
    assert set(tables.stream(path, **at).ids()) == set(range(10, 20))


def test_start_at_offsets(tables: Tables) -> None:
    path = tables.create("sales", SALES, partition_keys=["day"])
    for day in ("d1", "d2"):
        tables.admin.create_partition(path, {"day": day})
        tables.append(path, 0, 10, day=day)
    at = {"scan.startup.mode": "offsets", "scan.start.offsets": '{"d1": {"0": 7}}'}
    rows = tables.stream(path, **at).step()
    assert [(row["day"], row["id"]) for row in rows] == [("d1", i) for i in (7, 8, 9)] + [("d2", i) for i in range(10)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"scan.startup.mode": "offsets"}, "'scan.start.offsets'.*go together"),
        ({"scan.start.offsets": '{"0": 1}'}, "'scan.start.offsets'.*go together"),
        ({"scan.startup.mode": "timestamp"}, "'scan.startup.timestamp'.*go together"),
        ({"scan.end.offsets": '{"0": 1}'}, "'scan.end.offsets' is for batch reads"),
        ({"scan.incremental.end.timestamp": "1"}, "is for batch reads"),
        ({"scan.startup.mode": "offsets", "scan.start.offsets": '{"4": 1}'}, "bucket 4"),
        ({"scan.startup.mode": "offsets", "scan.start.offsets": '{"0": 1}'}, "offset 1 for bucket 0.* 0 to 0"),
        ({"filter": "nothing > 1"}, "nothing"),
        ({"partitions": "day=d1"}, "has no partitions"),
    ],
)
def test_options_that_do_not_fit(tables: Tables, options: dict[str, str], text: str) -> None:
    path = tables.create("numbers", NUMBERS)
    with pytest.raises(FlussError, match=text):
        tables.stream(path, **options)


def test_a_micro_batch_has_the_same_rows_when_it_runs_again(tables: Tables) -> None:
    """Also the first one, whose start Spark has not kept: with `latest` it would move."""
    path = tables.create("numbers", NUMBERS)
    tables.append(path, 0, 10)
    stream = tables.stream(path, **{"scan.startup.mode": "latest"})
    tables.append(path, 10, 20)
    assert stream.ids() == list(range(10, 20))
    tables.append(path, 20, 30)
    stream.restart()
    stream.begin = json.loads(json.dumps(stream.reader.initialOffset()))
    assert stream.begin["offsets"] == [30]
    assert [row["id"] for row in stream.again()] == list(range(10, 20))
    assert stream.ids() == list(range(20, 30))


def test_an_end_that_was_asked_for_before_the_beginning(tables: Tables) -> None:
    """As `spark.sql.streaming.triggerAvailableNowWrapper.enabled` makes Spark 4.1 ask when a query is started again."""
    path = tables.create("numbers", NUMBERS)
    tables.append(path, 0, 30)
    stream = tables.stream(path)
    assert stream.ids() == list(range(30))
    tables.append(path, 30, 40)
    stream.restart()
    stream.begin = stream.end
    stream.end = json.loads(json.dumps(stream.reader.next_offset(stream.reader.initialOffset(), is_limited=False)))
    assert sorted(row["id"] for row in stream.again()) == list(range(30, 40))


def test_columns_and_filter(tables: Tables) -> None:
    path = tables.create("numbers", NUMBERS, bucket_count=2)
    tables.append(path, 0, 50)
    stream = tables.stream(path, columns="name", filter="id >= 45 AND name <> 'n47'")
    assert sorted(row["name"] for row in stream.step()) == ["n45", "n46", "n48", "n49"]
    tables.append(path, 0, 10)
    assert stream.step() == []
    tables.append(path, 60, 61)
    assert stream.step() == [{"name": "n60"}]


def test_limit_in_rows(tables: Tables) -> None:
    path = tables.create("numbers", NUMBERS, bucket_count=2)
    for start in range(0, 900, 100):
        tables.append(path, start, start + 100)
    stream = tables.stream(path, maxRowsPerTrigger="200")
    steps = []
    while ids := stream.ids():
        steps.append(ids)
    assert max(map(len, steps)) <= 200
    assert len(steps) == 5
    assert sorted(id for step in steps for id in step) == list(range(900))


def test_limit_in_bytes(tables: Tables) -> None:
    path = tables.create("numbers", NUMBERS)
    for start in range(0, 5_000, 1_000):
        tables.append(path, start, start + 1_000, name="x" * 88)  # 100 bytes with id and offset
    stream = tables.stream(path, maxBytesPerTrigger="150000")
    sizes = []
    while ids := stream.ids():
        sizes.append(len(ids))
    assert sum(sizes) == 5_000
    assert all(1_400 <= size <= 1_600 for size in sizes[:-1])
    narrow = tables.stream(path, columns="id", maxBytesPerTrigger="16000")
    assert 1_800 <= len(narrow.ids()) <= 2_100


def test_limit_that_the_reader_keeps_itself(tables: Tables, caplog: pytest.LogCaptureFixture) -> None:
    """As with Spark below 4.2, which says neither where a micro-batch begins nor how large it may be."""
    path = tables.create("numbers", NUMBERS)
    tables.append(path, 0, 100)
    options = SourceOptions.parse({"bootstrap.servers": tables.address, "table": str(path), "maxRowsPerTrigger": "40"})
    schema = spark_schema(tables.admin.get_table_info(path).schema)
    reader = RememberingStreamReader(options, schema)
    ends = [reader.latestOffset() for _ in range(4)]
    assert [end["offsets"] for end in ends] == [[40], [80], [100], [100]]
    assert [record.getMessage().count("Trigger.AvailableNow") for record in caplog.records] == [1]
    again = RememberingStreamReader(options, schema)
    assert again.partitions(ends[0], ends[0]) == []
    assert again.latestOffset()["offsets"] == [80]


def test_large_micro_batches_are_cut_into_parts(tables: Tables) -> None:
    path = tables.create("numbers", NUMBERS)
    for start in range(0, 1_000, 100):
        tables.append(path, start, start + 100)
    stream = tables.stream(path, **{"scan.maxRecordsPerPartition": "250"})
    assert stream.ids() == list(range(1_000))
    assert stream.part_count == 4


@pytest.mark.parametrize("changelog", ["false", "true"])
def test_a_bucket_is_one_part_however_long_its_backlog_is(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, changelog: str
) -> None:
    """Its rows reach a table that they are upserted into in their order."""
    monkeypatch.setattr(log_ranges, "PART_ROWS_MIN", 10)
    path = tables.create("keyed", KEYED)
    stream = tables.stream(path, changelog=changelog, **{"scan.startup.mode": "earliest"})
    for value in range(100):
        tables.upsert(path, {"id": 1, "value": value})
    rows = stream.step()
    assert stream.part_count == 1
    assert [row["value"] for row in rows if row.get("_change_type") != "-U"] == list(range(100))


def test_the_end_that_was_fixed_is_reached_and_not_passed(tables: Tables) -> None:
    path = tables.create("sales", SALES, partition_keys=["day"])
    tables.admin.create_partition(path, {"day": "d1"})
    tables.append(path, 0, 50, day="d1")
    stream = tables.stream(path, maxRowsPerTrigger="30")
    stream.reader.prepare_to_end()
    tables.append(path, 50, 60, day="d1")
    tables.admin.create_partition(path, {"day": "d2"})
    tables.append(path, 60, 70, day="d2")
    assert [len(stream.ids()) for _ in range(3)] == [30, 20, 0]
    assert stream.end == stream.begin
    stream.restart()
    assert stream.ids() == list(range(50, 70))


def test_partitions_come_and_go(tables: Tables) -> None:
    path = tables.create("sales", SALES, bucket_count=2, partition_keys=["day"])
    stream = tables.stream(path, **{"scan.startup.mode": "latest"})
    assert stream.ids() == []
    tables.admin.create_partition(path, {"day": "d1"})
    assert stream.ids() == []
    assert stream.end == stream.begin  # an empty partition is no news
    tables.append(path, 0, 10, day="d1")
    assert stream.ids() == list(range(10))
    tables.admin.create_partition(path, {"day": "d2"})
    tables.append(path, 10, 20, day="d2")
    tables.admin.drop_partition(path, {"day": "d1"})
    stream.restart()
    assert stream.ids() == list(range(10, 20))
    assert len(stream.end["dropped"]) == 1
    assert stream.ids() == []
    assert stream.end == stream.begin
    tables.admin.create_partition(path, {"day": "d1"})
    tables.append(path, 20, 25, day="d1")
    assert stream.ids() == list(range(20, 25))
    assert "dropped" not in stream.end


def test_a_partition_that_is_dropped_after_planning_ends(tables: Tables) -> None:
    path = tables.create("sales", SALES, partition_keys=["day"])
    for day in ("d1", "d2"):
        tables.admin.create_partition(path, {"day": day})
        tables.append(path, 0, 10, day=day)
    stream = tables.stream(path)
    end = stream.reader.next_offset(stream.begin, is_limited=False)
    gone, kept = stream.reader.partitions(stream.begin, end)
    tables.admin.drop_partition(path, {"day": "d1"})
    assert [batch.num_rows for batch in stream.reader.read(gone)] == []
    assert [batch.num_rows for batch in stream.reader.read(kept)] == [10]
    assert len(stream.reader.partitions(stream.begin, end)) == 1


def test_one_of_many_partitions_that_is_dropped_after_planning_ends(tables: Tables) -> None:
    path = tables.create("sales", SALES, partition_keys=["day"])
    for number in range(40):
        tables.admin.create_partition(path, {"day": f"d{number}"})
        tables.append(path, number, number + 1, day=f"d{number}")
    stream = tables.stream(path)
    end = stream.reader.next_offset(stream.begin, is_limited=False)
    parts = stream.reader.partitions(stream.begin, end)
    assert len(parts) < 5
    tables.admin.drop_partition(path, {"day": "d7"})
    found = [row["id"] for part in parts for batch in stream.reader.read(part) for row in batch.to_pylist()]
    assert sorted(found) == [number for number in range(40) if number != 7]


def test_chosen_partitions(tables: Tables) -> None:
    path = tables.create("sales", SALES, partition_keys=["day"])
    for day in ("d1", "d2"):
        tables.admin.create_partition(path, {"day": day})
    stream = tables.stream(path, partitions="day=d2, day=d3")
    for number, day in enumerate(("d1", "d2")):
        tables.append(path, number, number + 1, day=day)
    assert stream.ids() == [1]
    tables.admin.create_partition(path, {"day": "d3"})
    tables.append(path, 2, 3, day="d3")
    assert stream.ids() == [2]


def test_current_rows_then_changes(tables: Tables) -> None:
    path = tables.create("keyed", KEYED)
    tables.upsert(path, {"id": 1, "value": 1}, {"id": 2, "value": 2}, {"id": 1, "value": 10})
    images, changes = tables.stream(path), tables.stream(path, changelog="true")
    rows = images.step()
    assert [(row["id"], row["value"]) for row in rows] == [(1, 10), (2, 2)]
    rows = changes.step()
    assert [(row["_change_type"], row["id"], row["value"]) for row in rows] == [("+I", 1, 10), ("+I", 2, 2)]
    tables.upsert(path, {"id": 3, "value": 3}, {"id": 2, "value": 20})
    tables.delete(path, {"id": 1, "value": None})
    # However late the first micro-batch runs again, it has the rows of its offset.
    assert [(row["id"], row["value"]) for row in images.again()] == [(1, 10), (2, 2)]
    assert [(row["id"], row["value"]) for row in images.step()] == [(3, 3), (2, 20)]
    found = [(row["_change_type"], row["id"], row["value"]) for row in changes.step()]
    assert found == [("+I", 3, 3), ("-U", 2, 2), ("+U", 2, 20), ("-D", 1, 10)]


def test_changes_of_a_table_that_was_empty(tables: Tables) -> None:
    path = tables.create("keyed", KEYED)
    stream = tables.stream(path, changelog="true")
    assert stream.step() == []
    tables.upsert(path, {"id": 1, "value": 1})
    tables.upsert(path, {"id": 1, "value": 2})
    assert [row["_change_type"] for row in stream.step()] == ["+I", "-U", "+U"]


@pytest.mark.parametrize(("mode", "expected"), [("earliest", ["+I", "-U", "+U"]), ("latest", [])])
def test_changes_without_current_rows(tables: Tables, mode: str, expected: list[str]) -> None:
    path = tables.create("keyed", KEYED)
    tables.upsert(path, {"id": 1, "value": 1}, {"id": 1, "value": 2})
    stream = tables.stream(path, changelog="true", columns="_change_type", **{"scan.startup.mode": mode})
    assert [row["_change_type"] for row in stream.step()] == expected
    tables.delete(path, {"id": 1, "value": None})
    assert stream.step() == [{"_change_type": "-D"}]


def test_current_rows_of_partitions_with_a_limit(tables: Tables) -> None:
    path = tables.create("keyed", KEYED_BY_DAY, partition_keys=["day"])
    for day in ("d1", "d2", "d3"):
        tables.admin.create_partition(path, {"day": day})
        tables.upsert(path, *({"id": number, "day": day, "value": number} for number in range(20)))
    stream = tables.stream(path, maxRowsPerTrigger="40")
    assert [row["day"] for row in stream.step()] == ["d1"] * 20 + ["d2"] * 20
    tables.upsert(path, {"id": 5, "day": "d1", "value": 50})
    tables.admin.create_partition(path, {"day": "d4"})
    tables.upsert(path, {"id": 1, "day": "d4", "value": 1})
    rows = stream.step()
    assert [row["day"] for row in rows] == ["d3"] * 20 + ["d4", "d1"]
    assert rows[-1]["value"] == 50
    assert stream.step() == []


def test_a_table_that_was_made_anew_is_another_one(tables: Tables) -> None:
    path = tables.create("numbers", NUMBERS)
    tables.append(path, 0, 10)
    stream = tables.stream(path)
    assert len(stream.ids()) == 10
    tables.admin.drop_table(path)
    tables.create("numbers", NUMBERS)
    stream.restart()
    for call in (stream.step, lambda: stream.reader.partitions(stream.end, {**stream.end, "offsets": [20]})):
        with pytest.raises(InvalidRequestError, match=r"was dropped and created again.*new checkpoint"):
            call()


def test_a_position_of_another_release(tables: Tables) -> None:
    stream = tables.stream(tables.create("numbers", NUMBERS))
    stream.end = {**stream.end, "version": 2}
    with pytest.raises(InvalidRequestError, match="is of version 2, and this release knows version 1"):
        stream.step()


def test_a_checkpoint_of_another_stream(tables: Tables) -> None:
    first, second = (tables.stream(tables.create(name, NUMBERS)) for name in ("first", "second"))
    second.end = first.end
    with pytest.raises(
        InvalidRequestError, match=r"\.second was .*or the checkpoint is that of another stream: it is of"
    ):
        second.step()
    second.end = {"offset": 3}
    with pytest.raises(InvalidRequestError, match=r"no position of \S+\.second: it is that of a stream from another"):
        second.step()


def test_a_log_that_is_shorter_than_what_was_read(tables: Tables) -> None:
    stream = tables.stream(tables.create("numbers", NUMBERS))
    stream.end = {**stream.end, "offsets": [5]}
    with pytest.raises(InvalidRequestError, match="bucket 0, ends at offset 0, but the stream knows rows up to 5"):
        stream.step()


def test_a_log_that_expired(tmp_path: Path, new_name: Callable[[str], str]) -> None:
    settings = tmp_path / "fluss.toml"
    settings.write_text('"log.segment.file-size" = 1000\n"log.retention.check-interval-ms" = 5\n')
    with FlussServer(tmp_path / "data", args=["--config", str(settings)]) as server:
        for tables in _tables(server, new_name("expired")):
            path = tables.create("numbers", NUMBERS)
            tables.append(path, 0, 100)
            stream = tables.stream(path, maxRowsPerTrigger="40")
            assert len(stream.ids()) == 40
            tables.admin.alter_table(path, set_properties={"log.retention.size-bytes": "1"})
            while tables.admin.list_offsets(path, [0], offset_type="earliest")[0] < 100:
                tables.append(path, 100, 200)
            text = r"bucket 0, expired before the stream read them: it is at offset 40 of 80, .*begins at \d+ now"
            with pytest.raises(InvalidRequestError, match=text):
                stream.step()


@pytest.mark.compat
def test_apache_fluss(apache_fluss: ApacheFluss, new_name: Callable[[str], str]) -> None:
    for tables in _tables(apache_fluss, new_name("steps")):
        path = tables.create("sales", SALES, bucket_count=2, partition_keys=["day"])
        keyed = tables.create("keyed", KEYED)
        stream = tables.stream(path, maxRowsPerTrigger="8", filter="id <> 3")
        for number, day in enumerate(("d1", "d2")):
            tables.admin.create_partition(path, {"day": day})
            tables.append(path, 10 * number, 10 * number + 10, day=day)
        found = stream.ids() + stream.ids() + stream.ids()
        assert sorted(found) == [number for number in range(20) if number != 3]
        tables.admin.drop_partition(path, {"day": "d1"})
        tables.append(path, 20, 25, day="d2")
        assert stream.ids() == list(range(20, 25))
        tables.upsert(keyed, {"id": 1, "value": 1}, {"id": 2, "value": 2}, {"id": 1, "value": 10})
        images, changes = tables.stream(keyed), tables.stream(keyed, changelog="true")
        assert [(row["id"], row["value"]) for row in images.step()] == [(1, 10), (2, 2)]
        assert [row["_change_type"] for row in changes.step()] == ["+I", "+I"]
        tables.delete(keyed, {"id": 2, "value": None})
        assert [(row["id"], row["value"]) for row in images.again()] == [(1, 10), (2, 2)]
        assert images.step() == []
        assert [row["_change_type"] for row in changes.step()] == ["-D"]

"""Streams that begin with the lake: each row once, the same rows when the first micro-batch is run again."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fluss.lake.options import LakeOptions
from fluss.model.trust import Trust
from fluss.sync import Config, FlussConnection, FlussError, InvalidRequestError, TablePath
from fluss.testing import FlussServer
from tests.spark.stream_steps import Steps
from tests.spark.union_steps import BY_DAY, KEYED, KEYED_BY_DAY, LOG, Unions

pytestmark = pytest.mark.spark


@pytest.fixture
def unions(spark_server: FlussServer, new_name: Callable[[str], str]) -> Iterator[Unions]:
    address = spark_server.bootstrap_servers
    with FlussConnection.create(Config({"bootstrap.servers": address})) as connection:
        yield Unions(address, connection, TablePath("fluss", new_name("union")))


def run_again(stream: Steps) -> list[dict[str, Any]]:
    """The last micro-batch as a new driver runs it when it was the first: Spark has not kept where that began."""
    stream.restart()
    stream.begin = json.loads(json.dumps(stream.reader.initialOffset()))
    return stream.again()


def test_history_and_then_the_log(unions: Unions) -> None:
    unions.create(LOG, bucket_count=2)
    unions.append(0, 50)
    snapshot_id = unions.tier()
    unions.append(50, 10)
    stream = unions.stream()
    assert stream.begin["lake"] == snapshot_id
    assert stream.ids() == list(range(60))
    assert stream.ids() == []
    assert stream.end == stream.begin
    unions.append(60, 5)
    unions.tier()
    assert stream.ids() == list(range(60, 65))
    assert "lake" not in stream.end


def test_history_alone_is_news(unions: Unions) -> None:
    unions.create(LOG)
    unions.append(0, 50)
    unions.tier()
    stream = unions.stream(columns="id", filter="id < 20")
    assert stream.ids() == list(range(20))
    assert stream.ids() == []


def test_the_first_micro_batch_runs_again(unions: Unions) -> None:
    unions.create(LOG)
    unions.append(0, 50)
    unions.tier()
    unions.append(50, 10)
    stream = unions.stream(maxRowsPerTrigger="4")
    assert stream.ids() == list(range(54))  # the limit is the log's
    unions.append(60, 10)
    unions.tier()
    assert sorted(row["id"] for row in run_again(stream)) == list(range(54))
    assert stream.ids() == list(range(54, 58))


def test_an_end_that_was_asked_for_before_the_beginning(unions: Unions) -> None:
    unions.create(LOG)
    unions.append(0, 50)
    unions.tier()
    stream = unions.stream()
    assert stream.ids() == list(range(50))
    unions.append(50, 10)
    stream.restart()
    stream.begin = stream.end
    stream.end = json.loads(json.dumps(stream.reader.next_offset(stream.reader.initialOffset(), is_limited=False)))
    assert sorted(row["id"] for row in stream.again()) == list(range(50, 60))


def test_a_snapshot_that_was_expired(unions: Unions) -> None:
    unions.create(LOG)
    unions.append(0, 50)
    first = unions.tier()
    stream = unions.stream()
    assert stream.ids() == list(range(50))
    unions.append(50, 10)
    unions.tier()
    info = unions.connection.get_admin().get_table_info(unions.path)
    lake = LakeOptions.of(info, trust=Trust.of(unions.connection.config)).open().load_table(unions.path)
    assert lake is not None
    lake.expire([first])
    with pytest.raises(InvalidRequestError, match=f"to have snapshot {first} .* new checkpoint"):
        run_again(stream)


@pytest.mark.parametrize(
    "options", [{"scan.startup.mode": "earliest"}, {"lake.mode": "none"}, {"scan.startup.mode": "latest"}]
)
def test_streams_without_the_lake(unions: Unions, options: dict[str, str]) -> None:
    unions.create(LOG)
    unions.append(0, 10)
    unions.tier()
    stream = unions.stream(**options)
    assert "lake" not in stream.begin
    assert len(stream.ids()) == (0 if "latest" in options.values() else 10)


def test_a_stream_of_the_lake_alone(unions: Unions) -> None:
    unions.create(LOG)
    with pytest.raises(FlussError, match=r"'lake\.mode' can be 'only' in batch reads"):
        unions.stream(**{"lake.mode": "only"})


def test_partitions_that_went_and_come(unions: Unions) -> None:
    unions.create(BY_DAY, partition_keys=["day"])
    admin = unions.connection.get_admin()
    for number, day in enumerate(("d1", "d2")):
        admin.create_partition(unions.path, {"day": day})
        unions.write({"id": number, "day": day})
    unions.tier()
    admin.drop_partition(unions.path, {"day": "d1"})
    unions.write({"id": 10, "day": "d2"})
    admin.create_partition(unions.path, {"day": "d3"})
    unions.write({"id": 20, "day": "d3"})
    stream, one = unions.stream(), unions.stream(partitions="day=d2")
    assert stream.ids() == [0, 1, 10, 20]
    assert one.ids() == [1, 10]
    admin.create_partition(unions.path, {"day": "d4"})
    unions.write({"id": 30, "day": "d4"}, {"id": 11, "day": "d2"})
    assert stream.ids() == [11, 30]
    assert one.ids() == [11]


def test_keys_merged_and_then_changes(unions: Unions) -> None:
    unions.create(KEYED, bucket_count=2)
    unions.upsert(dict.fromkeys(range(10), "old"))
    unions.tier()
    unions.upsert({3: "new", 11: "new"})
    unions.delete({"id": 4})
    now = sorted([*((key, "old") for key in range(10) if key not in (3, 4)), (3, "new"), (11, "new")])
    stream, changes = unions.stream(), unions.stream(changelog="true")
    assert sorted((row["id"], row["name"]) for row in stream.step()) == now
    first = changes.step()
    assert sorted((row["id"], row["name"]) for row in first) == now
    assert {row["_change_type"] for row in first} == {"+I"}
    unions.upsert({3: "newer"})
    unions.tier()
    assert sorted((row["id"], row["name"]) for row in run_again(stream)) == now
    assert [(row["id"], row["name"]) for row in stream.step()] == [(3, "newer")]
    assert [(row["_change_type"], row["name"]) for row in changes.step()] == [("-U", "new"), ("+U", "newer")]


def test_keys_with_a_limit(unions: Unions) -> None:
    """However the changes since are cut into micro-batches, they lead from the lake's rows to the current ones."""
    unions.create(KEYED)
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    unions.upsert(dict.fromkeys(range(20), "old"))
    unions.tier()
    for turn in range(5):
        unions.upsert({chance.randrange(30): f"t{turn}" for _ in range(8)})
        unions.delete({"id": chance.randrange(30)})
    stream = unions.stream(changelog="true", maxRowsPerTrigger="7")
    found: dict[int, str] = {}
    while rows := stream.step():
        for row in rows:
            if row["_change_type"] in ("+I", "+U"):
                found[row["id"]] = row["name"]
            elif row["_change_type"] == "-D":
                del found[row["id"]]
    assert sorted(found.items()) == unions.sorted(**{"lake.mode": "none"})


def test_keys_without_the_rows_from_before_a_change(unions: Unions) -> None:
    unions.create(KEYED, properties={"table.changelog.image": "wal"})
    unions.upsert({1: "a", 2: "a"})
    unions.tier()
    unions.upsert({1: "b"})
    stream = unions.stream()
    assert sorted(row["name"] for row in stream.step()) == ["a", "b"]
    unions.upsert({2: "c"})
    assert sorted(row["name"] for row in run_again(stream)) == ["a", "b"]
    assert [row["name"] for row in stream.step()] == ["c"]


def test_keys_in_partitions(unions: Unions) -> None:
    unions.create(KEYED_BY_DAY, partition_keys=["day"])
    admin = unions.connection.get_admin()
    for day in ("d1", "d2", "d3"):
        admin.create_partition(unions.path, {"day": day})
        unions.write({"id": 1, "day": day, "name": "old"})
    unions.tier()
    unions.write({"id": 1, "day": "d2", "name": "new"})
    admin.drop_partition(unions.path, {"day": "d1"})
    admin.create_partition(unions.path, {"day": "d4"})
    unions.write({"id": 1, "day": "d4", "name": "new"})
    stream = unions.stream()
    expected = [("d1", "old"), ("d2", "new"), ("d3", "old"), ("d4", "new")]
    assert sorted((row["day"], row["name"]) for row in stream.step()) == expected
    admin.drop_partition(unions.path, {"day": "d2"})  # with it goes what came since it was tiered
    unions.write({"id": 2, "day": "d3", "name": "newer"})
    expected[1] = ("d2", "old")
    assert sorted((row["day"], row["name"]) for row in run_again(stream)) == expected
    assert [(row["day"], row["name"]) for row in stream.step()] == [("d3", "newer")]

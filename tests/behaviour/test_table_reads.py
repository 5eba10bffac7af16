"""Reading whole primary-key tables, and following their changes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import fluss
from fluss import col
from tests.behaviour.conftest import Client

COLUMNS = [("id", pa.int32()), ("name", pa.string()), ("age", pa.int64())]
CHANGE_COLUMNS = ["_change_type", "_log_offset", "_commit_timestamp"]
WAIT_MS = 2_000


def row(number: int, name: str, age: int) -> dict[str, Any]:
    return {"id": number, "name": name, "age": age}


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    return table.sort_by("id").to_pylist()


def fold(state: dict[int, dict[str, Any]], changes: pa.Table) -> None:
    """Apply changes to rows by id."""
    for change in changes.to_pylist():
        kind = change.pop("_change_type")
        change.pop("_log_offset")
        change.pop("_commit_timestamp")
        if kind in ("+I", "+U"):
            state[change["id"]] = change
        elif kind == "-D":
            assert state.pop(change["id"]) == change


@pytest.mark.feature("Primary keys: reading a whole table")
def test_current_rows(client: Client) -> None:
    table = client.create("t", COLUMNS, ["id"], bucket_count=3)
    assert client.do(table.new_scan().to_arrow()).num_rows == 0
    client.upsert(table, [row(n, f"n{n}", n) for n in range(500)])
    client.upsert(table, [row(n, "new", -n) for n in range(0, 500, 5)], deleted=[[n] for n in range(0, 500, 7)])
    expected = [row(n, "new", -n) if n % 5 == 0 else row(n, f"n{n}", n) for n in range(500) if n % 7 != 0]
    found = client.do(table.new_scan().to_arrow())
    assert found.schema.names == ["id", "name", "age"]
    assert sorted_rows(found) == expected
    assert sorted_rows(client.do(table.new_scan().filter(col("age") < 0).to_arrow())) == [
        each for each in expected if each["age"] < 0
    ]
    projected = client.do(table.new_scan().project_by_name(["age", "id"]).to_arrow())
    assert projected.schema.names == ["age", "id"]
    assert sorted_rows(projected) == [{"age": each["age"], "id": each["id"]} for each in expected]
    assert len(client.do(table.new_scan().to_pandas())) == len(expected)


@pytest.mark.feature("Primary keys: reading a whole table")
def test_offsets_say_where_the_changelog_goes_on(client: Client) -> None:
    table = client.create("t", COLUMNS, ["id"], bucket_count=2)
    client.upsert(table, [row(n, "a", n) for n in range(100)])
    rows, offsets = client.do(table.new_scan().to_arrow_with_offsets())
    assert rows.num_rows == 100
    assert set(offsets) == {fluss.TableBucket(table.get_table_info().table_id, bucket) for bucket in range(2)}
    client.upsert(table, [row(n, "b", n) for n in range(50)])
    scanner = client.do(table.new_scan().create_changelog_batch_scanner())
    scanner.subscribe_buckets({bucket.bucket_id: offset for bucket, offset in offsets.items()})
    state = {each["id"]: each for each in rows.to_pylist()}
    fold(state, client.do(scanner.to_arrow()))
    scanner.close()
    assert state == {n: row(n, "b" if n < 50 else "a", n) for n in range(100)}


@pytest.mark.feature("Primary keys: reading a whole table")
def test_a_log_table_is_read_whole(client: Client) -> None:
    table = client.create("log", COLUMNS, bucket_count=2)
    client.append(table, [row(n, "a", n) for n in range(100)])
    assert sorted_rows(client.do(table.new_scan().to_arrow())) == [row(n, "a", n) for n in range(100)]


@pytest.mark.feature("Primary keys: reading a whole table")
def test_partitions_are_read_together(client: Client) -> None:
    columns = [("id", pa.int32()), ("region", pa.string()), ("v", pa.int32())]
    table = client.create("parts", columns, ["id", "region"], partition_keys=["region"], bucket_count=2)
    path = table.get_table_path()
    assert client.do(table.new_scan().to_arrow()).num_rows == 0
    for region in ("US", "EU"):
        client.do(client.admin.create_partition(path, {"region": region}))
        client.backend.await_table(path.database_name, path.table_name, region)
    rows = [{"id": n, "region": region, "v": n} for region in ("EU", "US") for n in range(30)]
    client.upsert(table, rows)
    found = client.do(table.new_scan().to_arrow()).sort_by([("region", "ascending"), ("id", "ascending")])
    assert found.to_pylist() == rows


@pytest.mark.feature("Primary keys: limit scan")
def test_limit_scan(client: Client) -> None:
    table = client.create("t", COLUMNS, ["id"])
    client.upsert(table, [row(n, "a", n) for n in range(100)])
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    scanner = table.new_scan().limit(10).create_bucket_batch_scanner(bucket)
    found = client.do(scanner.to_arrow())
    assert found.num_rows == 10
    assert all(each == row(each["id"], "a", each["id"]) for each in found.to_pylist())
    everything = table.new_scan().project([2]).limit(10_000).create_bucket_batch_scanner(bucket)
    assert sorted(client.do(everything.to_arrow()).column("age").to_pylist()) == list(range(100))


@pytest.mark.feature("Primary keys: changelog")
def test_changes_as_arrow(client: Client) -> None:
    table = client.create("t", COLUMNS, ["id"])
    client.upsert(table, [row(1, "a", 1), row(1, "b", 2)], deleted=[[1]])
    scanner = client.do(table.new_scan().create_changelog_batch_scanner())
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    changes = client.do(scanner.to_arrow())
    scanner.close()
    assert changes.schema.names == [*CHANGE_COLUMNS, "id", "name", "age"]
    assert changes.column("_change_type").to_pylist() == ["+I", "-U", "+U", "-D"]
    assert changes.column("_log_offset").to_pylist() == [0, 1, 2, 3]
    assert changes.column("_commit_timestamp").null_count == 0
    assert [each["age"] for each in changes.to_pylist()] == [1, 1, 2, 2]
    projected = client.do(table.new_scan().project([1]).create_changelog_batch_scanner())
    projected.subscribe(0, 2)
    assert client.do(projected.to_arrow()).select(["_change_type", "name"]).to_pylist() == [
        {"_change_type": "+U", "name": "b"},
        {"_change_type": "-D", "name": "b"},
    ]
    projected.close()


@pytest.mark.feature("Primary keys: changelog")
def test_a_plain_batch_scanner_names_the_one_for_changes(client: Client) -> None:
    table = client.create("t", COLUMNS, ["id"])
    with pytest.raises(fluss.InvalidRequestError, match="create_changelog_batch_scanner"):
        client.do(table.new_scan().create_record_batch_log_scanner())


@pytest.mark.feature("Primary keys: changes from a snapshot on")
def test_changes_begin_with_current_rows_and_resume(client: Client) -> None:
    table = client.create("t", COLUMNS, ["id"], bucket_count=2)
    client.upsert(table, [row(n, "a", n) for n in range(50)], deleted=[[49]])
    state: dict[int, dict[str, Any]] = {}
    changes = table.changes(start="snapshot")
    while len(state) < 49:
        found = client.do(changes.poll(WAIT_MS))
        assert set(found.column("_change_type").to_pylist()) <= {"+I"}
        fold(state, found)
    position = fluss.ChangesPosition.from_json(changes.position.to_json())
    assert position == changes.position
    client.do(changes.close())
    client.upsert(table, [row(n, "b", n) for n in range(20)], deleted=[[n] for n in range(20, 30)])
    resumed = table.changes(start=position)
    expected = {n: row(n, "b" if n < 20 else "a", n) for n in range(49) if not 20 <= n < 30}
    while state != expected:
        fold(state, client.do(resumed.poll(WAIT_MS)))
    client.upsert(table, [row(99, "live", 99)])
    while 99 not in state:
        fold(state, client.do(resumed.poll(WAIT_MS)))
    client.do(resumed.close())


@pytest.mark.feature("Primary keys: changes from a snapshot on")
def test_changes_from_the_beginning_and_from_now_on(client: Client) -> None:
    table = client.create("t", COLUMNS, ["id"])
    client.upsert(table, [row(1, "a", 1), row(1, "b", 2)])
    latest = table.changes(start="latest")
    assert client.do(latest.poll(200)).num_rows == 0
    earliest = table.changes(start="earliest")
    kinds: list[str] = []
    while len(kinds) < 3:
        kinds += client.do(earliest.poll(WAIT_MS)).column("_change_type").to_pylist()
    assert kinds == ["+I", "-U", "+U"]
    client.upsert(table, [], deleted=[[1]])
    found = client.do(latest.poll(20_000))
    assert found.column("_change_type").to_pylist() == ["-D"]
    client.do(latest.close())
    client.do(earliest.close())

"""Looking rows up by key and by prefix."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

import fluss
from tests.behaviour.conftest import Client

COLUMNS = [("a", pa.int32()), ("b", pa.string()), ("c", pa.int64()), ("v", pa.string())]


def visits(client: Client, **options: Any) -> Any:
    return client.create("visits", COLUMNS, ["a", "b", "c"], bucket_keys=["a", "b"], bucket_count=3, **options)


def row(a: int, b: str, c: int) -> dict[str, Any]:
    return {"a": a, "b": b, "c": c, "v": f"{a}-{b}-{c}"}


@pytest.mark.feature("Primary keys: lookup")
def test_lookup_by_key(client: Client) -> None:
    table = visits(client)
    client.upsert(table, [row(a, b, c) for a in range(3) for b in "xy" for c in range(4)])
    lookuper = table.new_lookup().create_lookuper()
    assert client.do(lookuper.lookup({"a": 1, "b": "y", "c": 3})) == row(1, "y", 3)
    assert client.do(lookuper.lookup([2, "x", 0])) == row(2, "x", 0)
    assert client.do(lookuper.lookup((2, "x", 9))) is None
    assert client.do(lookuper.lookup(fluss.GenericRow.from_data([0, "x", 1]))) == row(0, "x", 1)
    assert client.do(table.new_lookup().lookup([0, "y", 2])) == row(0, "y", 2)


@pytest.mark.feature("Primary keys: lookup")
def test_many_lookups_at_once(client: Client) -> None:
    table = visits(client)
    client.upsert(table, [row(a, "x", 0) for a in range(0, 3_000, 2)])
    lookuper = table.new_lookup().create_lookuper()
    expected = [row(a, "x", 0) if a % 2 == 0 else None for a in range(3_000)]
    if client.api is fluss.sync:
        found = [lookuper.lookup([a, "x", 0]) for a in range(100)]
        assert found == expected[:100]
        return

    async def look() -> list[Any]:
        return await asyncio.gather(*(lookuper.lookup([a, "x", 0]) for a in range(3_000)))

    assert client.do(look()) == expected


@pytest.mark.feature("Primary keys: lookup")
def test_lookup_many_is_arrow_in_the_order_of_the_keys(client: Client) -> None:
    table = visits(client)
    client.upsert(table, [row(a, "x", 0) for a in range(100)])
    lookuper = table.new_lookup().create_lookuper()
    keys = [(5, "x", 0), (500, "x", 0), (5, "x", 0), (0, "x", 0)]
    expected = [row(5, "x", 0), dict.fromkeys("abcv"), row(5, "x", 0), row(0, "x", 0)]
    names = ("a", "b", "c")
    for form in (
        keys,
        [dict(zip(names, key, strict=True)) for key in keys],
        pa.Table.from_pylist([dict(zip(names, key, strict=True)) for key in keys]),
        pa.RecordBatch.from_pylist([dict(zip(names, key, strict=True)) for key in keys]),
    ):
        found = client.do(lookuper.lookup_many(form))
        assert found.schema.names == list("abcv")
        assert found.to_pylist() == expected
    assert client.do(lookuper.lookup_many([])).num_rows == 0


@pytest.mark.feature("Primary keys: prefix lookup")
def test_lookup_by_prefix(client: Client) -> None:
    table = visits(client)
    client.upsert(table, [row(a, b, c) for a in range(3) for b in "xy" for c in range(4)])
    lookuper = table.new_lookup().lookup_by(["a", "b"]).create_lookuper()
    assert sorted(client.do(lookuper.lookup([1, "y"])), key=lambda found: found["c"]) == [
        row(1, "y", c) for c in range(4)
    ]
    assert client.do(lookuper.lookup({"a": 9, "b": "y"})) == []
    assert client.do(lookuper.lookup_arrow((2, "x"))).num_rows == 4


@pytest.mark.feature("Primary keys: prefix lookup")
def test_lookup_by_prefix_in_a_partition(client: Client) -> None:
    columns = [("day", pa.string()), ("a", pa.int32()), ("b", pa.int32()), ("v", pa.int32())]
    table = client.create("days", columns, ["day", "a", "b"], partition_keys=["day"], bucket_keys=["a"], bucket_count=2)
    path = table.get_table_path()
    for day in ("mon", "tue"):
        client.do(client.admin.create_partition(path, {"day": day}))
        client.backend.await_table(path.database_name, path.table_name, day)
    client.upsert(table, [[day, a, b, a * b] for day in ("mon", "tue") for a in range(4) for b in range(3)])
    lookuper = table.new_lookup().lookup_by(["day", "a"]).create_lookuper()
    found = client.do(lookuper.lookup(["tue", 3]))
    assert sorted((each["b"], each["v"]) for each in found) == [(0, 0), (1, 3), (2, 6)]
    assert {each["day"] for each in found} == {"tue"}
    assert client.do(lookuper.lookup(["sun", 3])) == []


@pytest.mark.feature("Primary keys: prefix lookup")
@pytest.mark.parametrize("columns", [["b"], ["a"], ["b", "a"], ["a", "b", "c", "v"], ["a", "nope"], []])
def test_what_is_no_prefix_is_refused(client: Client, columns: list[str]) -> None:
    with pytest.raises(fluss.InvalidRequestError, match="prefix"):
        visits(client).new_lookup().lookup_by(columns).create_lookuper()


@pytest.mark.feature("Primary keys: lookup")
@pytest.mark.parametrize(
    ("key", "named"),
    [
        ({"a": 1, "b": "x"}, "c"),
        ({"a": 1, "b": None, "c": 1}, "b"),
        ({"a": "one", "b": "x", "c": 1}, "a"),
        ([1, "x"], "c"),
        ({"a": 1, "b": "x", "c": 1, "zz": 1}, "zz"),
    ],
)
def test_a_bad_key_is_refused(client: Client, key: Any, named: str) -> None:
    lookuper = visits(client).new_lookup().create_lookuper()
    with pytest.raises(fluss.FlussError, match=named):
        client.do(lookuper.lookup(key))


@pytest.mark.feature("Primary keys: insert if not exists")
def test_insert_if_not_exists(client: Client) -> None:
    table = client.create("ids", [("key", pa.string()), ("v", pa.int32())], ["key"])
    client.upsert(table, [["known", 1]])
    lookuper = table.new_lookup().enable_insert_if_not_exists().create_lookuper()
    assert client.do(lookuper.lookup(["known"])) == {"key": "known", "v": 1}
    assert client.do(lookuper.lookup(["new"])) == {"key": "new", "v": None}
    assert client.changes(table, 2) == [
        ("+I", {"key": "known", "v": 1}),
        ("+I", {"key": "new", "v": None}),
    ]

"""Looking rows up through the facades."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pyarrow as pa
import pytest

import fluss
import fluss.sync
from tests.unit.api.conftest import Client

COLUMNS = pa.schema([("a", pa.int32()), ("b", pa.string()), ("tags", pa.list_(pa.string())), ("v", pa.float64())])


def upsert(client: Client, table: Any, rows: list[Any]) -> None:
    writer = table.new_upsert().create_writer()
    for row in rows:
        writer.upsert(row)
    client.do(writer.flush())


def test_random_lookups_against_a_dict(client: Client) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    table = client.table(COLUMNS, ["a", "b"], bucket_count=4, bucket_keys=["b"])
    model: dict[tuple[int, str], dict[str, Any]] = {}
    lookuper = table.new_lookup().create_lookuper()
    for _ in range(5):
        rows = [
            {
                "a": rng.randrange(-300, 300),
                "b": rng.choice("uvw"),
                "tags": rng.choice([None, [], ["x", None]]),
                "v": 1.5,
            }
            for _ in range(200)
        ]
        upsert(client, table, rows)
        model |= {(row["a"], row["b"]): row for row in rows}
        keys = [(rng.randrange(-300, 300), rng.choice("uvw")) for _ in range(100)]
        expected = [model.get(key) for key in keys]
        assert [client.do(lookuper.lookup(key)) for key in keys[:20]] == expected[:20]
        empty = dict.fromkeys(COLUMNS.names)
        assert client.do(lookuper.lookup_many(keys)).to_pylist() == [row or empty for row in expected]


def test_both_forms(client: Client) -> None:
    table = client.table(COLUMNS, ["a"])
    upsert(client, table, [[1, "x", ["t"], 0.5]])
    builder = table.new_lookup()
    row = {"a": 1, "b": "x", "tags": ["t"], "v": 0.5}
    assert client.do(builder.lookup({"a": 1})) == client.do(builder.create_lookuper().lookup([1])) == row
    assert client.do(builder.lookup(fluss.GenericRow.from_data([2]))) is None
    assert client.do(builder.lookup_many([[1], [2]])).num_rows == 2
    assert repr(builder) == f"TableLookup({table.table_path})"
    assert repr(builder.create_lookuper()) == f"Lookuper({table.table_path}, by a)"


def test_prefixes(client: Client) -> None:
    table = client.table(COLUMNS, ["a", "b"], bucket_count=2, bucket_keys=["a"])
    upsert(client, table, [[a, b, [b], float(a)] for a in range(5) for b in "xyz"])
    by_prefix = table.new_lookup().lookup_by(["a"])
    lookuper = by_prefix.create_lookuper()
    expected = [{"a": 3, "b": b, "tags": [b], "v": 3.0} for b in "xyz"]
    assert client.do(lookuper.lookup([3])) == client.do(lookuper.lookup_arrow({"a": 3})).to_pylist() == expected
    assert client.do(lookuper.lookup([7])) == []
    assert repr(by_prefix) == f"TablePrefixLookup({table.table_path}, by a)"
    assert repr(lookuper) == f"PrefixLookuper({table.table_path}, by a)"
    with pytest.raises(fluss.SchemaMismatchError, match="'b' is not part of the prefix, which is a"):
        client.do(lookuper.lookup({"a": 3, "b": "x"}))


def test_what_is_refused(client: Client) -> None:
    with pytest.raises(fluss.InvalidRequestError, match="log table"):
        client.table(COLUMNS).new_lookup()
    table = client.table(COLUMNS, ["a", "b"], bucket_keys=["b"], bucket_count=2)
    with pytest.raises(fluss.InvalidRequestError, match="does not begin with its bucket key"):
        table.new_lookup().lookup_by(["b"]).create_lookuper()
    with pytest.raises(fluss.InvalidRequestError, match="list of column names"):
        table.new_lookup().lookup_by("ab")
    with pytest.raises(fluss.InvalidRequestError, match="don't insert"):
        table.new_lookup().enable_insert_if_not_exists().lookup_by(["b"])


def test_inserting(client: Client) -> None:
    table = client.table(COLUMNS, ["a", "b"], bucket_count=2)
    builder = table.new_lookup().enable_insert_if_not_exists()
    row = {"a": 1, "b": "x", "tags": None, "v": None}
    assert client.do(builder.create_lookuper().lookup([1, "x"])) == row
    assert client.do(table.new_lookup().lookup([1, "x"])) == row
    found = client.do(builder.lookup_many([[2, "y"], [1, "x"], [2, "y"]]))
    assert found.column("a").to_pylist() == [2, 1, 2]
    assert client.do(table.new_lookup().lookup([2, "y"])) is not None


def test_lookups_of_several_tables_side_by_side(client: Client) -> None:
    tables = [client.table(COLUMNS, ["a"]) for _ in range(3)]
    for number, table in enumerate(tables):
        upsert(client, table, [[a, str(number), None, None] for a in range(50)])
    lookups = [table.new_lookup() for table in tables]
    if client.facade is fluss.sync:
        assert [lookups[a % 3].lookup([a])["b"] for a in range(50)] == [str(a % 3) for a in range(50)]
        return

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*(lookups[a % 3].lookup([a]) for a in range(50)))

    assert [row["b"] for row in client.do(all_at_once())] == [str(a % 3) for a in range(50)]

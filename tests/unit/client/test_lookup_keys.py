from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa
import pytest

from fluss.client.lookup.pending import LookupKeys
from fluss.formats.rows.keys import primary_key_encoder
from fluss.model.config import Config
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import SchemaMismatchError
from fluss.model.infos import TableInfo
from fluss.model.paths import TablePath
from fluss.model.schema import Schema
from fluss.model.types import DataTypes

COLUMNS = pa.schema([("id", pa.int32()), ("name", pa.string()), ("ts", pa.int64()), ("v", pa.string())])


def keys_of(
    primary_keys: list[str], buckets: int = 1, schema: pa.Schema = COLUMNS, bucket_hash: str = "java", **options: Any
) -> LookupKeys:
    descriptor = TableDescriptor(Schema(schema, primary_keys), bucket_count=buckets, **options)
    info = TableInfo(TablePath("db", "t"), 1, 1, descriptor, buckets, 0, 0)
    config = Config({"bucket-hash": bucket_hash})
    return LookupKeys(info, config, primary_keys, primary_key_encoder(descriptor), "primary key")


def test_keys_and_buckets_of_java() -> None:
    for buckets, bucket in ((3, 1), (7, 1), (16, 9)):
        place = keys_of(["id", "name", "ts"], buckets).place([1, "a", 3])
        assert place == (None, bucket, bytes.fromhex("01016103"))
    keys = keys_of(["id", "ts"], 16, bucket_keys=["id"])
    assert keys.place({"ts": 3, "id": 1}) == (None, 12, b"\x01\x03")
    swapped = keys_of(["id", "ts"], 16, bucket_keys=["ts", "id"])
    assert swapped.place([1, 3]) == (None, keys_of(["ts", "id"], 16).place([3, 1])[1], b"\x01\x03")


@pytest.mark.parametrize("lake", [None, "PAIMON", "ICEBERG", "LANCE"])
@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("bucket_keys", [["id"], None])
def test_one_by_one_as_all_at_once(lake: str | None, version: str, bucket_keys: list[str] | None) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    primary_keys = ["id"] if lake == "ICEBERG" and (bucket_keys is None or version == "1") else ["id", "ts"]
    properties = {"table.kv.format-version": version} | ({"table.datalake.format": lake} if lake else {})
    keys = keys_of(primary_keys, 7, bucket_keys=bucket_keys, properties=properties)
    rows = [
        [rng.randrange(-(1 << 31), 1 << 31), rng.randrange(-(1 << 63), 1 << 63)][: len(primary_keys)] for _ in range(50)
    ]
    count, parts = keys.parts(rows, 4)
    assert count == len(rows)
    assert all(len(part.keys) <= 4 for part in parts)
    found = {
        position: (part.partition, part.bucket, key)
        for part in parts
        for position, key in zip(part.positions.tolist(), part.keys, strict=True)
    }
    assert [found[position] for position in range(len(rows))] == [keys.place(row) for row in rows], f"seed {seed}"


@pytest.mark.parametrize(
    ("arrow_type", "value", "text"),
    [
        (pa.string(), "US", "US"),
        (pa.int32(), -5, "-5"),
        (pa.bool_(), True, "true"),
        (pa.date32(), dt.date(2025, 5, 27), "2025-05-27"),
        (pa.timestamp("ms"), dt.datetime(2025, 5, 31, 3, 42, 35, 100_000), "2025-05-31-03-42-35_1"),
        (pa.float64(), 1.0, "1_0"),
        (pa.binary(), b"\x0a\xff", "0aff"),
    ],
)
def test_partition_names(arrow_type: pa.DataType, value: Any, text: str) -> None:
    schema = pa.schema([("p", arrow_type), ("id", pa.int32())])
    keys = keys_of(["id", "p"], schema=schema, partition_keys=["p"])
    for row in ([1, value], {"p": value, "id": 1}, (1, value)):
        assert keys.place(row) == (text, 0, b"\x01")
    _, parts = keys.parts(pa.table({"id": [1], "p": pa.array([value], arrow_type)}), 10)
    assert [(part.partition, part.keys) for part in parts] == [(text, [b"\x01"])]


def test_pyfluss_buckets_when_asked_for() -> None:
    for number, java, pyfluss in ((128, 2, 7), (200, 6, 10), (300, 5, 11), (5_000, 15, 5)):
        for variant, bucket in (("java", java), ("pyfluss", pyfluss)):
            keys = keys_of(["id"], 16, bucket_hash=variant)
            assert keys.place([number])[1] == bucket
            assert [part.bucket for part in keys.parts([[number]], 1)[1]] == [bucket]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ({"id": 1}, "Column 'name' of the primary key .* is missing"),
        ({"id": 1, "name": None}, "'name' expects string NOT NULL, not null"),
        ({"id": "1", "name": "a"}, "'id' expects int NOT NULL, not str"),
        ({"id": 1 << 31, "name": "a"}, "'id' expects int NOT NULL .*does not fit"),
        ({"id": 1, "name": "a", "v": "x"}, "'v' is not part of the primary key, which is id, name"),
        ({"id": 1, "name": "a", 5: 1}, "5 is not part of the primary key"),
        ([1], "1 values for 2 columns .id, name"),
        ([1, None], "'name' expects string NOT NULL, not null"),
        ("ab", "must be a dict, list or tuple, not str"),
    ],
)
def test_bad_keys(key: Any, text: str) -> None:
    keys = keys_of(["id", "name"])
    with pytest.raises(SchemaMismatchError, match=text):
        keys.place(key)
    with pytest.raises(SchemaMismatchError, match=text):
        keys.parts([[1, "a"], key], 10)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (pa.table({"id": [1]}), "'name'"),
        (pa.table({"id": [1], "name": ["a"], "v": ["x"]}), "'v'"),
        (pa.table({"id": [1], "name": pa.array([None], pa.string())}), "'name'"),
        (pa.table({"id": ["x"], "name": ["a"]}), "'id'"),
        (7, "list of dicts, lists or tuples, or as Arrow"),
    ],
)
def test_bad_arrow_keys(data: Any, text: str) -> None:
    with pytest.raises(SchemaMismatchError, match=text):
        keys_of(["id", "name"]).parts(data, 10)


def test_a_type_that_is_not_known_by_arrow_alone() -> None:
    schema = Schema.builder().column("c", DataTypes.char(2).not_null()).primary_key(["c"]).build()
    descriptor = TableDescriptor(schema, bucket_count=1)
    info = TableInfo(TablePath("db", "t"), 1, 1, descriptor, 1, 0, 0)
    keys = LookupKeys(info, Config({}), ["c"], primary_key_encoder(descriptor), "primary key")
    assert keys.place(["ab"]) == (None, 0, b"\x02ab")
    with pytest.raises(SchemaMismatchError, match="up to 2 characters"):
        keys.place(["abc"])

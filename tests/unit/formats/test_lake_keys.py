"""Bucket keys and bucket functions of Paimon and Iceberg, against vectors of the Java classes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fluss.formats import _kernel, kernel
from fluss.formats.rows.keys import (
    ICEBERG,
    PAIMON,
    BucketHash,
    IcebergKeys,
    LakeBucketAssigner,
    PaimonKeys,
    assigner_for,
)
from fluss.model.errors import InvalidRequestError, SchemaMismatchError
from fluss.model.forms.arrow_types import arrow_field
from fluss.model.schema import Column
from fluss.model.types import DataType, DataTypes
from tests.kit.formats.vectors import KEY_COLUMNS

BUCKET_COUNTS = (3, 7, 16)
LONG = "longer than seven"
PAIMON_KEYS: list[tuple[dict[str, Any], str, tuple[int, ...]]] = [
    ({"id": 1}, "00000000000000000100000000000000", (1, 5, 14)),
    ({"name": "a"}, "00000000000000006100000000000081", (0, 5, 14)),
    ({"ts": 3}, "00000000000000000300000000000000", (1, 6, 9)),
    (
        {"id": 1, "name": "a", "ts": 3},
        "0000000000000000010000000000000061000000000000810300000000000000",
        (1, 0, 1),
    ),
    ({"id": -5}, "0000000000000000fbffffff00000000", (2, 2, 7)),
    (
        {"name": LONG},
        "000000000000000011000000100000006c6f6e676572207468616e20736576656e00000000000000",
        (0, 4, 4),
    ),
    ({"ts": 1234567890123}, "0000000000000000cb04fb711f010000", (0, 1, 12)),
]
ICEBERG_KEYS: list[tuple[dict[str, Any], str, tuple[int, ...]]] = [
    ({"id": 1}, "0100000000000000", (2, 5, 4)),
    ({"name": "a"}, "61", (2, 4, 2)),
    ({"ts": 3}, "0300000000000000", (0, 1, 3)),
    ({"id": -5}, "fbffffffffffffff", (2, 4, 14)),
    ({"name": LONG}, LONG.encode().hex(), (1, 3, 10)),
    ({"ts": 1234567890123}, "cb04fb711f010000", (2, 5, 14)),
]


def batch_of(columns: list[Column], *rows: dict[str, Any]) -> pa.RecordBatch:
    schema = pa.schema([arrow_field(column.name, column.data_type) for column in columns])
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


@pytest.mark.parametrize(("key", "encoded", "expected"), PAIMON_KEYS)
def test_paimon(key: dict[str, Any], encoded: str, expected: tuple[int, ...]) -> None:
    columns = [KEY_COLUMNS[name] for name in key]
    batch = batch_of(columns, key, key)
    assert PaimonKeys(columns).encode(batch).to_pylist() == [bytes.fromhex(encoded)] * 2
    for count, bucket in zip(BUCKET_COUNTS, expected, strict=True):
        assert LakeBucketAssigner(columns, count, PAIMON).assign(batch).to_pylist() == [bucket] * 2


@pytest.mark.parametrize(("key", "encoded", "expected"), ICEBERG_KEYS)
def test_iceberg(key: dict[str, Any], encoded: str, expected: tuple[int, ...]) -> None:
    columns = [KEY_COLUMNS[name] for name in key]
    batch = batch_of(columns, key, key)
    assert IcebergKeys(columns).encode(batch).to_pylist() == [bytes.fromhex(encoded)] * 2
    for count, bucket in zip(BUCKET_COUNTS, expected, strict=True):
        assert LakeBucketAssigner(columns, count, ICEBERG).assign(batch).to_pylist() == [bucket] * 2


def key_of(data_type: DataType, value: Any, lake_format: str) -> str:
    column = Column("k", data_type)
    encoder = IcebergKeys([column]) if lake_format == ICEBERG else PaimonKeys([column])
    # A slice: buffers of a part of an array begin elsewhere.
    (encoded,) = encoder.encode(batch_of([column], {"k": value}, {"k": value}).slice(1)).to_pylist()
    return str(encoded.hex())


@pytest.mark.parametrize(
    ("data_type", "value", "iceberg", "paimon_slots"),
    [
        (DataTypes.float(), 1.5, "0000c03f", "0000c03f00000000"),
        (DataTypes.double(), -2.5, "00000000000004c0", "00000000000004c0"),
        (DataTypes.date(), dt.date(1969, 12, 31), "ffffffffffffffff", "ffffffff00000000"),
        (DataTypes.time(3), dt.time(1, 30, 2, 199000), f"{5402199000:016x}", "576e520000000000"),
        (DataTypes.timestamp(3), dt.datetime(1970, 1, 1, 0, 0, 1, 5000), f"{1005000:016x}", "ed03000000000000"),
        (DataTypes.timestamp(6), dt.datetime(1970, 1, 1, 0, 0, 1, 5001), f"{1005001:016x}", None),
        (DataTypes.decimal(10, 2), Decimal("123.45"), "3039", "3930000000000000"),
        (DataTypes.decimal(20, 2), Decimal("-1.28"), "80", None),
        (DataTypes.decimal(20, 2), Decimal("1.28"), "0080", None),
        (DataTypes.bytes(), b"\xff\x00", "ff00", "ff00000000000082"),
        (DataTypes.binary(8), b"12345678", b"12345678".hex(), None),
    ],
)
def test_other_types(data_type: DataType, value: Any, iceberg: str, paimon_slots: str | None) -> None:
    little = bytes.fromhex(iceberg)
    if data_type.root.name in ("TIME", "TIMESTAMP"):
        little = little[::-1]
    assert key_of(data_type, value, ICEBERG) == little.hex()
    if paimon_slots is not None:
        assert key_of(data_type, value, PAIMON) == "00" * 8 + paimon_slots


def test_what_lies_behind_the_slots_of_a_paimon_key() -> None:
    big = key_of(DataTypes.decimal(20, 2), Decimal("-1.28"), PAIMON)
    assert big == "00" * 8 + "0100000010000000" + "80" + "00" * 15
    time = key_of(DataTypes.timestamp(9), dt.datetime(1970, 1, 1, 0, 0, 1, 5001), PAIMON)
    assert time == "00" * 8 + f"{1000:08x}"[6:8] + f"{1000:08x}"[4:6] + "0000" + "10000000" + "ed03000000000000"
    mixed = [Column("a", DataTypes.string()), Column("b", DataTypes.int()), Column("c", DataTypes.bytes())]
    (row,) = PaimonKeys(mixed).encode(batch_of(mixed, {"a": "12345678", "b": 7, "c": b"123456789"})).to_pylist()
    assert row[8:32].hex() == "0800000020000000" + "0700000000000000" + "0900000028000000"
    assert row[32:] == b"12345678" + b"123456789" + bytes(7)


@pytest.mark.parametrize("lake_format", [PAIMON, ICEBERG])
def test_nulls_and_empty_batches(lake_format: str) -> None:
    for data_type in (DataTypes.string(), DataTypes.int()):
        column = Column("k", data_type)
        assigner = LakeBucketAssigner([column], 4, lake_format)
        assert assigner.assign(batch_of([column])).to_pylist() == []
        with pytest.raises(SchemaMismatchError, match="'k'"):
            assigner.assign(batch_of([column], {"k": None}))


def test_what_has_no_bucket_function() -> None:
    with pytest.raises(InvalidRequestError, match="one bucket key"):
        IcebergKeys([KEY_COLUMNS["id"], KEY_COLUMNS["ts"]])
    with pytest.raises(InvalidRequestError, match="'k' of type boolean"):
        IcebergKeys([Column("k", DataTypes.boolean())])
    with pytest.raises(InvalidRequestError, match="HUDI"):
        assigner_for([KEY_COLUMNS["id"]], 4, "HUDI", BucketHash.JAVA)


@pytest.mark.parametrize("iceberg", [True, False])
def test_the_kernels_agree(iceberg: bool) -> None:
    keys = pa.array([bytes(range(256 - length, 256)) for length in range(40)] * 3, pa.binary())
    _, offsets, data = keys.buffers()
    arguments = memoryview(data).cast("B"), memoryview(offsets).cast("B"), len(keys), 1_000_003, iceberg
    assert kernel.lake_buckets(*arguments) == _kernel.lake_buckets(*arguments)

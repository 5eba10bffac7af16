"""Partition values as text; the expected texts were written by the Java classes unless noted."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from fluss.formats.rows.keys import partition_names, value_text
from fluss.model.errors import SchemaMismatchError
from fluss.model.schema import Column
from fluss.model.types import DataType, DataTypes

NOON = dt.datetime(2025, 5, 31, 3, 42, 35)


@pytest.mark.parametrize(
    ("data_type", "value", "text"),
    [
        (DataTypes.string(), "US-1_a", "US-1_a"),
        (DataTypes.char(3), "abc", "abc"),
        (DataTypes.boolean(), True, "true"),
        (DataTypes.tinyint(), -2, "-2"),
        (DataTypes.bigint(), 1 << 62, str(1 << 62)),
        (DataTypes.bytes(), b"\x01\xff", "01ff"),
        (DataTypes.binary(2), b"\x01\xff", "01ff"),
        (DataTypes.date(), dt.date(2025, 5, 27), "2025-05-27"),
        (DataTypes.time(3), dt.time(1, 30, 2, 199_000), "01-30-02_199"),
        (DataTypes.time(0), dt.time(1, 30, 2), "01-30-02_000"),
        (DataTypes.time(9), dt.time(23, 59, 59, 999_999), "23-59-59_999"),
        (DataTypes.timestamp(3), NOON.replace(microsecond=428_000), "2025-05-31-03-42-35_428"),
        (DataTypes.timestamp(3), NOON.replace(microsecond=100_000), "2025-05-31-03-42-35_1"),
        (DataTypes.timestamp_ltz(6), NOON.replace(microsecond=428_099), "2025-05-31-03-42-35_428099"),
        (DataTypes.timestamp(9), NOON, "2025-05-31-03-42-35_"),
        (DataTypes.timestamp(0), dt.datetime(1969, 12, 31, 23, 59, 59), "1969-12-31-23-59-59_"),
        (DataTypes.double(), 1.0, "1_0"),
        (DataTypes.double(), 1e10, "1_0E10"),
        (DataTypes.double(), 0.001, "0_001"),
        (DataTypes.double(), 0.00099, "9_9E-4"),
        (DataTypes.double(), 9_999_999.0, "9999999_0"),
        (DataTypes.double(), 1e7, "1_0E7"),
        (DataTypes.double(), -123.25, "-123_25"),
        (DataTypes.double(), 1.7976931348623157e308, "1_7976931348623157E308"),
        (DataTypes.double(), -0.0, "-0_0"),
        (DataTypes.double(), float("nan"), "NaN"),
        (DataTypes.float(), float("inf"), "Inf"),
        (DataTypes.float(), float("-inf"), "-Inf"),
        (DataTypes.float(), 1.1, "1_1"),
        (DataTypes.float(), 16_777_216.0, "1_6777216E7"),
    ],
)
def test_texts(data_type: DataType, value: Any, text: str) -> None:
    assert value_text(data_type, value) == text


def test_names_of_rows() -> None:
    batch = pa.record_batch({"region": ["US", "EU", "US", "EU"], "n": pa.array([1, 1, 2, 1], pa.int32())})
    columns = [Column("region", DataTypes.string()), Column("n", DataTypes.int())]
    indexes, names = partition_names(batch, columns)
    assert [names[index] for index in indexes.to_pylist()] == ["US$1", "EU$1", "US$2", "EU$1"]
    assert len(names) == 3
    indexes, names = partition_names(batch.slice(1, 2), columns[:1])
    assert [names[index] for index in indexes.to_pylist()] == ["EU", "US"]


def test_values_of_one_text_are_one_partition() -> None:
    batch = pa.record_batch({"t": pa.array([1, 1_001, 2, 1_999], pa.int64()).cast(pa.time64("us"))})
    indexes, names = partition_names(batch, [Column("t", DataTypes.time(6))])
    assert names == ["00-00-00_000", "00-00-00_001"]
    assert indexes.to_pylist() == [0, 1, 0, 1]


def test_null_and_decimal_are_refused_by_name() -> None:
    with pytest.raises(SchemaMismatchError, match="'region'"):
        partition_names(pa.record_batch({"region": ["US", None]}), [Column("region", DataTypes.string())])
    with pytest.raises(SchemaMismatchError, match="decimal"):
        value_text(DataTypes.decimal(5, 2), 1)

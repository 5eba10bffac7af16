"""Arrow batches between the table's layout and Spark's."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fluss.model.errors import SchemaMismatchError
from fluss.model.paths import TablePath
from fluss.spark.convert import to_spark, to_table

PATH = TablePath("shop", "orders")


def _batch(array: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([array], ["x"])


def _schema(arrow_type: pa.DataType, nullable: bool = True) -> pa.Schema:
    return pa.schema([pa.field("x", arrow_type, nullable)])


def test_a_batch_that_fits_is_passed_on_uncopied() -> None:
    batch = _batch(pa.array([1, 2], pa.int64()))
    assert to_spark(batch, _schema(pa.int64())) is batch


@pytest.mark.parametrize(
    ("nanoseconds", "microseconds"),
    [(1_999, 1), (1_000, 1), (0, 0), (-1, -1), (-1_000, -1), (-1_001, -2), (None, None)],
)
def test_nanoseconds_are_cut_downwards(nanoseconds: int | None, microseconds: int | None) -> None:
    batch = to_spark(_batch(pa.array([nanoseconds], pa.timestamp("ns"))), _schema(pa.timestamp("us")))
    assert batch.column(0).cast(pa.int64()).to_pylist() == [microseconds]


def test_coarser_times_become_microseconds() -> None:
    batch = to_spark(_batch(pa.array([1, -1], pa.timestamp("s", "UTC"))), _schema(pa.timestamp("us", "UTC")))
    assert batch.column(0).cast(pa.int64()).to_pylist() == [1_000_000, -1_000_000]


def test_sessions_in_other_time_zones_write_the_same_instants() -> None:
    batch = to_table(
        _batch(pa.array([1_999_999], pa.timestamp("us", "Asia/Tokyo"))), _schema(pa.timestamp("ms", "UTC")), PATH
    )
    assert batch.schema.field("x").type == pa.timestamp("ms", "UTC")
    assert batch.column(0).cast(pa.int64()).to_pylist() == [1_999]


def test_columns_are_reordered() -> None:
    batch = pa.RecordBatch.from_pydict({"b": [1], "a": ["x"]})
    schema = pa.schema([("a", pa.string()), ("b", pa.int64())])
    assert to_table(batch, schema, PATH).to_pydict() == {"a": ["x"], "b": [1]}


def test_null_in_a_column_without_nulls_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match=r"column 'x' of shop.orders can't be null; 1 of 2 rows"):
        to_table(_batch(pa.array([1, None], pa.int64())), _schema(pa.int64(), nullable=False), PATH)


def test_binary_of_another_length_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match=r"column 'x' can't be converted to fixed_size_binary\[3\]"):
        to_table(_batch(pa.array([b"ab"], pa.binary())), _schema(pa.binary(3)), PATH)


def test_time_out_of_a_nanosecond_columns_range_is_refused() -> None:
    year_3000_us = 32_503_680_000_000_000
    with pytest.raises(SchemaMismatchError, match="column 'x' can't be converted to timestamp"):
        to_table(_batch(pa.array([year_3000_us], pa.timestamp("us"))), _schema(pa.timestamp("ns")), PATH)

"""Arrow batches between the table's layout and Spark's."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from fluss.model.errors import SchemaMismatchError
from fluss.model.paths import TablePath
from fluss.spark.columns import to_spark, to_table

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
    with pytest.raises(SchemaMismatchError, match=r"column 'x' of shop.orders can't be null; 1 of 2 in a batch"):
        to_table(_batch(pa.array([1, None], pa.int64())), _schema(pa.int64(), nullable=False), PATH)


def test_binary_of_another_length_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match=r"column 'x' can't be converted to fixed_size_binary\[3\]"):
        to_table(_batch(pa.array([b"ab"], pa.binary())), _schema(pa.binary(3)), PATH)


def test_time_out_of_a_nanosecond_columns_range_is_refused() -> None:
    year_3000_us = 32_503_680_000_000_000
    with pytest.raises(SchemaMismatchError, match="column 'x' can't be converted to timestamp"):
        to_table(_batch(pa.array([year_3000_us], pa.timestamp("us"))), _schema(pa.timestamp("ns")), PATH)


REQUIRED = pa.field("n", pa.int64(), nullable=False)
ROWS = [
    None,
    {"at": [1_001, None, -1], "by": [("a", {"n": -1_001}), ("b", None)]},
    {"at": None, "by": []},
    {"at": [], "by": None},
    {"at": [5_999], "by": [("c", {"n": None})]},
]
CUT = [
    None,
    {"at": [1, None, -1], "by": [("a", {"n": -2}), ("b", None)]},
    {"at": None, "by": []},
    {"at": [], "by": None},
    {"at": [5], "by": [("c", {"n": None})]},
]


def _nested(leaf: pa.DataType) -> pa.DataType:
    return pa.struct([("at", pa.list_(leaf)), ("by", pa.map_(pa.string(), pa.struct([("n", leaf)])))])


@pytest.mark.parametrize("start", range(len(ROWS) + 1))
def test_leaves_of_nested_columns_are_converted_in_slices_too(start: int) -> None:
    given = pa.array(ROWS, _nested(pa.int64()))
    for view in (pa.timestamp("ns"), pa.timestamp("ns", "Asia/Tokyo")):
        batch = _batch(given.cast(_nested(view))).slice(start, 3)
        wanted = _nested(pa.timestamp("us", "UTC"))
        column = to_spark(batch, _schema(wanted)).column(0)
        column.validate(full=True)
        assert column.cast(_nested(pa.int64())).to_pylist() == CUT[start : start + 3]


def test_nested_columns_keep_their_buffers() -> None:
    given = pa.array([[1, 2], None, [3]], pa.list_(pa.field("element", pa.int64(), nullable=False)))
    column = to_table(_batch(given), _schema(pa.list_(pa.int64())), PATH).column(0)
    assert [buffer and buffer.address for buffer in column.buffers()] == [
        buffer and buffer.address for buffer in given.buffers()
    ]


@pytest.mark.parametrize(
    ("given", "wanted", "rows", "message"),
    [
        (pa.list_(pa.int64()), pa.list_(REQUIRED), [[1], None, [2, None]], "elements of column 'x' of shop.orders"),
        (
            pa.map_(pa.string(), pa.int64()),
            pa.map_(pa.string(), REQUIRED),
            [[("a", 1)], None, [("b", None)]],
            "values of column 'x' of shop.orders",
        ),
        (
            pa.struct([("n", pa.int64())]),
            pa.struct([REQUIRED]),
            [{"n": 1}, None, {"n": None}],
            "field 'n' of column 'x' of shop.orders",
        ),
    ],
    ids=["array", "map", "row"],
)
def test_null_inside_a_nested_value_without_nulls_is_refused(
    given: pa.DataType, wanted: pa.DataType, rows: list[Any], message: str
) -> None:
    batch, schema = _batch(pa.array(rows, given)), _schema(wanted)
    assert to_table(batch.slice(0, 2), schema, PATH).column(0).to_pylist() == rows[:2]
    for start in range(3):
        with pytest.raises(SchemaMismatchError, match=f"The {message} can't be null; 1 of"):
            to_table(batch.slice(start), schema, PATH)


@pytest.mark.parametrize(
    ("wanted", "stored"), [(pa.time32("s"), 1), (pa.time32("ms"), 1_234), (pa.time64("ns"), 1_234_567_000)]
)
def test_times_are_cut_at_the_columns_precision(wanted: pa.DataType, stored: int) -> None:
    batch = to_table(_batch(pa.array([1_234_567_000, None], pa.time64("ns"))), _schema(wanted), PATH)
    assert batch.column(0).type == wanted
    assert [value and value.value for value in batch.column(0)] == [stored, None]

from __future__ import annotations

from datetime import time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

from fluss.formats.rows.codecs import CompactedFormat
from fluss.formats.rows.python_rows import RowBuilder, to_tuples
from fluss.model.errors import CorruptDataError, SchemaMismatchError
from fluss.model.schema import Column, Schema
from fluss.model.types import DataTypes
from tests.kit.formats.strategies import tables
from tests.kit.formats.vectors import (
    AB_COLUMNS,
    COMPACTED_1_A,
    COMPACTED_MINUS_1_NULL,
    COMPACTED_WIDE,
    WIDE_COLUMNS,
    WIDE_ROW,
)

AB = CompactedFormat(AB_COLUMNS)


def _batch(columns: list[Column], rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    builder = RowBuilder(Schema.of(columns))
    for row in rows:
        builder.append(row)
    return builder.build()


def _as_stored(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows keep times of day as milliseconds, whatever the column's precision."""
    return [
        tuple(v.replace(microsecond=v.microsecond // 1000 * 1000) if isinstance(v, time) else v for v in row)
        for row in rows
    ]


def test_small_rows_are_what_java_writes() -> None:
    rows = [(1, "a"), (-1, None)]
    expected = [COMPACTED_1_A, COMPACTED_MINUS_1_NULL]
    assert AB.encode(_batch(AB_COLUMNS, rows)).to_pylist() == expected
    assert [AB.encode_row(row) for row in rows] == expected
    assert to_tuples(AB.decode(expected)) == rows


def test_wide_row_of_java_is_read_and_written_again() -> None:
    wide = CompactedFormat(WIDE_COLUMNS)
    batch = wide.decode([COMPACTED_WIDE])
    assert to_tuples(batch) == [WIDE_ROW]
    assert batch.column(18).cast(pa.int64()).to_pylist() == [1748662955428_099988]
    assert wide.encode(batch).to_pylist() == [COMPACTED_WIDE]


def test_wide_row_from_python_values() -> None:
    # All but the nanoseconds that a datetime can't carry: 99988 ns become 99000.
    columns, row = WIDE_COLUMNS[:18], WIDE_ROW[:18]
    expected = COMPACTED_WIDE[:2] + b"\0" + COMPACTED_WIDE[3 : -len(bytes.fromhex("a4dbbca3f232948d06"))]
    assert CompactedFormat(columns).encode_row(row) == expected


@given(table=tables())
def test_rows_come_back_as_they_went_in(table: tuple[list[Column], list[tuple[Any, ...]]]) -> None:
    columns, rows = table
    row_format = CompactedFormat(columns)
    encoded = row_format.encode(_batch(columns, rows))
    assert row_format.decode(encoded).equals(_batch(columns, _as_stored(rows)))
    assert [row_format.encode_row(row) for row in rows] == encoded.to_pylist()


@given(table=tables(nullable=False))
def test_keys_come_back_as_they_went_in(table: tuple[list[Column], list[tuple[Any, ...]]]) -> None:
    columns, rows = table
    keys = CompactedFormat(columns, with_null_bits=False)
    assert to_tuples(keys.decode(keys.encode(_batch(columns, rows)))) == _as_stored(rows)


def test_slices_are_encoded_from_where_they_begin() -> None:
    rows = [(i, None if i % 3 == 0 else f"text {i}") for i in range(50)]
    batch = _batch(AB_COLUMNS, rows)
    whole = AB.encode(batch).to_pylist()
    for start in (0, 1, 7, 8, 9, 49):
        assert AB.encode(batch.slice(start)).to_pylist() == whole[start:]
        assert to_tuples(AB.decode(AB.encode(batch).slice(start))) == rows[start:]


def test_time_of_day_keeps_milliseconds_only() -> None:
    columns = [Column("t", DataTypes.time(9))]
    batch = pa.RecordBatch.from_arrays([pa.array([1_999_999], pa.time64("ns"))], names=["t"])
    row_format = CompactedFormat(columns)
    assert row_format.encode(batch).to_pylist() == [b"\x00\x01"]
    assert row_format.decode([b"\x00\x01"]).column(0).cast(pa.int64()).to_pylist() == [1_000_000]


@pytest.mark.parametrize(
    ("nanoseconds", "expected"),
    [(-1, "ffffffffffffffffff01bf843d"), (-1_000_000, "ffffffffffffffffff0100"), (1, "0001"), (0, "0000")],
)
def test_timestamps_before_1970_are_floored(nanoseconds: int, expected: str) -> None:
    row_format = CompactedFormat([Column("t", DataTypes.timestamp(9))], with_null_bits=False)
    batch = pa.RecordBatch.from_arrays([pa.array([nanoseconds], pa.timestamp("ns"))], names=["t"])
    assert row_format.encode(batch).to_pylist() == [bytes.fromhex(expected)]
    assert row_format.decode([bytes.fromhex(expected)]).equals(
        pa.RecordBatch.from_arrays(batch.columns, schema=row_format.decode([]).schema)
    )


@pytest.mark.parametrize(
    ("unscaled", "expected"),
    [(0, "0100"), (127, "017f"), (128, "020080"), (-128, "0180"), (-129, "02ff7f"), (255, "0200ff"), (-1, "01ff")],
)
def test_wide_decimals_take_the_fewest_bytes(unscaled: int, expected: str) -> None:
    row_format = CompactedFormat([Column("d", DataTypes.decimal(38, 0))], with_null_bits=False)
    batch = _batch([Column("d", DataTypes.decimal(38, 0))], [(unscaled,)])
    assert row_format.encode(batch).to_pylist() == [bytes.fromhex(expected)]
    assert row_format.encode_row((unscaled,)) == bytes.fromhex(expected)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("", "too short for its null bits"),
        ("00", "ends inside a number"),
        ("0080", "ends inside a number"),
        ("0001", "ends inside a number"),
        ("00010261", "2 bytes announced, 1 are left"),
        ("0001016100", "1 bytes left over"),
        ("00ffffffff1f0161", "more than 32 bits"),
        ("00ffffffffff010161", "more than 32 bits"),
        ("0001ffffffff0f", "4294967295 bytes announced"),
        ("000101ff", "UTF8"),
    ],
)
def test_bytes_that_are_no_row(row: str, message: str) -> None:
    with pytest.raises(CorruptDataError, match=message):
        AB.decode([bytes.fromhex(row)])


@pytest.mark.parametrize(
    ("column", "row", "message"),
    [
        (Column("x", DataTypes.bigint()), "00ffffffffffffffffff02", "more than 64 bits"),
        (Column("x", DataTypes.decimal(3, 0)), "00e807", "1000 is outside"),
        (Column("x", DataTypes.decimal(38, 0)), "0011" + "00" * 17, "decimal of 17 bytes"),
        (Column("x", DataTypes.decimal(38, 0)), "0000", "decimal of 0 bytes"),
        (Column("x", DataTypes.decimal(20, 0)), "0010" + "7f" * 16, "precision"),
        (Column("x", DataTypes.time(3)), "0080b89929", "outside 0 to 86399999"),
        (Column("x", DataTypes.timestamp(6)), "0000c0843d", "1000000 ns"),
        (Column("x", DataTypes.timestamp(6)), "00ffffffffffffffff7f00", "are not a timestamp"),
        (Column("x", DataTypes.binary(2)), "000100", "1 bytes in a column of 2"),
        (Column("x", DataTypes.double()), "0000", "8 bytes announced"),
        (Column("x", DataTypes.int().not_null()), "01", "NOT NULL"),
    ],
)
def test_values_that_no_column_holds(column: Column, row: str, message: str) -> None:
    with pytest.raises(CorruptDataError, match=message):
        CompactedFormat([column]).decode([bytes.fromhex(row)])


def test_null_key_is_refused_by_name() -> None:
    keys = CompactedFormat(AB_COLUMNS, with_null_bits=False)
    with pytest.raises(SchemaMismatchError, match="'b' is part of a key and null in row 1"):
        keys.encode(_batch(AB_COLUMNS, [(1, "a"), (2, None)]))
    with pytest.raises(SchemaMismatchError, match="'b' is part of a key and null"):
        keys.encode_row((2, None))


def test_other_arrow_types_are_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1], "b": ["x"]})
    with pytest.raises(SchemaMismatchError, match="'a' expects int32, not int64"):
        AB.encode(batch)


def test_keys_hold_no_nested_types() -> None:
    with pytest.raises(SchemaMismatchError, match=r"'x' is array<int>: keys hold no nested types"):
        CompactedFormat([Column("x", DataTypes.array(DataTypes.int()))], with_null_bits=False)


def test_seconds_that_overflow_milliseconds_are_refused() -> None:
    row_format = CompactedFormat([Column("t", DataTypes.timestamp(0))])
    batch = pa.RecordBatch.from_arrays([pa.array([1 << 62], pa.timestamp("s"))], names=["t"])
    with pytest.raises(SchemaMismatchError, match=r"'t'.*does not fit"):
        row_format.encode(batch)


def test_time_outside_the_day_is_refused() -> None:
    row_format = CompactedFormat([Column("t", DataTypes.time(0))])
    batch = pa.RecordBatch.from_arrays([pa.array([86_400], pa.int32()).view(pa.time32("s"))], names=["t"])
    with pytest.raises(SchemaMismatchError, match="86400000 in row 0 does not fit"):
        row_format.encode(batch)

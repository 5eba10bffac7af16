from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.formats.rows.codecs import CompactedFormat, IndexedFormat
from fluss.formats.rows.python_rows import to_tuples
from fluss.model.errors import CorruptDataError, SchemaMismatchError
from fluss.model.schema import Column
from fluss.model.types import DataTypes
from tests.kit.formats.batches import batch_of
from tests.kit.formats.strategies import as_stored, tables
from tests.kit.formats.vectors import (
    AB_COLUMNS,
    COMPACTED_WIDE,
    INDEXED_1_A,
    INDEXED_NULL_HELLO,
    INDEXED_WIDE,
    WIDE_COLUMNS,
    WIDE_ROW,
)

AB = IndexedFormat(AB_COLUMNS)


def test_small_rows_are_what_java_writes() -> None:
    rows = [(1, "a"), (None, "hello")]
    assert AB.encode(batch_of(AB_COLUMNS, rows)).to_pylist() == [INDEXED_1_A, INDEXED_NULL_HELLO]
    assert to_tuples(AB.decode([INDEXED_1_A, INDEXED_NULL_HELLO])) == rows


def test_wide_row_of_java_is_read_and_written_again() -> None:
    wide = IndexedFormat(WIDE_COLUMNS)
    batch = wide.decode([INDEXED_WIDE])
    assert to_tuples(batch) == [WIDE_ROW]
    assert batch.equals(CompactedFormat(WIDE_COLUMNS).decode([COMPACTED_WIDE]))
    assert wide.encode(batch).to_pylist() == [INDEXED_WIDE]


@given(table=tables(), start=st.integers(0, 12))
def test_rows_come_back_as_they_went_in(table: tuple[list[Column], list[tuple[Any, ...]]], start: int) -> None:
    columns, rows = table
    row_format = IndexedFormat(columns)
    batch = batch_of(columns, rows)
    encoded = row_format.encode(batch)
    assert row_format.decode(encoded).equals(batch_of(columns, as_stored(rows)))
    start = min(start, len(rows))
    assert row_format.encode(batch.slice(start)).to_pylist() == encoded.to_pylist()[start:]
    assert row_format.decode(encoded.slice(start)).equals(batch_of(columns, as_stored(rows[start:])))


def test_lengths_of_null_columns_are_left_out() -> None:
    # Two texts and a null: the lengths of the texts come first, the unused one is last and 0.
    columns = [Column(name, DataTypes.string()) for name in "abc"]
    (row,) = IndexedFormat(columns).encode(batch_of(columns, [(None, "x", "yz")])).to_pylist()
    assert row.hex() == "0101000000020000000000000078797a"


def test_char_has_as_many_bytes_as_characters() -> None:
    columns = [Column("c", DataTypes.char(4))]
    row_format = IndexedFormat(columns)
    assert row_format.encode(batch_of(columns, [("ab",), ("\u00fc\u00fc",), ("",)])).to_pylist() == [
        b"\0ab\0\0",
        b"\0\xc3\xbc\xc3\xbc",
        b"\0\0\0\0\0",
    ]
    assert to_tuples(row_format.decode([b"\0ab\0\0", b"\0\0a\0\0", b"\0\0\0\0\0"])) == [("ab",), ("\0a",), ("",)]
    with pytest.raises(
        SchemaMismatchError, match=r"'c': 6 bytes of text in row 1; an INDEXED row has 4 for a CHAR\(4\)"
    ):
        row_format.encode(batch_of(columns, [("ab",), ("\u00fc\u00fc\u00fc",)]))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("", "too short"),
        ("00010000", "too short"),
        ("000100000001", "4 bytes announced, 1 are left"),
        ("00020000000100000061", "2 bytes announced, 1 are left"),
        ("0001000000010000006100", "1 bytes left over"),
        ("00ffffff7f0100000061", "2147483647 bytes announced"),
        ("00ffffffff0100000061", "a length of -1 bytes"),
        ("000100000001000000ff", "UTF8"),
        ("0300000000ff", "left over"),
    ],
)
def test_bytes_that_are_no_row(row: str, message: str) -> None:
    with pytest.raises(CorruptDataError, match=message):
        AB.decode([bytes.fromhex(row)])


@pytest.mark.parametrize(
    ("column", "row", "message"),
    [
        (Column("x", DataTypes.decimal(3, 0)), "00e803000000000000", "1000 is outside"),
        (Column("x", DataTypes.decimal(38, 0)), "0011000000" + "00" * 17, "decimal of 17 bytes"),
        (Column("x", DataTypes.decimal(38, 0)), "0000000000", "decimal of 0 bytes"),
        (Column("x", DataTypes.decimal(20, 0)), "0010000000" + "7f" * 16, "precision"),
        (Column("x", DataTypes.time(3)), "00005c2605", "outside 0 to 86399999"),
        (Column("x", DataTypes.timestamp(6)), "00000000000000000040420f00", "1000000 ns"),
        (Column("x", DataTypes.timestamp(6)), "000000000000000000ffffffff", "-1 ns"),
        (Column("x", DataTypes.timestamp(9)), "00ffffffffffffff7f00000000", "are not a timestamp"),
        (Column("x", DataTypes.char(2)), "00c3bcc3", "left over"),
        (Column("x", DataTypes.char(2)), "00ffff", "UTF8"),
        (Column("x", DataTypes.binary(2)), "0001", "2 bytes announced"),
        (Column("x", DataTypes.int().not_null()), "01", "NOT NULL"),
    ],
)
def test_values_that_no_column_holds(column: Column, row: str, message: str) -> None:
    with pytest.raises(CorruptDataError, match=message):
        IndexedFormat([column]).decode([bytes.fromhex(row)])

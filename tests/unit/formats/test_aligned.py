from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from fluss.formats.rows.codecs import AlignedFormat
from fluss.model.errors import CorruptDataError, SchemaMismatchError
from fluss.model.schema import Column
from fluss.model.types import DataTypes
from tests.kit.formats.batches import batch_of
from tests.kit.formats.strategies import as_stored, tables
from tests.kit.formats.vectors import ALIGNED_KEYS, KEY_COLUMNS


@pytest.mark.parametrize(("key", "expected"), ALIGNED_KEYS)
def test_rows_are_what_java_writes(key: dict[str, Any], expected: str) -> None:
    columns = [KEY_COLUMNS[name] for name in key]
    row_format = AlignedFormat(columns)
    batch = batch_of(columns, [key])
    assert row_format.encode(batch).to_pylist() == [bytes.fromhex(expected)]
    assert row_format.decode([bytes.fromhex(expected)]).equals(batch)


@given(table=tables(max_columns=70))
def test_rows_come_back_as_they_went_in(table: tuple[list[Column], list[tuple[Any, ...]]]) -> None:
    columns, rows = table
    row_format = AlignedFormat(columns)
    assert row_format.decode(row_format.encode(batch_of(columns, rows))).equals(batch_of(columns, as_stored(rows)))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("00" * 15, "too short"),
        ("00" * 8 + "61000000000000" + "88", "8 bytes in a slot"),
        ("00" * 8 + "0900000010000000" + "61" * 8, "9 bytes at 16 do not lie in 24"),
        ("00" * 8 + "ffffffffffffff7f", "4294967295 bytes at 2147483647"),
        ("00" * 8 + "00000000000000c0", "64 bytes in a slot"),
    ],
)
def test_bytes_that_are_no_row(row: str, message: str) -> None:
    with pytest.raises(CorruptDataError, match=message):
        AlignedFormat([Column("s", DataTypes.string())]).decode([bytes.fromhex(row)])


def test_nested_types_are_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="'x' is array<int>: aligned rows hold no nested types"):
        AlignedFormat([Column("x", DataTypes.array(DataTypes.int()))])

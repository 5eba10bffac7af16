from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.formats import kernel
from fluss.formats.rows.python_rows import to_rows
from fluss.formats.rows.values import ValueCodec, is_readable, value_rows
from fluss.model.errors import CorruptDataError
from fluss.model.schema import Column, Schema
from fluss.model.types import DataTypes
from tests.kit.formats.batches import batch_of
from tests.kit.formats.modes import damage_bytes, in_both_modes, needs_both
from tests.kit.formats.strategies import as_stored, tables
from tests.kit.formats.vectors import AB_COLUMNS

Table = tuple[list[Column], list[tuple[Any, ...]]]
AB = Schema.of(AB_COLUMNS)
VALUE = bytes.fromhex("010000010161")


def values_of(columns: list[Column], rows: list[tuple[Any, ...]]) -> list[bytes]:
    return [value for value in ValueCodec({1: Schema.of(columns)}).encode(batch_of(columns, rows)) if value is not None]


def read(written: Schema, wanted: Schema, *values: bytes | None) -> list[dict[str, Any] | None]:
    return kernel.decode_values([*values], {1: value_rows(written, wanted)})


def test_a_value_of_java() -> None:
    assert read(AB, AB, VALUE) == [{"a": 1, "b": "a"}]


@given(table=tables())
def test_rows_are_those_that_come_through_arrow(table: Table) -> None:
    columns, rows = table
    schema = Schema.of(columns)
    encoded = values_of(columns, rows)
    found = read(schema, schema, *encoded)
    assert [tuple(row.values()) for row in found] == as_stored(rows)
    expected = to_rows(ValueCodec({1: schema}).decode(encoded))
    assert found == expected or repr(found) == repr(expected)  # NaN is not equal to itself
    assert [list(row) for row in found] == [list(row) for row in expected]


def test_columns_that_came_later_and_columns_not_known_yet() -> None:
    longer = Schema.of([*AB_COLUMNS, Column("c", DataTypes.bigint())])
    assert read(AB, longer, VALUE) == [{"a": 1, "b": "a", "c": None}]
    (value,) = values_of(list(longer.columns), [(1, "a", 7)])
    assert read(longer, AB, value) == [{"a": 1, "b": "a"}]
    assert read(longer, longer, value) == [{"a": 1, "b": "a", "c": 7}]


def test_bytes_that_are_no_row_are_refused() -> None:
    for size in range(len(VALUE)):
        with pytest.raises(CorruptDataError):
            read(AB, AB, VALUE[:size])
    with pytest.raises(CorruptDataError, match="1 bytes left over"):
        read(AB, AB, VALUE + b"x")
    strict = Schema.of([Column("a", DataTypes.int().not_null())])
    with pytest.raises(CorruptDataError, match="'a' is NOT NULL"):
        read(strict, strict, b"\x01\x00\x01")
    with pytest.raises(UnicodeDecodeError):
        read(AB, AB, b"\x01\x00\x00\x01\x01\xff")


def test_nested_columns_are_left_to_arrow() -> None:
    assert is_readable(AB)
    assert not is_readable(Schema.of([*AB_COLUMNS, Column("c", DataTypes.array(DataTypes.int()))]))


@needs_both
@given(table=tables(max_rows=3), data=st.data())
def test_kernels_agree(table: Table, data: st.DataObject) -> None:
    columns, rows = table
    schema = Schema.of(columns)
    schemas = {1: value_rows(schema, schema)}
    for value in values_of(columns, rows):
        damaged = bytearray(value)
        damage_bytes(data, damaged)
        for content in (value, bytes(damaged), bytes(damaged)[: data.draw(st.integers(0, len(damaged)))]):

            def read(kernel: Any, content: bytes = content, value: bytes = value) -> str:
                try:
                    return repr(kernel.decode_values([value, None, content], schemas))
                except OverflowError as error:
                    return repr(error)

            plain, compiled = in_both_modes(read)
            assert plain == compiled

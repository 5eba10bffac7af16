"""Statistics of batches: bytes of pyfluss, every type, what has no bounds, damaged bytes."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fluss.formats.batches import statistics
from fluss.formats.batches.statistics import ColumnStatistics
from fluss.model.errors import CorruptDataError
from fluss.model.forms.arrow_types import arrow_field
from fluss.model.types import DataType, DataTypes

_MS = 1_000_000

# Columns and rows that pyfluss 1.0.0 wrote to a table with table.statistics.columns = *, and its statistics block.
_WRITTEN: list[tuple[DataType, list[Any]]] = [
    (DataTypes.int(), [-7, 300, None]),
    (DataTypes.string(), ["short", "longer than seven", None]),
    (DataTypes.bytes(), [b"x", None, None]),
    (DataTypes.decimal(20, 2), [Decimal("-12345678901234567.89"), Decimal("0.01"), None]),
    (DataTypes.timestamp(6), [datetime(2025, 5, 31, 3, 42, 35, 428099), datetime(1960, 1, 1), None]),
    (DataTypes.double(), [1.5, -2.5, None]),
    (DataTypes.boolean(), [True, True, None]),
    (DataTypes.bigint(), [None, None, None]),
]
_BLOCK = bytes.fromhex(
    "010700000001000300040005000600070001000000010000000100000001000000010000000100000003000000700000000040000000000000"
    "f9ffffff0000000011000000400000000800000058000000000000006800000000000000000004c00100000000000000000000000000000"
    "06c6f6e676572207468616e20736576656e00000000000000eeddef0b82167eeb00000000000000000034a183b6ffffff58000000004000"
    "00000000002c0100000000000073686f72740000850100000040000000b882010050000000000000000000f83f010000000000000000000"
    "0000000000001000000000000000000000000000000a42d6f2497010000"
)


def _rows(columns: list[tuple[DataType, list[Any]]]) -> tuple[pa.RecordBatch, list[DataType]]:
    fields = [arrow_field(f"c{number}", data_type) for number, (data_type, _) in enumerate(columns)]
    arrays = [pa.array(values, field.type) for field, (_, values) in zip(fields, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)), [data_type for data_type, _ in columns]


def _of(data_type: DataType, *values: Any) -> ColumnStatistics:
    rows, types = _rows([(data_type, list(values))])
    return statistics.decode(memoryview(statistics.encode(rows, types, [0])), types)[0]


def test_same_bytes_as_pyfluss() -> None:
    rows, types = _rows(_WRITTEN)
    columns = statistics.columns_of({"table.statistics.columns": "*"}, [(str(i), t) for i, t in enumerate(types)])
    assert columns == (0, 1, 3, 4, 5, 6, 7)
    assert statistics.encode(rows, types, columns) == _BLOCK
    found = statistics.decode(memoryview(_BLOCK), types)
    assert found == {
        0: (1, -7, 300),
        1: (1, b"longer than seven", b"short"),
        3: (1, -1234567890123456789, 1),
        4: (1, -315619200000 * _MS, 1748662955428099000),
        5: (1, -2.5, 1.5),
        6: (1, True, True),
        7: (3, None, None),
    }
    assert statistics.decode(memoryview(_BLOCK), types, {4}) == {4: found[4]}


@pytest.mark.parametrize(
    ("data_type", "values", "low", "high"),
    [
        (DataTypes.tinyint(), [7, -128], -128, 7),
        (DataTypes.smallint(), [300, -300], -300, 300),
        (DataTypes.bigint(), [2**62, -5], -5, 2**62),
        (DataTypes.float(), [1.5, -2.5], -2.5, 1.5),
        (DataTypes.char(3), ["b", "a"], b"a", b"b"),
        (DataTypes.string(), ["", "1234567"], b"", b"1234567"),
        (DataTypes.string(), ["12345678", "é"], b"12345678", "é".encode()),
        (DataTypes.decimal(10, 2), [Decimal("1.23"), Decimal("-4.56")], -456, 123),
        (DataTypes.decimal(38, 2), [Decimal("1" * 36 + ".00"), Decimal("0.00")], 0, int("1" * 36 + "00")),
        (DataTypes.date(), [date(2020, 1, 1), date(1960, 1, 1)], -3653, 18262),
        (DataTypes.time(0), [time(1, 2, 3), time(0)], 0, 3_723_000),
        (DataTypes.time(9), [time(1, 2, 3, 999_999), time(0)], 0, 3_723_999),
        (DataTypes.timestamp(3), [datetime(1970, 1, 1, 0, 0, 1)], 1_000 * _MS, 1_000 * _MS),
        (DataTypes.timestamp_ltz(9), [datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)], -1_000, -1_000),
    ],
)
def test_bounds_of_every_type(data_type: DataType, values: list[Any], low: Any, high: Any) -> None:
    assert _of(data_type, *values, None) == (1, low, high)


def test_what_has_no_bounds() -> None:
    assert _of(DataTypes.int(), None) == (1, None, None)
    assert _of(DataTypes.double(), 1.0, float("nan")) == (0, None, None)
    assert _of(DataTypes.string(), "a", "z" * 2_000) == (0, b"a", None)


def test_zeros_of_both_signs_are_within_the_bounds() -> None:
    found = _of(DataTypes.double(), 0.0, -0.0)
    assert (str(found.minimum), str(found.maximum)) == ("-0.0", "0.0")


def test_more_columns_than_one_word_of_null_bits() -> None:
    columns: list[tuple[DataType, list[Any]]] = [
        (DataTypes.int(), [number if number % 3 else None]) for number in range(130)
    ]
    rows, types = _rows(columns)
    found = statistics.decode(memoryview(statistics.encode(rows, types, range(130))), types)
    expected = {number: (0, number, number) if number % 3 else (1, None, None) for number in range(130)}
    assert found == expected


def test_nothing_to_say() -> None:
    rows, types = _rows([(DataTypes.int(), [])])
    assert statistics.encode(rows, types, [0]) == b""
    assert statistics.encode(_rows(_WRITTEN)[0], types, []) == b""


def test_columns_from_the_property() -> None:
    columns = [("a", DataTypes.int()), ("b", DataTypes.bytes()), ("c", DataTypes.string())]
    key = "table.statistics.columns"
    assert statistics.columns_of({}, columns) == ()
    assert statistics.columns_of({key: " c , a "}, columns) == (0, 2)
    assert statistics.columns_of({key: "*"}, columns) == (0, 2)
    assert statistics.columns_of({key: "b,gone"}, columns) == ()


def test_damaged_blocks_are_read_or_refused() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    generator = random.Random(seed)
    types = [data_type for data_type, _ in _WRITTEN]
    for size in range(len(_BLOCK)):
        with pytest.raises(CorruptDataError):
            statistics.decode(memoryview(_BLOCK[:size]), types)
    for _ in range(2_000):
        damaged = bytearray(_BLOCK)
        damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        try:
            statistics.decode(memoryview(damaged), types)
        except CorruptDataError:
            continue

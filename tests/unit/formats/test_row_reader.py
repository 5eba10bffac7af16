from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fluss.formats.rows.python_rows import to_rows, to_tuples
from fluss.model.errors import SchemaMismatchError


def _values(array: pa.Array) -> list[Any]:
    return [row["x"] for row in to_rows(pa.RecordBatch.from_arrays([array], names=["x"]))]


def test_rows_have_names_in_order() -> None:
    batch = pa.RecordBatch.from_pydict({"b": [1, 2], "a": ["x", None]})
    rows = to_rows(batch)
    assert rows == [{"b": 1, "a": "x"}, {"b": 2, "a": None}]
    assert list(rows[0]) == ["b", "a"]
    assert to_tuples(batch) == [(1, "x"), (2, None)]
    assert to_rows(batch.slice(2)) == []


@pytest.mark.parametrize(
    ("nanoseconds", "expected"),
    [
        (0, datetime(1970, 1, 1)),
        (1_999, datetime(1970, 1, 1, microsecond=1)),
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999_999)),
    ],
)
def test_nanoseconds_are_cut_off(nanoseconds: int, expected: datetime) -> None:
    assert _values(pa.array([nanoseconds, None], pa.timestamp("ns"))) == [expected, None]
    assert _values(pa.array([nanoseconds], pa.timestamp("ns", "UTC"))) == [expected.replace(tzinfo=UTC)]


def test_zone_is_the_standard_library_s() -> None:
    (value,) = _values(pa.array([0], pa.timestamp("ms", "UTC")))
    assert value.tzinfo is UTC


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, None, 86_399], pa.time32("s")),
        pa.array([1, None, 86_399_999], pa.time32("ms")),
        pa.array([1, None, 86_399_999_999], pa.time64("us")),
        pa.array([-719162, None, 2932896], pa.int32()).view(pa.date32()),
        pa.array([-5, None, 5], pa.timestamp("s")),
        pa.array([-5, None, 5], pa.timestamp("ms")),
        pa.array([-5, None, 5], pa.timestamp("us")),
        pa.array([Decimal("-1.23"), None, Decimal("0.00")], pa.decimal128(10, 2)),
        pa.array([Decimal(-(10**38) + 1), None, Decimal(10**38 - 1)], pa.decimal128(38, 0)),
        pa.array([True, None, False]),
        pa.array([b"a", None, b""]),
        pa.array([1.5, None, float("inf")], pa.float32()),
        pa.array([[1], None, []]),
    ],
    ids=lambda array: str(array.type),
)
def test_values_are_pyarrow_s(array: pa.Array) -> None:
    assert _values(array) == array.to_pylist()
    assert _values(array.slice(1)) == array.slice(1).to_pylist()
    assert [str(value) for value in _values(array)] == [str(value) for value in array.to_pylist()]


def test_values_of_every_temporal_kind() -> None:
    assert _values(pa.array([5_402_199_999_999], pa.time64("ns"))) == [time(1, 30, 2, 199_999)]
    assert _values(pa.array([20235], pa.int32()).view(pa.date32())) == [date(2025, 5, 27)]


def test_nested_nanoseconds_are_cut_off_too() -> None:
    stamp = pa.timestamp("ns", "UTC")
    array = pa.array([[1_999]], pa.list_(stamp))
    assert _values(array) == [[datetime(1970, 1, 1, microsecond=1, tzinfo=UTC)]]
    struct = pa.array([{"t": 1_999}], pa.struct([("t", pa.time64("ns"))]))
    assert _values(struct) == [{"t": time(microsecond=1)}]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1 << 40], pa.timestamp("s")),
        pa.array([10_000_000], pa.int32()).view(pa.date32()),
        pa.array([86_400], pa.int32()).view(pa.time32("s")),
    ],
)
def test_values_python_can_not_hold_are_named(array: pa.Array) -> None:
    with pytest.raises(SchemaMismatchError, match=r"'x'.*read it as Arrow"):
        _values(array)

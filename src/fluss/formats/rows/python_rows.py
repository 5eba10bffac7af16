"""Record batches into Python rows."""

from __future__ import annotations

from datetime import UTC, date, time
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from fluss.formats import kernel
from fluss.model.errors import SchemaMismatchError

_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}  # in a second
_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_NANOSECONDS_PER_MICROSECOND: Final = 1_000
_LOW_WORD_MASK: Final = (1 << 64) - 1
_WIDE: Final = Context(prec=120)


def to_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """One dict per row; an ARRAY is a list, a MAP a list of (key, value) tuples, a ROW a dict.

    Python has microseconds: nanoseconds of a column that holds them are cut off.
    """
    return kernel.rows_of_columns(batch.schema.names, _columns(batch), batch.num_rows)


def to_tuples(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """One tuple per row, in column order."""
    return list(zip(*_columns(batch), strict=True))


def _columns(batch: pa.RecordBatch) -> list[list[Any]]:
    return [column_values(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True)]


def column_values(name: str, column: pa.Array) -> list[Any]:
    """Python values of a column: pyarrow's own for plain types, quicker ones for dates, times and decimals."""
    arrow_type = column.type
    if len(column) == 0:
        return []
    if pt.is_nested(arrow_type):
        return _nested_values(name, column)
    try:
        if pt.is_timestamp(arrow_type):
            numbers = column.view(pa.int64()).to_pylist()
            return kernel.datetimes_of(numbers, _UNITS[arrow_type.unit], None if arrow_type.tz is None else UTC)
        if pt.is_date32(arrow_type):
            return [
                None if days is None else date.fromordinal(days + _EPOCH_ORDINAL)
                for days in column.view(pa.int32()).to_pylist()
            ]
        if pt.is_time(arrow_type):
            return _times(column)
        if pt.is_decimal128(arrow_type):
            return _decimals(column)
        return column.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError) as error:
        raise SchemaMismatchError(
            f"Column {name!r} has a value of type {arrow_type} that Python can't hold ({error}); read it as Arrow."
        ) from error


def _microseconds(column: pa.Array) -> list[int | None]:
    unit = column.type.unit
    storage = pa.int32() if column.type.bit_width == 32 else pa.int64()
    values: list[int | None] = column.view(storage).to_pylist()
    if unit == "us":
        return values
    if unit == "ns":
        return [None if value is None else value // _NANOSECONDS_PER_MICROSECOND for value in values]
    factor = _MICROSECONDS[unit]
    return [None if value is None else value * factor for value in values]


def _times(column: pa.Array) -> list[time | None]:
    result: list[time | None] = []
    for value in _microseconds(column):
        if value is None:
            result.append(None)
            continue
        seconds, microsecond = divmod(value, 1_000_000)
        minutes, second = divmod(seconds, 60)
        hour, minute = divmod(minutes, 60)
        result.append(time(hour, minute, second, microsecond))
    return result


def _decimals(column: pa.Array) -> list[Decimal | None]:
    exponent = -column.type.scale
    # A buffer may be longer than its values, by any number of bytes.
    data = memoryview(column.buffers()[1]).cast("B")
    words = data[16 * column.offset : 16 * (column.offset + len(column))].cast("q")
    lows, highs = words[::2].tolist(), words[1::2].tolist()
    valid = column.is_valid().to_pylist()
    scaleb = _WIDE.scaleb
    return [
        scaleb(Decimal((high << 64) | (low & _LOW_WORD_MASK)), exponent) if present else None
        for low, high, present in zip(lows, highs, valid, strict=True)
    ]


def _nested_values(name: str, column: pa.Array) -> list[Any]:
    """Whole columns from the inside out, so that values inside are the same as values outside."""
    valid = column.is_valid().to_pylist()
    if pt.is_struct(column.type):
        names = [field.name for field in column.type]
        fields = [column_values(f"{name}.{field}", child) for field, child in zip(names, column.flatten(), strict=True)]
        rows = zip(*fields, strict=True) if fields else [()] * len(column)
        return [
            dict(zip(names, row, strict=True)) if present else None for row, present in zip(rows, valid, strict=True)
        ]
    ends = column.offsets.to_pylist()
    inside = column.values.slice(ends[0], ends[-1] - ends[0])
    if pt.is_map(column.type):
        keys, values = column_values(f"{name}.key", inside.field(0)), column_values(f"{name}{{}}", inside.field(1))
        elements: list[Any] = list(zip(keys, values, strict=True))
    else:
        elements = column_values(f"{name}[]", inside)
    bounds = zip(ends, ends[1:], valid, strict=False)
    return [elements[start - ends[0] : end - ends[0]] if present else None for start, end, present in bounds]

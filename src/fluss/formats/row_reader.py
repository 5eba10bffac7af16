"""Record batches into Python rows."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from fluss.model.errors import SchemaMismatchError

_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_NANOSECONDS_PER_MICROSECOND: Final = 1_000
_LOW_WORD_MASK: Final = (1 << 64) - 1
_WIDE: Final = Context(prec=120)


def to_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """One dict per row. Python has microseconds: nanoseconds of a column that holds them are cut off."""
    names = batch.schema.names
    return [dict(zip(names, row, strict=True)) for row in to_tuples(batch)]


def to_tuples(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """One tuple per row, in column order."""
    columns = [column_values(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
    return list(zip(*columns, strict=True))


def column_values(name: str, column: pa.Array) -> list[Any]:
    """Python values of a column: pyarrow's own for plain types, quicker ones for dates, times and decimals."""
    arrow_type = column.type
    try:
        if pt.is_timestamp(arrow_type):
            return _timestamps(column, _EPOCH if arrow_type.tz is None else _EPOCH_UTC)
        if pt.is_date32(arrow_type):
            return [
                None if days is None else date.fromordinal(days + _EPOCH_ORDINAL)
                for days in column.view(pa.int32()).to_pylist()
            ]
        if pt.is_time(arrow_type):
            return _times(column)
        if pt.is_decimal128(arrow_type):
            return _decimals(column)
        return _without_nanoseconds(column).to_pylist()  # type: ignore[no-any-return]
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


def _timestamps(column: pa.Array, epoch: datetime) -> list[datetime | None]:
    return [None if value is None else epoch + timedelta(0, 0, value) for value in _microseconds(column)]


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
    words = memoryview(column.buffers()[1]).cast("B").cast("q")[2 * column.offset : 2 * (column.offset + len(column))]
    lows, highs = words[::2].tolist(), words[1::2].tolist()
    valid = column.is_valid().to_pylist()
    scaleb = _WIDE.scaleb
    return [
        scaleb(Decimal((high << 64) | (low & _LOW_WORD_MASK)), exponent) if present else None
        for low, high, present in zip(lows, highs, valid, strict=True)
    ]


def _without_nanoseconds(column: pa.Array) -> pa.Array:
    """Nested columns whose leaves have nanoseconds, as microseconds, since pyarrow would ask for pandas."""
    target = _in_microseconds(column.type)
    return column if target == column.type else column.cast(target, safe=False)


def _in_microseconds(arrow_type: pa.DataType) -> pa.DataType:
    if pt.is_timestamp(arrow_type) and arrow_type.unit == "ns":
        return pa.timestamp("us", arrow_type.tz)
    if pt.is_time64(arrow_type) and arrow_type.unit == "ns":
        return pa.time64("us")
    if pt.is_list(arrow_type):
        return pa.list_(arrow_type.value_field.with_type(_in_microseconds(arrow_type.value_type)))
    if pt.is_map(arrow_type):
        return pa.map_(
            arrow_type.key_field.with_type(_in_microseconds(arrow_type.key_type)),
            arrow_type.item_field.with_type(_in_microseconds(arrow_type.item_type)),
        )
    if pt.is_struct(arrow_type):
        return pa.struct([field.with_type(_in_microseconds(field.type)) for field in arrow_type])
    return arrow_type

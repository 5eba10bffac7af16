"""Python rows into record batches, and record batches into Python rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, time
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from fluss.formats import kernel
from fluss.formats.arrow.payload import RAW_BUFFER_SIZE_MAX_BYTES, RAW_ROWS_MAX, Codec, Compression, raw_template
from fluss.formats.kernel import RowAppender
from fluss.formats.rows.specs import kind_of
from fluss.model.errors import SchemaMismatchError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.schema import Schema


class RowBuilder:
    """Collects rows (dict, list or tuple) as Arrow buffers and builds record batches of a table's schema.

    Every value is checked when it is appended, so that an error names the row's mistake where it was made and `build`
    can't fail. Digits of a time or timestamp beyond the column's precision are cut off, towards the past; a datetime
    with a time zone is converted to UTC for TIMESTAMP_LTZ, one without is taken as UTC. An ARRAY is a list,
    tuple, other sequence or numpy array, a MAP a dict or (key, value) pairs, a ROW a dict, list or tuple.

    One thread at a time.
    """

    __slots__ = ("_arrow_schema", "_arrow_types", "_buffer_count", "appender")

    def __init__(self, schema: Schema) -> None:
        columns = schema.columns
        self._arrow_schema = arrow_schema(schema)
        self._arrow_types = self._arrow_schema.types
        kinds = [kind_of(column.data_type) for column in columns]
        self.appender = RowAppender([column.name for column in columns], kinds)
        is_flat = not any(map(pt.is_nested, self._arrow_types))
        self._buffer_count = sum(map(_buffer_count, self._arrow_types)) if is_flat else 0  # 0: not known

    @property
    def row_count(self) -> int:
        return self.appender.row_count

    @property
    def estimated_bytes(self) -> int:
        """About what the rows take in Arrow, uncompressed."""
        return self.appender.size_bytes

    def append(self, row: Mapping[str, Any] | list[Any] | tuple[Any, ...]) -> int:
        """Take a row and return the bytes it adds, about; a row that does not fit changes nothing."""
        return self.appender.append(row)

    def build(self) -> pa.RecordBatch:
        """The rows so far as a record batch; the builder starts anew."""
        row_count, columns = self.appender.take()
        arrays = [
            _array(arrow_type, row_count, *column)
            for arrow_type, column in zip(self._arrow_types, columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)

    def build_payload(self, codec: Codec) -> bytearray | None:
        """The rows so far as the payload of a batch, without Arrow objects in between; the builder starts anew.

        None, and nothing has changed, when they are many or nested, or stored as they are.
        """
        if codec.compression is Compression.NONE or not 0 < self.row_count <= RAW_ROWS_MAX:
            return None
        if not self._buffer_count or self.estimated_bytes > RAW_BUFFER_SIZE_MAX_BYTES * self._buffer_count:
            return None
        template = raw_template(codec, len(self._arrow_types), self._buffer_count)
        row_count, columns = self.appender.take()
        numbers: list[int] = []
        buffers: list[bytes | bytearray] = []
        for validity, values, data in columns:
            null_count = 0 if validity is None else row_count - int.from_bytes(validity, "little").bit_count()
            numbers += (row_count, null_count)
            buffers += (validity if validity is not None and null_count else b"", values)
            if isinstance(data, bytearray):
                buffers.append(data)
        return template.raw_message(row_count, numbers, buffers)


def _buffer_count(arrow_type: pa.DataType) -> int:
    """Number of Arrow buffers of a column that is not nested."""
    return 3 if pt.is_string(arrow_type) or pt.is_binary(arrow_type) else 2


def _array(
    arrow_type: pa.DataType,
    row_count: int,
    validity: bytearray | None,
    values: bytearray,
    rest: bytearray | list[Any] | None,
) -> pa.Array:
    """`rest` is the data that `values` are offsets of, or the children of a nested column."""
    buffers = [None if validity is None else pa.py_buffer(validity), pa.py_buffer(values)]
    null_count = 0 if validity is None else -1
    if isinstance(rest, list):
        return _nested_array(arrow_type, row_count, buffers, null_count, rest)
    if rest is not None:
        buffers.append(pa.py_buffer(rest))
    return pa.Array.from_buffers(arrow_type, row_count, buffers, null_count)


def _nested_array(
    arrow_type: pa.DataType, row_count: int, buffers: list[pa.Buffer | None], null_count: int, columns: list[Any]
) -> pa.Array:
    if pt.is_struct(arrow_type):
        children = [_array(field.type, row_count, *column) for field, column in zip(arrow_type, columns, strict=True)]
        return pa.Array.from_buffers(arrow_type, row_count, buffers[:1], null_count, children=children)
    offsets = buffers[1]
    assert offsets is not None
    inner_count = int.from_bytes(memoryview(offsets)[-4:], "little")
    if pt.is_map(arrow_type):
        entries_type = pa.struct([arrow_type.key_field, arrow_type.item_field])
        inner = _nested_array(entries_type, inner_count, [None], 0, columns)
    else:
        inner = _array(arrow_type.value_type, inner_count, *columns[0])
    return pa.Array.from_buffers(arrow_type, row_count, buffers, null_count, children=[inner])


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

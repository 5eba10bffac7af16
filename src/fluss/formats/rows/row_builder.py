"""Python rows into record batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from fluss.formats.arrow.payload import RAW_BUFFER_SIZE_MAX_BYTES, RAW_ROWS_MAX, Codec, Compression, raw_template
from fluss.formats.kernel import RowAppender
from fluss.formats.rows.specs import kind_of
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
    """Of a column that is not nested."""
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

"""Python rows into record batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from fluss.formats.kernel import RowAppender
from fluss.formats.kinds import kind_of
from fluss.model.arrow_types import arrow_schema, to_arrow
from fluss.model.errors import SchemaMismatchError
from fluss.model.schema import Schema
from fluss.model.types import DataType, TypeRoot


class RowBuilder:
    """Collects rows (dict, list or tuple) and builds record batches of a table's schema.

    Every value is checked when it is appended, so that an error names the row's mistake where it was made and `build`
    can't fail. Digits of a time or timestamp beyond the column's precision are cut off, towards the past; a datetime
    with a time zone is converted to UTC for TIMESTAMP_LTZ, one without is taken as UTC. One thread at a time.

    Scalar columns are collected as Arrow buffers. Only values of nested columns go through `pa.array`, which imports
    pandas at its first call, where that is installed.
    """

    __slots__ = ("_appender", "_arrow_schema", "_arrow_types", "_estimated_bytes", "_row_count")

    def __init__(self, schema: Schema) -> None:
        columns = schema.columns
        self._arrow_schema = arrow_schema(schema)
        self._arrow_types = self._arrow_schema.types
        nested = [_nested_check(column.name, column.data_type) for column in columns]
        kinds = [kind_of(column.data_type) for column in columns]
        self._appender = RowAppender([column.name for column in columns], kinds, nested)
        self._row_count = 0
        self._estimated_bytes = 0

    @property
    def row_count(self) -> int:
        return self._row_count

    @property
    def estimated_bytes(self) -> int:
        """About what the rows take in Arrow, uncompressed."""
        return self._estimated_bytes

    def append(self, row: Mapping[str, Any] | list[Any] | tuple[Any, ...]) -> int:
        """Take a row and return the bytes it adds, about; a row that does not fit changes nothing."""
        added = self._appender.append(row)
        self._row_count += 1
        self._estimated_bytes += added
        return added

    def build(self) -> pa.RecordBatch:
        """The rows so far as a record batch; the builder starts anew."""
        row_count, columns = self._appender.take()
        self._row_count = 0
        self._estimated_bytes = 0
        arrays = [
            _nested_array(arrow_type, column) if isinstance(column, list) else _array(arrow_type, row_count, *column)
            for arrow_type, column in zip(self._arrow_types, columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)


def _array(
    arrow_type: pa.DataType, row_count: int, validity: bytearray | None, values: bytearray, data: bytearray | None
) -> pa.Array:
    buffers = [None if validity is None else pa.py_buffer(validity), pa.py_buffer(values)]
    if data is not None:
        buffers.append(pa.py_buffer(data))
    return pa.Array.from_buffers(arrow_type, row_count, buffers, 0 if validity is None else -1)


def _nested_array(arrow_type: pa.DataType, values: list[pa.Array | None]) -> pa.Array:
    null = pa.nulls(1, arrow_type)
    return pa.concat_arrays([null if value is None else value for value in values] or [null.slice(1)])


def _nested_check(name: str, data_type: DataType) -> Callable[[Any], pa.Array] | None:
    """A function that turns one value of a nested column into an array, which also keeps it from being changed."""
    if not data_type.is_nested:
        return None
    arrow_type = to_arrow(data_type)

    def check(value: Any) -> pa.Array:
        try:
            return pa.array([_pairs(value, data_type)], arrow_type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise SchemaMismatchError(
                f"Column {name!r} expects {data_type}, not {type(value).__name__} ({value!r:.80}): {error}"
            ) from error

    return check


def _pairs(value: Any, data_type: DataType) -> Any:
    """Dicts of MAP columns as the pairs that pyarrow wants, at any depth."""
    if value is None:
        return None
    if data_type.root is TypeRoot.MAP and data_type.value is not None:
        items = value.items() if isinstance(value, Mapping) else value
        return [(key, _pairs(item, data_type.value)) for key, item in items]
    if data_type.root is TypeRoot.ARRAY and data_type.element is not None:
        return [_pairs(item, data_type.element) for item in value]
    if data_type.root is TypeRoot.ROW and isinstance(value, Mapping):
        known = {field.name: field.data_type for field in data_type.fields}
        unknown = [key for key in value if key not in known]
        if unknown:
            raise ValueError(f"no field {unknown[0]!r}")
        return {key: _pairs(item, known[key]) for key, item in value.items()}
    return value

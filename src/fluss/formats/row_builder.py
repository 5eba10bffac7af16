"""Python rows into record batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from fluss.formats.kernel import RowAppender
from fluss.formats.kinds import (
    DECIMAL_WIDTH_BYTES,
    KIND_DATE,
    KIND_DECIMAL,
    KIND_NESTED,
    KIND_TIME,
    KIND_TIMESTAMP,
    KIND_TIMESTAMP_LTZ,
    kind_of,
)
from fluss.model.arrow_types import arrow_schema, to_arrow
from fluss.model.errors import SchemaMismatchError
from fluss.model.schema import Schema
from fluss.model.types import DataType, TypeRoot

_TEMPORAL_KINDS: Final = (KIND_DATE, KIND_TIME, KIND_TIMESTAMP, KIND_TIMESTAMP_LTZ)
_ZERO_DECIMAL: Final = bytes(DECIMAL_WIDTH_BYTES)


class RowBuilder:
    """Collects rows (dict, list or tuple) and builds record batches of a table's schema.

    Every value is checked when it is appended, so that an error names the row's mistake where it was made and `build`
    can't fail. Digits of a time or timestamp beyond the column's precision are cut off, towards the past; a datetime
    with a time zone is converted to UTC for TIMESTAMP_LTZ, one without is taken as UTC. One thread at a time.
    """

    __slots__ = ("_appender", "_arrow_schema", "_estimated_bytes", "_kinds", "_row_count")

    def __init__(self, schema: Schema) -> None:
        columns = schema.columns
        self._arrow_schema = arrow_schema(schema)
        self._kinds = [kind_of(column.data_type) for column in columns]
        nested = [_nested_check(column.name, column.data_type) for column in columns]
        self._appender = RowAppender([column.name for column in columns], self._kinds, nested)
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
        values = self._appender.take()
        self._row_count = 0
        self._estimated_bytes = 0
        arrays = [
            column_array(kind.kind, field.type, column)
            for kind, field, column in zip(self._kinds, self._arrow_schema, values, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)


def column_array(kind: int, arrow_type: pa.DataType, values: list[Any]) -> pa.Array:
    """An array of a column's type from physical values."""
    if kind in _TEMPORAL_KINDS:
        storage = pa.int32() if arrow_type.bit_width == 32 else pa.int64()
        return pa.array(values, storage).view(arrow_type)
    if kind == KIND_DECIMAL:
        return _decimal_array(arrow_type, values)
    if kind == KIND_NESTED:
        null = pa.nulls(1, arrow_type)
        return pa.concat_arrays([null if value is None else value for value in values] or [null.slice(1)])
    return pa.array(values, arrow_type)


def _decimal_array(arrow_type: pa.DataType, unscaled: list[int | None]) -> pa.Array:
    data = b"".join(
        [
            _ZERO_DECIMAL if value is None else value.to_bytes(DECIMAL_WIDTH_BYTES, "little", signed=True)
            for value in unscaled
        ]
    )
    validity = None
    if None in unscaled:
        validity = pa.array([value is not None for value in unscaled], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(arrow_type, len(unscaled), [validity, pa.py_buffer(data)])


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

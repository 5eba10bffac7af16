"""Arrow data of any layout to a table's Arrow schema, without losing anything on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from fluss.model.arrow_types import arrow_field
from fluss.model.errors import SchemaMismatchError
from fluss.model.schema import Column, Schema
from fluss.model.types import TypeRoot


class ArrowCaster:
    """Brings record batches to a table's columns: order, layout (large, view, dictionary), width and unit.

    A column that can't be converted without loss is refused with its name, the type expected and the type given.
    Columns that the input lacks become null where they may.
    """

    __slots__ = ("_columns", "_names", "_target")

    def __init__(self, schema: Schema) -> None:
        self._columns = schema.columns
        self._names = schema.column_names
        self._target = pa.schema([arrow_field(column.name, column.data_type) for column in self._columns])

    @property
    def target(self) -> pa.Schema:
        return self._target

    def cast_all(self, data: Any) -> Iterator[pa.RecordBatch]:
        """Batches of a record batch, table, reader, or anything with `__arrow_c_stream__`."""
        if isinstance(data, pa.RecordBatch):
            yield self.cast(data)
        elif isinstance(data, pa.Table):
            self._check_names(data.schema.names)
            yield from map(self.cast, data.to_batches())
        elif isinstance(data, pa.RecordBatchReader):
            yield from map(self.cast, data)
        elif hasattr(data, "__arrow_c_stream__"):
            yield from map(self.cast, pa.RecordBatchReader.from_stream(data))
        else:
            raise SchemaMismatchError(f"Arrow data expected, not {type(data).__name__}.")

    def cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with exactly the table's schema."""
        self._check_names(batch.schema.names)
        arrays = [
            self._column(column, field.type, batch) for column, field in zip(self._columns, self._target, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)

    def _check_names(self, given: list[str]) -> None:
        if given == self._names:
            return
        known = set(self._names)
        unknown = [name for name in given if name not in known]
        if unknown:
            raise SchemaMismatchError(
                f"The table has no column {unknown[0]!r}; its columns are {', '.join(self._names)}."
            )
        if len(set(given)) != len(given):
            twice = next(name for name in given if given.count(name) > 1)
            raise SchemaMismatchError(f"Column {twice!r} occurs twice.")

    def _column(self, column: Column, target: pa.DataType, batch: pa.RecordBatch) -> pa.Array:
        index = batch.schema.get_field_index(column.name)
        if index < 0:
            if not column.data_type.nullable:
                raise SchemaMismatchError(f"Column {column.name!r} expects {column.data_type}, the data lacks it.")
            return pa.nulls(batch.num_rows, target)
        given = batch.column(index)
        array = given if given.type == target else _cast(column, target, given)
        if array.null_count and not column.data_type.nullable:
            row = pc.index(array.is_null(), True).as_py()
            raise SchemaMismatchError(f"Column {column.name!r} expects {column.data_type}, not null (row {row}).")
        if column.data_type.root is TypeRoot.CHAR:
            _check_char_length(column, array)
        return array


def _check_char_length(column: Column, array: pa.Array) -> None:
    longest = pc.max(pc.utf8_length(array)).as_py()
    if longest is not None and longest > column.data_type.length:
        raise SchemaMismatchError(
            f"Column {column.name!r} expects {column.data_type}; string of {longest} characters does not fit."
        )


def _cast(column: Column, target: pa.DataType, given: pa.Array) -> pa.Array:
    plain = _plain_layout(given)
    if plain.type == target:
        return plain
    if pt.is_null(plain.type):
        return pa.nulls(len(plain), target)
    if not _same_family(plain.type, target):
        raise SchemaMismatchError(f"Column {column.name!r} expects {column.data_type} ({target}), not {given.type}.")
    try:
        return _lossless(plain, target)
    except (pa.ArrowException, ValueError) as error:
        raise SchemaMismatchError(
            f"Column {column.name!r} expects {column.data_type} ({target}); "
            f"values of {given.type} do not fit without loss: {error}"
        ) from error


def _plain_layout(array: pa.Array) -> pa.Array:
    """Without extension types and dictionaries."""
    if isinstance(array, pa.ExtensionArray):
        return _plain_layout(array.storage)
    if pt.is_dictionary(array.type):
        return _plain_layout(array.dictionary_decode())
    return array


_IS_LIST = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)
_IS_BINARY = (pt.is_binary, pt.is_large_binary, pt.is_binary_view, pt.is_fixed_size_binary)
_IS_STRING = (pt.is_string, pt.is_large_string, pt.is_string_view)
_IS_NUMBER = (pt.is_floating, pt.is_integer)
# Target check and the checks of which one must hold for the given type.
_FAMILIES: tuple[tuple[Callable[[Any], bool], tuple[Callable[[Any], bool], ...]], ...] = (
    (pt.is_integer, (pt.is_integer,)),
    (pt.is_floating, _IS_NUMBER),
    (pt.is_fixed_size_binary, _IS_BINARY),
    (pt.is_decimal, (pt.is_decimal, pt.is_integer)),
    (pt.is_timestamp, (pt.is_timestamp,)),
    (pt.is_string, _IS_STRING),
    (pt.is_binary, _IS_BINARY),
    (pt.is_list, _IS_LIST),
    (pt.is_date, (pt.is_date,)),
    (pt.is_time, (pt.is_time,)),
    (pt.is_map, (pt.is_map,)),
    (pt.is_struct, (pt.is_struct,)),
)


def _same_family(given: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of one type mean the same as values of the other, width and layout aside."""
    if pt.is_timestamp(given) and pt.is_timestamp(target) and given.tz is not None and target.tz is None:
        return False  # an instant has no wall-clock time without a zone to show it in
    return any(is_target(target) and any(check(given) for check in checks) for is_target, checks in _FAMILIES)


def _lossless(array: pa.Array, target: pa.DataType) -> pa.Array:
    given = array.type
    if pt.is_timestamp(target):
        # Zones are labels of the same count since 1970, so only the unit is converted.
        return array.view(pa.timestamp(given.unit)).cast(pa.timestamp(target.unit)).view(target)
    if pt.is_decimal(target) and pt.is_integer(given):
        # pyarrow asks for room for any integer; the values decide whether they fit.
        return array.cast(pa.decimal256(60, target.scale)).cast(target)
    if pt.is_float32(target) and pt.is_floating(given):
        narrow = array.cast(target)
        same = pc.or_(pc.equal(narrow.cast(given), array), pc.is_nan(array))
        if not pc.all(same, min_count=0).as_py():
            raise ValueError("a number needs more digits than a 32-bit float has")
        return narrow
    if pt.is_fixed_size_binary(target):
        return _fixed_size_binary(array, target)
    return array.cast(target)


def _fixed_size_binary(array: pa.Array, target: pa.DataType) -> pa.Array:
    lengths = pc.binary_length(array.cast(pa.binary()))
    wrong = pc.not_equal(lengths, target.byte_width)
    if pc.any(wrong, min_count=0).as_py():
        raise ValueError(f"a value is not {target.byte_width} bytes long")
    return pa.array(array.to_pylist(), target)

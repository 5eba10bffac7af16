"""Casts of Arrow data of any layout to a table's Arrow schema, without losing anything on the way."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from fluss.model.errors import SchemaMismatchError
from fluss.model.forms.arrow_types import arrow_field
from fluss.model.schema import Column, Schema
from fluss.model.types import DataType, TypeRoot


def plain_layout(array: pa.Array) -> pa.Array:
    """The type without extension types and dictionaries."""
    if isinstance(array, pa.ExtensionArray):
        return plain_layout(array.storage)
    if pt.is_dictionary(array.type):
        return plain_layout(array.dictionary_decode())
    if pt.is_run_end_encoded(array.type):
        return plain_layout(pc.run_end_decode(array))
    return array


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
    (pt.is_date, (pt.is_date,)),
    (pt.is_time, (pt.is_time,)),
)


def same_family(given: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of one type mean the same as values of the other, width and layout aside."""
    if pt.is_timestamp(given) and pt.is_timestamp(target) and given.tz is not None and target.tz is None:
        return False  # an instant has no wall-clock time without a zone to show it in
    return any(is_target(target) and any(check(given) for check in checks) for is_target, checks in _FAMILIES)


def lossless(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The array as `target`, a type of the same family; `ArrowException` or `ValueError` when values do not fit."""
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
    content = array.cast(pa.binary())
    wrong = pc.not_equal(pc.binary_length(content), target.byte_width)
    if pc.any(wrong, min_count=0).as_py():
        raise ValueError(f"a value is not {target.byte_width} bytes long")
    if len(content) == 0:
        return pa.nulls(0, target)
    # Without nulls the values lie one behind the other, as they must.
    filled = pc.fill_null(content, pa.scalar(bytes(target.byte_width), pa.binary()))
    _, offsets, data = filled.buffers()
    start = int.from_bytes(memoryview(offsets).cast("B")[4 * filled.offset :][:4], "little")
    validity = array.is_valid().buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(target, len(array), [validity, data.slice(start)], array.null_count)


_IS_LIST: Final = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)


class ArrowCaster:
    """Brings record batches to a table's columns: order, layout (large, view, dictionary), width and unit.

    So it does with values inside of values. A column that can't be converted without loss is refused with its name, the
    type expected and the type given.
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
        problem = _name_problem(given, self._names)
        if problem is not None:
            kind, name = problem
            if kind == "unknown":
                raise SchemaMismatchError(
                    f"The table has no column {name!r}; its columns are {', '.join(self._names)}."
                )
            raise SchemaMismatchError(f"Column {name!r} occurs twice.")

    def _column(self, column: Column, target: pa.DataType, batch: pa.RecordBatch) -> pa.Array:
        index = batch.schema.get_field_index(column.name)
        try:
            if index < 0:
                return _missing(column.data_type, target, batch.num_rows)
            return _fit(column.data_type, target, batch.column(index), None)
        except _MisfitError as misfit:
            raise misfit.as_mismatch(column.name) from misfit.__cause__


class _MisfitError(Exception):
    """Why an array does not fit: on its way out it learns where in the column, and in which row, that is."""

    def __init__(self, problem: str, row: int | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = ""
        self.row = row

    def as_mismatch(self, column: str) -> SchemaMismatchError:
        where = "" if self.row is None else f" (row {self.row})"
        return SchemaMismatchError(f"Column {column + self.path!r} {self.problem}{where}.")


def _name_problem(given: Sequence[str], known: Sequence[str]) -> tuple[str, str] | None:
    if list(given) == list(known):
        return None
    for name in given:
        if name not in known:
            return "unknown", name
    if len(set(given)) != len(given):
        return "twice", next(name for name in given if given.count(name) > 1)
    return None


def _missing(data_type: DataType, target: pa.DataType, count: int) -> pa.Array:
    if not data_type.nullable:
        raise _MisfitError(f"expects {data_type}, the data lacks it")
    return pa.nulls(count, target)


def _fit(data_type: DataType, target: pa.DataType, given: pa.Array, parent: pa.Array | None) -> pa.Array:
    """`given` as `target`, checked; where `parent` is null, null is no mistake."""
    array = _converted(data_type, target, given)
    if not data_type.nullable and array.null_count > (0 if parent is None else parent.null_count):
        wrong = array.is_null() if parent is None else pc.and_(array.is_null(), parent.is_valid())
        raise _MisfitError(f"expects {data_type}, not null", pc.index(wrong, True).as_py())
    if data_type.root is TypeRoot.CHAR:
        _check_char_length(data_type, array)
    return array


def _converted(data_type: DataType, target: pa.DataType, given: pa.Array) -> pa.Array:
    plain = plain_layout(given)
    if pt.is_null(plain.type):
        return pa.nulls(len(plain), target)
    if plain.type == target and not _has_rules_inside(data_type):
        return plain
    try:
        if data_type.root is TypeRoot.ROW and pt.is_struct(plain.type):
            return _row(data_type, target, plain)
        if data_type.root is TypeRoot.ARRAY and any(check(plain.type) for check in _IS_LIST):
            return _list(data_type, target, plain)
        if data_type.root is TypeRoot.MAP and _is_map(plain.type):
            return _map(data_type, target, plain)
        if same_family(plain.type, target):
            return lossless(plain, target)
    except (pa.ArrowException, ValueError) as error:
        raise _MisfitError(
            f"expects {data_type} ({target}); values of {given.type} do not fit without loss: {error}"
        ) from error
    raise _MisfitError(f"expects {data_type} ({target}), not {given.type}")


def _has_rules_inside(data_type: DataType) -> bool:
    """Whether values inside must be looked at even when the Arrow type is right, which knows no nulls and lengths."""
    inside = [field.data_type for field in data_type.fields]
    inside += [child for child in (data_type.element, data_type.value) if child is not None]
    if data_type.key is not None:
        inside.append(data_type.key)
    return any(not child.nullable or child.root is TypeRoot.CHAR or _has_rules_inside(child) for child in inside)


def _check_char_length(data_type: DataType, array: pa.Array) -> None:
    lengths = pc.utf8_length(array)
    longest = pc.max(lengths).as_py()
    if longest is not None and longest > data_type.length:
        row = pc.index(lengths, longest).as_py()
        raise _MisfitError(f"expects {data_type}; string of {longest} characters does not fit", row)


def _row(data_type: DataType, target: pa.DataType, given: pa.Array) -> pa.Array:
    names = [field.name for field in data_type.fields]
    problem = _name_problem([field.name for field in given.type], names)
    if problem is not None:
        kind, name = problem
        what = (
            f"has no field {name!r}; its fields are {', '.join(names)}" if kind == "unknown" else f"has {name!r} twice"
        )
        raise _MisfitError(f"expects {data_type} and {what}")
    flat = given.flatten()
    children = []
    for field, arrow in zip(data_type.fields, target, strict=True):
        index = given.type.get_field_index(field.name)
        try:
            if index < 0:
                children.append(_missing(field.data_type, arrow.type, len(given)))
            else:
                children.append(_fit(field.data_type, arrow.type, flat[index], given))
        except _MisfitError as misfit:
            misfit.path = f".{field.name}{misfit.path}"
            raise
    return pa.Array.from_buffers(target, len(given), [_validity(given)], given.null_count, children=children)


def _list(data_type: DataType, target: pa.DataType, given: pa.Array) -> pa.Array:
    assert data_type.element is not None
    offsets, elements = _list_parts(given)
    try:
        elements = _fit(data_type.element, target.value_type, elements, None)
    except _MisfitError as misfit:
        position = _to_outer_row(misfit, offsets)
        misfit.path = f"[{'' if position is None else position[1]}]{misfit.path}"
        raise
    buffers = [_validity(given), offsets.buffers()[1]]
    return pa.Array.from_buffers(target, len(given), buffers, given.null_count, children=[elements])


def _map(data_type: DataType, target: pa.DataType, given: pa.Array) -> pa.Array:
    assert data_type.key is not None
    assert data_type.value is not None
    offsets, entries = _list_parts(_entry_lists(given) if pt.is_map(given.type) else given)
    keys, values = entries.flatten()
    try:
        keys = _fit(data_type.key.not_null(), target.key_type, keys, None)
    except _MisfitError as misfit:
        _to_outer_row(misfit, offsets)
        misfit.path = f".key{misfit.path}"
        raise
    try:
        values = _fit(data_type.value, target.item_type, values, None)
    except _MisfitError as misfit:
        position = _to_outer_row(misfit, offsets)
        misfit.path = f"{{{'' if position is None else repr(keys[position[0]].as_py())}}}{misfit.path}"
        raise
    entries_type = pa.struct([target.key_field, target.item_field])
    entries = pa.Array.from_buffers(entries_type, len(keys), [None], 0, children=[keys, values])
    buffers = [_validity(given), offsets.buffers()[1]]
    return pa.Array.from_buffers(target, len(given), buffers, given.null_count, children=[entries])


def _is_map(given: pa.DataType) -> bool:
    """Whether a type is a map, or what libraries without one make of it: a list of structs of key and value."""
    if pt.is_map(given):
        return True
    if not any(check(given) for check in _IS_LIST) or not pt.is_struct(given.value_type):
        return False
    return [field.name for field in given.value_type] == ["key", "value"]


def _entry_lists(maps: pa.Array) -> pa.Array:
    """Maps as the lists of structs that they are."""
    entries = maps.values
    return pa.Array.from_buffers(
        pa.list_(entries.type), len(maps), maps.buffers()[:2], maps.null_count, maps.offset, children=[entries]
    )


def _list_parts(given: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Offsets that begin with 0 and the elements of all lists but null ones. (Casting list views breaks in pyarrow.)"""
    zero = pa.nulls(1, pa.int32()).fill_null(0)
    lengths = pc.fill_null(pc.list_value_length(given), 0).cast(pa.int32())
    return pa.concat_arrays([zero, pc.cumulative_sum_checked(lengths)]), given.flatten()


def _to_outer_row(misfit: _MisfitError, offsets: pa.Array) -> tuple[int, int] | None:
    """Count the misfit's row in lists; returns where it lay among all elements and in its list."""
    if misfit.row is None:
        return None
    ends = offsets.to_pylist()
    element = misfit.row
    misfit.row = bisect_right(ends, element) - 1
    return element, element - ends[misfit.row]


def _validity(array: pa.Array) -> pa.Buffer | None:
    return array.is_valid().buffers()[1] if array.null_count else None

"""Values from files and command lines as the types of a table's columns; what does not fit is named by its row."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from fluss.cli.text.names import near_names, suggestion
from fluss.cli.text.output import plain
from fluss.model.errors import FlussError, SchemaMismatchError

_SHOWN_CHARACTERS_MAX: Final = 80
_ZONE: Final = r"(Z|[+-]\d\d:?\d\d)$"
_DATE_LENGTH: Final = 10
_DIGITS_MAX: Final = 40
_CAST_ERRORS: Final = (pa.ArrowException, ValueError, TypeError, OverflowError, KeyError, AttributeError)


class MisfitError(FlussError):
    """A value that is not of its column's type; `row` counts from 0 in its batch."""

    def __init__(self, row: int, column: str, problem: str) -> None:
        super().__init__(f"column {column!r}: {problem}")
        self.row = row


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with a schema's columns. Missing ones are null; one that the schema does not have is an error."""
    check_names(batch.schema.names, schema)
    columns = []
    for field in schema:
        index = batch.schema.get_field_index(field.name)
        given = pa.nulls(batch.num_rows, field.type) if index < 0 else batch.column(index)
        column = fit_column(given, field)
        if column.null_count and not field.nullable:
            row = column.is_null().index(True).as_py()
            raise MisfitError(row, field.name, "there is no value, but the column is NOT NULL")
        columns.append(column)
    return pa.record_batch(columns, schema=schema)


def check_names(names: Sequence[str], schema: pa.Schema) -> None:
    """That each name is a column, once."""
    for index, name in enumerate(names):
        if name not in schema.names:
            advice = suggestion(near_names(name, schema.names)) or f" There are {', '.join(schema.names)}."
            raise SchemaMismatchError(f"there is no column {name!r} to write to.{advice}")
        if name in names[:index]:
            raise SchemaMismatchError(f"the column {name!r} is there twice.")


def fit_column(column: pa.Array, field: pa.Field) -> pa.Array:
    """A column as another type."""
    if column.type == field.type:
        return column
    if pt.is_dictionary(column.type):
        column = column.dictionary_decode()
    # A cast would drop it without a word.
    extra = unknown_field(column.type, field.type)
    if extra is not None:
        raise SchemaMismatchError(f"column {field.name!r}: there is no field {extra!r} in {_named(field.type)}.")
    convert = _from_text if pt.is_string(column.type) or pt.is_large_string(column.type) else pa.Array.cast
    try:
        return convert(column, field.type)
    except _CAST_ERRORS:
        raise _misfit(column, field, lambda one: convert(one, field.type)) from None


def unknown_field(given: pa.DataType, wanted: pa.DataType) -> str | None:
    """A field of a nested type that the other type does not have."""
    if pt.is_struct(given) and pt.is_struct(wanted):
        names = [field.name for field in wanted]
        for child in given:
            found = unknown_field(child.type, wanted.field(child.name).type) if child.name in names else child.name
            if found is not None:
                return str(found)
    elif pt.is_map(given) and pt.is_map(wanted):
        return unknown_field(given.item_type, wanted.item_type)
    elif hasattr(given, "value_type") and hasattr(wanted, "value_type"):
        return unknown_field(given.value_type, wanted.value_type)
    return None


def from_plain(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """A column from values as JSON has them."""
    try:
        return _from_plain(values, field.type)
    except _CAST_ERRORS:
        for row, value in enumerate(values):
            try:
                _from_plain([value], field.type)
            except _CAST_ERRORS:
                raise MisfitError(row, field.name, f"{_shown(value)} is no {_named(field.type)}") from None
        raise


def _misfit(column: pa.Array, field: pa.Field, convert: Callable[[pa.Array], pa.Array]) -> FlussError:
    """Which value it was: halves are tried until one value is left."""
    first, last = 0, len(column)
    while last - first > 1:
        middle = (first + last) // 2
        try:
            convert(column.slice(first, middle - first))
            first = middle
        except _CAST_ERRORS:
            last = middle
    value = plain(column.slice(first, 1))[0] if len(column) else None
    return MisfitError(first, field.name, f"{_shown(value)} is no {_named(field.type)}")


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=float)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[: _SHOWN_CHARACTERS_MAX - 1] + "…"


def _named(kind: pa.DataType) -> str:
    """A type as tables call it."""
    from fluss.model.forms.arrow_types import from_arrow

    return str(from_arrow(kind))


def _from_text(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pt.is_string(kind) or pt.is_large_string(kind):
        return column.cast(kind)
    if pt.is_nested(kind):
        return _from_plain([None if text is None else loads(text) for text in column.to_pylist()], kind)
    if pt.is_binary(kind) or pt.is_fixed_size_binary(kind):
        return pa.array([None if text is None else bytes.fromhex(text) for text in column.to_pylist()], kind)
    column = pc.utf8_trim_whitespace(column)
    if pt.is_time(kind):
        days = pc.binary_join_element_wise(pa.scalar("1970-01-01"), column, " ")
        return days.cast(pa.timestamp(kind.unit)).cast(kind)
    if pt.is_timestamp(kind) and kind.tz is not None:
        midnight = pc.binary_join_element_wise(column, pa.scalar("00:00:00"), " ")
        moments = pc.if_else(pc.equal(pc.utf8_length(column), _DATE_LENGTH), midnight, column)
        zoned = pc.match_substring_regex(moments, _ZONE)
        return pc.if_else(zoned, moments, pc.binary_join_element_wise(moments, pa.scalar("Z"), "")).cast(kind)
    return column.cast(kind)


def loads(text: str | bytes) -> Any:
    """JSON with exact decimals."""
    return json.loads(text, parse_float=Decimal)


def _from_plain(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pt.is_struct(kind):
        return _structs(values, kind)
    if pt.is_map(kind):
        pairs = [None if value is None else _pairs(value) for value in values]
        keys, items = zip(*(pair for part in pairs for pair in part or ()), strict=True) if any(pairs) else ((), ())
        children = (_from_plain(keys, kind.key_type), _from_plain(items, kind.item_type))
        return pa.MapArray.from_arrays(_offsets(pairs), *children).cast(kind)
    if pt.is_list(kind):
        if any(value is not None and not isinstance(value, list) for value in values):
            raise ValueError("not a list")
        flat = [item for value in values for item in value or ()]
        return pa.ListArray.from_arrays(_offsets(values), _from_plain(flat, kind.value_type)).cast(kind)
    if any(isinstance(value, (dict, list)) for value in values):
        raise ValueError("nested")
    if pt.is_boolean(kind) or pt.is_string(kind):
        if any(
            isinstance(value, bool if pt.is_string(kind) else int) and value not in (True, False) for value in values
        ):
            raise ValueError("a number")
        return pa.array(values, kind)
    if pt.is_integer(kind) and not any(isinstance(value, (str, bool)) for value in values):
        return pa.array([_whole(value) if isinstance(value, Decimal) else value for value in values], kind)
    # By their text, which is exact.
    return _from_text(pa.array([None if value is None else _spelled(value) for value in values], pa.string()), kind)


def _whole(value: Decimal) -> int:
    if value != value.to_integral_value() or value.adjusted() > _DIGITS_MAX:
        raise ValueError("not a whole number")
    return int(value)


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        raise ValueError("true or false")
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _offsets(parts: Sequence[Any]) -> pa.Array:
    """Where the parts of a list or map begin and end; null where there is none."""
    offsets: list[int | None] = []
    end = 0
    for part in parts:
        offsets.append(None if part is None else end)
        end += len(part or ())
    return pa.array([*offsets, end], pa.int32())


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    """A map is an object, or a list of pairs."""
    if isinstance(value, dict):
        return list(value.items())
    pairs = [(key, item) for key, item in value]
    if any(key is None for key, _ in pairs):
        raise ValueError("a key is null")
    return pairs


def _structs(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    names = {field.name for field in kind}
    if any(value is not None and (not isinstance(value, dict) or value.keys() - names) for value in values):
        raise ValueError("not an object of these fields")
    children = [_from_plain([(value or {}).get(field.name) for value in values], field.type) for field in kind]
    absent = pa.array([value is None for value in values])
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=absent)

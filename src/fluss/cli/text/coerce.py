"""Values and names as people type them: values in the types of a table's columns, names with near matches."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import click
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from fluss.cli.text.output import plain
from fluss.model.errors import FlussError, NotFoundError, SchemaMismatchError
from fluss.model.paths import TablePath, check_database_name, check_table_name
from fluss.model.tables.options import duration_ms

if TYPE_CHECKING:
    from fluss.model.infos import PartitionInfo
    from fluss.sync import FlussConnection, FlussTable


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
    """Check that each name is a column, and is there once."""
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
                raise MisfitError(
                    row, field.name, f"{_shown(value)} is not a value of type {_named(field.type)}"
                ) from None
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
    return MisfitError(first, field.name, f"{_shown(value)} is not a value of type {_named(field.type)}")


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
    """The offsets at which parts of a list or map begin, and the last end; null where there is none."""
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


_DATABASES_SEARCHED_MAX: Final = 100


def table_path(text: str) -> TablePath:
    """`database.table`, or a plain name in the database `fluss`."""
    path = TablePath.of(text)
    check_database_name(path.database_name)
    check_table_name(path.table_name)
    return path


def open_table(connection: FlussConnection, text: str) -> FlussTable:
    """The table of a name."""
    path = table_path(text)
    try:
        return connection.get_table(path)
    except NotFoundError:
        raise missing_table(connection, path) from None


def missing_table(connection: FlussConnection, path: TablePath) -> NotFoundError:
    """The error for a table that does not exist, with names that were perhaps meant."""
    admin = connection.get_admin()
    databases = admin.list_databases()
    if path.database_name not in databases:
        return missing_database(path.database_name, databases)
    tables = admin.list_tables(path.database_name)
    near = [f"{path.database_name}.{name}" for name in near_names(path.table_name, tables)]
    if not near:
        others = [name for name in databases if name != path.database_name][:_DATABASES_SEARCHED_MAX]
        near = [f"{name}.{path.table_name}" for name in others if path.table_name in admin.list_tables(name)]
    advice = suggestion(near) or f" 'fluss table list {path.database_name}' lists those there are."
    return NotFoundError(f"There is no table {path}.{advice}")


def missing_database(name: str, databases: Sequence[str]) -> NotFoundError:
    """The error for a database that does not exist, with names that were perhaps meant."""
    advice = suggestion(near_names(name, databases)) or f" 'fluss database create {name}' creates it."
    return NotFoundError(f"There is no database {name}.{advice}")


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Those that look alike."""
    return difflib.get_close_matches(name, list(known), n=3)


def suggestion(names: Sequence[str]) -> str:
    return f" Did you mean {' or '.join(names)}?" if names else ""


def check_columns(table: FlussTable, names: Iterable[str]) -> list[str]:
    """Names of columns, all of which the table has."""
    known = table.get_table_info().get_column_names()
    wanted = list(names)
    for name in wanted:
        if name not in known:
            advice = suggestion(near_names(name, known)) or f" It has {', '.join(known)}."
            raise NotFoundError(f"Table {table.table_path} has no column {name!r}.{advice}")
    return wanted


def split_columns(_: click.Context, __: click.Parameter, given: str | None) -> list[str] | None:
    """The value of an option such as `--columns id,name`."""
    return None if given is None else [name.strip() for name in given.split(",") if name.strip()]


def pairs(_: click.Context, option: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """The value of options and arguments such as `key=value`."""
    found = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{item!r} is not like key=value.", param=option)
        found[key] = value
    return found


def seconds(_: click.Context, option: click.Parameter, given: str | None, ms_min: int = 0) -> float | None:
    """The value of an option such as `30s` or `5d`."""
    if given is None:
        return None
    milliseconds = duration_ms(given)
    if milliseconds is None or milliseconds < ms_min:
        raise click.BadParameter(f"{given!r} is not a duration like 30s or 5d.", param=option)
    return milliseconds / 1000


def key_pairs(text: str, columns: Sequence[str]) -> dict[str, str]:
    """`region=EU,id=5`: a comma separates only before the name of a column."""
    names = "|".join(re.escape(name) for name in columns)
    parts = re.split(f",(?=(?:{names})=)", text)
    found = dict(part.split("=", 1) for part in parts if "=" in part)
    if len(found) != len(parts):
        raise FlussError(f"{text!r} is not a key; write it like {','.join(f'{name}=...' for name in columns)}.")
    return found


def partitions(connection: FlussConnection, table: FlussTable, names: Sequence[str] = ()) -> list[PartitionInfo]:
    """A table's partitions, by name; or those named: `2026-01-31`, `EU$2026-01-31`, or `day=2026-01-31,region=EU`."""
    info = table.get_table_info()
    if not info.is_partitioned():
        if names:
            raise FlussError(f"Table {info.table_path} has no partitions; leave --partition out.")
        return []
    found = connection.get_admin().list_partition_infos(info.table_path)
    found.sort(key=lambda partition: partition.partition_name)
    if not names:
        return found
    chosen = {}
    for name in names:
        if "=" in name:
            spec = key_pairs(name, info.partition_keys).items()
            matching = [item for item in found if spec <= item.partition_spec.get_spec_map().items()]
        else:
            matching = [item for item in found if item.partition_name == name]
        if not matching:
            near = suggestion(near_names(name, [item.partition_name for item in found]))
            advice = near or f" 'fluss partition list {info.table_path}' lists those there are."
            raise NotFoundError(f"Table {info.table_path} has no partition {name}.{advice}")
        chosen.update({item.partition_id: item for item in matching})
    return list(chosen.values())

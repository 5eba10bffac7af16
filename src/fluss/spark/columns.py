"""Columns of a DataFrame and of a table: matched by name, and converted batch by batch.

What already fits is not touched. Nested columns keep their offsets and null bitmaps; only leaves of another type are
made anew.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql import types as st

from fluss.model.errors import SchemaMismatchError
from fluss.model.paths import TablePath
from fluss.model.records import CHANGE_TYPE
from fluss.model.schema import Column, Schema
from fluss.spark.types import select_columns, spark_type

if TYPE_CHECKING:
    from fluss.model.paths import TablePath

_UNITS = {"s": "second", "ms": "millisecond", "us": "microsecond", "ns": "nanosecond"}
_COARSE_TO_FINE = list(_UNITS)


def to_spark(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A table's batch as Spark takes it; nanoseconds are cut off at microseconds."""
    if batch.schema.equals(schema):
        return batch
    arrays = [_column(batch.column(field.name), field) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def to_table(batch: pa.RecordBatch, schema: pa.Schema, table_path: TablePath) -> pa.RecordBatch:
    """A batch from Spark in the table's column order and types; times are cut off at the column's precision."""
    arrays = [_column(batch.column(field.name), field) for field in schema]
    for field, array in zip(schema, arrays, strict=True):
        _check_nulls(array, field, f"column {field.name!r} of {table_path}")
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return _cast(array, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError(f"The column {field.name!r} can't be converted to {field.type}: {error}") from None


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if array.type.equals(wanted):
        return array
    if pt.is_list(wanted) or pt.is_map(wanted):
        # A map is a list of structs to Arrow. `values` has all of them, those before a slice's beginning, too.
        entries = pa.struct([wanted.key_field, wanted.item_field]) if pt.is_map(wanted) else wanted.value_type
        values = _cast(array.values, entries)
        return pa.Array.from_buffers(wanted, len(array), array.buffers()[:2], offset=array.offset, children=[values])
    if pt.is_struct(wanted):
        # By position: Spark may spell the names of inner fields in its own case.
        fields = [_cast(array.field(i), field.type) for i, field in enumerate(wanted)]
        return pa.StructArray.from_arrays(fields, fields=list(wanted), mask=array.is_null())
    if pt.is_timestamp(wanted):
        return _cast_timestamp(array, wanted)
    if pt.is_time(wanted):
        # Unsafe means that digits are cut off: always downwards, because times of day are never negative.
        return array.cast(wanted, safe=False)
    return array.cast(wanted)


def _cast_timestamp(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Without what a coarser unit can't hold. Rounds down, so that times before 1970 are cut alike."""
    if _COARSE_TO_FINE.index(wanted.unit) < _COARSE_TO_FINE.index(array.type.unit):
        # Without its zone, in which Arrow would look each value up.
        array = pc.floor_temporal(array.view(pa.timestamp(array.type.unit)), unit=_UNITS[wanted.unit])
        array = array.cast(pa.timestamp(wanted.unit)).view(wanted)
    return array.cast(wanted)


def _check_nulls(array: pa.Array, field: pa.Field, where: str) -> None:
    """Raise if something is null that can't be, here or further inside."""
    if not field.nullable and array.null_count:
        raise SchemaMismatchError(f"The {where} can't be null; {array.null_count} of {len(array)} in a batch are.")
    if _nullable_inside(field.type):
        return
    present = array.drop_null()
    if not len(present):
        return
    if pt.is_list(field.type):
        _check_nulls(_entries(present), field.type.value_field, f"elements of {where}")
    elif pt.is_map(field.type):
        _check_nulls(_entries(present).field(1), field.type.item_field, f"values of {where}")
    elif pt.is_struct(field.type):
        for i, inner in enumerate(field.type):
            _check_nulls(present.field(i), inner, f"field {inner.name!r} of {where}")


def _entries(lists: pa.Array) -> pa.Array:
    """The elements of lists or maps none of which is null."""
    start, end = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
    return lists.values.slice(start, end - start)


def _nullable_inside(arrow_type: pa.DataType) -> bool:
    """Whether everything inside a type may be null, map keys aside, which never are."""
    if pt.is_list(arrow_type):
        inner = [arrow_type.value_field]
    elif pt.is_map(arrow_type):
        inner = [arrow_type.item_field]
    elif pt.is_struct(arrow_type):
        inner = list(arrow_type)
    else:
        return True
    return all(field.nullable and _nullable_inside(field.type) for field in inner)


_INTEGERS = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
_FLOATS = (st.FloatType, st.DoubleType)


def check_read_schema(table_path: TablePath, schema: Schema, requested: Any) -> list[Column]:
    """The table's columns for a schema given with `.schema(...)`, which must state the table's own types."""
    if not requested.fields:
        raise SchemaMismatchError(f"The schema for {table_path} names no column.")
    columns = select_columns(schema, requested.fieldNames())
    for column, field in zip(columns, requested.fields, strict=True):
        expected = spark_type(column.data_type)
        if expected is None or not _same(expected, field.dataType):
            raise SchemaMismatchError(
                f"The column {column.name!r} of {table_path} is of type {column.data_type}"
                + (f", in Spark {expected.simpleString()}" if expected else ", for which Spark has no type")
                + f"; the schema says {field.dataType.simpleString()}. Read it as it is and cast it afterwards."
            )
        if column.data_type.nullable and not field.nullable:
            raise SchemaMismatchError(f"The column {column.name!r} of {table_path} may be null; the schema denies it.")
    return columns


def _same(column: Any, requested: Any) -> bool:
    """The same type, where the requested one may allow nulls inside that the column does not have."""
    if isinstance(column, st.ArrayType) and isinstance(requested, st.ArrayType):
        return column.containsNull <= requested.containsNull and _same(column.elementType, requested.elementType)
    if isinstance(column, st.MapType) and isinstance(requested, st.MapType):
        nulls = column.valueContainsNull <= requested.valueContainsNull
        return nulls and _same(column.keyType, requested.keyType) and _same(column.valueType, requested.valueType)
    if isinstance(column, st.StructType) and isinstance(requested, st.StructType):
        return column.fieldNames() == requested.fieldNames() and all(
            ours.nullable <= theirs.nullable and _same(ours.dataType, theirs.dataType)
            for ours, theirs in zip(column, requested, strict=True)
        )
    return bool(column == requested)


def check_write_schema(
    table_path: TablePath,
    schema: Schema,
    written: Any,
    needed: Sequence[str] | None = None,
    ignored: Container[str] = (),
) -> None:
    """Raise unless rows of a DataFrame with the schema `written` can be stored in the table.

    It must have the columns `needed` (None: all of the table), and besides them only such that are ignored.
    """
    names, needed = written.fieldNames(), schema.column_names if needed is None else needed
    for numbered in schema.get_auto_increment_columns():
        if numbered in names and numbered not in ignored:
            raise SchemaMismatchError(
                f"The column {numbered!r} of {table_path} is numbered by the server: leave it out."
            )
    problems = {
        "repeats": sorted({name for name in names if names.count(name) > 1}),
        "lacks": [name for name in needed if name not in names],
        "has": [name for name in names if name not in needed and name not in ignored],
    }
    for problem, found in problems.items():
        if found:
            listed = ("column " if len(found) == 1 else "columns ") + ", ".join(map(repr, found))
            whose = f", which {table_path} does not have" if problem == "has" else f" of {table_path}"
            hint = _write_hint(schema, problem, found, [name for name in needed if name in names])
            raise SchemaMismatchError(f"The DataFrame {problem} the {listed}{whose}; columns match by name.{hint}")
    for column in schema.columns:
        if column.name in needed:
            _check_written_type(table_path, column, written[column.name].dataType)
    if CHANGE_TYPE in needed and not isinstance(written[CHANGE_TYPE].dataType, st.StringType):
        raise SchemaMismatchError(
            f"The column {CHANGE_TYPE!r} must have strings, not {written[CHANGE_TYPE].dataType.simpleString()}."
        )


def _write_hint(schema: Schema, problem: str, found: Sequence[str], present: Sequence[str]) -> str:
    """What a user whose columns do not fit may have meant."""
    keys = schema.get_primary_keys()
    if problem == "has" and keys and CHANGE_TYPE in found:
        return " To apply changes, use .option('write.mode', 'changelog')."
    if problem == "lacks" and CHANGE_TYPE in found:
        return f" With 'changelog' as 'write.mode', {CHANGE_TYPE!r} says what becomes of a row: '+I', '+U' or '-D'."
    if problem == "lacks" and keys and set(keys) < set(present):
        targets = ", ".join(name for name in present if name != CHANGE_TYPE)
        return f" To write only these columns and keep the others, use .option('target.columns', {targets!r})."
    return ""


def _check_written_type(table_path: TablePath, column: Column, given: Any) -> None:
    expected = spark_type(column.data_type)
    if expected is None:
        raise SchemaMismatchError(
            f"The column {column.name!r} of {table_path} is of type {column.data_type}, for which Spark has no type; "
            "write to this table with the client."
        )
    if not _fits(given, expected):
        wanted = expected.simpleString()
        raise SchemaMismatchError(
            f"The column {column.name!r} of {table_path} is of type {column.data_type}; the DataFrame has "
            f"{given.simpleString()}. Cast it: df.withColumn({column.name!r}, df[{column.name!r}].cast({wanted!r}))."
        )


def _fits(given: Any, expected: Any) -> bool:
    """The same type, or a narrower one of the same kind, so that no value changes."""
    if given == expected:
        return True
    if isinstance(given, st.StringType) and isinstance(expected, st.StringType):
        return True  # collations differ in how strings compare, not in what they hold
    if given.typeName() == expected.typeName() == "time":
        return True  # cut off at the column's precision, as timestamps are
    if isinstance(given, st.ArrayType) and isinstance(expected, st.ArrayType):
        return _fits(given.elementType, expected.elementType)
    if isinstance(given, st.MapType) and isinstance(expected, st.MapType):
        return _fits(given.keyType, expected.keyType) and _fits(given.valueType, expected.valueType)
    if isinstance(given, st.StructType) and isinstance(expected, st.StructType):
        same_names = given.fieldNames() == expected.fieldNames()
        return same_names and all(
            _fits(ours.dataType, theirs.dataType) for ours, theirs in zip(given, expected, strict=True)
        )
    if isinstance(given, st.DecimalType) and isinstance(expected, st.DecimalType):
        digits = given.precision - given.scale
        return bool(given.scale <= expected.scale and digits <= expected.precision - expected.scale)
    for widening in (_INTEGERS, _FLOATS):
        if type(given) in widening and type(expected) in widening:
            return widening.index(type(given)) < widening.index(type(expected))
    return False

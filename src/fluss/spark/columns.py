"""Does a DataFrame's schema fit a table's? Columns are matched by name; what does not fit is named."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from pyspark.sql import types as st

from fluss.model.errors import SchemaMismatchError
from fluss.model.paths import TablePath
from fluss.model.records import CHANGE_TYPE
from fluss.model.schema import Column, Schema
from fluss.spark.types import select_columns, spark_type

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

"""Does a DataFrame's schema fit a table's? Columns are matched by name; what does not fit is named."""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as st

from fluss.model.errors import SchemaMismatchError
from fluss.model.paths import TablePath
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
        if expected is None or expected != field.dataType:
            raise SchemaMismatchError(
                f"The column {column.name!r} of {table_path} is of type {column.data_type}"
                + (f", in Spark {expected.simpleString()}" if expected else ", for which Spark has no type")
                + f"; the schema says {field.dataType.simpleString()}. Read it as it is and cast it afterwards."
            )
        if column.data_type.nullable and not field.nullable:
            raise SchemaMismatchError(f"The column {column.name!r} of {table_path} may be null; the schema denies it.")
    return columns


def check_write_schema(table_path: TablePath, schema: Schema, written: Any) -> None:
    """Raise unless every row of a DataFrame with the schema `written` can be stored in the table."""
    names = written.fieldNames()
    repeated = sorted({name for name in names if names.count(name) > 1})
    missing = [name for name in schema.column_names if name not in names]
    extra = [name for name in names if name not in schema.column_names]
    for problem, found in (("repeats", repeated), ("lacks", missing), ("has", extra)):
        if found:
            what = "column" if len(found) == 1 else "columns"
            listed = ", ".join(map(repr, found))
            whose = f", which {table_path} does not have" if problem == "has" else f" of {table_path}"
            raise SchemaMismatchError(f"The DataFrame {problem} the {what} {listed}{whose}; columns match by name.")
    for column in schema.columns:
        _check_written_type(table_path, column, written[column.name].dataType)


def _check_written_type(table_path: TablePath, column: Column, given: Any) -> None:
    expected = spark_type(column.data_type)
    if expected is None:
        raise SchemaMismatchError(
            f"The column {column.name!r} of {table_path} is of type {column.data_type}, for which Spark has no type; "
            "append to this table with the client."
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
    if isinstance(given, st.DecimalType) and isinstance(expected, st.DecimalType):
        digits = given.precision - given.scale
        return bool(given.scale <= expected.scale and digits <= expected.precision - expected.scale)
    for widening in (_INTEGERS, _FLOATS):
        if type(given) in widening and type(expected) in widening:
            return widening.index(type(given)) < widening.index(type(expected))
    return False

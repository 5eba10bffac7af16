"""Fluss types as Spark types and back.

TIMESTAMP is Spark's TimestampNTZ, TIMESTAMP_LTZ its Timestamp; both have microseconds there, whatever the column's
precision. CHAR is a string, BINARY is binary. TIME has no Spark type, and nested types are not mapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as st

from fluss.model.errors import InvalidRequestError, SchemaMismatchError
from fluss.model.schema import Column, Schema
from fluss.model.types import DataType, DataTypes, TypeRoot

if TYPE_CHECKING:
    import pyarrow as pa

_TO_SPARK = {
    TypeRoot.BOOLEAN: st.BooleanType(),
    TypeRoot.TINYINT: st.ByteType(),
    TypeRoot.SMALLINT: st.ShortType(),
    TypeRoot.INTEGER: st.IntegerType(),
    TypeRoot.BIGINT: st.LongType(),
    TypeRoot.FLOAT: st.FloatType(),
    TypeRoot.DOUBLE: st.DoubleType(),
    TypeRoot.CHAR: st.StringType(),
    TypeRoot.STRING: st.StringType(),
    TypeRoot.BINARY: st.BinaryType(),
    TypeRoot.BYTES: st.BinaryType(),
    TypeRoot.DATE: st.DateType(),
    TypeRoot.TIMESTAMP: st.TimestampNTZType(),
    TypeRoot.TIMESTAMP_LTZ: st.TimestampType(),
}
_FROM_SPARK = {
    st.BooleanType: DataTypes.boolean(),
    st.ByteType: DataTypes.tinyint(),
    st.ShortType: DataTypes.smallint(),
    st.IntegerType: DataTypes.int(),
    st.LongType: DataTypes.bigint(),
    st.FloatType: DataTypes.float(),
    st.DoubleType: DataTypes.double(),
    st.StringType: DataTypes.string(),
    st.BinaryType: DataTypes.bytes(),
    st.DateType: DataTypes.date(),
    st.TimestampNTZType: DataTypes.timestamp(),
    st.TimestampType: DataTypes.timestamp_ltz(),
}
_SPARK_TIME_UNIT = "us"


def spark_type(data_type: DataType) -> Any:
    """The Spark type of a column, or None if there is none."""
    if data_type.root is TypeRoot.DECIMAL:
        return st.DecimalType(data_type.precision, data_type.scale)
    return _TO_SPARK.get(data_type.root)


def fluss_type(data_type: Any, nullable: bool = True) -> DataType | None:
    """The column type that holds every value of a Spark type, or None if there is none."""
    if isinstance(data_type, st.DecimalType):
        found: DataType | None = DataTypes.decimal(data_type.precision, data_type.scale)
    else:
        found = _FROM_SPARK.get(type(data_type))
    return found if found is None or nullable else found.not_null()


def spark_arrow_type(data_type: DataType) -> pa.DataType:
    """The Arrow type in which Spark takes a column's values."""
    import pyarrow as pa

    from fluss.model.arrow_types import to_arrow

    if data_type.root is TypeRoot.TIMESTAMP:
        return pa.timestamp(_SPARK_TIME_UNIT)
    if data_type.root is TypeRoot.TIMESTAMP_LTZ:
        return pa.timestamp(_SPARK_TIME_UNIT, tz="UTC")
    if data_type.root is TypeRoot.BINARY:
        return pa.binary()
    return to_arrow(data_type)


def spark_arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """The Arrow schema of the batches that Spark takes for these columns."""
    import pyarrow as pa

    fields = [(column.name, spark_arrow_type(column.data_type), column.data_type.nullable) for column in columns]
    return pa.schema([pa.field(*field) for field in fields])


def spark_schema(schema: Schema, names: Sequence[str] | None = None) -> Any:
    """The Spark schema of a table, or of some of its columns; raises if a column's type has no Spark type."""
    fields = []
    for column in select_columns(schema, names):
        found = spark_type(column.data_type)
        if found is None:
            raise SchemaMismatchError(
                f"Spark has no type for the column {column.name!r} of type {column.data_type}; read the other columns "
                "by naming them in .option('columns', 'a, b') or in .schema('a int, b string')."
            )
        fields.append(st.StructField(column.name, found, column.data_type.nullable))
    return st.StructType(fields)


def select_columns(schema: Schema, names: Sequence[str] | None) -> list[Column]:
    """The columns of these names, in this order; all if there are no names."""
    if names is None:
        return schema.columns
    by_name = {column.name: column for column in schema.columns}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise InvalidRequestError(f"The table has no column {unknown[0]!r}; its columns are {', '.join(by_name)}.")
    return [by_name[name] for name in names]


def table_schema(struct: Any) -> Schema:
    """The schema of a table for rows of a DataFrame: `table_schema(df.schema)`."""
    columns = []
    for field in struct.fields:
        found = fluss_type(field.dataType, field.nullable)
        if found is None:
            raise SchemaMismatchError(
                f"The column {field.name!r} has the Spark type {field.dataType.simpleString()}, "
                "which no Fluss column type holds."
            )
        columns.append(Column(field.name, found))
    return Schema.of(columns)

"""Fluss types as Spark types and back.

TIMESTAMP is Spark's TimestampNTZ, TIMESTAMP_LTZ its Timestamp; both have microseconds there, whatever the column's
precision. So has TIME, which is TIME(6): Spark compares times of one precision only, and its literals have this one. It
needs Spark 4.1 and the setting `spark.sql.timeType.enabled`. CHAR is a string, BINARY is binary. ARRAY, MAP and ROW
hold any of these, or each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as st

from fluss.model.errors import InvalidRequestError, SchemaMismatchError
from fluss.model.schema import Column, Schema
from fluss.model.types import NESTING_DEPTH_MAX, DataField, DataType, DataTypes, TypeRoot, too_deep

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
    st.VarcharType: DataTypes.string(),
    st.BinaryType: DataTypes.bytes(),
    st.DateType: DataTypes.date(),
    st.TimestampNTZType: DataTypes.timestamp(),
    st.TimestampType: DataTypes.timestamp_ltz(),
}
_SPARK_TIME_PRECISION = 6
_TimeType = getattr(st, "TimeType", None)  # from Spark 4.1 on
_COMMENT = "comment"


def spark_type(data_type: DataType) -> Any:
    """The Spark type of a column, or None if there is none."""
    if data_type.root is TypeRoot.DECIMAL:
        return st.DecimalType(data_type.precision, data_type.scale)
    if data_type.root is TypeRoot.TIME:
        return _TimeType and _TimeType(_SPARK_TIME_PRECISION)
    if data_type.is_nested:
        return _nested_spark_type(data_type)
    return _TO_SPARK.get(data_type.root)


def _nested_spark_type(data_type: DataType) -> Any:
    parts = [(part, spark_type(part)) for part in _parts(data_type)]
    if any(found is None for _, found in parts):
        return None
    if data_type.root is TypeRoot.ARRAY:
        ((element, found),) = parts
        return st.ArrayType(found, element.nullable)
    if data_type.root is TypeRoot.MAP:
        (_, key), (value, found) = parts
        return st.MapType(key, found, value.nullable)
    names = [field.name for field in data_type.fields]
    return st.StructType(
        [st.StructField(name, found, part.nullable) for name, (part, found) in zip(names, parts, strict=True)]
    )


def fluss_type(data_type: Any, nullable: bool = True, depth: int = 0) -> DataType | None:
    """The column type that holds every value of a Spark type, or None if there is none.

    `depth` is the number of types around it.
    """
    if depth > NESTING_DEPTH_MAX:
        raise too_deep()
    found = _parameterized_type(data_type, depth + 1) or _FROM_SPARK.get(type(data_type))
    return found if found is None or nullable else found.not_null()


def _parameterized_type(data_type: Any, depth: int) -> DataType | None:
    if isinstance(data_type, st.DecimalType):
        return DataTypes.decimal(data_type.precision, data_type.scale)
    if isinstance(data_type, st.CharType):
        return DataTypes.char(data_type.length)
    if _TimeType is not None and isinstance(data_type, _TimeType):
        return DataTypes.time(data_type.precision)
    if isinstance(data_type, st.ArrayType):
        element = fluss_type(data_type.elementType, data_type.containsNull, depth)
        return element and DataTypes.array(element)
    if isinstance(data_type, st.MapType):
        key = fluss_type(data_type.keyType, depth=depth)
        value = fluss_type(data_type.valueType, data_type.valueContainsNull, depth)
        return DataTypes.map(key, value) if key is not None and value is not None else None
    if isinstance(data_type, st.StructType):
        fields = [(field.name, fluss_type(field.dataType, field.nullable, depth)) for field in data_type.fields]
        inner = [DataField(name, found) for name, found in fields if found is not None]
        return DataTypes.row(inner) if len(inner) == len(fields) else None
    return None


def spark_arrow_type(data_type: Any) -> pa.DataType:
    """The Arrow type in which Spark takes the values of one of its types."""
    import pyarrow as pa

    from fluss.model.forms.arrow_types import to_arrow

    if isinstance(data_type, st.ArrayType):
        return pa.list_(pa.field("element", spark_arrow_type(data_type.elementType), data_type.containsNull))
    if isinstance(data_type, st.MapType):
        key = pa.field("key", spark_arrow_type(data_type.keyType), nullable=False)
        return pa.map_(key, pa.field("value", spark_arrow_type(data_type.valueType), data_type.valueContainsNull))
    if isinstance(data_type, st.StructType):
        return pa.struct(list(spark_arrow_schema(data_type)))
    if _TimeType is not None and isinstance(data_type, _TimeType):
        return pa.time64("ns")
    found = fluss_type(data_type)
    assert found is not None, data_type
    return to_arrow(found)


def spark_arrow_schema(struct: Any) -> pa.Schema:
    """The Arrow schema of the batches that Spark takes for a schema of its own; it compares what may be null, too."""
    import pyarrow as pa

    fields = [(field.name, spark_arrow_type(field.dataType), field.nullable) for field in struct.fields]
    return pa.schema([pa.field(*field) for field in fields])


def _parts(data_type: DataType) -> list[DataType]:
    """The types that a nested type is made of."""
    inner = [data_type.element, data_type.key, data_type.value, *(field.data_type for field in data_type.fields)]
    return [part for part in inner if part is not None]


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
        metadata = {_COMMENT: column.comment} if column.comment else None
        fields.append(st.StructField(column.name, found, column.data_type.nullable, metadata))
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


def table_schema(struct: Any, primary_key: Iterable[str] = ()) -> Schema:
    """The schema of a table for rows of a DataFrame: `table_schema(df.schema)`."""
    columns = []
    for field in struct.fields:
        found = fluss_type(field.dataType, field.nullable)
        if found is None:
            raise SchemaMismatchError(
                f"The column {field.name!r} has the Spark type {field.dataType.simpleString()}, "
                "which no Fluss column type holds."
            )
        columns.append(Column(field.name, found, (field.metadata or {}).get(_COMMENT)))
    return Schema.of(columns, primary_key)

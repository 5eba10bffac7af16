"""Columns of a DataFrame and of a table: Spark's types and ours, matched by name, converted batch by batch.

TIMESTAMP is Spark's TimestampNTZ, TIMESTAMP_LTZ its Timestamp; both have microseconds there, whatever the column's
precision. So has TIME, which is TIME(6): Spark compares times of one precision only, and its literals have this one. It
needs Spark 4.1 and the setting `spark.sql.timeType.enabled`. CHAR is a string, BINARY is binary. ARRAY, MAP and ROW
hold any of these, or each other.

What already fits is not touched. Nested columns keep their offsets and null bitmaps; only leaves of another type are
made anew.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.sql import types as st

from fluss.model.errors import InvalidRequestError, SchemaMismatchError
from fluss.model.paths import TablePath
from fluss.model.records import CHANGE_TYPE
from fluss.model.schema import Column, Schema
from fluss.model.types import NESTING_DEPTH_MAX, DataField, DataType, DataTypes, TypeRoot, too_deep

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
    """Cast timestamps to a coarser unit. Rounds down, so that times before 1970 are cut alike."""
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
                f"The column {numbered!r} of {table_path} is numbered by the server: leave it out, or name the others "
                "in 'target.columns', as an INSERT by an attached name needs it: attach(..., target_columns='...')."
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
            hint = _case_hint(found, names) if problem == "lacks" else ""
            hint = hint or _write_hint(schema, problem, found, [name for name in needed if name in names])
            raise SchemaMismatchError(f"The DataFrame {problem} the {listed}{whose}; columns match by name.{hint}")
    for column in schema.columns:
        if column.name in needed:
            _check_written_type(table_path, column, written[column.name].dataType)
    if CHANGE_TYPE in needed and not isinstance(written[CHANGE_TYPE].dataType, st.StringType):
        raise SchemaMismatchError(
            f"The column {CHANGE_TYPE!r} must have strings, not {written[CHANGE_TYPE].dataType.simpleString()}."
        )


def _case_hint(missing: Sequence[str], names: Sequence[str]) -> str:
    """What to call for columns that are there in another case, which Spark itself does not tell apart."""
    given = {name.lower(): name for name in names}
    renamed = {given[name.lower()]: name for name in missing if name.lower() in given}
    return f" Upper and lower case count: use .withColumnsRenamed({renamed})." if renamed else ""


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
    if problem == "lacks" and not keys:
        return _null_hint([column for column in schema.columns if column.name in found])
    return ""


def _null_hint(missing: Sequence[Column]) -> str:
    """How rows are appended that have no values for some columns: a table may have got them since."""
    if not all(column.data_type.nullable for column in missing):
        return ""
    types = [(column.name, spark_type(column.data_type)) for column in missing]
    nulls = [f"CAST(NULL AS {found.simpleString()}) AS `{name}`" for name, found in types if found is not None]
    return (
        f" To append nulls, use .selectExpr({', '.join(map(repr, ['*', *nulls]))})." if len(nulls) == len(types) else ""
    )


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

"""Types between Fluss, Spark and Arrow."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from fluss.model.errors import SchemaMismatchError
from fluss.model.schema import Column, Schema
from fluss.model.types import DataField, DataType, DataTypes
from fluss.spark.columns import fluss_type, spark_arrow_type, spark_schema, spark_type, table_schema

T = DataTypes

SCALARS: list[tuple[DataType, st.DataType, pa.DataType]] = [
    (T.boolean(), st.BooleanType(), pa.bool_()),
    (T.tinyint(), st.ByteType(), pa.int8()),
    (T.smallint(), st.ShortType(), pa.int16()),
    (T.int(), st.IntegerType(), pa.int32()),
    (T.bigint(), st.LongType(), pa.int64()),
    (T.float(), st.FloatType(), pa.float32()),
    (T.double(), st.DoubleType(), pa.float64()),
    (T.string(), st.StringType(), pa.string()),
    (T.bytes(), st.BinaryType(), pa.binary()),
    (T.date(), st.DateType(), pa.date32()),
    (T.decimal(10, 2), st.DecimalType(10, 2), pa.decimal128(10, 2)),
    (T.decimal(38, 38), st.DecimalType(38, 38), pa.decimal128(38, 38)),
    (T.timestamp(), st.TimestampNTZType(), pa.timestamp("us")),
    (T.timestamp_ltz(), st.TimestampType(), pa.timestamp("us", tz="UTC")),
    (T.time(6), st.TimeType(6), pa.time64("ns")),
]
NESTED: list[tuple[DataType, st.DataType, pa.DataType]] = [
    (T.array(T.int()), st.ArrayType(st.IntegerType()), pa.list_(pa.int32())),
    (
        T.array(T.string().not_null()),
        st.ArrayType(st.StringType(), containsNull=False),
        pa.list_(pa.field("element", pa.string(), nullable=False)),
    ),
    (
        T.map(T.string(), T.map(T.int(), T.timestamp())),
        st.MapType(st.StringType(), st.MapType(st.IntegerType(), st.TimestampNTZType())),
        pa.map_(pa.string(), pa.map_(pa.int32(), pa.timestamp("us"))),
    ),
    (
        T.row([DataField("a", T.bigint().not_null()), DataField("b", T.array(T.row([DataField("c", T.date())])))]),
        st.StructType()
        .add("a", st.LongType(), nullable=False)
        .add("b", st.ArrayType(st.StructType().add("c", st.DateType()))),
        pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.list_(pa.struct([("c", pa.date32())])))]),
    ),
]
# Types that Spark has only a wider one for.
WIDENED: list[tuple[DataType, st.DataType, pa.DataType]] = [
    (T.char(3), st.StringType(), pa.string()),
    (T.binary(3), st.BinaryType(), pa.binary()),
    *((T.time(digits), st.TimeType(6), pa.time64("ns")) for digits in (0, 3, 9)),
    (T.array(T.binary(2)), st.ArrayType(st.BinaryType()), pa.list_(pa.binary())),
    *((T.timestamp(digits), st.TimestampNTZType(), pa.timestamp("us")) for digits in (0, 3, 9)),
    *((T.timestamp_ltz(digits), st.TimestampType(), pa.timestamp("us", tz="UTC")) for digits in (0, 3, 9)),
]


@pytest.mark.parametrize(("fluss", "spark", "arrow"), SCALARS + WIDENED + NESTED, ids=str)
def test_every_type_has_a_spark_type(fluss: DataType, spark: st.DataType, arrow: pa.DataType) -> None:
    assert spark_type(fluss) == spark
    assert spark_arrow_type(spark) == arrow


@pytest.mark.parametrize(("fluss", "spark"), [pair[:2] for pair in SCALARS + NESTED], ids=str)
def test_every_spark_type_has_a_fluss_type(fluss: DataType, spark: st.DataType) -> None:
    assert fluss_type(spark) == fluss
    assert fluss_type(spark, nullable=False) == fluss.not_null()


def test_types_agree_with_what_spark_itself_sends() -> None:
    from pyspark.sql.pandas.types import to_arrow_type

    for _, spark, _ in SCALARS + WIDENED + NESTED:
        assert spark_arrow_type(spark) == to_arrow_type(spark)


def test_table_schema_follows_a_dataframe() -> None:
    struct = st.StructType().add("id", st.LongType(), False).add("sum", st.DecimalType(20, 2))
    expected = Schema.of([Column("id", T.bigint().not_null()), Column("sum", T.decimal(20, 2))])
    assert table_schema(struct) == expected
    assert spark_schema(expected) == struct


def test_spark_type_without_fluss_type_is_named() -> None:
    with pytest.raises(SchemaMismatchError, match="column 'gap' has the Spark type interval"):
        table_schema(st.StructType().add("gap", st.DayTimeIntervalType()))


def test_fluss_type_without_spark_type_is_named_unless_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.spark.columns._TimeType", None)  # as before Spark 4.1
    schema = Schema.of([Column("id", T.int()), Column("odd", T.array(T.map(T.int(), T.time())))])
    with pytest.raises(SchemaMismatchError, match="no type for the column 'odd' of type") as caught:
        spark_schema(schema)
    assert ".option('columns'" in str(caught.value)
    assert spark_schema(schema, ["id"]) == st.StructType().add("id", st.IntegerType())


def test_comments_go_both_ways() -> None:
    schema = Schema.of([Column("id", T.int(), "who")])
    assert spark_schema(schema).fields[0].metadata == {"comment": "who"}
    assert table_schema(spark_schema(schema)) == schema


def test_types_that_only_a_ddl_text_has() -> None:
    struct = st.StructType().add("c", st.CharType(3)).add("v", st.VarcharType(9)).add("t", st.TimeType(3))
    assert table_schema(struct) == Schema.of([Column("c", T.char(3)), Column("v", T.string()), Column("t", T.time(3))])

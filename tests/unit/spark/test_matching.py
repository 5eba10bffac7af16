"""Schemas that fit and schemas that do not."""

from __future__ import annotations

import pytest
from pyspark.sql import types as st

from fluss.model.errors import FlussError
from fluss.model.paths import TablePath
from fluss.model.schema import Column, Schema
from fluss.model.types import DataField, DataType, DataTypes
from fluss.spark import columns
from fluss.spark.columns import check_read_schema, check_write_schema

T = DataTypes
PATH = TablePath("shop", "orders")
ORDERS = Schema.of(
    [Column("id", T.bigint().not_null()), Column("price", T.decimal(10, 2)), Column("at", T.timestamp(3))]
)
ORDERS_ROW = (
    st.StructType().add("id", st.LongType()).add("price", st.DecimalType(10, 2)).add("at", st.TimestampNTZType())
)


def test_read_takes_columns_in_the_requested_order() -> None:
    requested = st.StructType().add("at", st.TimestampNTZType()).add("id", st.LongType())
    assert [column.name for column in check_read_schema(PATH, ORDERS, requested)] == ["at", "id"]


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        (st.StructType(), "The schema for shop.orders names no column"),
        (st.StructType().add("nil", st.LongType()), "has no column 'nil'; its columns are id, price, at"),
        (
            st.StructType().add("id", st.IntegerType()),
            "is of type bigint NOT NULL, in Spark bigint; the schema says int",
        ),
        (st.StructType().add("at", st.TimestampType()), "in Spark timestamp_ntz; the schema says timestamp"),
        (st.StructType().add("price", st.DecimalType(10, 2), False), "'price' of shop.orders may be null"),
    ],
)
def test_read_refuses(requested: st.StructType, message: str) -> None:
    with pytest.raises(FlussError) as caught:
        check_read_schema(PATH, ORDERS, requested)
    assert message in str(caught.value)


def test_write_matches_by_name() -> None:
    check_write_schema(PATH, ORDERS, st.StructType(ORDERS_ROW.fields[::-1]))


def _without(name: str) -> st.StructType:
    return st.StructType([field for field in ORDERS_ROW if field.name != name])


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (_without("price"), "The DataFrame lacks the column 'price' of shop.orders"),
        (
            _without("price").add("Price", st.DecimalType(10, 2)),
            "lacks the column 'price' of shop.orders; columns match by name. Upper and lower case count: "
            "use .withColumnsRenamed({'Price': 'price'}).",
        ),
        (
            st.StructType(list(ORDERS_ROW)).add("x", st.LongType()).add("y", st.LongType()),
            "The DataFrame has the columns 'x', 'y', which shop.orders does not have",
        ),
        (st.StructType(list(ORDERS_ROW)).add("id", st.LongType()), "The DataFrame repeats the column 'id'"),
        (
            _without("price").add("price", st.DecimalType(20, 2)),
            "is of type decimal(10,2); the DataFrame has decimal(20,2). Cast it: "
            "df.withColumn('price', df['price'].cast('decimal(10,2)')).",
        ),
    ],
)
def test_write_refuses(written: st.StructType, message: str) -> None:
    with pytest.raises(FlussError) as caught:
        check_write_schema(PATH, ORDERS, written)
    assert message in str(caught.value)


def test_write_refuses_a_table_with_a_type_unknown_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_TimeType", None)  # as before Spark 4.1
    schema = Schema.of([Column("id", T.int()), Column("t", T.time())])
    with pytest.raises(FlussError, match=r"column 't' of shop\.orders is of type time, for which Spark has no type"):
        check_write_schema(PATH, schema, st.StructType().add("id", st.IntegerType()).add("t", st.StringType()))


@pytest.mark.parametrize(
    ("given", "column", "fits"),
    [
        (st.ByteType(), T.smallint(), True),
        (st.IntegerType(), T.bigint(), True),
        (st.LongType(), T.int(), False),
        (st.FloatType(), T.double(), True),
        (st.DoubleType(), T.float(), False),
        (st.IntegerType(), T.double(), False),
        (st.DecimalType(8, 2), T.decimal(10, 2), True),
        (st.DecimalType(10, 0), T.decimal(10, 2), False),
        (st.DecimalType(8, 3), T.decimal(10, 2), False),
        (st.StringType(), T.char(3), True),
        (st.BinaryType(), T.binary(3), True),
        (st.StringType(), T.bytes(), False),
        (st.TimestampType(), T.timestamp(), False),
        (st.TimestampNTZType(), T.timestamp_ltz(), False),
        (st.ArrayType(st.IntegerType()), T.array(T.bigint()), True),
        (st.ArrayType(st.LongType(), False), T.array(T.bigint()), True),
        (st.ArrayType(st.LongType()), T.array(T.int()), False),
        (st.MapType(st.StringType(), st.FloatType()), T.map(T.string(), T.double()), True),
        (st.MapType(st.LongType(), st.FloatType()), T.map(T.int(), T.float()), False),
        (st.StructType().add("a", st.ShortType()), T.row([DataField("a", T.int())]), True),
        (st.StructType().add("b", st.ShortType()), T.row([DataField("a", T.int())]), False),
        (st.StructType().add("a", st.StringType()), T.row([DataField("a", T.int())]), False),
    ],
    ids=str,
)
def test_only_types_that_lose_nothing_fit(given: st.DataType, column: DataType, fits: bool) -> None:
    schema = Schema.of([Column("x", column)])
    written = st.StructType().add("x", given)
    if fits:
        check_write_schema(PATH, schema, written)
    else:
        with pytest.raises(FlussError, match="Cast it"):
            check_write_schema(PATH, schema, written)

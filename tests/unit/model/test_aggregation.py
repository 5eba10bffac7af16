"""Aggregate functions of columns: names, parameters, types, and the JSON they travel in."""

from __future__ import annotations

import pyarrow as pa
import pytest

from fluss.model.aggregation import DELIMITER_LENGTH_MAX, AggFunction, AggFunctionType
from fluss.model.errors import InvalidRequestError
from fluss.model.schema import Column, Schema
from fluss.model.types import DataType, DataTypes

NUMBERS = [DataTypes.tinyint(), DataTypes.smallint(), DataTypes.int(), DataTypes.bigint(), DataTypes.float()]
NUMBERS += [DataTypes.double(), DataTypes.decimal(5, 2)]
TEXTS = [DataTypes.char(3), DataTypes.string()]
TIMES = [DataTypes.date(), DataTypes.time(), DataTypes.timestamp(), DataTypes.timestamp_ltz()]
OTHERS = [DataTypes.boolean(), DataTypes.bytes(), DataTypes.binary(2), DataTypes.array(DataTypes.int())]
ALL = [*NUMBERS, *TEXTS, *TIMES, *OTHERS]
TAKEN = {
    "sum": NUMBERS,
    "product": NUMBERS,
    "max": [*NUMBERS, *TEXTS, *TIMES],
    "min": [*NUMBERS, *TEXTS, *TIMES],
    "last_value": ALL,
    "last_value_ignore_nulls": ALL,
    "first_value": ALL,
    "first_value_ignore_nulls": ALL,
    "listagg": [DataTypes.string()],
    "string_agg": [DataTypes.string()],
    "bool_and": [DataTypes.boolean()],
    "bool_or": [DataTypes.boolean()],
    "rbm32": [DataTypes.bytes()],
    "rbm64": [DataTypes.bytes()],
}


@pytest.mark.parametrize("name", list(AggFunctionType))
@pytest.mark.parametrize("data_type", ALL, ids=str)
def test_types(name: str, data_type: DataType) -> None:
    function = AggFunction(name)
    if data_type in TAKEN[name]:
        function.check("c", data_type)
    else:
        with pytest.raises(InvalidRequestError, match=f"The aggregate function {name} of 'c' takes .*, not ") as caught:
            function.check("c", data_type)
        assert caught.value.error_code == 39


def test_names() -> None:
    assert AggFunction("LAST-VALUE").type is AggFunctionType.LAST_VALUE
    assert AggFunction("sum") == AggFunction("SUM ") != AggFunction("max")
    assert AggFunction.of("sum") == AggFunction.of(AggFunction("sum"))
    assert len({AggFunction("sum"), AggFunction("sum"), AggFunction("listagg", {"delimiter": "|"})}) == 2
    with pytest.raises(
        InvalidRequestError, match="There is no aggregate function 'summ'; use one of sum, product"
    ) as caught:
        AggFunction("summ")
    assert caught.value.error_code == 39


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("sum", {"delimiter": ","}, "sum of 'c' has no parameter 'delimiter'"),
        ("listagg", {"separator": ","}, "listagg of 'c' has no parameter 'separator'"),
        ("string_agg", {"delimiter": ""}, "needs 1 to 256 characters, not 0"),
        ("listagg", {"delimiter": "x" * (DELIMITER_LENGTH_MAX + 1)}, "needs 1 to 256 characters, not 257"),
    ],
)
def test_parameters(name: str, parameters: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        AggFunction(name, parameters).check("c", DataTypes.string())


def test_delimiter() -> None:
    assert AggFunction("listagg").delimiter == ","
    assert AggFunction("listagg", {"delimiter": " | "}).delimiter == " | "


def test_json_of_a_schema() -> None:
    listagg = AggFunction("listagg", {"delimiter": "|"})
    columns = [Column("id", DataTypes.int()), Column("a", DataTypes.int(), "text", AggFunction("sum"))]
    schema = Schema.of([*columns, Column("b", DataTypes.string(), None, listagg)], ["id"])
    # Keys and their order are those that the Java client writes.
    assert schema.to_json()["columns"][1:] == [
        {"name": "a", "data_type": {"type": "INTEGER"}, "comment": "text", "agg_function": {"type": "sum"}, "id": 1},
        {
            "name": "b",
            "data_type": {"type": "STRING"},
            "agg_function": {"type": "listagg", "parameters": {"delimiter": "|"}},
            "id": 2,
        },
    ]
    assert list(schema.to_json()["columns"][1]) == ["name", "data_type", "comment", "agg_function", "id"]
    again = Schema.from_json(schema.to_json())
    assert again == schema
    assert [column.agg_function for column in again.columns] == [None, AggFunction("sum"), listagg]
    assert schema != Schema.of([*columns, Column("b", DataTypes.string())], ["id"])


def test_a_function_of_a_newer_server_can_be_read_but_not_used() -> None:
    value = {"type": "hll", "parameters": {"bits": "12"}}
    function = AggFunction.from_json(value)
    assert function.to_json() == value
    with pytest.raises(InvalidRequestError, match="There is no aggregate function 'hll'"):
        function.check("c", DataTypes.bytes())


@pytest.mark.parametrize("value", [[], "sum", {}, {"type": 1}, {"type": "sum", "parameters": {"delimiter": 1}}])
def test_json_that_is_none(value: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"[Aa]ggregate function must be"):
        AggFunction.from_json(value)


def test_functions_for_users() -> None:
    arrow = pa.schema([("id", pa.int32()), ("a", pa.int64()), ("b", pa.string())])
    functions = {"a": "sum", "b": AggFunction("listagg", {"delimiter": ";"})}
    schema = Schema(arrow, ["id"], agg_functions=functions)
    built = Schema.builder().column("id", DataTypes.int()).column("a", DataTypes.bigint(), agg_function="sum")
    built.column("b", DataTypes.string(), agg_function=AggFunction("listagg", {"delimiter": ";"})).primary_key(["id"])
    assert schema == built.build()
    with pytest.raises(InvalidRequestError, match=r"functions of \['x'\] have no column"):
        Schema(arrow, ["id"], agg_functions={"x": "sum"})
    with pytest.raises(InvalidRequestError, match="The key column 'id' can't have an aggregate function"):
        Schema(arrow, ["id"], agg_functions={"id": "max"})

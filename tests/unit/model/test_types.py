"""Types: names, JSON and Arrow, both ways."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, SchemaMismatchError
from fluss.model.forms.arrow_types import from_arrow, to_arrow
from fluss.model.types import NESTING_DEPTH_MAX, DataField, DataType, DataTypes, TypeRoot, type_from_json, type_to_json

PLAIN = [
    DataTypes.boolean(),
    DataTypes.tinyint(),
    DataTypes.smallint(),
    DataTypes.int(),
    DataTypes.bigint(),
    DataTypes.float(),
    DataTypes.double(),
    DataTypes.string(),
    DataTypes.bytes(),
    DataTypes.date(),
]

scalars = st.one_of(
    st.sampled_from(PLAIN),
    st.builds(DataTypes.char, st.integers(1, 2**31 - 1)),
    st.builds(DataTypes.binary, st.integers(1, 2**31 - 1)),
    st.builds(DataTypes.time, st.integers(0, 9)),
    st.builds(DataTypes.timestamp, st.integers(0, 9)),
    st.builds(DataTypes.timestamp_ltz, st.integers(0, 9)),
    st.integers(1, 38).flatmap(lambda p: st.builds(DataTypes.decimal, st.just(p), st.integers(0, p))),
)


def nested(children: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    fields = st.lists(children, min_size=1, max_size=3).map(
        lambda types: [DataField(f"f{i}", t, "about" if i else None) for i, t in enumerate(types)]
    )
    return st.one_of(
        st.builds(DataTypes.array, children),
        st.builds(DataTypes.map, children, children),
        st.builds(DataTypes.row, fields),
    )


types = st.recursive(scalars, nested, max_leaves=6).flatmap(lambda t: st.sampled_from([t, t.not_null()]))


@given(types)
def test_json_round_trip(data_type: DataType) -> None:
    assert type_from_json(type_to_json(data_type)) == data_type


def test_json_names_are_the_protocols() -> None:
    assert type_to_json(DataTypes.int()) == {"type": "INTEGER"}
    assert type_to_json(DataTypes.timestamp_ltz(3).not_null()) == {
        "type": "TIMESTAMP_WITH_LOCAL_TIME_ZONE",
        "nullable": False,
        "precision": 3,
    }
    assert type_to_json(DataTypes.decimal(10, 2)) == {"type": "DECIMAL", "precision": 10, "scale": 2}


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"type": 3},
        {"type": "INT"},
        {"type": "CHAR"},
        {"type": "DECIMAL", "precision": 10},
        {"type": "ROW"},
    ],
)
def test_bad_json_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequestError) as error:
        type_from_json(value)
    assert error.value.error_code == ErrorCode.INVALID_TABLE_EXCEPTION


def test_json_nested_too_deep_is_refused() -> None:
    value: dict[str, object] = {"type": "INTEGER"}
    for _ in range(NESTING_DEPTH_MAX + 2):
        value = {"type": "ARRAY", "element_type": value}
    with pytest.raises(InvalidRequestError, match="nested deeper"):
        type_from_json(value)


ARROW = [
    (pa.bool_(), DataTypes.boolean()),
    (pa.int8(), DataTypes.tinyint()),
    (pa.int16(), DataTypes.smallint()),
    (pa.int32(), DataTypes.int()),
    (pa.int64(), DataTypes.bigint()),
    (pa.float32(), DataTypes.float()),
    (pa.float64(), DataTypes.double()),
    (pa.string(), DataTypes.string()),
    (pa.binary(), DataTypes.bytes()),
    (pa.binary(4), DataTypes.binary(4)),
    (pa.date32(), DataTypes.date()),
    (pa.decimal128(20, 3), DataTypes.decimal(20, 3)),
    (pa.time32("s"), DataTypes.time(0)),
    (pa.time32("ms"), DataTypes.time(3)),
    (pa.time64("us"), DataTypes.time(6)),
    (pa.time64("ns"), DataTypes.time(9)),
    *[(pa.timestamp(unit), DataTypes.timestamp(p)) for unit, p in (("s", 0), ("ms", 3), ("us", 6), ("ns", 9))],
    *[
        (pa.timestamp(unit, tz="UTC"), DataTypes.timestamp_ltz(p))
        for unit, p in (("s", 0), ("ms", 3), ("us", 6), ("ns", 9))
    ],
    (pa.list_(pa.int32()), DataTypes.array(DataTypes.int())),
    (pa.map_(pa.string(), pa.int32()), DataTypes.map(DataTypes.string(), DataTypes.int())),
    (pa.struct([pa.field("x", pa.int32(), False)]), DataTypes.row([DataField("x", DataTypes.int().not_null())])),
]


@pytest.mark.parametrize(("arrow_type", "data_type"), ARROW, ids=str)
def test_arrow_both_ways(arrow_type: pa.DataType, data_type: DataType) -> None:
    assert from_arrow(arrow_type) == data_type
    assert to_arrow(data_type) == arrow_type


@pytest.mark.parametrize("precision", range(10))
def test_every_precision_finds_its_unit(precision: int) -> None:
    unit = ["s", "ms", "ms", "ms", "us", "us", "us", "ns", "ns", "ns"][precision]
    assert to_arrow(DataTypes.timestamp(precision)).unit == unit
    assert to_arrow(DataTypes.time(precision)).unit == unit


def test_arrow_types_without_counterpart_are_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="month_day_nano_interval"):
        from_arrow(pa.month_day_nano_interval())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DataTypes.decimal(39, 0), "precision from 1 to 38"),
        (lambda: DataTypes.decimal(5, 6), "scale"),
        (lambda: DataTypes.char(0), "length"),
        (lambda: DataTypes.timestamp(10), "precision from 0 to 9"),
    ],
)
def test_parameters_are_checked(make: object, text: str) -> None:
    with pytest.raises(FlussError, match=text):
        make()  # type: ignore[operator]


def test_names_for_people() -> None:
    # The spellings that pyfluss 1.0.0 prints.
    assert [str(t) for t in (DataTypes.int().not_null(), DataTypes.decimal(10, 2), DataTypes.timestamp())] == [
        "int NOT NULL",
        "decimal(10,2)",
        "timestamp",
    ]
    assert str(DataTypes.timestamp_ltz(9)) == "timestamp_ltz(9)"
    assert str(DataTypes.map(DataTypes.string(), DataTypes.int())) == "map<string NOT NULL,int>"
    assert str(DataTypes.row([DataField("x", DataTypes.int())])) == "row<x: int>"
    assert DataType(TypeRoot.TIME, precision=3) == DataTypes.time(3)

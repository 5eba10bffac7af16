from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fluss.formats.arrow.cast import ArrowCaster
from fluss.model.errors import SchemaMismatchError
from fluss.model.schema import Column, Schema
from fluss.model.types import DataField, DataType, DataTypes

TWO = Schema.of([Column("id", DataTypes.bigint().not_null()), Column("name", DataTypes.string())])


def _cast(data_type: DataType, array: pa.Array) -> pa.Array:
    caster = ArrowCaster(Schema.of([Column("x", data_type)]))
    batch = caster.cast(pa.RecordBatch.from_arrays([array], names=["x"]))
    batch.validate(full=True)
    assert batch.schema == caster.target
    return batch.column(0)


TEXTS = ["a", None, "\u00fc"]
BLOBS = [b"ab", None, b"cd"]


@pytest.mark.parametrize(
    ("data_type", "array", "expected"),
    [
        (DataTypes.string(), pa.array(TEXTS), TEXTS),
        (DataTypes.string(), pa.array(TEXTS, pa.large_string()), TEXTS),
        (DataTypes.string(), pa.array(TEXTS, pa.string_view()), TEXTS),
        (DataTypes.string(), pa.array(TEXTS).dictionary_encode(), TEXTS),
        (DataTypes.string(), pa.array(TEXTS, pa.large_string()).dictionary_encode(), TEXTS),
        (DataTypes.char(1), pa.array(TEXTS), TEXTS),
        (DataTypes.string(), pa.nulls(2), [None, None]),
        (DataTypes.bytes(), pa.array(BLOBS, pa.large_binary()), BLOBS),
        (DataTypes.bytes(), pa.array(BLOBS, pa.binary_view()), BLOBS),
        (DataTypes.bytes(), pa.array(BLOBS, pa.binary(2)), BLOBS),
        (DataTypes.binary(2), pa.array(BLOBS, pa.binary()), BLOBS),
        (DataTypes.binary(2), pa.array(BLOBS, pa.large_binary()), BLOBS),
        (DataTypes.int(), pa.array([1, None], pa.int64()), [1, None]),
        (DataTypes.tinyint(), pa.array([127], pa.uint64()), [127]),
        (DataTypes.bigint(), pa.array([1], pa.uint8()), [1]),
        (DataTypes.double(), pa.array([1, None], pa.int32()), [1.0, None]),
        (DataTypes.double(), pa.array([1.5], pa.float32()), [1.5]),
        (DataTypes.float(), pa.array([1.5, None, float("inf")], pa.float64()), [1.5, None, float("inf")]),
        (DataTypes.decimal(5, 2), pa.array([Decimal("1.5")], pa.decimal128(38, 1)), [Decimal("1.50")]),
        (DataTypes.decimal(5, 1), pa.array([Decimal("1.50")], pa.decimal256(50, 2)), [Decimal("1.5")]),
        (DataTypes.decimal(5, 2), pa.array([7], pa.int64()), [Decimal("7.00")]),
        (DataTypes.decimal(20, 0), pa.array([(1 << 64) - 1], pa.uint64()), [Decimal((1 << 64) - 1)]),
    ],
)
def test_accepted_layouts(data_type: DataType, array: pa.Array, expected: list[Any]) -> None:
    assert _cast(data_type, array).to_pylist() == expected


@pytest.mark.parametrize(
    ("data_type", "array", "expected"),
    [
        (DataTypes.timestamp(6), pa.array([1], pa.timestamp("s")), 1_000_000),
        (DataTypes.timestamp(3), pa.array([-5_000_000], pa.timestamp("ns")), -5),
        (DataTypes.timestamp_ltz(3), pa.array([5], pa.timestamp("ms")), 5),
        (DataTypes.timestamp_ltz(6), pa.array([5], pa.timestamp("ms", "Europe/Berlin")), 5000),
        (DataTypes.timestamp_ltz(6), pa.array([5], pa.timestamp("us", "+02:00")), 5),
        (DataTypes.time(0), pa.array([5_000_000_000], pa.time64("ns")), 5),
        (DataTypes.time(9), pa.array([5], pa.time32("s")), 5_000_000_000),
        (DataTypes.date(), pa.array([86_400_000 * 3], pa.int64()).view(pa.date64()), 3),
    ],
)
def test_accepted_units(data_type: DataType, array: pa.Array, expected: int) -> None:
    result = _cast(data_type, array)
    storage = pa.int32() if result.type.bit_width == 32 else pa.int64()
    assert result.view(storage).to_pylist() == [expected]


@pytest.mark.parametrize(
    ("data_type", "array"),
    [
        (DataTypes.int(), pa.array([1 << 31], pa.int64())),
        (DataTypes.bigint(), pa.array([1 << 63], pa.uint64())),
        (DataTypes.tinyint(), pa.array([128], pa.uint8())),
        (DataTypes.int(), pa.array([1.0])),
        (DataTypes.int(), pa.array([True])),
        (DataTypes.int(), pa.array(["1"])),
        (DataTypes.boolean(), pa.array([1])),
        (DataTypes.double(), pa.array([(1 << 53) + 1], pa.int64())),
        (DataTypes.double(), pa.array([Decimal(1)])),
        (DataTypes.float(), pa.array([0.1], pa.float64())),
        (DataTypes.float(), pa.array([1e300], pa.float64())),
        (DataTypes.string(), pa.array([b"a"])),
        (DataTypes.string(), pa.array([1])),
        (DataTypes.string(), pa.array([1]).dictionary_encode()),
        (DataTypes.bytes(), pa.array(["a"])),
        (DataTypes.binary(2), pa.array([b"abc"])),
        (DataTypes.binary(2), pa.array([b"abc"], pa.binary(3))),
        (DataTypes.decimal(5, 1), pa.array([Decimal("1.55")])),
        (DataTypes.decimal(3, 1), pa.array([Decimal("100.0")])),
        (DataTypes.decimal(3, 1), pa.array([100], pa.int8())),
        (DataTypes.decimal(3, 1), pa.array([1.5])),
        (DataTypes.timestamp(3), pa.array([1], pa.timestamp("us"))),
        (DataTypes.timestamp(6), pa.array([1], pa.timestamp("us", "UTC"))),
        (DataTypes.timestamp(9), pa.array([1 << 40], pa.timestamp("s"))),
        (DataTypes.timestamp(6), pa.array([1], pa.int64())),
        (DataTypes.timestamp(6), pa.array([1], pa.int32()).view(pa.date32())),
        (DataTypes.date(), pa.array([1], pa.timestamp("us"))),
        (DataTypes.time(3), pa.array([1], pa.time64("us"))),
        (DataTypes.array(DataTypes.int()), pa.array([1])),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_refused_with_column_expected_and_given_type(data_type: DataType, array: pa.Array) -> None:
    with pytest.raises(SchemaMismatchError, match="Column 'x' expects") as caught:
        _cast(data_type, array)
    assert str(data_type) in str(caught.value)
    assert str(array.type) in str(caught.value)


def test_char_length_is_checked() -> None:
    with pytest.raises(SchemaMismatchError, match=r"'x'.*3 characters"):
        _cast(DataTypes.char(2), pa.array(["ab", "abc"]))


def test_columns_in_any_order_and_missing_ones_null() -> None:
    caster = ArrowCaster(TWO)
    swapped = pa.RecordBatch.from_pydict({"name": ["a"], "id": [1]})
    assert caster.cast(swapped).to_pylist() == [{"id": 1, "name": "a"}]
    assert caster.cast(pa.RecordBatch.from_pydict({"id": [1]})).to_pylist() == [{"id": 1, "name": None}]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (pa.RecordBatch.from_pydict({"name": ["a"]}), "'id' expects .*the data lacks it"),
        (pa.RecordBatch.from_pydict({"id": [1], "nmae": ["a"]}), "no column 'nmae'; its columns are id, name"),
        (pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"]), "'id' occurs twice"),
        (pa.RecordBatch.from_pydict({"id": [1, None]}), r"'id' expects .*NOT NULL, not null \(row 1\)"),
        (pa.RecordBatch.from_arrays([pa.nulls(1)], ["id"]), "'id' expects .*NOT NULL, not null"),
    ],
)
def test_shape_is_refused_by_name(batch: pa.RecordBatch, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        ArrowCaster(TWO).cast(batch)


def test_nested_layouts() -> None:
    expected = [[1, None], None]
    data_type = DataTypes.array(DataTypes.int())
    assert _cast(data_type, pa.array(expected, pa.list_(pa.field("element", pa.int64())))).to_pylist() == expected
    assert _cast(data_type, pa.array(expected, pa.large_list(pa.int32()))).to_pylist() == expected


def test_a_fitting_batch_is_not_copied() -> None:
    caster = ArrowCaster(TWO)
    batch = pa.RecordBatch.from_pydict({"id": [1], "name": ["a"]}, schema=caster.target)
    assert caster.cast(batch).column(0).buffers()[1].address == batch.column(0).buffers()[1].address


class _Stream:
    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: t.to_reader(), _Stream], ids=["table", "reader", "stream"])
def test_all_batches_of_anything_arrow(wrap: Any) -> None:
    table = pa.concat_tables([pa.table({"id": [1, 2]}), pa.table({"id": [3]})])
    batches = list(ArrowCaster(TWO).cast_all(wrap(table)))
    assert [row["id"] for batch in batches for row in batch.to_pylist()] == [1, 2, 3]
    (batch,) = ArrowCaster(TWO).cast_all(pa.RecordBatch.from_pydict({"id": [1]}))
    assert batch.num_rows == 1


def test_empty_table_is_checked_too() -> None:
    with pytest.raises(SchemaMismatchError, match="no column 'z'"):
        list(ArrowCaster(TWO).cast_all(pa.table({"z": pa.array([], pa.int64())})))


def test_other_objects_are_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="Arrow data expected, not list"):
        list(ArrowCaster(TWO).cast_all([1]))


NUMBERS = DataTypes.array(DataTypes.bigint())
PAIRS = DataTypes.map(DataTypes.string(), DataTypes.int())
PERSON = DataTypes.row([DataField("age", DataTypes.int().not_null()), DataField("nick", DataTypes.string())])
LISTS = [[1, 2], None, [], [None, 3]]
PERSONS = [{"age": 1, "nick": "a"}, None, {"age": 2, "nick": None}]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(LISTS, pa.list_(pa.int64())),
        pa.array(LISTS, pa.list_(pa.int8())),
        pa.array(LISTS, pa.large_list(pa.uint32())),
        pa.array(LISTS, pa.list_view(pa.int32())),
        pa.array(LISTS, pa.large_list_view(pa.int64())),
        pa.array([[9], *LISTS, [8]], pa.list_(pa.int32())).slice(1, 4),
        pa.array([[9], *LISTS], pa.large_list(pa.int64())).slice(1),
        pa.ListArray.from_arrays(
            pa.array([0, None, 2, 2, 4], pa.int32()), pa.array([1, 2, None, 3]).dictionary_encode()
        ),
    ],
    ids=lambda array: str(array.type),
)
def test_lists_of_any_layout(array: pa.Array) -> None:
    assert _cast(NUMBERS, array).to_pylist() == LISTS


def test_lists_of_fixed_size() -> None:
    array = pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2))
    assert _cast(NUMBERS, array).to_pylist() == [[1, 2], None, [3, None]]
    assert _cast(NUMBERS, array.slice(1)).to_pylist() == [None, [3, None]]


def test_elements_under_null_lists_do_not_count() -> None:
    # Arrow allows anything under a null: here a number that does not fit.
    offsets, values = pa.array([0, 1, 2], pa.int32()), pa.array([5, 1 << 40])
    array = pa.ListArray.from_arrays(offsets, values, mask=pa.array([False, True]))
    assert _cast(DataTypes.array(DataTypes.int()), array).to_pylist() == [[5], None]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int32())),
        pa.array([[("k", 1)], None, []], pa.map_(pa.large_string(), pa.int64())),
        pa.array([[("z", 0)], [("k", 1)], None, []], pa.map_(pa.string(), pa.int8())).slice(1),
        pa.array([[{"key": "k", "value": 1}], None, []]),
        pa.array(
            [[{"key": "k", "value": 1}], None, []],
            pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.int8())])),
        ),
    ],
    ids=lambda array: str(array.type),
)
def test_maps_of_any_layout(array: pa.Array) -> None:
    assert _cast(PAIRS, array).to_pylist() == [[("k", 1)], None, []]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(PERSONS, pa.struct([("age", pa.int32()), ("nick", pa.string())])),
        pa.array(PERSONS, pa.struct([("nick", pa.large_string()), ("age", pa.int64())])),
        pa.array([None, *PERSONS], pa.struct([("nick", pa.string_view()), ("age", pa.uint8())])).slice(1),
    ],
    ids=lambda array: str(array.type),
)
def test_structs_of_any_layout(array: pa.Array) -> None:
    assert _cast(PERSON, array).to_pylist() == PERSONS


def test_fields_that_are_missing_are_null() -> None:
    assert _cast(PERSON, pa.array([{"age": 1}, None])).to_pylist() == [{"age": 1, "nick": None}, None]


@pytest.mark.parametrize(
    ("data_type", "array", "message"),
    [
        (DataTypes.array(DataTypes.int()), pa.array([["a"]]), "Column 'x[]' expects int (int32), not string."),
        (NUMBERS, pa.array([1]), "Column 'x' expects array<bigint> (list<item: int64>), not int64."),
        (
            DataTypes.array(DataTypes.tinyint()),
            pa.array([[1], [2, 300]]),
            "Column 'x[]' expects tinyint (int8); values of",
        ),
        (
            DataTypes.array(DataTypes.int().not_null()),
            pa.array([[1], None, [], [1, 2, None]], pa.list_(pa.int32())),
            "Column 'x[2]' expects int NOT NULL, not null (row 3).",
        ),
        (
            DataTypes.array(DataTypes.char(2)),
            pa.array([["a"], ["b", "abc"]]),
            "Column 'x[1]' expects char(2); string of 3",
        ),
        (
            PAIRS,
            pa.array([[(1, 1)]], pa.map_(pa.int32(), pa.int32())),
            "Column 'x.key' expects string NOT NULL (string), not",
        ),
        (
            DataTypes.map(DataTypes.string(), DataTypes.int().not_null()),
            pa.array([[("a", 1)], [("b", 2), ("c", None)]], pa.map_(pa.string(), pa.int32())),
            "Column \"x{'c'}\" expects int NOT NULL, not null (row 1).",
        ),
        (PAIRS, pa.array([[{"key": "a", "val": 1}]]), "Column 'x' expects map<string NOT NULL,int>"),
        (PERSON, pa.array([{"age": 1}, {"age": None}]), "Column 'x.age' expects int NOT NULL, not null (row 1)."),
        (PERSON, pa.array([{"nick": "a"}]), "Column 'x.age' expects int NOT NULL, the data lacks it."),
        (PERSON, pa.array([{"age": 1, "nik": "a"}]), "has no field 'nik'; its fields are age, nick."),
        (PERSON, pa.array([1]), "Column 'x' expects row<age: int NOT NULL, nick: string>"),
        (
            DataTypes.array(DataTypes.row([DataField("tags", DataTypes.array(DataTypes.string().not_null()))])),
            pa.array([[], [{"tags": ["a"]}, {"tags": ["b", None]}]]),
            "Column 'x[1].tags[1]' expects string NOT NULL, not null (row 1).",
        ),
    ],
)
def test_refused_by_the_way_to_the_value(data_type: DataType, array: pa.Array, message: str) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        _cast(data_type, array)
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(2)])
def test_bytes_of_fixed_size(kind: pa.DataType) -> None:
    values = [b"ab", None, b"cd"]
    assert _cast(DataTypes.binary(2), pa.array([b"zz", *values], kind).slice(1)).to_pylist() == values
    assert _cast(DataTypes.binary(2), pa.array([], kind)).to_pylist() == []

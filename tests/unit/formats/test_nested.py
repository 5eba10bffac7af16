"""Nested types from Python rows to Arrow, through every format, and back."""

from __future__ import annotations

import struct
from collections import UserDict, deque
from typing import Any

import numpy
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.formats.arrow import payload
from fluss.formats.arrow.cast import ArrowCaster
from fluss.formats.arrow.payload import Codec, Compression
from fluss.formats.rows.codecs import CompactedFormat, IndexedFormat, RowFormat
from fluss.formats.rows.python_rows import RowBuilder, to_rows, to_tuples
from fluss.model.errors import CorruptDataError, SchemaMismatchError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.schema import Column, Schema
from fluss.model.types import DataField, DataType, DataTypes
from tests.kit.formats.batches import batch_of
from tests.kit.formats.strategies import as_stored, nested_tables
from tests.kit.formats.vectors import COMPACTED_NESTED, NESTED_COLUMNS, NESTED_ROW

Table = tuple[list[Column], list[tuple[Any, ...]]]
AGE = DataTypes.row([DataField("age", DataTypes.int().not_null()), DataField("nick", DataTypes.string())])
PEOPLE = [
    Column("tags", DataTypes.array(DataTypes.string().not_null())),
    Column("attrs", DataTypes.map(DataTypes.string(), DataTypes.int().not_null())),
    Column("profile", AGE),
    Column("deep", DataTypes.array(DataTypes.map(DataTypes.int(), DataTypes.array(AGE.not_null())))),
]
CODECS = [Codec(Compression.NONE), Codec(Compression.LZ4_FRAME), Codec(Compression.ZSTD)]
FORMATS: list[type[RowFormat]] = [CompactedFormat, IndexedFormat]


def test_row_of_java_is_read_and_written_again() -> None:
    row_format = CompactedFormat(NESTED_COLUMNS)
    assert to_tuples(row_format.decode([COMPACTED_NESTED])) == [NESTED_ROW]
    assert row_format.encode(batch_of(NESTED_COLUMNS, [NESTED_ROW])).to_pylist() == [COMPACTED_NESTED]
    assert row_format.encode_row(NESTED_ROW) == COMPACTED_NESTED


@given(table=nested_tables())
def test_python_rows_come_back_as_they_went_in(table: Table) -> None:
    columns, rows = table
    batch = batch_of(columns, rows)
    assert to_tuples(batch) == rows
    for start in range(len(rows)):
        assert to_tuples(batch.slice(start)) == rows[start:]


@given(table=nested_tables(), start=st.integers(0, 6))
@pytest.mark.parametrize("kind", FORMATS)
def test_row_formats_keep_everything(kind: type[Any], table: Table, start: int) -> None:
    columns, rows = table
    row_format = kind(columns)
    batch = batch_of(columns, rows)
    encoded = row_format.encode(batch)
    assert to_tuples(row_format.decode(encoded)) == as_stored(rows)
    start = min(start, len(rows))
    assert row_format.encode(batch.slice(start)).to_pylist() == encoded.to_pylist()[start:]
    assert to_tuples(row_format.decode(encoded.slice(start))) == as_stored(rows[start:])


@given(table=nested_tables(), codec=st.sampled_from(CODECS))
def test_arrow_payloads_keep_everything(table: Table, codec: Codec) -> None:
    columns, rows = table
    batch = batch_of(columns, rows)
    decoded = payload.decode(payload.encode(batch, codec), batch.schema)
    assert decoded.equals(batch)
    assert to_tuples(decoded) == rows


@given(table=nested_tables())
def test_casting_to_the_same_schema_changes_nothing(table: Table) -> None:
    columns, rows = table
    caster = ArrowCaster(Schema.of(columns))
    batch = batch_of(columns, rows)
    for start in range(len(rows) + 1):
        assert to_tuples(caster.cast(batch.slice(start))) == rows[start:]


@given(data=st.data(), table=nested_tables(max_rows=3))
@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_rows_are_refused_or_read(kind: type[Any], data: st.DataObject, table: Table) -> None:
    columns, rows = table
    row_format = kind(columns)
    encoded = row_format.encode(batch_of(columns, rows)).to_pylist()
    for index, row in enumerate(encoded):
        damaged = bytearray(row)
        for _ in range(data.draw(st.integers(1, 4))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        encoded[index] = bytes(damaged[: data.draw(st.integers(0, len(damaged)))]) if index % 2 else bytes(damaged)
    try:
        row_format.decode(encoded).validate(full=True)
    except CorruptDataError:
        pass


@pytest.mark.parametrize(
    "value",
    [
        [1, 2],
        (1, 2),
        deque([1, 2]),
        range(1, 3),
        numpy.array([1, 2], numpy.int64),
        numpy.array([1, 2], numpy.int16)[::1],
        [numpy.int32(1), 2],
    ],
    ids=lambda value: type(value).__name__,
)
def test_shapes_of_arrays(value: Any) -> None:
    columns = [Column("x", DataTypes.array(DataTypes.int()))]
    assert to_tuples(batch_of(columns, [(value,)])) == [([1, 2],)]


def test_vectors_of_numpy() -> None:
    columns = [
        Column("x", DataTypes.array(DataTypes.float())),
        Column("y", DataTypes.array(DataTypes.array(DataTypes.double()))),
    ]
    batch = batch_of(columns, [(numpy.arange(4, dtype=numpy.float32) / 4, numpy.eye(2))])
    assert to_tuples(batch) == [([0.0, 0.25, 0.5, 0.75], [[1.0, 0.0], [0.0, 1.0]])]


@pytest.mark.parametrize("value", [{"k": 7}, UserDict({"k": 7}), [("k", 7)], (["k", 7],)])
def test_shapes_of_maps(value: Any) -> None:
    columns = [Column("x", DataTypes.map(DataTypes.string(), DataTypes.int()))]
    assert to_tuples(batch_of(columns, [(value,)])) == [([("k", 7)],)]


@pytest.mark.parametrize("value", [{"age": 7, "nick": None}, {"age": 7}, UserDict({"age": 7}), [7, None], (7, None)])
def test_shapes_of_rows(value: Any) -> None:
    assert to_tuples(batch_of([Column("x", AGE)], [(value,)])) == [({"age": 7, "nick": None},)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tags": ["a", "b", 5]}, "Column 'tags[2]' expects string NOT NULL, not int (5)."),
        ({"tags": ["a", None]}, "Column 'tags[1]' expects string NOT NULL, not null."),
        ({"tags": "ab"}, "Expected sequence for Array column 'tags' (array<string NOT NULL>), not str ('ab')."),
        ({"tags": b"ab"}, "Expected sequence for Array column 'tags' (array<string NOT NULL>), not bytes (b'ab')."),
        ({"tags": {"a"}}, "Expected sequence for Array column 'tags' (array<string NOT NULL>), not set ({'a'})."),
        (
            {"tags": {"a": 1}},
            "Expected sequence for Array column 'tags' (array<string NOT NULL>), not dict ({'a': 1}).",
        ),
        ({"attrs": {"k": "v"}}, "Column \"attrs{'k'}\" expects int NOT NULL, not str ('v')."),
        ({"attrs": {"k": 1 << 40}}, "Column \"attrs{'k'}\" expects int NOT NULL (-2147483648 to 2147483647)"),
        ({"attrs": {7: 1}}, "Column 'attrs.key' expects string NOT NULL, not int (7)."),
        ({"attrs": [(None, 1)]}, "Column 'attrs.key' expects string NOT NULL, not null."),
        ({"attrs": [("k", 1, 2)]}, "'attrs' expects map<string NOT NULL,int NOT NULL>: a dict or (key, value) pairs"),
        ({"attrs": ["ab"]}, "a dict or (key, value) pairs, not str ('ab')."),
        ({"profile": {"age": "x"}}, "Column 'profile.age' expects int NOT NULL, not str ('x')."),
        ({"profile": {"nick": "x"}}, "Column 'profile' lacks the non-nullable row field 'age' (int NOT NULL)."),
        ({"profile": {"age": 1, "nik": 2}}, "Column 'profile' has no field 'nik'; its fields are age, nick."),
        ({"profile": [1]}, "'profile' expects row<age: int NOT NULL, nick: string>: 2 fields, not 1."),
        ({"profile": "ab"}, "Column 'profile' expects row<age: int NOT NULL, nick: string>, not str ('ab')."),
        ({"deep": [None, {3: [(1, ""), (2, 9)]}]}, "Column 'deep[1]{3}[1].nick' expects string, not int (9)."),
        (
            {"deep": [{3: [None]}]},
            "Column 'deep[0]{3}[0]' expects row<age: int NOT NULL, nick: string> NOT NULL, not null",
        ),
    ],
)
def test_errors_name_the_way_to_the_value(row: dict[str, Any], message: str) -> None:
    builder = RowBuilder(Schema.of(PEOPLE))
    good = {"tags": ["x"], "attrs": {"a": 1}, "profile": (1, "n"), "deep": [{1: [(2, "m")]}]}
    builder.append(good)
    with pytest.raises(SchemaMismatchError) as caught:
        builder.append({**good, **row})
    assert message in str(caught.value)
    builder.append(good)
    assert (
        to_rows(builder.build())
        == [
            {
                "tags": ["x"],
                "attrs": [("a", 1)],
                "profile": {"age": 1, "nick": "n"},
                "deep": [[(1, [{"age": 2, "nick": "m"}])]],
            }
        ]
        * 2
    )


def test_values_inside_are_like_values_outside() -> None:
    stamp = DataTypes.timestamp_ltz(9)
    columns = [Column("a", DataTypes.array(stamp)), Column("b", stamp)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array([[1_999]], pa.list_(pa.timestamp("ns", "UTC"))), pa.array([1_999], pa.timestamp("ns", "UTC"))],
        schema=arrow_schema(Schema.of(columns)),
    )
    ((inside, outside),) = to_tuples(batch)
    assert inside == [outside]
    assert inside[0].tzinfo is outside.tzinfo


def test_many_rows_are_built_at_once() -> None:
    columns = [Column("x", DataTypes.array(DataTypes.array(DataTypes.string())))]
    rows = [([["a" * (i % 9)] * (i % 3), None, [None]] if i % 5 else None,) for i in range(1_000)]
    batch = batch_of(columns, rows)
    assert to_tuples(batch) == rows
    for kind in FORMATS:
        row_format = kind(columns)  # type: ignore[call-arg]
        assert to_tuples(row_format.decode(row_format.encode(batch))) == rows


@pytest.mark.parametrize("data_type", [DataTypes.array(DataTypes.int()), DataTypes.map(DataTypes.int(), AGE), AGE])
def test_no_rows_and_only_nulls(data_type: DataType) -> None:
    columns = [Column("x", data_type)]
    for rows in [], [(None,)], [(None,)] * 9:
        for kind in FORMATS:
            row_format = kind(columns)  # type: ignore[call-arg]
            assert to_tuples(row_format.decode(row_format.encode(batch_of(columns, rows)))) == rows


def _compacted(value: bytes) -> bytes:
    return b"\0" + bytes([len(value)]) + value


def _array(count: int, *slots: int, null_bits: int = 0, tail: bytes = b"") -> bytes:
    return struct.pack(f"<iI{len(slots)}Q", count, null_bits, *slots) + tail


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (b"", "no array of -1 elements in 0 bytes"),
        (b"\1\0\0", "no array of -1 elements in 3 bytes"),
        (_array(-1), "no array of -1 elements"),
        (_array(1), "no array of 1 elements in 8 bytes"),
        (_array(0x7FFFFFFF), "no array of 2147483647 elements"),
        (_array(1, 9 << 56 | 0x80 << 56), "9 bytes in a slot"),
        (_array(1, 24 << 32 | 1), "1 bytes at 24 do not lie in 16"),
        (_array(1, 8 << 32 | 0xFFFFFFFF), "4294967295 bytes at 8"),
        (_array(1, 0x7FFFFFFF << 32 | 1), "1 bytes at 2147483647"),
        (_array(1, 0x81 << 56 | 0xFF), "UTF8"),
        (_array(1, 0, null_bits=1), "'x\\[\\]' is NOT NULL and null"),
        # Four elements of the same sixteen bytes: memory for what is not there.
        (_array(4, *[40 << 32 | 16] * 4, tail=b"a" * 16), "belong to others too"),
    ],
)
def test_bytes_that_are_no_array(packed: bytes, message: str) -> None:
    row_format = CompactedFormat([Column("x", DataTypes.array(DataTypes.string().not_null()))])
    with pytest.raises(CorruptDataError, match=message):
        row_format.decode([_compacted(packed)])


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (b"\0\0\0", "no map with -1 bytes of keys in 3 bytes"),
        (struct.pack("<i", -1), "no map with -1 bytes"),
        (struct.pack("<i", 9) + _array(0), "no map with 9 bytes of keys in 12 bytes"),
        (struct.pack("<i", 8) + _array(0) + _array(1, 0), "more keys than values"),
        (struct.pack("<i", 16) + _array(1, 0, null_bits=1) + _array(1, 0), "'x.key' is NOT NULL and null"),
    ],
)
def test_bytes_that_are_no_map(packed: bytes, message: str) -> None:
    row_format = CompactedFormat([Column("x", DataTypes.map(DataTypes.bigint(), DataTypes.bigint()))])
    with pytest.raises(CorruptDataError, match=message):
        row_format.decode([_compacted(packed)])


def test_bytes_that_are_no_row() -> None:
    row_format = CompactedFormat([Column("x", AGE)])
    for packed, message in (b"", "too short"), (b"\3", "'x.age' is NOT NULL and null"), (b"\2\1\1", "left over"):
        with pytest.raises(CorruptDataError, match=message):
            row_format.decode([_compacted(packed)])

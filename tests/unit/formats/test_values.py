from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.formats import kernel
from fluss.formats.rows import values
from fluss.formats.rows.python_rows import to_tuples
from fluss.formats.rows.values import ValueCodec, decode_value_batch, encode_value_batch
from fluss.model.descriptor import KvFormat
from fluss.model.errors import CorruptDataError, FlussError, NotFoundError
from fluss.model.schema import Column, Schema
from fluss.model.types import DataTypes
from tests.kit.formats.batches import batch_of
from tests.kit.formats.modes import damage_bytes, in_both_modes, needs_both
from tests.kit.formats.strategies import as_stored, nested_tables
from tests.kit.formats.vectors import AB_COLUMNS

Table = tuple[list[Column], list[tuple[Any, ...]]]
AB = Schema.of(AB_COLUMNS)
VALUE = bytes.fromhex("010000010161")
TWO_VALUES = bytes.fromhex("1a0000000002000000060000000100000101610700000001000002026262")
NO_VALUES = bytes.fromhex("050000000000000000")
KV_FORMATS = st.sampled_from(list(KvFormat))


def test_values_of_java() -> None:
    codec = ValueCodec({1: AB})
    assert codec.encode(batch_of(AB_COLUMNS, [(1, "a")])) == [VALUE]
    assert to_tuples(codec.decode([VALUE])) == [(1, "a")]


def test_value_batches_of_java_and_of_a_server() -> None:
    codec = ValueCodec({1: AB})
    rows = [(1, "a"), (2, "bb")]
    assert to_tuples(codec.decode(decode_value_batch(TWO_VALUES))) == rows
    assert encode_value_batch([value for value in codec.encode(batch_of(AB_COLUMNS, rows)) if value]) == TWO_VALUES
    assert decode_value_batch(NO_VALUES) == []
    assert encode_value_batch([]) == NO_VALUES


@given(table=nested_tables(), kv_format=KV_FORMATS, schema_id=st.integers(0, (1 << 15) - 1))
def test_rows_come_back(table: Table, kv_format: KvFormat, schema_id: int) -> None:
    columns, rows = table
    codec = ValueCodec({schema_id: Schema.of(columns)}, kv_format)
    encoded = [value for value in codec.encode(batch_of(columns, rows)) if value is not None]
    assert all(value[:2] == struct.pack("<h", schema_id) for value in encoded)
    sent = decode_value_batch(encode_value_batch(encoded))
    assert sent == encoded
    batch = codec.decode(sent)
    assert batch.schema == codec.arrow_schema
    assert to_tuples(batch) == as_stored(rows)


@given(table=nested_tables(), kv_format=KV_FORMATS, data=st.data())
def test_values_of_older_schemas_are_padded_in_place(table: Table, kv_format: KvFormat, data: st.DataObject) -> None:
    columns, rows = table
    schemas = {7 + count: Schema.of(columns[:count]) for count in range(1, len(columns) + 1)}
    codec = ValueCodec(schemas, kv_format)
    encoded, expected = [], []
    for row, stored in zip(rows, as_stored(rows), strict=True):
        count = data.draw(st.integers(1, len(columns)))
        older = ValueCodec({7 + count: schemas[7 + count]}, kv_format)
        encoded.append(older.encode(batch_of(columns[:count], [row[:count]]))[0] or b"")
        expected.append(stored[:count] + (None,) * (len(columns) - count))
    batch = codec.decode(encoded)
    assert batch.schema == codec.arrow_schema
    assert to_tuples(batch) == expected


def test_gaps_stay_where_they_are() -> None:
    codec = ValueCodec({1: AB})
    batch = batch_of(AB_COLUMNS, [(1, "a"), (1, "a")])
    assert codec.encode(batch, [b"x", None, None, b"y"]) == [VALUE, None, None, VALUE]
    with pytest.raises(ValueError, match="2 rows for 1 places"):
        codec.encode(batch, [b"x", None])


def test_no_values() -> None:
    codec = ValueCodec({1: AB, 2: AB})
    assert codec.decode([]).num_rows == 0
    assert codec.decode([]).schema == codec.arrow_schema


def test_what_is_no_value() -> None:
    codec = ValueCodec({1: AB})
    with pytest.raises(CorruptDataError, match="value 1: 1 bytes have no room for a schema id"):
        codec.decode([VALUE, b"\1"])
    with pytest.raises(CorruptDataError, match="too short for its null bits"):
        codec.decode([b"\1\0"])
    with pytest.raises(NotFoundError, match="The schema -2 of a value is not known; the newest is 1") as caught:
        codec.decode([VALUE, b"\xfe\xff\0"])
    assert caught.value.error_code == 9


def test_values_that_would_take_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "DECODED_SIZE_MAX_BYTES", 800)
    codec = ValueCodec({1: Schema.of([Column(f"c{i}", DataTypes.bigint()) for i in range(10)])})
    value = b"\1\0\xff\x03"
    assert codec.decode([value] * 10).num_rows == 10
    with pytest.raises(CorruptDataError, match="11 values take more than 800 bytes"):
        codec.decode([value] * 11)


def _batch(count: int, *items: tuple[int, bytes]) -> bytes:
    content = struct.pack("<bi", 0, count) + b"".join(struct.pack("<i", size) + value for size, value in items)
    return struct.pack("<i", len(content)) + content


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (b"", "a header takes 9 bytes, 0 are there"),
        (NO_VALUES[:-1], "a header takes 9 bytes, 8 are there"),
        (NO_VALUES + b"\0", "9 bytes announced, 10 are there"),
        (TWO_VALUES[:-1], "30 bytes announced, 29 are there"),
        (b"\x05\0\0\0\1\0\0\0\0", "magic 1 is not known"),
        (_batch(-1), "-1 values announced in 0 bytes"),
        (_batch(1), "1 values announced in 0 bytes"),
        (_batch(1 << 30, (6, VALUE)), "1073741824 values announced in 10 bytes"),
        (_batch(0, (6, VALUE)), "10 bytes left over behind 0 values"),
        (_batch(1, (5, VALUE)), "1 bytes left over behind 1 values"),
        (_batch(1, (7, VALUE)), "value 0 at byte 0 has a wrong length"),
        (_batch(2, (6, VALUE), (1, b"\1\0")), "value 1 at byte 10 has a wrong length"),
        (_batch(1, (-1, VALUE)), "wrong length"),
        (_batch(1, (0x7FFFFFFF, VALUE)), "wrong length"),
    ],
)
def test_batches_that_are_none(batch: bytes, message: str) -> None:
    with pytest.raises(CorruptDataError, match=message):
        decode_value_batch(batch)


@given(items=st.lists(st.binary(max_size=8)))
def test_random_values_decode_or_are_refused(items: list[bytes]) -> None:
    codec = ValueCodec({0: Schema.of(AB_COLUMNS[:1]), 1: AB})
    try:
        assert codec.decode(items).num_rows == len(items)
    except FlussError:
        assert items


@needs_both
@given(items=st.lists(st.binary(max_size=8)), short=st.booleans(), data=st.data())
def test_kernels_agree(items: list[bytes], short: bool, data: st.DataObject) -> None:
    items = items if short else [b"\1\0" + item for item in items]
    records, again = in_both_modes(lambda k: k.join_values(items))
    assert records == again
    content = bytearray(records[1])
    if content and data.draw(st.booleans()):
        damage_bytes(data, content)
    count = len(items) + data.draw(st.integers(-1, 1))
    one, two = in_both_modes(lambda k: k.split_values(content, count))
    assert one == two
    one, two = in_both_modes(lambda k: k.schema_ids_of(items))
    assert one == two
    schema_id = data.draw(st.sampled_from(one[1])) if one[0] == "returned" and one[1] else 1
    one, two = in_both_modes(lambda k: k.rows_of_schema(items, schema_id))
    assert one == two
    if one[0] == "returned":
        rows, offsets, places = one[1]
        assert list(memoryview(places).cast("i")) == [i for i, item in enumerate(items) if _id_of(item) == schema_id]
        gaps = data.draw(st.lists(st.sampled_from([None, b"x"]), max_size=6))
        one, two = in_both_modes(lambda k: k.values_of_rows(rows, offsets, len(places) // 4, b"\1\0", gaps))
        assert one == two
        assert kernel.values_of_rows(rows, offsets, len(places) // 4, struct.pack("<h", schema_id), None) == [
            item for item in items if _id_of(item) == schema_id
        ]


def _id_of(value: bytes) -> int:
    return int.from_bytes(value[:2], "little", signed=True)

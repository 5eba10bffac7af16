from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from fluss.formats.batches import kv_batch
from fluss.formats.rows.codecs import CompactedFormat
from fluss.formats.rows.keys import KeyEncoder
from fluss.model.errors import CorruptDataError, SchemaMismatchError
from fluss.model.schema import Column
from fluss.model.types import DataTypes
from tests.kit.formats.batches import batch_of
from tests.kit.formats.modes import damage_bytes, in_both_modes, needs_both

# Schema 1, writer 7, sequence 3: key 01 = (1, "a"), then a delete of it.
PUT_AND_DELETE = bytes.fromhex(
    "2800000000415f2e290100000700000000000000030000000200000006000000010100010161020000000101"
)
# The PutKv request of pyfluss 1.0.0, a batch of 57 bytes at its end: key (id INT, ts BIGINT), two upserts, a delete.
PUT_KV_REQUEST = bytes.fromhex(
    "08ffffffffffffffffff01100218b0ea012a3d10001a39350000000073912e6d01000000000000000000000000000003000000"
    "0800000002010300010301780600000002010404010403000000020909"
)
ROW = bytes.fromhex("00010161")
RECORDS = st.lists(st.tuples(st.binary(max_size=300), st.none() | st.binary(min_size=1, max_size=40)), max_size=12)


def _binary(items: list[bytes | None]) -> pa.BinaryArray:
    return pa.array(items, pa.binary())


def _batch(records: bytes | bytearray, count: int, schema_id: int = 1) -> bytes:
    return bytes(kv_batch.encode_header(records, schema_id=schema_id, record_count=count) + records)


def _decode(batch: bytes | bytearray) -> kv_batch.KvRecords:
    return kv_batch.decode_records(batch, kv_batch.parse_header(batch))


def test_batch_of_java_is_written() -> None:
    records = kv_batch.encode_records(_binary([b"\1", b"\1"]), _binary([ROW, None]))
    header = kv_batch.encode_header(records, schema_id=1, record_count=2, writer_id=7, batch_sequence=3)
    assert header + records == PUT_AND_DELETE
    header = kv_batch.encode_header(records, schema_id=1, record_count=2)
    assert kv_batch.parse_header(header + records)[5:7] == (-1, -1)
    kv_batch.set_writer(header, 7, 3, records)
    assert header + records == PUT_AND_DELETE


def test_batch_of_java_is_read() -> None:
    header = kv_batch.parse_header(PUT_AND_DELETE)
    assert header == (40, 0, 0x292E5F41, 1, 0, 7, 3, 2)
    assert header.size_bytes == len(PUT_AND_DELETE)
    assert kv_batch.decode_records(PUT_AND_DELETE, header) == ([b"\1", b"\1"], [b"\1\0" + ROW, None])


def test_batch_of_pyfluss_is_read_and_written_again() -> None:
    batch = PUT_KV_REQUEST[-57:]
    header = kv_batch.parse_header(batch)
    assert (header.schema_id, header.writer_id, header.batch_sequence, header.record_count) == (1, 0, 0, 3)
    keys, values = kv_batch.decode_records(batch, header)
    columns = [Column("id", DataTypes.int().not_null()), Column("ts", DataTypes.bigint().not_null())]
    assert KeyEncoder(columns).decode(keys).to_pydict() == {"id": [1, 1, 9], "ts": [3, 4, 9]}
    assert values[2] is None
    row_format = CompactedFormat([*columns, Column("v", DataTypes.string())])
    rows = row_format.encode(batch_of([*columns, Column("v", DataTypes.string())], [(1, 3, "x"), (1, 4, None)]))
    assert [value[2:] for value in values if value is not None] == rows.to_pylist()
    records = kv_batch.encode_records(_binary(list(keys)), _binary([*rows.to_pylist(), None]))
    assert (
        kv_batch.encode_header(records, schema_id=1, record_count=3, writer_id=0, batch_sequence=0) + records == batch
    )


@given(records=RECORDS, schema_id=st.integers(-(1 << 15), (1 << 15) - 1), start=st.integers(0, 3))
def test_records_come_back(records: list[tuple[bytes, bytes | None]], schema_id: int, start: int) -> None:
    padding: list[tuple[bytes, bytes | None]] = [(b"before", b"the slice")] * start
    keys, rows = (_binary([record[i] for record in padding + records]).slice(start) for i in (0, 1))
    batch = _batch(kv_batch.encode_records(keys, rows), len(records), schema_id)
    prefix = struct.pack("<h", schema_id)
    assert _decode(batch).keys == [key for key, _ in records]
    assert _decode(batch).values == [None if row is None else prefix + row for _, row in records]
    assert _decode(bytearray(batch)) == _decode(batch)


def test_what_can_not_be_written() -> None:
    with pytest.raises(ValueError, match="2 keys for 1 rows"):
        kv_batch.encode_records(_binary([b"a", b"b"]), _binary([ROW]))
    with pytest.raises(ValueError, match="a key is null"):
        kv_batch.encode_records(_binary([None]), _binary([ROW]))
    with pytest.raises(SchemaMismatchError, match="Row 1 has no bytes"):
        kv_batch.encode_records(_binary([b"a", b"b", b"c"]), _binary([None, b"", ROW]))
    with pytest.raises(ValueError, match="at most 1048576"):
        kv_batch.encode_header(b"", schema_id=1, record_count=kv_batch.RECORD_COUNT_MAX + 1)


def _record(length: int, rest: bytes) -> bytes:
    return struct.pack("<i", length) + rest


GOOD = _record(6, b"\1k" + ROW)


@pytest.mark.parametrize(
    ("records", "count", "message"),
    [
        (b"", 1, "1 records announced in 0 bytes"),
        (b"", -1, "-1 records, where at most"),
        (b"", 1 << 21, "2097152 records, where at most"),
        (b"\0", 0, "1 bytes left over behind 0 records"),
        (GOOD, 1 << 20, "1048576 records announced in 10 bytes"),
        (GOOD, 2, "record 1 at byte 10 has a wrong length"),
        (GOOD + GOOD, 1, "10 bytes left over"),
        (GOOD[:-1], 1, "record 0 at byte 0 has a wrong length"),
        (GOOD + _record(0, b"\1k"), 2, "record 1 at byte 10 has a wrong length"),
        (_record(-1, b"\1k"), 1, "wrong length"),
        (_record(0x7FFFFFFF, b"\1k"), 1, "wrong length"),
        (_record(1, b"\1k"), 1, "the key of record 0 has 1 bytes, 0 are left"),
        (_record(2, b"\2k"), 1, "the key of record 0 has 2 bytes, 1 are left"),
        (_record(5, b"\xff\xff\xff\xff\x0f"), 1, "the key of record 0 has 4294967295 bytes, 0 are left"),
        (_record(5, b"\xff\xff\xff\xff\x10"), 1, "the key length of record 0 is not a 32-bit number"),
        (_record(6, b"\x80\x80\x80\x80\x80\0"), 1, "the key length of record 0 is not a 32-bit number"),
        (_record(1, b"\x80") + GOOD, 2, "the key length of record 0 is not a 32-bit number"),
    ],
)
def test_records_that_are_none(records: bytes, count: int, message: str) -> None:
    content = struct.pack("<hBqii", 1, 0, -1, -1, count) + records
    batch = struct.pack("<ibI", 5 + len(content), 0, crc32c(content)) + content
    with pytest.raises(CorruptDataError, match=message):
        _decode(batch)


@pytest.mark.parametrize(
    ("at", "content", "message"),
    [
        (4, b"\1", "magic 1 is not known"),
        (0, b"\x29", "45 bytes announced, 44 are there"),
        (3, b"\xff", "bytes announced, 44 are there"),
        (5, b"\0", "the header says"),
        (43, b"\0", "the header says"),
    ],
)
def test_damaged_headers(at: int, content: bytes, message: str) -> None:
    batch = bytearray(PUT_AND_DELETE)
    batch[at : at + 1] = content
    with pytest.raises(CorruptDataError, match=message):
        _decode(bytes(batch))


def test_cut_batches_and_batches_with_more_behind() -> None:
    for size in range(len(PUT_AND_DELETE)):
        with pytest.raises(CorruptDataError):
            _decode(PUT_AND_DELETE[:size])
    with pytest.raises(CorruptDataError, match="44 bytes announced, 45 are there"):
        _decode(PUT_AND_DELETE + b"\0")


def test_unknown_attributes() -> None:
    batch = bytearray(PUT_AND_DELETE)
    batch[11] = 1
    struct.pack_into("<I", batch, 5, crc32c(memoryview(batch)[9:]))
    with pytest.raises(CorruptDataError, match="attributes 1 are not known"):
        kv_batch.parse_header(batch)


@given(position=st.integers(0, len(PUT_AND_DELETE) * 8 - 1))
def test_every_flipped_bit_is_found(position: int) -> None:
    batch = bytearray(PUT_AND_DELETE)
    batch[position // 8] ^= 1 << position % 8
    with pytest.raises(CorruptDataError):
        _decode(bytes(batch))


@needs_both
@given(records=RECORDS, damage=st.booleans(), data=st.data())
def test_kernels_agree(records: list[tuple[bytes, bytes | None]], damage: bool, data: st.DataObject) -> None:
    content = kv_batch.encode_records(_binary([key for key, _ in records]), _binary([row for _, row in records]))
    if damage and content:
        damage_bytes(data, content)
    count = len(records) + data.draw(st.integers(-1, 1)) if damage else len(records)
    one, two = in_both_modes(lambda k: k.split_kv_records(content, count, b"\1\0"))
    assert one == two
    assert damage or one[0] == "returned"
    bits = data.draw(st.none() | st.binary(min_size=1, max_size=3))
    rows = (b"".join(row or b"" for _, row in records), _offsets([row or b"" for _, row in records]))
    keys = (b"".join(key for key, _ in records), _offsets([key for key, _ in records]))
    start = data.draw(st.integers(0, 9))
    one, two = in_both_modes(lambda k: k.join_kv_records(keys, rows, bits, start, len(records)))
    assert one == two


def _offsets(items: list[bytes]) -> bytes:
    ends = [0]
    for item in items:
        ends.append(ends[-1] + len(item))
    return struct.pack(f"<{len(ends)}i", *ends)

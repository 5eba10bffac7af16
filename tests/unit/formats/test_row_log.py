from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.formats.batches import log_batch
from fluss.formats.rows import codecs
from fluss.formats.rows.python_rows import to_tuples
from fluss.model.descriptor import LogFormat
from fluss.model.errors import CorruptDataError, SchemaMismatchError
from fluss.model.schema import Column, Schema
from fluss.model.types import DataTypes
from tests.kit.formats.batches import batch_of
from tests.kit.formats.strategies import as_stored, nested_tables
from tests.kit.formats.vectors import AB_COLUMNS, LOG_INDEXED_ROW

Table = tuple[list[Column], list[tuple[Any, ...]]]
AB = Schema.of(AB_COLUMNS)
ROW_FORMATS = [LogFormat.INDEXED, LogFormat.COMPACTED]


def test_batch_of_java_is_read_and_written_again() -> None:
    header = log_batch.parse_header(LOG_INDEXED_ROW)
    changes, batch = codecs.decode_rows(LOG_INDEXED_ROW, 0, header, AB, LogFormat.INDEXED)
    assert changes is None
    assert to_tuples(batch) == [(1, "a")]
    records = codecs.encode(batch, AB, LogFormat.INDEXED)
    written = log_batch.encode_batch(records, schema_id=1, record_count=1, writer_id=7, batch_sequence=3)
    assert written == LOG_INDEXED_ROW


@given(table=nested_tables(), log_format=st.sampled_from(ROW_FORMATS), data=st.data())
def test_rows_and_changes_come_back(table: Table, log_format: LogFormat, data: st.DataObject) -> None:
    columns, rows = table
    schema = Schema.of(columns)
    changes = bytes(data.draw(st.lists(st.integers(0, 4), min_size=len(rows), max_size=len(rows))))
    records = codecs.encode(batch_of(columns, rows), schema, log_format, changes)
    given_back, batch = codecs.decode(records, len(rows), schema, log_format)
    assert (given_back or bytes(len(rows))) == changes
    assert (given_back is None) is (not any(changes))
    assert to_tuples(batch) == as_stored(rows)
    assert codecs.decode(codecs.encode(batch, schema, log_format), len(rows), schema, log_format)[0] is None


def test_slices_are_written_from_where_they_begin() -> None:
    rows = [(i, f"text {i}") for i in range(20)]
    batch = batch_of(AB_COLUMNS, rows)
    for log_format in ROW_FORMATS:
        records = codecs.encode(batch.slice(5, 7), AB, log_format)
        assert to_tuples(codecs.decode(records, 7, AB, log_format)[1]) == rows[5:12]


def _record(length: int, change_type: int, row: bytes) -> bytes:
    return struct.pack("<iB", length, change_type) + row


ROW = bytes.fromhex("00010161")


@pytest.mark.parametrize(
    ("records", "count", "message"),
    [
        (b"", 1, "1 records announced in 0 bytes"),
        (b"", -1, "-1 records announced"),
        (b"\0", 0, "1 bytes left over behind 0 records"),
        (_record(5, 0, ROW), 1 << 20, "1048576 records announced in 9 bytes"),
        (_record(5, 0, ROW), 2, "2 records announced in 9 bytes"),
        (_record(5, 0, ROW) * 2, 1, "9 bytes left over"),
        (_record(6, 0, ROW), 1, "record 0 at byte 0 has a wrong length"),
        (_record(0, 0, ROW), 1, "record 0 at byte 0 has a wrong length"),
        (_record(-1, 0, ROW), 1, "record 0 at byte 0 has a wrong length"),
        (_record(0x7FFFFFFF, 0, ROW), 1, "record 0 at byte 0 has a wrong length"),
        (_record(5, 0, ROW) + _record(6, 0, ROW), 2, "record 1 at byte 9 has a wrong length"),
        (_record(9, 0, ROW + b"\0\0\0\0"), 2, "wrong length"),
        (_record(5, 5, ROW), 1, "record 0 has the unknown change type 5"),
        (_record(4, 0, ROW[:-1]), 1, "1 bytes announced, 0 are left"),
        (_record(1, 0, b""), 1, "too short"),
    ],
)
def test_bytes_that_are_no_records(records: bytes, count: int, message: str) -> None:
    with pytest.raises(CorruptDataError, match=message):
        codecs.decode(records, count, AB, LogFormat.COMPACTED)


@given(records=st.binary(max_size=60), count=st.integers(-1, 8), log_format=st.sampled_from(ROW_FORMATS))
def test_random_bytes_are_refused_or_read(records: bytes, count: int, log_format: LogFormat) -> None:
    try:
        _, batch = codecs.decode(records, count, AB, log_format)
    except CorruptDataError:
        return
    assert batch.num_rows == count


def test_nulls_of_wide_columns_take_no_memory_without_end() -> None:
    schema = Schema.of([Column("b", DataTypes.binary(1 << 20))])
    record = _record(2, 0, b"\1")
    assert codecs.decode(record * 9, 9, schema, LogFormat.COMPACTED)[1].column(0).null_count == 9
    with pytest.raises(CorruptDataError, match="2000 records take more than"):
        codecs.decode(record * 2000, 2000, schema, LogFormat.COMPACTED)


def test_wrong_use_is_refused() -> None:
    batch = batch_of(AB_COLUMNS, [(1, "a")])
    with pytest.raises(ValueError, match="2 change types for 1 rows"):
        codecs.encode(batch, AB, LogFormat.INDEXED, b"\0\0")
    with pytest.raises(SchemaMismatchError, match="ARROW has no rows"):
        codecs.encode(batch, AB, LogFormat.ARROW)

"""Log batches to Arrow: other schemas, projections, damaged bytes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pyarrow as pa
import pytest

from fluss.client.batch_reader import BatchReader, Part
from fluss.client.cursor import Cursor
from fluss.client.decode import to_records
from fluss.client.fetched import FetchedBatch
from fluss.formats import arrow_payload
from fluss.formats.arrow_payload import Codec
from fluss.formats.log_batch import encode_batch, parse_header, stamp
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import CorruptDataError, FlussError, NotFoundError
from fluss.model.infos import TableInfo
from fluss.model.paths import TableBucket
from fluss.model.records import ChangeType
from fluss.model.schema import Schema
from tests.unit.client.scripted import PATH

NEW = pa.schema([("id", pa.int64()), ("name", pa.string()), ("added", pa.int32())])
OLD = pa.schema([("id", pa.int64()), ("name", pa.string())])
ROWS = {"id": [1, 2, 3], "name": ["a", None, "c"], "added": [7, 8, None]}
BUCKET = TableBucket(1, 0)


class Admin:
    """Knows older schemas."""

    def __init__(self, schemas: dict[int, pa.Schema]) -> None:
        self.schemas, self.asked = schemas, [0]

    async def get_table_schema(self, _: object, schema_id: int) -> tuple[int, Schema]:
        self.asked.append(schema_id)
        if schema_id not in self.schemas:
            raise NotFoundError("no such schema", 9)
        return schema_id, Schema(self.schemas[schema_id])


def reader_of(schemas: dict[int, pa.Schema] | None = None, projection: list[int] | None = None) -> BatchReader:
    info = TableInfo(PATH, 1, 2, TableDescriptor(Schema(NEW), bucket_count=1), 1, 0, 0)
    return BatchReader(cast(Any, Admin(schemas or {1: OLD})), info, projection)


def part_of(
    rows: pa.RecordBatch, schema_id: int, *, start: int = 0, stop: int | None = None, changes: bytes | None = None
) -> Part:
    data = encode_batch(
        arrow_payload.encode(rows, Codec()), schema_id=schema_id, record_count=rows.num_rows, change_types=changes
    )
    stamp(data, 0, 100, 1234)
    return Part(Cursor(BUCKET, start, stop), memoryview(data), 0, parse_header(data))


def batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch({name: ROWS[name] for name in schema.names}, schema=schema)


def decode(reader: BatchReader, *parts: Part) -> list[FetchedBatch | FlussError | None]:
    asyncio.run(reader.learn(list(parts)))
    return [result for _, result in reader.decode(list(parts))]


def test_rows_with_their_place() -> None:
    (fetched,) = decode(reader_of(), part_of(batch(NEW), 2))
    assert isinstance(fetched, FetchedBatch)
    assert fetched.batch == batch(NEW)
    assert (fetched.bucket, fetched.base_offset, fetched.last_offset, fetched.timestamp_ms) == (BUCKET, 100, 102, 1234)


def test_an_older_schema_is_asked_for_once_and_padded_with_null() -> None:
    reader = reader_of()
    for fetched in decode(reader, part_of(batch(OLD), 1), part_of(batch(OLD), 1), part_of(batch(NEW), 2)):
        assert isinstance(fetched, FetchedBatch)
        assert fetched.batch.schema == NEW
    (fetched,) = decode(reader, part_of(batch(OLD), 1))
    assert isinstance(fetched, FetchedBatch)
    assert fetched.batch.to_pydict() == {**ROWS, "added": [None] * 3}
    assert cast(Any, reader)._admin.asked == [0, 1]


def test_a_newer_schema_is_cut_to_the_columns_of_the_table_as_it_was_opened() -> None:
    newer = NEW.append(pa.field("even_newer", pa.int8()))
    rows = pa.record_batch({**ROWS, "even_newer": [1, 2, 3]}, schema=newer)
    (fetched,) = decode(reader_of({3: newer}), part_of(rows, 3))
    assert isinstance(fetched, FetchedBatch)
    assert fetched.batch == batch(NEW)


def test_a_projected_batch_comes_sorted_and_is_put_into_the_order_wanted() -> None:
    reader = reader_of(projection=[2, 0])
    assert reader.pushed_fields == [0, 2]
    (fetched,) = decode(reader, part_of(batch(NEW).select(["id", "added"]), 2))
    assert isinstance(fetched, FetchedBatch)
    assert fetched.batch.to_pydict() == {"added": ROWS["added"], "id": ROWS["id"]}
    (older,) = decode(reader, part_of(batch(OLD).select(["id"]), 1))
    assert isinstance(older, FetchedBatch)
    assert older.batch.to_pydict() == {"added": [None] * 3, "id": ROWS["id"]}


def test_all_columns_in_another_order_are_read_in_full() -> None:
    reader = reader_of(projection=[2, 1, 0])
    assert reader.pushed_fields is None
    (fetched,) = decode(reader, part_of(batch(NEW), 2))
    assert isinstance(fetched, FetchedBatch)
    assert fetched.batch.schema.names == ["added", "name", "id"]


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, None, [1, 2, 3]), (101, None, [2, 3]), (102, 103, [3]), (0, 101, [1]), (101, 102, [2]), (103, None, None)],
)
def test_rows_outside_the_bounds_are_left_out(start: int, stop: int | None, expected: list[int] | None) -> None:
    (fetched,) = decode(reader_of(), part_of(batch(NEW), 2, start=start, stop=stop))
    if expected is None:
        assert fetched is None
        return
    assert isinstance(fetched, FetchedBatch)
    assert fetched.batch.column("id").to_pylist() == expected
    assert fetched.base_offset == 99 + expected[0]
    assert fetched.row_count == len(expected)


def test_a_batch_without_rows_is_nothing() -> None:
    assert decode(reader_of(), part_of(batch(NEW).slice(0, 0), 2)) == [None]


def test_change_types_go_with_their_rows() -> None:
    (fetched,) = decode(reader_of(), part_of(batch(NEW), 2, start=101, changes=bytes([1, 2, 3])))
    assert isinstance(fetched, FetchedBatch)
    assert fetched.change_types == bytes([2, 3])
    records = to_records([fetched])
    assert [record.change_type for record in records] == [ChangeType.UpdateBefore, ChangeType.UpdateAfter]
    assert [record.offset for record in records] == [101, 102]


def test_a_flipped_byte_is_found_where_the_checksum_holds_for_the_bytes_sent() -> None:
    part = part_of(batch(NEW), 2)
    data = bytearray(part.records)
    data[-1] ^= 1
    damaged = part._replace(records=memoryview(data))
    (error,) = decode(reader_of(), damaged)
    assert isinstance(error, CorruptDataError)
    assert "bucket 0 of table db.t, offset 100" in error.message
    assert "CRC" in error.message


def test_a_schema_nobody_knows_is_an_error() -> None:
    with pytest.raises(NotFoundError):
        decode(reader_of(), part_of(batch(OLD), 9))

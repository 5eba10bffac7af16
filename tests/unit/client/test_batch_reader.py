"""Log batches to Arrow: other schemas, projections, damaged bytes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pyarrow as pa
import pytest

from fluss.client.scan.batches import BatchReader, Cursor, FetchedBatch, RawBatch, to_records
from fluss.client.scan.filter import ScanFilter
from fluss.formats.arrow import payload as arrow_payload
from fluss.formats.arrow.payload import Codec
from fluss.formats.batches import statistics
from fluss.formats.batches.log_batch import encode_batch, parse_header, stamp
from fluss.formats.rows import codecs
from fluss.model.descriptor import TableDescriptor
from fluss.model.errors import CorruptDataError, FlussError, NotFoundError
from fluss.model.infos import TableInfo
from fluss.model.paths import TableBucket
from fluss.model.predicates import Predicate, col
from fluss.model.records import ChangeType
from fluss.model.schema import Schema
from tests.kit.scripted import PATH

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


def reader_of(
    schemas: dict[int, pa.Schema] | None = None,
    projection: list[int] | None = None,
    predicate: Predicate | None = None,
    *,
    fixed_schema: bool = True,
    log_format: str = "ARROW",
) -> BatchReader:
    descriptor = TableDescriptor(Schema(NEW), bucket_count=1, log_format=log_format)
    info = TableInfo(PATH, 1, 2, descriptor, 1, 0, 0)
    scan_filter = None if predicate is None else ScanFilter(predicate, info.schema)
    admin = cast(Any, Admin(schemas or {1: OLD}))
    return BatchReader(admin, info, projection, scan_filter, fixed_schema=fixed_schema)


def raw_batch(
    rows: pa.RecordBatch,
    schema_id: int,
    *,
    start: int = 0,
    stop: int | None = None,
    changes: bytes | None = None,
    projected: bool = False,
) -> RawBatch:
    data = encode_batch(
        arrow_payload.encode(rows, Codec()), schema_id=schema_id, record_count=rows.num_rows, change_types=changes
    )
    stamp(data, 0, 100, 1234)
    return RawBatch(Cursor(BUCKET, start, stop), memoryview(data), 0, parse_header(data), projected)


def batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch({name: ROWS[name] for name in schema.names}, schema=schema)


def decode(reader: BatchReader, *batches: RawBatch) -> list[FetchedBatch | FlussError | None]:
    asyncio.run(reader.learn(list(batches)))
    return reader.decode(list(batches))


def test_rows_with_their_place() -> None:
    (fetched,) = decode(reader_of(), raw_batch(batch(NEW), 2))
    assert isinstance(fetched, FetchedBatch)
    assert fetched.batch == batch(NEW)
    assert (fetched.bucket, fetched.base_offset, fetched.last_offset, fetched.timestamp_ms) == (BUCKET, 100, 102, 1234)


def test_an_older_schema_is_asked_for_once_and_padded_with_null() -> None:
    reader = reader_of()
    for fetched in decode(reader, raw_batch(batch(OLD), 1), raw_batch(batch(OLD), 1), raw_batch(batch(NEW), 2)):
        assert isinstance(fetched, FetchedBatch)
        assert fetched.batch.schema == NEW
    (fetched,) = decode(reader, raw_batch(batch(OLD), 1))
    assert isinstance(fetched, FetchedBatch)
    assert fetched.batch.to_pydict() == {**ROWS, "added": [None] * 3}
    assert cast(Any, reader)._admin.asked == [0, 1]


def test_a_newer_schema_is_cut_to_the_columns_of_the_table_as_it_was_opened() -> None:
    newer = NEW.append(pa.field("even_newer", pa.int8()))
    rows = pa.record_batch({**ROWS, "even_newer": [1, 2, 3]}, schema=newer)
    (fetched,) = decode(reader_of({3: newer}), raw_batch(rows, 3))
    assert isinstance(fetched, FetchedBatch)
    assert fetched.batch == batch(NEW)


def test_a_projected_batch_comes_sorted_and_is_put_into_the_order_wanted() -> None:
    reader = reader_of(projection=[2, 0])
    assert reader.pushed_fields == [0, 2]
    (fetched,) = decode(reader, raw_batch(batch(NEW).select(["id", "added"]), 2, projected=True))
    assert isinstance(fetched, FetchedBatch)
    assert fetched.batch.to_pydict() == {"added": ROWS["added"], "id": ROWS["id"]}
    (older,) = decode(reader, raw_batch(batch(NEW).select(["id", "added"]), 1, projected=True))
    assert isinstance(older, FetchedBatch)
    assert older.batch.to_pydict() == {"added": ROWS["added"], "id": ROWS["id"]}


def test_a_batch_that_came_in_full_is_projected_here() -> None:
    reader = reader_of(projection=[2, 0])
    for fetched, added in zip(
        decode(reader, raw_batch(batch(NEW), 2), raw_batch(batch(OLD), 1)), (ROWS["added"], [None] * 3), strict=True
    ):
        assert isinstance(fetched, FetchedBatch)
        assert fetched.batch.to_pydict() == {"added": added, "id": ROWS["id"]}


def test_a_column_is_known_by_its_field_id_when_it_is_renamed() -> None:
    renamed = pa.schema([("old_id", pa.int64()), ("name", pa.string())])
    rows = pa.record_batch({"old_id": [1, 2, 3], "name": ROWS["name"]}, schema=renamed)
    (fetched,) = decode(reader_of({1: renamed}), raw_batch(rows, 1))
    assert isinstance(fetched, FetchedBatch)
    assert fetched.batch.to_pydict() == {**ROWS, "added": [None] * 3}


def test_without_a_fixed_schema_a_batch_keeps_its_columns_unless_they_are_projected() -> None:
    for projection, names in ((None, ["id", "name"]), ([2, 0], ["added", "id"])):
        (fetched,) = decode(reader_of(projection=projection, fixed_schema=False), raw_batch(batch(OLD), 1))
        assert isinstance(fetched, FetchedBatch)
        assert fetched.batch.schema.names == names


def test_a_filter_leaves_rows_out_and_offsets_and_change_types_go_with_the_rest() -> None:
    predicate = (col("id") != 2) & col("added").is_in([7, 8])
    reader = reader_of(projection=[1], predicate=predicate)
    assert reader.pushed_fields is None
    (fetched,) = decode(reader, raw_batch(batch(NEW), 2, changes=bytes([1, 2, 3])))
    assert isinstance(fetched, FetchedBatch)
    assert fetched.batch.to_pydict() == {"name": ["a"]}
    assert (fetched.base_offset, fetched.last_offset, fetched.change_types) == (100, 100, bytes([1]))
    (later,) = decode(
        reader_of(predicate=col("name").is_not_null()), raw_batch(batch(NEW), 2, changes=bytes([1, 2, 3]))
    )
    assert isinstance(later, FetchedBatch)
    assert [(record.offset, record.change_type) for record in to_records([later])] == [(100, 1), (102, 3)]
    sliced = later.slice(1, 1)
    assert (sliced.base_offset, sliced.last_offset, sliced.change_types) == (102, 102, bytes([3]))
    assert decode(reader_of(predicate=col("added") == 7), raw_batch(batch(OLD), 1)) == [None]
    (cut,) = decode(reader_of(predicate=col("id") > 1), raw_batch(batch(NEW), 2, start=101, stop=102))
    assert isinstance(cut, FetchedBatch)
    assert (cut.base_offset, cut.batch.column("id").to_pylist()) == (101, [2])


@pytest.mark.parametrize("log_format", ["INDEXED", "COMPACTED"])
def test_row_formats_are_read_with_projection_filter_and_older_schemas(log_format: str) -> None:
    reader = reader_of(projection=[2, 0], predicate=col("name").is_not_null(), log_format=log_format)
    assert reader.pushed_fields is None
    for schema, schema_id, added in ((NEW, 2, [7, None]), (OLD, 1, [None, None])):
        payload = codecs.encode(batch(schema), Schema(schema), log_format)
        data = encode_batch(payload, schema_id=schema_id, record_count=3)
        stamp(data, 0, 100, 1234)
        raw = RawBatch(Cursor(BUCKET, 0), memoryview(data), 0, parse_header(data), False)
        (fetched,) = decode(reader, raw)
        assert isinstance(fetched, FetchedBatch)
        assert fetched.batch.to_pydict() == {"added": added, "id": [1, 3]}
        assert [record.offset for record in to_records([fetched])] == [100, 102]


@pytest.mark.parametrize("magic", [1, 2])
def test_batches_with_statistics_are_read(magic: int) -> None:
    rows = batch(NEW)
    block = statistics.encode(rows, [column.data_type for column in Schema(NEW).columns], [0])
    payload = arrow_payload.encode(rows, Codec())
    data = encode_batch(payload, schema_id=2, record_count=3, statistics=block)
    if magic == 2:
        data[8:12] = (int.from_bytes(data[8:12], "little") + 4).to_bytes(4, "little")
        data[12] = 2
        data[21:21] = (5).to_bytes(4, "little")  # the leader epoch, in front of the checksum
    stamp(data, 0, 100, 1234)
    raw = RawBatch(Cursor(BUCKET, 0), memoryview(data), 0, parse_header(data), False)
    assert raw.header.magic == magic
    (fetched,) = decode(reader_of(), raw)
    assert isinstance(fetched, FetchedBatch)
    assert fetched.batch == rows


def test_all_columns_in_another_order_are_read_in_full() -> None:
    reader = reader_of(projection=[2, 1, 0])
    assert reader.pushed_fields is None
    (fetched,) = decode(reader, raw_batch(batch(NEW), 2))
    assert isinstance(fetched, FetchedBatch)
    assert fetched.batch.schema.names == ["added", "name", "id"]


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, None, [1, 2, 3]), (101, None, [2, 3]), (102, 103, [3]), (0, 101, [1]), (101, 102, [2]), (103, None, None)],
)
def test_rows_outside_the_bounds_are_left_out(start: int, stop: int | None, expected: list[int] | None) -> None:
    (fetched,) = decode(reader_of(), raw_batch(batch(NEW), 2, start=start, stop=stop))
    if expected is None:
        assert fetched is None
        return
    assert isinstance(fetched, FetchedBatch)
    assert fetched.batch.column("id").to_pylist() == expected
    assert fetched.base_offset == 99 + expected[0]
    assert fetched.row_count == len(expected)


def test_a_batch_without_rows_is_nothing() -> None:
    assert decode(reader_of(), raw_batch(batch(NEW).slice(0, 0), 2)) == [None]


def test_change_types_go_with_their_rows() -> None:
    (fetched,) = decode(reader_of(), raw_batch(batch(NEW), 2, start=101, changes=bytes([1, 2, 3])))
    assert isinstance(fetched, FetchedBatch)
    assert fetched.change_types == bytes([2, 3])
    records = to_records([fetched])
    assert [record.change_type for record in records] == [ChangeType.UpdateBefore, ChangeType.UpdateAfter]
    assert [record.offset for record in records] == [101, 102]


def test_a_flipped_byte_is_found_where_the_checksum_holds_for_the_bytes_sent() -> None:
    raw = raw_batch(batch(NEW), 2)
    data = bytearray(raw.records)
    data[-1] ^= 1
    damaged = raw._replace(records=memoryview(data))
    (error,) = decode(reader_of(), damaged)
    assert isinstance(error, CorruptDataError)
    assert "bucket 0 of table db.t, offset 100" in error.message
    assert "CRC" in error.message


def test_a_schema_nobody_knows_is_an_error() -> None:
    with pytest.raises(NotFoundError):
        decode(reader_of(), raw_batch(batch(OLD), 9))

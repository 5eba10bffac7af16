"""Primary-key tables on real files: tables, kv batches from rows, and what a table holds, read back in several ways."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from fluss.formats.batches import kv_batch
from fluss.formats.batches.log_batch import walk
from fluss.formats.rows.keys import primary_key_encoder
from fluss.formats.rows.values import ValueCodec
from fluss.model.descriptor import TableDescriptor
from fluss.model.paths import TableBucket, TablePath
from fluss.model.records import ChangeType
from fluss.model.schema import Schema
from fluss.storage.kv.bucket import KvBucket
from fluss.storage.store import Storage, StorageOptions

KV_MEMORY_BYTES = 8 << 20
SCHEMA = Schema(pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.int32())]), primary_keys=["id"])

Row = dict[str, Any]


@asynccontextmanager
async def opened(root: Path, **options: Any) -> AsyncIterator[Storage]:
    """A storage, closed cleanly at the end."""
    storage = await Storage.open(StorageOptions(root, kv_memory_bytes=KV_MEMORY_BYTES, **options))
    try:
        yield storage
    finally:
        await storage.close()


class Table:
    """A primary-key table, and rows of it as writers send them."""

    def __init__(self, storage: Storage, path: TablePath) -> None:
        self.storage = storage
        self.path = path
        entry = storage.catalog.table(path)
        self.table_id = entry.table_id
        self.descriptor = TableDescriptor.from_json(entry.table_json)
        self.schema_id = entry.schema_id
        self.keys = primary_key_encoder(self.descriptor)
        kv_format = self.descriptor.properties.get("table.kv.format", "COMPACTED")
        self.codec = ValueCodec({self.schema_id: self.descriptor.schema}, kv_format)

    @classmethod
    async def create(
        cls, storage: Storage, schema: Schema = SCHEMA, name: str = "t", *, partitions: Sequence[str] = (), **how: Any
    ) -> Table:
        path = TablePath("fluss", name)
        descriptor = TableDescriptor(schema, **{"bucket_count": 1, **how})
        await storage.catalog.create_table(
            path,
            descriptor.to_json().decode(),
            json.dumps(schema.to_json()),
            descriptor.bucket_count or 1,
            partition_keys=descriptor.partition_keys,
            partitions=partitions,
        )
        return cls(storage, path)

    def bucket(self, bucket_id: int = 0, partition: str | None = None) -> TableBucket:
        if partition is None:
            return TableBucket(self.table_id, bucket_id)
        entry = self.storage.catalog.partition(self.storage.catalog.table(self.path), partition)
        return TableBucket(self.table_id, bucket_id, entry.partition_id)

    def kv(self, bucket_id: int = 0, partition: str | None = None) -> KvBucket:
        return self.storage.kv.bucket(self.bucket(bucket_id, partition))

    def key(self, *values: Any) -> bytes:
        return self.keys.encode_row(list(values))

    def batch(
        self, rows: Sequence[Row] = (), deletes: Sequence[Any] = (), *, writer_id: int = -1, sequence: int = -1
    ) -> memoryview:
        """Upserts, then deletes of keys, each a value or a tuple of values."""
        keys = [self.keys.encode_row(row) for row in rows]
        keys += [self.key(*(key if isinstance(key, tuple) else (key,))) for key in deletes]
        encoded = self.codec.encode(arrow(rows, self.codec.arrow_schema))
        values = [value[2:] for value in encoded if value] + [None] * len(deletes)
        return make_batch(keys, values, self.schema_id, writer_id, sequence)

    def rows(self, values: Sequence[bytes | None]) -> list[Row | None]:
        decoded = iter(self.newest_codec().decode([value for value in values if value is not None]).to_pylist())
        return [None if value is None else next(decoded) for value in values]

    def newest_codec(self) -> ValueCodec:
        return self.storage.kv.table(TableBucket(self.table_id, 0)).codec

    async def all_rows(self, bucket_id: int = 0, partition: str | None = None) -> list[Row]:
        """By their ids; stored they are by the bytes of their keys."""
        values = await self.kv(bucket_id, partition).first_values(1 << 30, 1 << 30)
        return by_id(self.rows(values))

    async def get(self, *key: Any, partition: str | None = None) -> Row | None:
        return self.rows(await self.kv(partition=partition).get_many([self.key(*key)]))[0]

    def changelog(self, bucket_id: int = 0, partition: str | None = None) -> list[tuple[str, Row]]:
        """Every change in the log, by offset."""
        return [change for batch in self.log_batches(bucket_id, partition) for change in batch]

    def log_batches(self, bucket_id: int = 0, partition: str | None = None) -> list[list[tuple[str, Row]]]:
        bucket = self.bucket(bucket_id, partition)
        log = self.storage.bucket(bucket)
        table = self.storage.kv.table(bucket)
        found = []
        offset = log.log_start_offset
        while offset < log.high_watermark:
            data = log.read(offset, 1 << 20)
            for position, header in walk(data):
                assert header.base_offset == offset
                assert not header.append_only
                offset = header.next_offset
                changes, rows = table.decode(data, position, header)
                found.append(
                    [(ChangeType(c).short_string(), r) for c, r in zip(changes, rows.to_pylist(), strict=True)]
                )
        return found


def make_batch(
    keys: Sequence[bytes], rows: Sequence[bytes | None], schema_id: int, writer_id: int = -1, sequence: int = -1
) -> memoryview:
    """A kv batch of encoded keys and rows."""
    records = kv_batch.encode_records(pa.array(keys, pa.binary()), pa.array(rows, pa.binary()))
    header = kv_batch.encode_header(
        records, schema_id=schema_id, record_count=len(keys), writer_id=writer_id, batch_sequence=sequence
    )
    return memoryview(bytearray(header) + records)


def arrow(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def row(number: int, name: str | None = None, score: int | None = None) -> Row:
    return {"id": number, "name": name, "score": score}


def by_id(rows: Iterable[Row | None]) -> list[Row]:
    return sorted((kept for kept in rows if kept is not None), key=lambda kept: kept["id"])


def fold(changes: Sequence[tuple[str, Row]], key: Sequence[str] = ("id",)) -> dict[Any, Row]:
    """The rows that a changelog leaves; asserts that every old row it names is the one that was there."""
    rows: dict[Any, Row] = {}
    for change, changed in changes:
        at = tuple(changed[name] for name in key)
        if change in ("-U", "-D"):
            assert rows.pop(at) == changed, f"{change} of a row that was not there"
        else:
            assert at not in rows or change == "+U", f"{change} over a row"
            rows[at] = changed
    return rows

"""Reads of a table by Spark, and what their plans were."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from fluss.spark.read.parts import BucketPart
from fluss.spark.source import FlussDataSource
from fluss.sync import (
    FlussConnection,
    Schema,
    TableDescriptor,
    TablePath,
)


class Reads:
    """A table on a server, and the data source for it."""

    def __init__(self, address: str, connection: FlussConnection, path: TablePath) -> None:
        self.address = address
        self.connection = connection
        self.path = path

    def create(self, schema: Schema, bucket_count: int = 1, **options: Any) -> None:
        self.connection.get_admin().create_table(
            self.path, TableDescriptor(schema, bucket_count=bucket_count, **options)
        )

    def append(self, start: int, *sizes: int) -> None:
        """Batches of rows with ids from `start` on; with one bucket and from 0 on, ids are offsets."""
        table = self.connection.get_table(self.path)
        with table.new_append().create_writer() as writer:
            for size in sizes:
                ids = list(range(start, start + size))
                writer.write_arrow_batch(pa.record_batch([ids, [f"n{i}" for i in ids]], schema=table.arrow_schema))
                writer.flush()
                start += size

    def upsert(self, rows: dict[int, str]) -> None:
        with self.connection.get_table(self.path).new_upsert().create_writer() as writer:
            for key, name in rows.items():
                writer.upsert({"id": key, "name": name})

    def source(self, **options: str) -> FlussDataSource:
        return FlussDataSource({"bootstrap.servers": self.address, "table": str(self.path), **options})

    def plan(self, **options: str) -> list[BucketPart]:
        source = self.source(**options)
        return source.reader(source.schema()).partitions()

    def read(self, parts: list[BucketPart] | None = None, /, **options: str) -> pa.Table:
        source = self.source(**options)
        reader = source.reader(source.schema())
        batches = [batch for part in parts or reader.partitions() for batch in reader.read(part)]
        return pa.Table.from_batches(batches) if batches else pa.table({name: [] for name in source.schema().names})

    def ids(self, **options: str) -> list[int]:
        found: list[int] = self.read(**options)["id"].to_pylist()
        return found

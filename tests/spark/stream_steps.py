"""Streams driven by hand: what Spark asks of a reader, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from fluss.spark.source import FlussDataSource
from fluss.spark.stream.reader import FlussStreamReader
from fluss.sync import (
    Config,
    DataTypes,
    FlussConnection,
    Schema,
    TableDescriptor,
    TablePath,
)

NUMBERS = pa.schema([("id", pa.int64()), ("name", pa.string())])
SALES = Schema.builder().column("id", DataTypes.bigint()).column("day", DataTypes.string()).build()
KEYED = Schema.builder().column("id", DataTypes.bigint()).column("value", DataTypes.int()).primary_key(["id"]).build()
KEYED_BY_DAY = (
    Schema.builder()
    .column("id", DataTypes.bigint())
    .column("day", DataTypes.string())
    .column("value", DataTypes.int())
    .primary_key(["id", "day"])
    .build()
)


class Tables:
    """Tables of one database."""

    def __init__(self, address: str, database: str) -> None:
        self.address = address
        self.database = database
        self.connection = FlussConnection.create(Config({"bootstrap.servers": address}))
        self.admin = self.connection.get_admin()

    def create(self, name: str, schema: Schema | pa.Schema, bucket_count: int = 1, **options: Any) -> TablePath:
        """A new table."""
        path = TablePath(self.database, name)
        found = schema if isinstance(schema, Schema) else Schema(schema)
        self.admin.create_table(path, TableDescriptor(found, bucket_count=bucket_count, **options))
        return path

    def append(self, path: TablePath, start: int, stop: int, **columns: Any) -> None:
        """Rows with ids from `start` to `stop`, in one batch."""
        ids = range(start, stop)
        given = {name: [value] * len(ids) for name, value in columns.items()} or {"name": [f"n{i}" for i in ids]}
        with self.connection.get_table(path).new_append().create_writer() as writer:
            writer.write_arrow(pa.table({"id": list(ids), **given}))

    def upsert(self, path: TablePath, *rows: Mapping[str, Any]) -> None:
        """Upserts, one after the other."""
        with self.connection.get_table(path).new_upsert().create_writer() as writer:
            for row in rows:
                writer.upsert(row)

    def delete(self, path: TablePath, *rows: Mapping[str, Any]) -> None:
        """Deletes."""
        with self.connection.get_table(path).new_upsert().create_writer() as writer:
            for row in rows:
                writer.delete(row)

    def stream(self, path: TablePath, schema: Any = None, **options: str) -> Steps:
        """A stream of a table."""
        return Steps({"bootstrap.servers": self.address, "table": str(path), **options}, schema)


class Steps:
    """A query: its position goes through JSON, and its parts through pickle, as with Spark."""

    def __init__(self, options: Mapping[str, str], schema: Any = None) -> None:
        self._source = FlussDataSource(options)
        self._schema = self._source.schema() if schema is None else schema
        self.restart()
        self.begin = self.end = _stored(self.reader.initialOffset())
        self.part_count = 0

    def restart(self) -> None:
        """A new reader, as after a crash of the driver."""
        self.reader: FlussStreamReader = self._source.streamReader(self._schema)

    def step(self) -> list[dict[str, Any]]:
        """The rows of the next micro-batch."""
        self.begin = self.end
        self.end = _stored(self.reader.next_offset(self.begin, is_limited=self.reader.is_limited))
        return self.again()

    def again(self) -> list[dict[str, Any]]:
        """The rows of the last micro-batch once more."""
        parts = [pickle.loads(pickle.dumps(part)) for part in self.reader.partitions(self.begin, self.end)]
        self.part_count = len(parts)
        return [row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]

    def ids(self) -> list[int]:
        """The ids of the next micro-batch, sorted."""
        return sorted(row["id"] for row in self.step())


def _stored(position: Any) -> Any:
    return json.loads(json.dumps(position))

"""Tables that are tiered at chosen moments, read as Spark does, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from fluss.lake.report import Status
from fluss.lake.tiering.round import TieringSettings, tier_table
from fluss.lake.tiering.task import LocalExecutor
from fluss.sync import Schema, TableDescriptor
from tests.spark.reads import Reads
from tests.spark.stream_steps import Steps

TIERED = {"table.datalake.enabled": "true"}
LOG = Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))
KEYED = Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]), ["id"])
BY_DAY = Schema(pa.schema([("id", pa.int64()), ("day", pa.string())]))
KEYED_BY_DAY = Schema(pa.schema([("id", pa.int64()), ("day", pa.string()), ("name", pa.string())]), ["id", "day"])


class Unions(Reads):
    """A table with a lake."""

    def create(self, schema: Schema, bucket_count: int = 1, **options: Any) -> None:
        properties = {**TIERED, **options.pop("properties", {})}
        descriptor = TableDescriptor(schema, bucket_count=bucket_count, properties=properties, **options)
        self.connection.get_admin().create_table(self.path, descriptor)

    def tier(self, **named: Any) -> int:
        """One tiering round; returns its snapshot."""
        settings = TieringSettings(self.connection, LocalExecutor(self.connection, 2), **named)
        report = tier_table(settings, self.path)
        assert report.status is Status.TIERED, report
        assert report.snapshot_id is not None
        return report.snapshot_id

    def write(self, *rows: Mapping[str, Any]) -> None:
        """Append or upsert."""
        table = self.connection.get_table(self.path)
        if table.get_table_info().has_primary_key():
            with table.new_upsert().create_writer() as writer:
                for row in rows:
                    writer.upsert(row)
        else:
            with table.new_append().create_writer() as appender:
                for row in rows:
                    appender.append(row)

    def delete(self, *keys: Mapping[str, Any]) -> None:
        """Delete by key."""
        with self.connection.get_table(self.path).new_upsert().create_writer() as writer:
            for key in keys:
                writer.delete(key)

    def stream(self, **options: str) -> Steps:
        """A stream of the table."""
        return Steps({"bootstrap.servers": self.address, "table": str(self.path), **options})

    def sorted(self, parts: Any = None, /, **options: str) -> list[Any]:
        """All rows as tuples, in order."""
        return sorted(tuple(row.values()) for row in self.read(parts, **options).to_pylist())

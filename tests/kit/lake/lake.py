"""A lake of a test: a server that tiers to a directory, its client, and tables of a database of the test's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from fluss.sync import FlussConnection, FlussTable, Schema, TableDescriptor, TablePath
from fluss.testing import FlussServer


@dataclass(frozen=True)
class Lake:
    """A server, its client, its lake, and a database of the test's own."""

    server: FlussServer
    connection: FlussConnection
    database: str
    warehouse: Path

    @property
    def address(self) -> str:
        return self.server.bootstrap_servers

    def create(
        self,
        name: str,
        schema: pa.Schema,
        *,
        keys: list[str] | None = None,
        buckets: int = 1,
        bucket_keys: list[str] | None = None,
        partition_keys: list[str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> FlussTable:
        """A new table that is to be tiered."""
        path = TablePath(self.database, name)
        descriptor = TableDescriptor(
            Schema(schema, primary_keys=keys or []),
            partition_keys=partition_keys or [],
            bucket_count=buckets,
            bucket_keys=bucket_keys or [],
            properties={"table.datalake.enabled": "true", **(properties or {})},
        )
        self.connection.get_admin().create_table(path, descriptor)
        return self.connection.get_table(path)

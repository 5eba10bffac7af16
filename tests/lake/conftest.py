"""A server with a lake for all tests of this folder, and a database for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from fluss.sync import Config, FlussConnection, FlussTable, Schema, TableDescriptor, TablePath
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


@pytest.fixture(scope="session")
def lake_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    with FlussServer(tmp_path_factory.mktemp("lake") / "data") as server:
        yield server


@pytest.fixture
def lake(lake_server: FlussServer, new_name: Callable[[str], str]) -> Iterator[Lake]:
    database = new_name("lake")
    with FlussConnection.create(Config({"bootstrap.servers": lake_server.bootstrap_servers})) as connection:
        connection.get_admin().create_database(database)
        yield Lake(lake_server, connection, database, lake_server.data_dir.absolute() / "lake")
        connection.get_admin().drop_database(database, cascade=True)

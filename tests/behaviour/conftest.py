"""One behaviour suite over every backend and every facade.

Tests are written once, in blocking style: `do(...)` awaits what the facade at hand wants awaited and returns the rest
as it is.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import fluss
import fluss.aio
import fluss.sync
from tests.kit.backends import Backend

DEADLINE_S = 60.0
FACADES = {"fluss": fluss, "aio": fluss.aio, "sync": fluss.sync}


@dataclass
class Client:
    """A facade connected to a backend."""

    api: ModuleType
    backend: Backend
    loop: asyncio.AbstractEventLoop
    conn: Any
    admin: Any
    database: str

    def do(self, value: Any) -> Any:
        """The result of a call, awaited where this facade returns an awaitable."""
        if not inspect.isawaitable(value):
            return value

        async def wait() -> Any:
            return await value

        return self.loop.run_until_complete(asyncio.wait_for(wait(), DEADLINE_S))

    def create(
        self,
        name: str,
        columns: list[tuple[str, pa.DataType]] | pa.Schema | fluss.Schema,
        primary_keys: list[str] | None = None,
        **options: Any,
    ) -> Any:
        """A new table, ready for rows."""
        path = fluss.TablePath(self.database, name)
        if not isinstance(columns, fluss.Schema):
            schema = columns if isinstance(columns, pa.Schema) else pa.schema(columns)
            columns = fluss.Schema(schema, primary_keys)
        self.do(self.admin.create_table(path, fluss.TableDescriptor(columns, **options)))
        if not options.get("partition_keys"):  # there only partitions have leaders
            self.backend.await_table(path.database_name, path.table_name)
        return self.do(self.conn.get_table(path))

    def append(self, table: Any, rows: list[Any]) -> None:
        """Append rows and wait until they are stored."""
        writer = table.new_append().create_writer()
        for row in rows:
            writer.append(row)
        self.do(writer.flush())

    def upsert(self, table: Any, rows: list[Any], deleted: Sequence[Any] = ()) -> None:
        """Upsert rows, then delete keys, and wait until all is stored."""
        writer = table.new_upsert().create_writer()
        for row in rows:
            writer.upsert(row)
        for key in deleted:
            writer.delete(key)
        self.do(writer.flush())

    def lookup(self, table: Any, key: Any) -> Any:
        """The row at a key."""
        return self.do(table.new_lookup().create_lookuper().lookup(key))

    def changes(self, table: Any, count: int, buckets: int = 1) -> list[tuple[str, dict[str, Any]]]:
        """The first changes of a table: change type and row, bucket by bucket in order of offsets."""
        scanner = self.do(table.new_scan().create_log_scanner())
        scanner.subscribe_buckets(dict.fromkeys(range(buckets), fluss.EARLIEST_OFFSET))
        found: list[Any] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(found) < count and time.monotonic() < deadline:
            found += self.do(scanner.poll(1_000))
        scanner.close()
        return [(record.change_type.short_string(), record.row) for record in found]

    def batch_scanner(self, table: Any, offset: int = fluss.EARLIEST_OFFSET, columns: list[str] | None = None) -> Any:
        """A batch scanner on all buckets."""
        scan = table.new_scan() if columns is None else table.new_scan().project_by_name(columns)
        scanner = self.do(scan.create_record_batch_log_scanner())
        scanner.subscribe_buckets(dict.fromkeys(range(table.get_table_info().num_buckets), offset))
        return scanner

    def read(self, table: Any, columns: list[str] | None = None) -> pa.Table:
        """Everything in the table."""
        scanner = self.batch_scanner(table, columns=columns)
        try:
            return self.do(scanner.to_arrow())
        finally:
            scanner.close()


@pytest.fixture(params=list(FACADES))
def client(request: pytest.FixtureRequest, backend: Backend, new_name: Callable[[str], str]) -> Iterator[Client]:
    api = FACADES[request.param]
    loop = asyncio.new_event_loop()
    database = new_name(f"behaviour_{request.param}")
    made = Client(api, backend, loop, None, None, database)
    made.conn = made.do(api.FlussConnection.create(fluss.Config({"bootstrap.servers": backend.bootstrap_servers})))
    made.admin = made.do(made.conn.get_admin())
    made.do(made.admin.create_database(database))
    yield made
    made.do(made.admin.drop_database(database, cascade=True))
    made.do(made.conn.close())
    loop.close()

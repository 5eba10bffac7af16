"""One behaviour suite over every backend and every facade.

Tests are written once, in blocking style: `do(...)` awaits what the facade at hand wants awaited and returns the rest
as it is.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import fluss
import fluss.aio
import fluss.sync
from fluss.testing import ApacheFluss, FlussServer

DEADLINE_S = 60.0
FACADES = {"fluss": fluss, "aio": fluss.aio, "sync": fluss.sync}


@dataclass
class Client:
    """A facade connected to a backend."""

    api: ModuleType
    backend: str
    loop: asyncio.AbstractEventLoop
    conn: Any
    admin: Any
    database: str
    wait_for_leaders: Callable[[fluss.TablePath], None]

    def do(self, value: Any) -> Any:
        """The result of a call, awaited where this facade returns an awaitable."""
        if not inspect.isawaitable(value):
            return value

        async def wait() -> Any:
            return await value

        return self.loop.run_until_complete(asyncio.wait_for(wait(), DEADLINE_S))

    def create(self, name: str, columns: list[tuple[str, pa.DataType]] | pa.Schema, **options: Any) -> Any:
        """A new table, ready for rows."""
        path = fluss.TablePath(self.database, name)
        schema = columns if isinstance(columns, pa.Schema) else pa.schema(columns)
        self.do(self.admin.create_table(path, fluss.TableDescriptor(fluss.Schema(schema), **options)))
        self.wait_for_leaders(path)
        return self.do(self.conn.get_table(path))

    def append(self, table: Any, rows: list[Any]) -> None:
        """Append rows and wait until they are stored."""
        writer = table.new_append().create_writer()
        for row in rows:
            writer.append(row)
        self.do(writer.flush())

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


@pytest.fixture(scope="session")
def our_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    with FlussServer(tmp_path_factory.mktemp("behaviour") / "data") as server:
        yield server


@pytest.fixture(scope="session", params=["ours", pytest.param("apache", marks=pytest.mark.compat)])
def backend(request: pytest.FixtureRequest) -> FlussServer | ApacheFluss:
    server: FlussServer | ApacheFluss = request.getfixturevalue(
        "our_server" if request.param == "ours" else "apache_fluss"
    )
    return server


@pytest.fixture(params=list(FACADES))
def client(
    request: pytest.FixtureRequest, backend: FlussServer | ApacheFluss, new_name: Callable[[str], str]
) -> Iterator[Client]:
    api = FACADES[request.param]
    loop = asyncio.new_event_loop()
    ours = isinstance(backend, FlussServer)
    database = new_name(f"behaviour_{request.param}")

    def wait_for_leaders(path: fluss.TablePath) -> None:
        if isinstance(backend, ApacheFluss):
            backend.await_table(path.database_name, path.table_name)

    made = Client(api, "ours" if ours else "apache", loop, None, None, database, wait_for_leaders)
    made.conn = made.do(api.FlussConnection.create(fluss.Config({"bootstrap.servers": backend.bootstrap_servers})))
    made.admin = made.do(made.conn.get_admin())
    made.do(made.admin.create_database(database))
    yield made
    made.do(made.admin.drop_database(database, cascade=True))
    made.do(made.conn.close())
    loop.close()

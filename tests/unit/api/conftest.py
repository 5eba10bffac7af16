"""A server, and the three facades on it behind one way of calling them."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

import fluss
import fluss.aio
import fluss.sync
from fluss.testing import FlussServer

_numbers = itertools.count()


class Client:
    """A connection of one facade; `do` awaits where the facade wants it."""

    def __init__(self, facade: ModuleType, address: str) -> None:
        self.facade = facade
        self._loop = asyncio.new_event_loop()
        self.connection = self.do(facade.FlussConnection.create(fluss.Config({"bootstrap.servers": address})))
        self.admin = self.connection.get_admin()

    def do(self, result: Any) -> Any:
        return self._loop.run_until_complete(result) if inspect.isawaitable(result) else result

    def table(self, schema: pa.Schema, primary_keys: list[str] | None = None, **options: Any) -> Any:
        """A new table."""
        path = fluss.TablePath("fluss", f"scan_{next(_numbers)}")
        descriptor = fluss.TableDescriptor(fluss.Schema(schema, primary_keys), **{"bucket_count": 1, **options})
        self.do(self.admin.create_table(path, descriptor))
        return self.do(self.connection.get_table(path))

    def append(self, table: Any, *batches: pa.RecordBatch) -> None:
        """Each becomes a log batch of its own."""
        writer = table.new_append().create_writer()
        for batch in batches:
            writer.write_arrow_batch(batch)
            self.do(writer.flush())

    def batch_scanner(self, scan: Any, buckets: int = 1) -> Any:
        """A batch scanner subscribed from the earliest offset."""
        scanner = self.do(scan.create_record_batch_log_scanner())
        scanner.subscribe_buckets(dict.fromkeys(range(buckets), fluss.EARLIEST_OFFSET))
        return scanner

    def record_scanner(self, scan: Any, buckets: int = 1) -> Any:
        """A record scanner subscribed from the earliest offset."""
        scanner = self.do(scan.create_log_scanner())
        scanner.subscribe_buckets(dict.fromkeys(range(buckets), fluss.EARLIEST_OFFSET))
        return scanner

    def poll(self, scanner: Any, count: int) -> list[Any]:
        """Records until there are `count`."""
        records: list[Any] = []
        while len(records) < count:
            polled = list(self.do(scanner.poll(10_000)))
            assert polled, f"{len(records)} of {count} records came"
            records.extend(polled)
        return records

    def close(self) -> None:
        self.do(self.connection.close())
        self._loop.close()


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    with FlussServer(tmp_path_factory.mktemp("api") / "data") as running:
        yield running


@pytest.fixture(scope="module", params=[fluss, fluss.aio, fluss.sync], ids=lambda facade: facade.__name__)
def client(request: pytest.FixtureRequest, api_server: FlussServer) -> Iterator[Client]:
    connected = Client(request.param, api_server.bootstrap_servers)
    yield connected
    connected.close()

"""A run of workloads in a database of its own, which is dropped however the run ends."""

from __future__ import annotations

import importlib
import itertools
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fluss.bench.catalog import WORKLOADS
from fluss.bench.data import KV_SCHEMA, LOG_SCHEMA, PREFIX_SCHEMA, WrongResultError
from fluss.bench.meter import FAILED, UNSUPPORTED, Meter, Result
from fluss.sync import ConnectError, ErrorCode, FlussError, Schema, TableDescriptor, TablePath, TimeoutError

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.sync import FlussAdmin, FlussConnection, FlussTable

# Rows that are dicts take ten times the memory of Arrow's.
ROW_BY_ROW_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Size:
    """How much a workload does."""

    rows: int
    batch_rows: int
    buckets: int
    seconds: float

    @property
    def single_rows(self) -> int:
        """Rows of workloads that deal with them one by one."""
        return min(self.rows, ROW_BY_ROW_MAX)


class Bench:
    """What workloads get: tables of their own, and meters. Made by `bench_on`."""

    def __init__(self, connection: FlussConnection, database: str, size: Size) -> None:
        self.size = size
        self._connection, self._database = connection, database
        self._admin = connection.get_admin()
        self._numbers = itertools.count()
        self._meters: list[Meter] = []

    def run(self, name: str) -> list[Result]:
        """Run a workload. What fails is a result too, unless the server is gone."""
        workload = WORKLOADS[name]
        self._meters = []
        try:
            getattr(importlib.import_module(workload.module), workload.function)(self)
        except WrongResultError as error:
            return [Result(name, status=FAILED, reason=str(error))]
        except FlussError as error:
            if isinstance(error, (ConnectError, TimeoutError)):
                self._admin.list_databases()
            unsupported = error.error_code == ErrorCode.UNSUPPORTED_VERSION
            reason = " ".join(error.message.split())
            return [Result(name, status=UNSUPPORTED if unsupported else FAILED, reason=reason)]
        return [meter.result(name) for meter in self._meters]

    def meter(self, part: str | None = None, *, single: bool = False, paused: bool = False) -> Meter:
        """A meter of the workload that runs: of a part of it, of single operations, of ones with pauses between."""
        meter = Meter(part, self.size.seconds, single=single, paused=paused)
        self._meters.append(meter)
        return meter

    @contextmanager
    def log_table(self) -> Iterator[FlussTable]:
        """A new log table. After a failure it goes with the database."""
        with self._table(LOG_SCHEMA, []) as table:
            yield table

    @contextmanager
    def kv_table(self) -> Iterator[FlussTable]:
        """A new table with the primary key `id`."""
        with self._table(KV_SCHEMA, ["id"]) as table:
            yield table

    @contextmanager
    def prefix_table(self) -> Iterator[FlussTable]:
        """A new table with the primary key `owner, id`, which is looked up by owner."""
        with self._table(PREFIX_SCHEMA, ["owner", "id"], ["owner"]) as table:
            yield table

    @contextmanager
    def _table(
        self, schema: pa.Schema, primary_keys: Sequence[str], bucket_keys: Sequence[str] = ()
    ) -> Iterator[FlussTable]:
        path = TablePath(self._database, f"table_{next(self._numbers)}")
        descriptor = TableDescriptor(
            Schema(schema, primary_keys=list(primary_keys)),
            bucket_count=self.size.buckets,
            bucket_keys=list(bucket_keys),
        )
        self._admin.create_table(path, descriptor)
        yield self._connection.get_table(path)
        self._admin.drop_table(path)


@contextmanager
def bench_on(connection: FlussConnection, size: Size) -> Iterator[Bench]:
    """A bench in a new database."""
    admin, database = connection.get_admin(), f"bench_{secrets.token_hex(4)}"
    try:
        admin.create_database(database)
    except KeyboardInterrupt:
        _drop(admin, database)
        raise
    try:
        yield Bench(connection, database, size)
    finally:
        _drop(admin, database)


def _drop(admin: FlussAdmin, database: str) -> None:
    try:
        admin.drop_database(database, ignore_if_not_exists=True, cascade=True)
    except FlussError as error:
        advice = f"drop it with 'fluss database drop {database} --cascade'"
        raise FlussError(f"Database {database} is left behind, {advice}: {error.message}", error.error_code) from error

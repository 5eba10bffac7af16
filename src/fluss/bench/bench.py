"""The workloads there are, and timed runs of them in a database of their own, which is dropped at the end."""

from __future__ import annotations

import importlib
import itertools
import math
import secrets
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple

from fluss.bench.data import KV_SCHEMA, LOG_SCHEMA, PREFIX_SCHEMA, WrongResultError
from fluss.sync import ConnectError, ErrorCode, FlussError, Schema, TableDescriptor, TablePath, TimeoutError

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.sync import FlussAdmin, FlussConnection, FlussTable


class Workload(NamedTuple):
    module: str
    function: str
    text: str


WORKLOADS: Final = {
    "append": Workload("fluss.bench.workloads", "append", "Append Arrow batches, and flush."),
    "append-rows": Workload("fluss.bench.workloads", "append_rows", "Append row by row, and flush."),
    "scan": Workload("fluss.bench.workloads", "scan", "Read a whole log table to Arrow."),
    "scan-projected": Workload("fluss.bench.workloads", "scan_projected", "The same, 2 of its 5 columns."),
    "poll": Workload("fluss.bench.workloads", "poll", "Poll the records of a log table."),
    "upsert": Workload("fluss.bench.workloads", "upsert", "Insert Arrow batches by key, then update them."),
    "upsert-rows": Workload("fluss.bench.workloads", "upsert_rows", "Insert by key row by row, and flush."),
    "lookup": Workload("fluss.bench.workloads", "lookup", "Look up keys one after the other."),
    "lookup-many": Workload("fluss.bench.workloads", "lookup_many", "Look up 1,000 keys at a time."),
    "prefix-lookup": Workload("fluss.bench.workloads", "prefix_lookup", "Look up all 10 rows of a key's prefix."),
    "ack": Workload("fluss.bench.workloads", "ack", "Append one row and flush: until it is stored."),
    "visible": Workload("fluss.bench.workloads", "visible", "Append one row: until a reader that follows has it."),
    "changes": Workload("fluss.bench.workloads", "changes", "Follow a changelog of inserts and updates."),
}


RUNS_MAX: Final = 1_000_000
# Of fewer, the 99th percentile would be just the slowest.
P99_RUNS_MIN: Final = 100
OK, FAILED, UNSUPPORTED = "ok", "failed", "unsupported"


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured; or why there is nothing. Seconds are those of the runs alone, without what is around them."""

    workload: str
    part: str | None = None
    status: str = OK
    reason: str | None = None
    runs: int | None = None
    rows: int | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None
    rows_per_second: float | None = None
    megabytes_per_second: float | None = None
    median_ms: float | None = None
    p99_ms: float | None = None


class Meter:
    """Lets a workload run until its time is up, and at least once."""

    def __init__(self, part: str | None, seconds: float, *, single: bool, paused: bool) -> None:
        self._part, self._single, self._paused = part, single, paused
        self._budget_s, self._ends_s = seconds, 0.0
        self._times_s: list[float] = []
        self._cpu_s = 0.0
        self._rows = self._size_bytes = 0

    def more(self) -> bool:
        """Whether there is time for one more run; the first call starts the time, preparations and checks count."""
        if not self._times_s:
            self._ends_s = time.perf_counter() + self._budget_s
            return True
        return time.perf_counter() < self._ends_s and len(self._times_s) < RUNS_MAX

    def run(self, rows: int = 1, size_bytes: int = 0) -> _Run:
        """Time a block that deals with so many rows."""
        return _Run(self, rows, size_bytes)

    def add(self, seconds: float, cpu_s: float, rows: int, size_bytes: int) -> None:
        """One run is done."""
        self._times_s.append(seconds)
        self._cpu_s += cpu_s
        self._rows += rows
        self._size_bytes += size_bytes

    def result(self, workload: str) -> Result:
        """The sum of all runs; single operations have times of their own, and paused ones no rate."""
        seconds = sum(self._times_s) or 1e-9
        times_s = sorted(self._times_s) if self._single else []
        return Result(
            workload,
            self._part,
            runs=len(self._times_s),
            rows=self._rows,
            seconds=seconds,
            cpu_seconds=self._cpu_s,
            rows_per_second=None if self._paused else self._rows / seconds,
            megabytes_per_second=self._size_bytes / seconds / 1e6 if self._size_bytes else None,
            median_ms=statistics.median(times_s) * 1_000 if times_s else None,
            p99_ms=percentile(times_s, 0.99) * 1_000 if len(times_s) >= P99_RUNS_MIN else None,
        )


class _Run:
    """Wall and processor time of a block. One that fails is not counted."""

    def __init__(self, meter: Meter, rows: int, size_bytes: int) -> None:
        self._meter, self._rows, self._size_bytes = meter, rows, size_bytes
        self.ended_s: float | None = None
        """Set where the end was seen by another thread."""

    def __enter__(self) -> _Run:
        self._cpu_s = time.process_time()
        self.began_s = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended_s = self.ended_s or time.perf_counter()
        if kind is None:
            cpu_s = time.process_time() - self._cpu_s
            self._meter.add(ended_s - self.began_s, cpu_s, self._rows, self._size_bytes)


def percentile(ordered: list[float], share: float) -> float:
    """The smallest value that is not less than this share of all."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


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

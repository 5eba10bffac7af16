"""Tiering of many tables: once, again and again, or as the server asks for it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from fluss.api.operations import LakeRegistry
from fluss.doors import threads
from fluss.lake.format import LakeConflictError
from fluss.lake.options import is_tiered, table_infos
from fluss.lake.report import Progress, Status, TieringReport
from fluss.lake.tiering.pending_commit import Merger
from fluss.lake.tiering.round import TieringSettings, tier_table
from fluss.lake.tiering.task import Executor
from fluss.model.errors import ConnectError, FlussError, InvalidRequestError, TimeoutError
from fluss.model.paths import TablePath, check_database_name, check_table_name
from fluss.model.staging import Assigned

if TYPE_CHECKING:
    from fluss.sync import FlussConnection

# A job that is silent for two minutes is given up by the server.
HEARTBEAT_S: Final = 30.0


def tier(
    connection: FlussConnection,
    executor: Executor,
    *,
    tables: Iterable[str | TablePath] | None = None,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | None = None,
    interval_s: float | None = None,
    stop: threading.Event | None = None,
    compact: bool | None = None,
    merger: Merger | None = None,
    progress: Progress | None = None,
) -> list[TieringReport]:
    """Tier tables to the lake, each in a round of its own; returns the last report of each.

    Without `tables` these are all with `table.datalake.enabled`. Once without `interval_s`; with it, until `stop` is
    set: named tables every so often, all others when the server says that they are due, for which it is asked as often.
    `compact` joins small files after each round, or does not whatever a table's `table.datalake.auto-compaction` says.
    A `merger` puts changes of primary-key tables into the lake instead of the executor's tasks where it can.
    """
    settings = TieringSettings(connection, executor, warehouse, catalog, progress, compact, merger)
    named = None if tables is None else [table_path(name) for name in tables]
    stop = stop or threads.event()
    reports: dict[TablePath, TieringReport] = {}
    if interval_s is not None and named is None:
        for report in _serve(settings, interval_s, stop):
            reports[report.table_path] = report
        return list(reports.values())
    while not stop.is_set():
        for path in _all_tiered(connection) if named is None else named:
            if not stop.is_set():
                reports[path] = tier_table(settings, path)
        if interval_s is None or stop.wait(interval_s):
            break
    return list(reports.values())


def table_path(name: str | TablePath) -> TablePath:
    """The table that `database.table` names."""
    if isinstance(name, TablePath):
        return name
    database, dot, table = name.partition(".")
    if not dot:
        raise InvalidRequestError(f"A table is named as database.table, not {name!r}.")
    check_database_name(database)
    check_table_name(table)
    return TablePath(database, table)


def _all_tiered(connection: FlussConnection) -> list[TablePath]:
    return [info.table_path for info in table_infos(connection) if is_tiered(info)]


def _serve(settings: TieringSettings, interval_s: float, stop: threading.Event) -> Iterator[TieringReport]:
    """Tier what the server hands out. One that can't be reached is asked again later."""
    registry = LakeRegistry(settings.connection)
    while not stop.is_set():
        try:
            assigned = registry.heartbeat(request_table=True).assigned
        except (ConnectError, TimeoutError):
            assigned = None
        if assigned is None:
            stop.wait(interval_s)
            continue
        with HeldTable(registry, assigned) as held:
            report = tier_table(settings, assigned.table_path, held.check)
            held.is_done = report.status in (Status.TIERED, Status.NOTHING_NEW)
        yield report
        if not held.is_done:
            stop.wait(interval_s)  # the server hands it out again at once


class HeldTable:
    """A table that this job has: says so to the server all the time, and how it ended."""

    def __init__(self, registry: LakeRegistry, assigned: Assigned, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._registry = registry
        self._assigned = assigned
        self._heartbeat_s = heartbeat_s
        self._over = threads.event()
        self._thread = threads.daemon(self._beat, name="fluss-tiering-heartbeat")
        self.is_done = False

    def check(self) -> None:
        """Raise if the server has given the table to another job; one that is silent changes nothing."""
        try:
            error = self._registry.heartbeat(tiering=[self._assigned]).errors.get(self._assigned.table_id)
        except (ConnectError, TimeoutError):
            return
        if error is not None:
            raise LakeConflictError(str(error)) from error

    def _beat(self) -> None:
        while not self._over.wait(self._heartbeat_s):
            try:
                self.check()
            except FlussError:
                pass  # it is asked again before the commit

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        ended = [self._assigned]
        try:
            if self.is_done:
                self._registry.heartbeat(finished=ended)
            else:
                self._registry.heartbeat(failed=ended)
        except FlussError:
            pass  # the server finds out by itself

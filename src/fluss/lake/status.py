"""The status of a lake: how far it is behind its server, table by table, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fluss.api.operations import LakeRegistry
from fluss.lake.format import LakeTotals
from fluss.lake.log_ranges import Stretch, log_stretches
from fluss.lake.maintenance import Inventory, OnServer, take_inventory
from fluss.lake.options import NoLakeError, find_lake, is_tiered, table_infos
from fluss.model.clock import wall_clock_ms
from fluss.model.errors import FlussError, NotFoundError
from fluss.model.infos import LakeSnapshot
from fluss.model.paths import TablePath
from fluss.model.records import COMMIT_TIMESTAMP
from fluss.model.staging import LakeError

if TYPE_CHECKING:
    from fluss.sync import FlussConnection, FlussTable

_NOTHING = LakeTotals(None, None, None, 0)


@dataclass(frozen=True)
class TableStatus:
    """One table. What is None is not known, or means nothing here."""

    table_path: TablePath
    on_server: OnServer
    lag_rows: int | None = None
    """Rows, or changes of a primary-key table, that are not in the lake yet; None: the table is not tiered"""
    lag_s: float | None = None
    """How long the oldest of them waits; 0 without any"""
    totals: LakeTotals = _NOTHING
    tiered_ms: int | None = None
    """When the last snapshot of tiering was made"""
    last_error: LakeError | None = None
    """Why the last round failed, if it did"""
    problem: str | None = None
    """Why the lake can't be read now"""


def lake_status(
    connection: FlussConnection,
    database: str | None = None,
    table: str | None = None,
    *,
    warehouse: str | None = None,
    catalog: Mapping[str, str] | None = None,
) -> list[TableStatus]:
    """The status of all tables that are tiered or in the lake, of those of a database, or of one table.

    Of the catalog of a lake that others use, too, tables without a Fluss table's columns are left out.
    """
    if table is not None:
        assert database is not None
        found = take_inventory(connection, TablePath(database, table), warehouse, catalog)
        if found.info is None and found.lake is None:
            if found.error is not None and not isinstance(found.error, NoLakeError):
                raise found.error
            raise NotFoundError(f"There is no table {found.table_path}, neither on the server nor in the lake.")
        return [_status(connection, found)]
    statuses = [_status(connection, found) for found in _inventories(connection, database, warehouse, catalog)]
    if database is not None and not statuses and not connection.get_admin().database_exists(database):
        raise NotFoundError(f"There is no database {database}, neither on the server nor in the lake.")
    return statuses


def _inventories(
    connection: FlussConnection, database: str | None, warehouse: str | None, catalog: Mapping[str, str] | None
) -> Iterator[Inventory]:
    """Inventories of tables that are tiered, and of others that the lake has."""
    infos = {info.table_path: info for info in table_infos(connection, database) if is_tiered(info)}
    options, stored = None, []
    try:
        options = find_lake(connection, next(iter(infos.values()), None), warehouse, catalog)
        stored = [path for path in options.open().list_tables() if database in (None, path.database_name)]
    except NoLakeError:
        return
    except Exception:
        if not infos:
            raise
        # Each table says what is wrong.
    for path in sorted({*infos, *stored}):
        found = take_inventory(connection, path, warehouse, catalog, None if path in infos else options)
        if path in infos or found.is_damaged or (found.lake is not None and found.lake.has_layout):
            yield found


def _status(connection: FlussConnection, found: Inventory) -> TableStatus:
    tiered = None if found.lake is None else found.lake.tiered()
    status = TableStatus(
        found.table_path,
        found.on_server,
        totals=_NOTHING if found.lake is None else found.lake.totals,
        tiered_ms=None if tiered is None else tiered.timestamp_ms,
        problem=None if found.error is None else str(found.error) or type(found.error).__name__,
    )
    if found.info is None:
        return status
    status = replace(status, last_error=LakeRegistry(connection).last_error(found.info))
    if not is_tiered(found.info):
        return status
    try:
        rows, seconds = _lag(connection, connection.get_table(found.table_path), found.known)
    except FlussError as error:
        return replace(status, problem=status.problem or str(error))
    return replace(status, lag_rows=rows, lag_s=seconds)


def _lag(connection: FlussConnection, table: FlussTable, known: LakeSnapshot | None) -> tuple[int, float]:
    """How many rows are not in the lake, and for how many seconds the oldest of them is there."""
    behind = [item for item in log_stretches(connection, table, known) if item.start < item.end]
    times = [found for item in behind if (found := _written_s(table, item)) is not None]
    seconds = max(0.0, wall_clock_ms() / 1_000 - min(times)) if times else 0.0
    return sum(item.end - item.start for item in behind), seconds


def _written_s(table: FlussTable, stretch: Stretch) -> float | None:
    """The time when the first row that is not tiered was written; offsets that changed nothing have no row."""
    batches = table.new_scan().read_bucket(stretch.bucket, stretch.start, stretch.end, changelog=True)
    batch = next(batches, None)
    return None if batch is None else float(batch.column(COMMIT_TIMESTAMP)[0].as_py().timestamp())

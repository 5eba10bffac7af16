"""Databases, tables, partitions, schemas and ids: an in-memory copy for the loop, SQLite for keeps.

Look-ups are plain calls on memory. A change is checked against memory, committed to SQLite in the catalog's thread, and
only then applied to memory, all under one lock; so memory never shows what a crash could take back, and a failed commit
changes nothing. A caller that is cancelled half way does not stop the change: it runs to its end on its own.

A change is told to nobody before the mark of the catalog says that it happened. A catalog that has less than its mark
says, or whose file is not as it was left, is refused.
"""

# Large on purpose: nearly all of it is one class: each of its methods is a transaction, or a check before one.

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from fluss.doors import randomness, threads
from fluss.model.clock import Clock
from fluss.model.errors import ErrorCode, FlussError, error_from_code
from fluss.model.partitions import PartitionBound
from fluss.model.paths import TablePath
from fluss.storage.catalog.cluster import ClusterRecords
from fluss.storage.catalog.db import (
    CatalogDatabase,
    CatalogWork,
    DatabaseEntry,
    LakeErrorEntry,
    LakeSnapshotEntry,
    LeaseEntry,
    PartitionEntry,
    StagedQuery,
    TableEntry,
    file_checksum,
    look_at,
)
from fluss.storage.catalog.view import CatalogView, RowIds, block_of, check_partitioned
from fluss.storage.directory import MARKS_NAME, DataDirectory, DataDirectoryError, read_numbers, write_numbers
from fluss.storage.log.marks import CatalogMark, Marks

__all__ = [
    "DEFAULT_DATABASE",
    "AlteredTable",
    "Catalog",
    "CatalogLimits",
    "DatabaseEntry",
    "LakeErrorEntry",
    "LakeSnapshotEntry",
    "LeaseEntry",
    "PartitionEntry",
    "TableEntry",
]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

DEFAULT_DATABASE: Final = "fluss"
FIRST_SCHEMA_ID: Final = 1
SCHEMA_ID_MAX: Final = 2**15 - 1  # a batch header has two bytes for it
WRITER_ID_MAX: Final = 2**63 - 1
# When so much was committed, it is moved into the database file.
WAL_BYTES_MAX: Final = 4 << 20
BUCKETS_MAX: Final = 128_000
PARTITIONS_PER_TABLE_MAX: Final = 1_000
DATABASES_MAX: Final = 10_000
BUCKETS_PER_TABLE_MAX: Final = 4_096
DEFINITION_BYTES_PER_TABLE_MAX: Final = 8 << 20
DEFINITION_BYTES_TOTAL_MAX: Final = 64 << 20
LAKE_ERROR_MS: Final = 60_000
_EMPTY_DATABASE_JSON: Final = '{"version":1,"custom_properties":{}}'


@dataclass(frozen=True, slots=True)
class CatalogLimits:
    buckets_max: int = BUCKETS_MAX  # of all tables together; there may be as many tables
    partitions_per_table_max: int = PARTITIONS_PER_TABLE_MAX
    databases_max: int = DATABASES_MAX
    buckets_per_table_max: int = BUCKETS_PER_TABLE_MAX  # or per partition; tables that have more stay as they are
    # Descriptors and all schemas are kept in memory.
    definition_bytes_per_table_max: int = DEFINITION_BYTES_PER_TABLE_MAX
    definition_bytes_total_max: int = DEFINITION_BYTES_TOTAL_MAX


class AlteredTable(NamedTuple):
    """What a table becomes; without a schema it keeps the one it has."""

    table_json: str
    schema_json: str | None = None


# Gets the table and its latest schema; None: nothing to change. It runs inside the change, so nothing comes between,
# and in the catalog's thread: thousands of columns take long to read.
Alteration: TypeAlias = Callable[[TableEntry, bytes], AlteredTable | None]


class Catalog(CatalogView, ClusterRecords):
    def __init__(
        self,
        database: CatalogDatabase,
        executor: Executor,
        limits: CatalogLimits,
        marks: Marks | None,
        clock: Clock,
    ) -> None:
        CatalogView.__init__(self)
        ClusterRecords.__init__(self)
        self._database = database
        self._directory = DataDirectory.unlocked(database.path.parent)
        self._marks = marks
        self._clock = clock
        self._executor = executor
        self._limits = limits
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self._on_drop: list[Callable[[int], None]] = []
        self._on_drop_partition: list[Callable[[PartitionEntry], None]] = []
        self._row_ids = RowIds()
        self._leases: dict[str, LeaseEntry] = {}
        self._staged_queries: dict[tuple[int, str], StagedQuery] = {}
        self._lake_snapshots: dict[int, tuple[LakeSnapshotEntry, ...]] = {}  # by table id
        self._lake_errors: dict[int, LakeErrorEntry] = {}  # by table id

    @classmethod
    async def open(
        cls,
        path: Path,
        limits: CatalogLimits | None = None,
        marks: Marks | None = None,
        clock: Clock | None = None,
    ) -> Catalog:
        """Open a catalog, or make one; one that is not as its mark says is refused."""
        loop = asyncio.get_running_loop()
        executor = threads.pool(1, "fluss-catalog")
        mark = None if marks is None else marks.catalog
        try:
            database = await loop.run_in_executor(executor, open_database, path, mark)
            catalog = cls(database, executor, limits or CatalogLimits(), marks, clock or Clock())
            try:
                await catalog._settle()
                await catalog._load()
            except BaseException:
                await loop.run_in_executor(executor, database.close)
                raise
        except sqlite3.Error as error:
            executor.shutdown()
            raise _damaged(path, f"it can't be opened: {error}") from error
        except BaseException:
            executor.shutdown()
            raise
        return catalog

    async def _load(self) -> None:
        content = await asyncio.get_running_loop().run_in_executor(self._executor, self._database.load)
        self._fill(content)
        self._fill_records(content)
        self._row_ids = RowIds(content.row_ids)
        self._leases = {lease.lease_id: lease for lease in content.leases}
        self._staged_queries = {(entry.table_id, entry.query_id): entry for entry in content.staged_queries}
        for snapshot in content.lake_snapshots:
            self._lake_snapshots[snapshot.table_id] = (*self.lake_snapshots(snapshot.table_id), snapshot)
        self._lake_errors = {error.table_id: error for error in content.lake_errors}
        await self.create_database(DEFAULT_DATABASE, _EMPTY_DATABASE_JSON, ignore_if_exists=True)

    def on_drop(self, callback: Callable[[int], None]) -> None:
        """Call back with the id of every table that is dropped, after the drop is on disk."""
        self._on_drop.append(callback)

    def on_drop_partition(self, callback: Callable[[PartitionEntry], None]) -> None:
        """Call back with every partition that is dropped while its table stays, after the drop is on disk."""
        self._on_drop_partition.append(callback)

    # --- databases

    async def create_database(self, name: str, json: str, ignore_if_exists: bool = False) -> DatabaseEntry:
        """Code 6 if it exists and that is not to be ignored."""
        return await self._change(self._create_database(name, json.encode(), ignore_if_exists))

    async def _create_database(self, name: str, json: bytes, ignore: bool) -> DatabaseEntry:
        existing = self._databases.get(name)
        if existing is not None:
            if ignore:
                return existing
            raise error_from_code(ErrorCode.DATABASE_ALREADY_EXIST, f"Database {name} exists already.")
        if len(self._databases) >= self._limits.databases_max:
            raise error_from_code(
                ErrorCode.INVALID_DATABASE_EXCEPTION,
                f"There are {self._limits.databases_max} databases, which is the limit; drop some.",
            )
        self._check_definitions(len(json))
        now_ms = self._clock.now_ms()
        entry = DatabaseEntry(name, json, now_ms, now_ms)
        await self._commit(lambda database: database.insert_database(entry))
        self._put_database(entry)
        return entry

    async def alter_database(self, name: str, alteration: Callable[[bytes], bytes], ignore_if_not_exists: bool) -> None:
        """Replace a database's JSON by what `alteration` makes of it; code 4 if it does not exist, unless ignored."""
        await self._change(self._alter_database(name, alteration, ignore_if_not_exists))

    async def _alter_database(self, name: str, alteration: Callable[[bytes], bytes], ignore: bool) -> None:
        if ignore and name not in self._databases:
            return
        before = self.database(name)
        json = alteration(before.json)
        if json == before.json:
            return
        self._check_definitions(len(json) - len(before.json))
        entry = before._replace(json=json, modified_time_ms=self._clock.now_ms())
        await self._commit(lambda database: database.update_database(entry))
        self._replace_database(entry)

    async def drop_database(self, name: str, cascade: bool = False, ignore_if_not_exists: bool = False) -> None:
        """Code 4 if it does not exist and that is not to be ignored; code 5 if it has tables and not `cascade`."""
        await self._change(self._drop_database(name, cascade, ignore_if_not_exists))

    async def _drop_database(self, name: str, cascade: bool, ignore: bool) -> None:
        if ignore and name not in self._databases:
            return
        database, tables = self.database(name), self.tables(name)
        if tables and not cascade:
            raise error_from_code(
                ErrorCode.DATABASE_NOT_EMPTY,
                f"Database {name} has {len(tables)} tables, the first is {tables[0].path.table}.",
            )
        await self._commit(lambda on_disk: on_disk.delete_database(name))
        for entry in tables:
            self._forget(entry)
        self._remove_database(database)

    # --- tables

    async def create_table(
        self,
        path: TablePath,
        table_json: str,
        schema_json: str,
        num_buckets: int,
        ignore_if_exists: bool = False,
        *,
        partition_keys: Sequence[str] = (),
        partitions: Iterable[str] = (),
    ) -> TableEntry:
        """Make a table and its first partitions, all or nothing.

        Code 4 without the database, 8 if the table exists (unless ignored), 49 with too many buckets, 45 with too many
        partitions.
        """
        now_ms = self._clock.now_ms()
        draft = TableEntry(
            -1, path, table_json.encode(), FIRST_SCHEMA_ID, num_buckets, now_ms, now_ms, tuple(partition_keys)
        )
        return await self._change(self._create_table(draft, schema_json.encode(), partitions, ignore_if_exists))

    async def _create_table(
        self, draft: TableEntry, schema_json: bytes, partition_names: Iterable[str], ignore: bool
    ) -> TableEntry:
        self.database(draft.path.database)
        if self.table_exists(draft.path):
            if ignore:
                return self.table(draft.path)
            raise error_from_code(ErrorCode.TABLE_ALREADY_EXIST, f"Table {draft.path} exists already.")
        if draft.num_buckets < 1:
            raise error_from_code(ErrorCode.BUCKET_MAX_NUM_EXCEPTION, f"Table {draft.path} needs at least 1 bucket.")
        if draft.num_buckets > self._limits.buckets_per_table_max:
            raise error_from_code(
                ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
                f"Table {draft.path} asks for {draft.num_buckets} buckets; a table, or each of its partitions, may "
                f"have {self._limits.buckets_per_table_max}. Take fewer, or raise limits.buckets_per_table_max.",
            )
        if len(self._tables_by_id) >= self._limits.buckets_max:
            raise error_from_code(
                ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
                f"There are {self._limits.buckets_max} tables, which is the limit; drop some.",
            )
        self._check_definition(draft.path, 0, len(draft.table_json) + len(schema_json))
        entry = draft._replace(table_id=self._table_id_next)
        partitions = self._new_partitions(entry, partition_names)
        self._check_buckets(entry, len(partitions) if entry.partition_keys else 1)
        await self._commit(lambda database: database.insert_table(entry, schema_json, partitions))
        self._put_table(entry)
        self._put_schema(entry.table_id, entry.schema_id, schema_json)
        for partition in partitions:
            self._put_partition(partition)
        return entry

    async def alter_table(
        self, path: TablePath, alteration: Alteration, ignore_if_not_exists: bool = False
    ) -> TableEntry | None:
        """Replace a table's descriptor, and its schema if that changes; old schemas stay readable.

        Code 7 if it does not exist and that is not to be ignored, 56 with too many schemas; and what `alteration`
        raises.
        """
        return await self._change(self._alter_table(path, alteration, ignore_if_not_exists))

    async def _alter_table(self, path: TablePath, alteration: Alteration, ignore: bool) -> TableEntry | None:
        if ignore and not self.table_exists(path):
            return None
        entry = self.table(path)
        schema = self.schema_json(entry.table_id, entry.schema_id)
        altered = await asyncio.get_running_loop().run_in_executor(self._executor, alteration, entry, schema)
        if altered is None:
            return entry
        schema_json = None if altered.schema_json is None else altered.schema_json.encode()
        schema_id = entry.schema_id + (schema_json is not None)
        if schema_id > SCHEMA_ID_MAX:
            raise error_from_code(
                ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
                f"Table {path} has had {SCHEMA_ID_MAX} schemas; make a new one.",
            )
        new = entry._replace(
            table_json=altered.table_json.encode(),
            schema_id=schema_id,
            modified_time_ms=max(self._clock.now_ms(), entry.modified_time_ms),
        )
        more_bytes = len(new.table_json) - len(entry.table_json) + len(schema_json or b"")
        self._check_definition(path, self.definition_bytes(entry), more_bytes)
        await self._commit(lambda database: database.update_table(new, schema_json))
        self._replace_table(new)
        if schema_json is not None:
            self._put_schema(new.table_id, schema_id, schema_json)
        return new

    async def drop_table(self, path: TablePath, ignore_if_not_exists: bool = False) -> None:
        """Code 7 if it does not exist and that is not to be ignored."""
        await self._change(self._drop_table(path, ignore_if_not_exists))

    async def _drop_table(self, path: TablePath, ignore: bool) -> None:
        if ignore and not self.table_exists(path):
            return
        entry = self.table(path)
        await self._commit(lambda database: database.delete_table(entry.table_id))
        self._forget(entry)

    # --- partitions

    async def create_partitions(
        self,
        table_id: int,
        names: Sequence[str],
        ignore_if_exists: bool = False,
        bound: PartitionBound | None = None,
    ) -> None:
        """Make partitions, all or nothing.

        Code 7 without the table, 37 if it has no partition keys, 42 if one exists (unless ignored), 45 with too many
        partitions, 49 with too many buckets.
        """
        await self._change(self._create_partitions(table_id, names, ignore_if_exists, bound))

    async def _create_partitions(
        self, table_id: int, names: Sequence[str], ignore: bool, bound: PartitionBound | None
    ) -> None:
        table = self._partitioned_table(table_id)
        existing = [name for name in names if self.partition_exists(table_id, name)]
        if existing and not ignore:
            raise error_from_code(
                ErrorCode.PARTITION_ALREADY_EXISTS, f"Table {table.path} has a partition {existing[0]!r} already."
            )
        partitions = self._new_partitions(table, [name for name in names if name not in existing])
        if not partitions:
            return
        if bound is not None:
            self._check_new_partitions(table, len(partitions), bound)
        self._check_buckets(table, len(partitions))
        await self._commit(lambda database: database.insert_partitions(partitions))
        for partition in partitions:
            self._put_partition(partition)

    async def drop_partitions(self, table_id: int, names: Sequence[str], ignore_if_not_exists: bool = False) -> None:
        """Drop partitions, all or nothing.

        Code 7 without the table, 37 if it has no partition keys, 36 if there is no such partition (unless ignored).
        """
        await self._change(self._drop_partitions(table_id, names, ignore_if_not_exists))

    async def _drop_partitions(self, table_id: int, names: Sequence[str], ignore: bool) -> None:
        table = self._partitioned_table(table_id)
        entries = [self.partition(table, name) for name in names if not ignore or self.partition_exists(table_id, name)]
        if not entries:
            return
        await self._commit(lambda database: database.delete_partitions(entries))
        for entry in entries:
            self._remove_partition(entry)
            for callback in self._on_drop_partition:
                callback(entry)

    def _partitioned_table(self, table_id: int) -> TableEntry:
        table = self._existing_table(table_id)
        check_partitioned(table)
        return table

    def _existing_table(self, table_id: int) -> TableEntry:
        table = self._tables_by_id.get(table_id)
        if table is None:
            raise error_from_code(ErrorCode.TABLE_NOT_EXIST, f"There is no table with id {table_id} any more.")
        return table

    def _new_partitions(self, table: TableEntry, names: Iterable[str]) -> list[PartitionEntry]:
        now_ms = self._clock.now_ms()
        partitions = [
            PartitionEntry(self._partition_id_next + number, table.table_id, name, now_ms)
            for number, name in enumerate(dict.fromkeys(names))
        ]
        count = len(self._partitions.get(table.table_id, {}))
        if count + len(partitions) > self._limits.partitions_per_table_max:
            raise error_from_code(
                ErrorCode.PARTITION_MAX_NUM_EXCEPTION,
                f"Table {table.path} has {count} partitions and asks for {len(partitions)} more; a table may have "
                f"{self._limits.partitions_per_table_max}. Drop some.",
            )
        return partitions

    def _check_new_partitions(self, table: TableEntry, count: int, bound: PartitionBound) -> None:
        ids = [entry.partition_id for entry in self._partitions.get(table.table_id, {}).values()]
        newer = sum(partition_id > bound.newer_than_id for partition_id in ids)
        if newer + count > bound.newer_max:
            raise error_from_code(
                ErrorCode.PARTITION_MAX_NUM_EXCEPTION,
                f"Table {table.path} has {newer} partitions newer than the one with id {bound.newer_than_id} and asks "
                f"for {count} more; whoever asks allows {bound.newer_max}.",
            )

    def _check_buckets(self, table: TableEntry, times: int) -> None:
        if self._buckets_in_use + table.num_buckets * times > self._limits.buckets_max:
            raise error_from_code(
                ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
                f"Table {table.path} asks for {table.num_buckets * times} buckets; all tables together may have "
                f"{self._limits.buckets_max}, and {self._buckets_in_use} are in use.",
            )

    def _check_definition(self, path: TablePath, bytes_before: int, more_bytes: int) -> None:
        """Refuse a definition that gets too large; one that was so before may become smaller."""
        if more_bytes > 0 and bytes_before + more_bytes > self._limits.definition_bytes_per_table_max:
            raise error_from_code(
                ErrorCode.INVALID_TABLE_EXCEPTION,
                f"The definition of table {path} (its columns, properties, comments and earlier schemas) would have "
                f"{bytes_before + more_bytes} bytes, {self._limits.definition_bytes_per_table_max} are allowed; make "
                "it shorter, make a new table, or raise limits.definition_bytes_per_table_max.",
            )
        self._check_definitions(more_bytes)

    def _check_definitions(self, more_bytes: int) -> None:
        if more_bytes > 0 and self._json_bytes + more_bytes > self._limits.definition_bytes_total_max:
            raise error_from_code(
                ErrorCode.INVALID_TABLE_EXCEPTION,
                f"The definitions of all tables may have {self._limits.definition_bytes_total_max} bytes, "
                f"{self._json_bytes} are in use and {more_bytes} more are asked for; drop tables that are not needed, "
                "or raise limits.definition_bytes_total_max.",
            )

    # --- writer ids and row ids

    def next_writer_id(self) -> int:
        """An id that was never given out before: nothing has to remember which were."""
        return int.from_bytes(randomness.token_bytes(8), "little") & WRITER_ID_MAX or 1

    async def reserve_ids(self, table_id: int, count: int) -> int:
        """The first of `count` ids in a row for the auto-increment column of a table; none was given out before.

        Code 7 without the table, 15 when there are no more ids.
        """
        first = self._row_ids.take(table_id, count)
        return await self._change(self._reserve_ids(table_id, count)) if first is None else first

    async def _reserve_ids(self, table_id: int, count: int) -> int:
        first = self._row_ids.take(table_id, count)
        if first is not None:
            return first
        block = block_of(self._existing_table(table_id).table_json)
        path = self._directory.numbers_path(table_id)
        if not self._row_ids.is_compared(table_id):
            noted = await asyncio.get_running_loop().run_in_executor(self._executor, read_numbers, path)
            if unknown := self._row_ids.compare(table_id, noted):
                _log.error("the catalog is older than %s: %d ids are left out, so that none comes twice", path, unknown)
        bound = self._row_ids.bound_for(table_id, count, block)
        await self._commit(lambda database: database.set_row_ids({table_id: bound}))
        # After the catalog: its number is never behind the note but when somebody has put an older catalog there.
        await asyncio.get_running_loop().run_in_executor(self._executor, write_numbers, path, bound)
        self._row_ids.reserved(table_id, bound)
        first = self._row_ids.take(table_id, count)
        assert first is not None
        return first

    def _give_back(self, database: CatalogDatabase, unused: Mapping[int, int]) -> None:
        for table_id, first in unused.items():
            write_numbers(self._directory.numbers_path(table_id), first)
        database.set_row_ids(unused)

    # --- leases of KV snapshots

    def leases(self) -> Mapping[str, LeaseEntry]:
        """Leases by their id, expired ones included."""
        return self._leases

    async def put_lease(self, entry: LeaseEntry) -> None:
        """Insert or replace a lease."""
        await self._change(self._put_lease(entry))

    async def _put_lease(self, entry: LeaseEntry) -> None:
        await self._commit(lambda database: database.put_lease(entry))
        self._leases[entry.lease_id] = entry

    async def delete_leases(self, lease_ids: Sequence[str]) -> None:
        """Those that exist."""
        await self._change(self._delete_leases([lease_id for lease_id in lease_ids if lease_id in self._leases]))

    async def _delete_leases(self, lease_ids: Sequence[str]) -> None:
        if not lease_ids:
            return
        await self._commit(lambda database: database.delete_leases(lease_ids))
        for lease_id in lease_ids:
            self._leases.pop(lease_id, None)

    # --- queries with staged writes

    def staged_queries(self) -> Mapping[tuple[int, str], StagedQuery]:
        """Staged queries by table id and query id."""
        return self._staged_queries

    async def put_staged_query(self, entry: StagedQuery) -> None:
        """Insert or replace; code 7 without the table."""
        await self._change(self._put_staged_query(entry))

    async def _put_staged_query(self, entry: StagedQuery) -> None:
        self._existing_table(entry.table_id)
        await self._commit(lambda database: database.put_staged_query(entry))
        self._staged_queries[entry.table_id, entry.query_id] = entry

    async def delete_staged_queries(self, keys: Sequence[tuple[int, str]]) -> None:
        """Those that exist."""
        await self._change(self._delete_staged_queries([key for key in keys if key in self._staged_queries]))

    async def _delete_staged_queries(self, keys: Sequence[tuple[int, str]]) -> None:
        if keys:
            await self._commit(lambda database: database.delete_staged_queries(keys))
            for key in keys:
                self._staged_queries.pop(key, None)

    # --- snapshots in the lake

    def lake_snapshots(self, table_id: int) -> tuple[LakeSnapshotEntry, ...]:
        """Lake snapshots of a table in the order in which they were registered."""
        return self._lake_snapshots.get(table_id, ())

    async def put_lake_snapshot(self, entry: LakeSnapshotEntry, number_kept_min: int) -> None:
        """Add one and forget those with smaller numbers; code 7 without the table."""
        await self._change(self._put_lake_snapshot(entry, number_kept_min))

    async def _put_lake_snapshot(self, entry: LakeSnapshotEntry, number_kept_min: int) -> None:
        self._existing_table(entry.table_id)
        await self._commit(lambda database: database.put_lake_snapshot(entry, number_kept_min))
        kept = [earlier for earlier in self.lake_snapshots(entry.table_id) if earlier.number >= number_kept_min]
        self._lake_snapshots[entry.table_id] = (*kept, entry)

    async def delete_lake_snapshots(self, table_id: int) -> None:
        """All of a table; code 7 without the table."""
        await self._change(self._delete_lake_snapshots(table_id))

    async def _delete_lake_snapshots(self, table_id: int) -> None:
        self._existing_table(table_id)
        if self.lake_snapshots(table_id):
            await self._commit(lambda database: database.delete_lake_snapshots(table_id))
            self._lake_snapshots.pop(table_id, None)

    def lake_error(self, table_id: int) -> LakeErrorEntry | None:
        """Why the last round of tiering failed; None if it did not."""
        return self._lake_errors.get(table_id)

    async def set_lake_error(self, table_id: int, error: str | None) -> None:
        """Keep the reason, or forget it; the same one is kept once in a minute. Code 7 without the table."""
        await self._change(self._set_lake_error(table_id, error))

    async def _set_lake_error(self, table_id: int, error: str | None) -> None:
        self._existing_table(table_id)
        known = self.lake_error(table_id)
        if error is None:
            if known is not None:
                await self._commit(lambda database: database.delete_lake_error(table_id))
                self._lake_errors.pop(table_id, None)
            return
        entry = LakeErrorEntry(table_id, error, self._clock.now_ms())
        # A service that fails again and again costs no disk.
        if known is None or known.error != error or abs(entry.time_ms - known.time_ms) >= LAKE_ERROR_MS:
            await self._commit(lambda database: database.put_lake_error(entry))
            self._lake_errors[table_id] = entry

    # --- copies

    @asynccontextmanager
    async def unchanged(self) -> AsyncIterator[None]:
        """While the block runs, no change begins, and none is under way."""
        async with self._lock:
            yield

    async def copy_to(self, path: Path) -> None:
        """Make a durable copy of the database; to be called while it is `unchanged`."""
        await self._commit(lambda database: database.copy_to(path))

    async def close(self) -> None:
        """Wait for changes under way and close the database."""
        async with self._lock:
            if unused := self._row_ids.give_back():
                with suppress(FlussError):
                    await self._commit(lambda database: self._give_back(database, unused))
            await self._settle()
            await asyncio.get_running_loop().run_in_executor(self._executor, self._database.close)
        self._executor.shutdown()

    def _forget(self, entry: TableEntry) -> None:
        self._remove_table(entry)
        self._row_ids.forget(entry.table_id)
        for key in [key for key in self._staged_queries if key[0] == entry.table_id]:
            del self._staged_queries[key]
        self._lake_snapshots.pop(entry.table_id, None)
        self._lake_errors.pop(entry.table_id, None)
        for callback in self._on_drop:
            callback(entry.table_id)

    async def _change(self, change: Coroutine[Any, Any, _T]) -> _T:
        """Run one change after the other, each to its end even if its caller goes away."""
        task = asyncio.ensure_future(self._locked(change))
        self._changes.add(task)
        task.add_done_callback(self._change_done)
        return await asyncio.shield(task)

    def _change_done(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            # The caller may have gone away: mark a failure as seen, or asyncio complains.
            task.exception()

    async def _locked(self, change: Coroutine[Any, Any, _T]) -> _T:
        async with self._lock:
            return await change

    async def _commit(self, work: CatalogWork) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, work, self._database)
            self._put_mark()
        except (sqlite3.Error, OSError) as error:
            raise FlussError(f"The catalog could not be changed: {error}", ErrorCode.STORAGE_EXCEPTION) from error
        if self._database.wal_size_bytes > WAL_BYTES_MAX:
            await self._settle()

    def _put_mark(self) -> None:
        if self._marks is not None and self._marks.catalog is not None:
            self._marks.put_catalog(self._marks.catalog._replace(generation=self._database.generation))

    async def _settle(self) -> None:
        """Leave a database file that does not change until the next time, and its checksum in the mark.

        While it is written the mark says that it is not settled: a crash leaves a file of two times, which SQLite
        repairs from its WAL.
        """
        loop, marks = asyncio.get_running_loop(), self._marks
        if marks is None:
            return
        try:
            marks.put_catalog(CatalogMark(self._database.generation, is_settled=False))
            await loop.run_in_executor(self._executor, marks.sync)
            settled = await loop.run_in_executor(self._executor, self._database.settle)
            marks.put_catalog(CatalogMark(self._database.generation, True, *settled))
            await loop.run_in_executor(self._executor, marks.sync)
        except (sqlite3.Error, OSError) as error:
            _log.warning("the catalog could not be settled, which is tried again later: %s", error)


def open_database(path: Path, mark: CatalogMark | None) -> CatalogDatabase:
    """Open the database, or make it; raise for one that has lost or changed what its mark says."""
    problem = changed_file(path, mark)
    if problem is None and path.exists():
        # Without the right to write: closing a database would move what is left of its WAL into it.
        generation, problem = look_at(path, check_all=mark is None or not mark.is_settled)
        if problem is None and mark is not None and generation < mark.generation:
            problem = lost_text(mark.generation - generation)
    if problem is not None:
        raise _damaged(path, problem)
    return CatalogDatabase(path)


def changed_file(path: Path, mark: CatalogMark | None) -> str | None:
    """What is wrong with a settled database file: it has other bytes than it was left with."""
    if mark is None or not mark.is_settled:
        return None
    found = file_checksum(path) if path.exists() else (0, 0)
    if found == (mark.size_bytes, mark.crc):
        return None
    return f"it has other bytes than '{MARKS_NAME}' says: {found} instead of {mark[2:]} (size, CRC-32)"


def lost_text(count: int) -> str:
    """What is wrong with a catalog that lacks changes."""
    return f"the last {count} changes are missing in it or in its -wal file"


def _damaged(path: Path, reason: str) -> DataDirectoryError:
    return DataDirectoryError(
        f"{path}: the catalog is damaged: {reason}. Nothing was changed. Restore the directory from a backup ('fluss "
        "restore'); 'fluss repair' shows what is left."
    )

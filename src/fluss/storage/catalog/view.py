"""The catalog in memory: plain look-ups on the loop, what definitions say, and ids for auto-increment.

Only `Catalog` changes the view, after the change is on disk. The cache of what was read out of tables' definitions is
bounded by their bytes: `functools.lru_cache` counts entries only, definitions may have a megabyte each, and those of
dropped tables would stay.

An id for an auto-increment column is reserved on disk in blocks, given out from memory, and given out at most once. A
killed server loses the rest of its blocks; one that is closed gives them back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import Any, Final, Generic, TypeVar, TypeVarTuple

from fluss.doors import threads
from fluss.model.errors import ErrorCode, FlussError, error_from_code
from fluss.model.paths import TablePath
from fluss.model.tables.options import (
    AUTO_INCREMENT_CACHE_SIZE,
    DATALAKE_ENABLED,
    DATALAKE_FRESHNESS,
    duration_ms,
    is_true,
)
from fluss.storage.catalog.db import PARTITION_ID, TABLE_ID, CatalogContent, DatabaseEntry, PartitionEntry, TableEntry

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

BYTES_MAX: Final = 32 << 20  # of the definitions whose results one function keeps
ENTRIES_MAX: Final = 16_384


class DefinitionCache(Generic[*Ts, T]):
    """Decorates a function of definitions in bytes (and other hashable arguments) that always returns the same."""

    def __init__(self, function: Callable[[*Ts], T]) -> None:
        update_wrapper(self, function)
        self._function = function
        self._results: dict[tuple[Any, ...], T] = {}
        self._bytes = 0
        self._changing = threads.lock()

    def __call__(self, *args: *Ts) -> T:
        try:
            return self._results[args]
        except KeyError:
            pass
        result = self._function(*args)
        with self._changing:
            if args not in self._results:
                self._keep(args, result)
        return result

    @property
    def size_bytes(self) -> int:
        """Size of the definitions that are kept."""
        return self._bytes

    def _keep(self, args: tuple[Any, ...], result: T) -> None:
        self._results[args] = result
        self._bytes += _size_bytes(args)
        while len(self._results) > ENTRIES_MAX or (self._bytes > BYTES_MAX and len(self._results) > 1):
            # The one that came first: to move those in use to the end would cost every call.
            oldest = next(iter(self._results))
            del self._results[oldest]
            self._bytes -= _size_bytes(oldest)


def _size_bytes(args: tuple[Any, ...]) -> int:
    return sum(len(arg) for arg in args if isinstance(arg, bytes))


FRESHNESS_MS_DEFAULT: Final = 3 * 60 * 1_000


class CatalogView:
    def __init__(self) -> None:
        self._databases: dict[str, DatabaseEntry] = {}
        self._tables: dict[str, dict[str, TableEntry]] = {}  # by database, by name
        self._tables_by_id: dict[int, TableEntry] = {}
        self._schemas: dict[int, dict[int, bytes]] = {}  # by table id, by schema id
        self._partitions: dict[int, dict[str, PartitionEntry]] = {}  # by table id, by name
        self._partitions_by_id: dict[int, PartitionEntry] = {}
        self._table_id_next = 0
        self._partition_id_next = 0
        self._buckets_in_use = 0
        self._json_bytes = 0

    # --- look-ups

    @property
    def table_id_next(self) -> int:
        """Ids below this one have been given out."""
        return self._table_id_next

    @property
    def partition_id_next(self) -> int:
        """Ids below this one have been given out."""
        return self._partition_id_next

    @property
    def buckets_in_use(self) -> int:
        """Buckets of all tables and partitions."""
        return self._buckets_in_use

    def definition_bytes(self, table: TableEntry) -> int:
        """Bytes of a table's descriptor and all its schemas."""
        return len(table.table_json) + sum(map(len, self._schemas[table.table_id].values()))

    def database(self, name: str) -> DatabaseEntry:
        """The entry, or code 4."""
        entry = self._databases.get(name)
        if entry is None:
            raise error_from_code(ErrorCode.DATABASE_NOT_EXIST, f"Database {name} does not exist.")
        return entry

    def database_exists(self, name: str) -> bool:
        return name in self._databases

    def databases(self) -> list[DatabaseEntry]:
        """All databases, by name."""
        return sorted(self._databases.values())

    def table(self, path: TablePath) -> TableEntry:
        """The entry, or code 7."""
        entry = self._tables.get(path.database, {}).get(path.table)
        if entry is None:
            raise error_from_code(ErrorCode.TABLE_NOT_EXIST, f"Table {path} does not exist.")
        return entry

    def table_exists(self, path: TablePath) -> bool:
        return path.table in self._tables.get(path.database, {})

    def table_by_id(self, table_id: int) -> TableEntry | None:
        return self._tables_by_id.get(table_id)

    def table_count(self, database: str) -> int:
        return len(self._tables.get(database, {}))

    def tables(self, database: str) -> list[TableEntry]:
        """The tables of a database, by name; code 4 without the database."""
        self.database(database)
        return [entry for _, entry in sorted(self._tables.get(database, {}).items())]

    def all_tables(self) -> list[TableEntry]:
        """The tables of all databases, by id."""
        return list(self._tables_by_id.values())

    def schema_json(self, table_id: int, schema_id: int) -> bytes:
        """A schema's JSON, or code 9."""
        json = self._schemas.get(table_id, {}).get(schema_id)
        if json is None:
            raise error_from_code(ErrorCode.SCHEMA_NOT_EXIST, f"Table id {table_id} has no schema {schema_id}.")
        return json

    def partition(self, table: TableEntry, name: str) -> PartitionEntry:
        """The entry; code 37 for a table without partitions, 36 if there is no such partition."""
        check_partitioned(table)
        entry = self._partitions[table.table_id].get(name)
        if entry is None:
            raise error_from_code(
                ErrorCode.PARTITION_NOT_EXISTS,
                f"Table {table.path} has no partition {name!r}; list its partitions to see those it has.",
            )
        return entry

    def partition_exists(self, table_id: int, name: str) -> bool:
        return name in self._partitions.get(table_id, {})

    @property
    def partition_count(self) -> int:
        """Partitions of all tables."""
        return len(self._partitions_by_id)

    def partition_by_id(self, partition_id: int) -> PartitionEntry | None:
        return self._partitions_by_id.get(partition_id)

    def table_of(self, partition: PartitionEntry) -> TableEntry:
        """The table of a partition that exists."""
        return self._tables_by_id[partition.table_id]

    def partitions(self, table: TableEntry) -> list[PartitionEntry]:
        """The partitions of a table, by name; code 37 for a table without partitions."""
        check_partitioned(table)
        return [entry for _, entry in sorted(self._partitions[table.table_id].items())]

    # --- called by the catalog

    def _fill(self, content: CatalogContent) -> None:
        for database in content.databases:
            self._put_database(database)
        for table in content.tables:
            self._put_table(table)
        for schema in content.schemas:
            self._put_schema(*schema)
        for partition in content.partitions:
            self._put_partition(partition)
        self._table_id_next = content.counters[TABLE_ID]
        self._partition_id_next = content.counters[PARTITION_ID]

    def _put_database(self, entry: DatabaseEntry) -> None:
        self._databases[entry.name] = entry
        self._tables[entry.name] = {}
        self._json_bytes += len(entry.json)

    def _replace_database(self, entry: DatabaseEntry) -> None:
        """A database that exists, with its tables."""
        self._json_bytes += len(entry.json) - len(self._databases[entry.name].json)
        self._databases[entry.name] = entry

    def _remove_database(self, entry: DatabaseEntry) -> None:
        """An empty database."""
        del self._databases[entry.name]
        del self._tables[entry.name]
        self._json_bytes -= len(entry.json)

    def _put_table(self, entry: TableEntry) -> None:
        """A new table; its partitions and schemas are put after it."""
        self._replace_table(entry)
        self._schemas[entry.table_id] = {}
        if entry.partition_keys:
            self._partitions[entry.table_id] = {}
        else:
            self._buckets_in_use += entry.num_buckets
        self._table_id_next = max(self._table_id_next, entry.table_id + 1)

    def _replace_table(self, entry: TableEntry) -> None:
        before = self._tables_by_id.get(entry.table_id)
        self._json_bytes += len(entry.table_json) - (len(before.table_json) if before else 0)
        self._tables[entry.path.database][entry.path.table] = entry
        self._tables_by_id[entry.table_id] = entry

    def _put_schema(self, table_id: int, schema_id: int, json: bytes) -> None:
        self._schemas[table_id][schema_id] = json
        self._json_bytes += len(json)

    def _put_partition(self, entry: PartitionEntry) -> None:
        self._partitions[entry.table_id][entry.name] = entry
        self._partitions_by_id[entry.partition_id] = entry
        self._buckets_in_use += self._tables_by_id[entry.table_id].num_buckets
        self._partition_id_next = max(self._partition_id_next, entry.partition_id + 1)

    def _remove_partition(self, entry: PartitionEntry) -> None:
        del self._partitions[entry.table_id][entry.name]
        del self._partitions_by_id[entry.partition_id]
        self._buckets_in_use -= self._tables_by_id[entry.table_id].num_buckets

    def _remove_table(self, entry: TableEntry) -> None:
        for partition in list(self._partitions.get(entry.table_id, {}).values()):
            self._remove_partition(partition)
        if not entry.partition_keys:
            self._buckets_in_use -= entry.num_buckets
        self._partitions.pop(entry.table_id, None)
        del self._tables[entry.path.database][entry.path.table]
        del self._tables_by_id[entry.table_id]
        self._json_bytes -= len(entry.table_json) + sum(map(len, self._schemas.pop(entry.table_id).values()))


@DefinitionCache
def has_primary_key(table_json: bytes) -> bool:
    """Whether the rows of a table are updated by key; that never changes."""
    return bool(json.loads(table_json).get("schema", {}).get("primary_key"))


def lake_freshness_ms(table_json: bytes) -> int | None:
    """How often a table is to be tiered to a lake; None: not at all."""
    # Most are not, and need no second look.
    return _lake_freshness_ms(table_json) if DATALAKE_ENABLED.encode() in table_json else None


@DefinitionCache
def _lake_freshness_ms(table_json: bytes) -> int | None:
    properties = json.loads(table_json).get("properties", {})
    if not is_true(properties, DATALAKE_ENABLED):
        return None
    freshness_ms = duration_ms(properties.get(DATALAKE_FRESHNESS, ""))
    return FRESHNESS_MS_DEFAULT if freshness_ms is None else freshness_ms


def check_partitioned(table: TableEntry) -> None:
    """Raise code 37 for a table without partitions."""
    if not table.partition_keys:
        raise error_from_code(
            ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION, f"Table {table.path} has no partitions; name the table alone."
        )


FIRST_ROW_ID: Final = 1
ROW_ID_MAX: Final = 2**63 - 1
BLOCK_DEFAULT: Final = 100_000


@DefinitionCache
def block_of(table_json: bytes) -> int:
    """How many ids a table reserves at once, by its properties."""
    size = json.loads(table_json).get("properties", {}).get(AUTO_INCREMENT_CACHE_SIZE, "")
    return int(size) if size.isascii() and size.isdigit() and int(size) else BLOCK_DEFAULT


class RowIds:
    """The sequences in memory; whoever holds it writes what is reserved to disk."""

    def __init__(self, reserved: Mapping[int, int] | None = None) -> None:
        self._reserved = dict(reserved or {})  # by table id: ids below are given out or in memory
        self._next = dict(self._reserved)
        self._compared: set[int] = set()  # tables whose sequence was compared with their data in this run

    def is_compared(self, table_id: int) -> bool:
        """Whether a table's sequence goes on behind all that its data has."""
        return table_id in self._compared

    def compare(self, table_id: int, noted: int | None) -> int:
        """Go on behind what lies noted with a table's data; returns how many ids the catalog did not know of."""
        self._compared.add(table_id)
        unknown = max(0, (noted or 0) - self._reserved.get(table_id, FIRST_ROW_ID))
        if unknown:
            self._reserved[table_id] = self._next[table_id] = noted or 0
        return unknown

    def take(self, table_id: int, count: int) -> int | None:
        """The first of `count` ids in a row, None if too few are reserved."""
        first = self._next.get(table_id, FIRST_ROW_ID)
        if first + count > self._reserved.get(table_id, FIRST_ROW_ID):
            return None
        self._next[table_id] = first + count
        return first

    def bound_for(self, table_id: int, count: int, block: int) -> int:
        """Up to where to reserve, so that `count` can be taken whatever others take meanwhile."""
        reserved = self._reserved.get(table_id, FIRST_ROW_ID)
        if reserved + count > ROW_ID_MAX:
            raise FlussError(
                f"Table id {table_id} has used all ids of its auto-increment column. Make a new table.",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        return min(reserved + max(count, block), ROW_ID_MAX)

    def reserved(self, table_id: int, bound: int) -> None:
        """Ids below `bound` are reserved on disk."""
        self._reserved[table_id] = bound
        self._next.setdefault(table_id, FIRST_ROW_ID)

    def forget(self, table_id: int) -> None:
        self._reserved.pop(table_id, None)
        self._next.pop(table_id, None)

    def give_back(self) -> dict[int, int]:
        """Give out nothing more; where each table's sequence may go on."""
        unused = {table: first for table, first in self._next.items() if first < self._reserved[table]}
        self._reserved = dict(self._next)
        return unused

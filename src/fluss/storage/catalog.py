"""Databases, tables, schemas and ids: an in-memory copy for the loop, SQLite for keeps.

Look-ups are plain calls on memory. A change is checked against memory, committed to SQLite in the catalog's thread, and
only then applied to memory, all under one lock; so memory never shows what a crash could take back, and a failed commit
changes nothing. A caller that is cancelled half way does not stop the change: it runs to its end on its own.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from fluss.model.errors import ErrorCode, FlussError, error_from_code
from fluss.model.paths import TablePath
from fluss.storage.catalog_db import CatalogDatabase, CatalogWork, DatabaseEntry, TableEntry

__all__ = ["DEFAULT_DATABASE", "Catalog", "DatabaseEntry", "TableEntry"]

_T = TypeVar("_T")

DEFAULT_DATABASE: Final = "fluss"
FIRST_SCHEMA_ID: Final = 1
WRITER_ID_BLOCK: Final = 1000
BUCKETS_MAX: Final = 128_000
JSON_BYTES_MAX: Final = 16 * 1024 * 1024
_EMPTY_DATABASE_JSON: Final = '{"version":1,"custom_properties":{}}'


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class Catalog:
    def __init__(self, database: CatalogDatabase, executor: ThreadPoolExecutor) -> None:
        self._database = database
        self._executor = executor
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self._on_drop: list[Callable[[int], None]] = []
        self._databases: dict[str, DatabaseEntry] = {}
        self._tables: dict[TablePath, TableEntry] = {}
        self._tables_by_id: dict[int, TableEntry] = {}
        self._schemas: dict[tuple[int, int], bytes] = {}
        self._table_id_next = 0
        self._writer_id_next = 0
        self._writer_id_reserved = 0

    @classmethod
    async def open(cls, path: Path) -> Catalog:
        loop = asyncio.get_running_loop()
        executor = ThreadPoolExecutor(1, thread_name_prefix="fluss-catalog")
        try:
            database = await loop.run_in_executor(executor, CatalogDatabase, path)
            catalog = cls(database, executor)
            await catalog._load()
        except sqlite3.Error as error:
            executor.shutdown()
            raise FlussError(f"{path}: the catalog can't be opened: {error}", ErrorCode.STORAGE_EXCEPTION) from error
        except BaseException:
            executor.shutdown()
            raise
        return catalog

    async def _load(self) -> None:
        content = await asyncio.get_running_loop().run_in_executor(self._executor, self._database.load)
        self._databases = {entry.name: entry for entry in content.databases}
        self._tables = {entry.path: entry for entry in content.tables}
        self._tables_by_id = {entry.table_id: entry for entry in content.tables}
        self._schemas = content.schemas
        self._table_id_next = content.table_id_next
        self._writer_id_next = self._writer_id_reserved = content.writer_id_next
        await self.create_database(DEFAULT_DATABASE, _EMPTY_DATABASE_JSON, ignore_if_exists=True)

    def on_drop(self, callback: Callable[[int], None]) -> None:
        """Call back with the id of every table that is dropped, after the drop is on disk."""
        self._on_drop.append(callback)

    # --- look-ups

    @property
    def table_id_next(self) -> int:
        """Ids below this one have been given out."""
        return self._table_id_next

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
        entry = self._tables.get(path)
        if entry is None:
            raise error_from_code(ErrorCode.TABLE_NOT_EXIST, f"Table {path} does not exist.")
        return entry

    def table_exists(self, path: TablePath) -> bool:
        return path in self._tables

    def table_by_id(self, table_id: int) -> TableEntry | None:
        return self._tables_by_id.get(table_id)

    def tables(self, database: str) -> list[TableEntry]:
        """The tables of a database, by name; code 4 without the database."""
        self.database(database)
        found = [entry for entry in self._tables.values() if entry.path.database == database]
        return sorted(found, key=lambda entry: entry.path.table)

    def schema_json(self, table_id: int, schema_id: int) -> bytes:
        """A schema's JSON, or code 9."""
        json = self._schemas.get((table_id, schema_id))
        if json is None:
            raise error_from_code(ErrorCode.SCHEMA_NOT_EXIST, f"Table id {table_id} has no schema {schema_id}.")
        return json

    # --- changes

    async def create_database(self, name: str, json: str, ignore_if_exists: bool = False) -> DatabaseEntry:
        """Code 6 if it exists and that is not to be ignored."""
        return await self._change(self._create_database(name, _json_bytes(json), ignore_if_exists))

    async def _create_database(self, name: str, json: bytes, ignore: bool) -> DatabaseEntry:
        existing = self._databases.get(name)
        if existing is not None:
            if ignore:
                return existing
            raise error_from_code(ErrorCode.DATABASE_ALREADY_EXIST, f"Database {name} exists already.")
        now_ms = _now_ms()
        entry = DatabaseEntry(name, json, now_ms, now_ms)
        await self._commit(lambda database: database.insert_database(entry))
        self._databases[name] = entry
        return entry

    async def drop_database(self, name: str, cascade: bool = False, ignore_if_not_exists: bool = False) -> None:
        """Code 4 if it does not exist and that is not to be ignored; code 5 if it has tables and not `cascade`."""
        await self._change(self._drop_database(name, cascade, ignore_if_not_exists))

    async def _drop_database(self, name: str, cascade: bool, ignore: bool) -> None:
        if ignore and name not in self._databases:
            return
        tables = self.tables(name)
        if tables and not cascade:
            raise error_from_code(
                ErrorCode.DATABASE_NOT_EMPTY,
                f"Database {name} has {len(tables)} tables, the first is {tables[0].path.table}.",
            )
        await self._commit(lambda database: database.delete_database(name))
        del self._databases[name]
        for entry in tables:
            self._forget(entry)

    async def create_table(
        self, path: TablePath, table_json: str, schema_json: str, num_buckets: int, ignore_if_exists: bool = False
    ) -> TableEntry:
        """Code 4 without the database, 8 if the table exists (unless ignored), 49 with too many buckets."""
        table, schema = _json_bytes(table_json), _json_bytes(schema_json)
        return await self._change(self._create_table(path, table, schema, num_buckets, ignore_if_exists))

    async def _create_table(
        self, path: TablePath, table_json: bytes, schema_json: bytes, num_buckets: int, ignore: bool
    ) -> TableEntry:
        self.database(path.database)
        existing = self._tables.get(path)
        if existing is not None:
            if ignore:
                return existing
            raise error_from_code(ErrorCode.TABLE_ALREADY_EXIST, f"Table {path} exists already.")
        in_use = sum(entry.num_buckets for entry in self._tables.values())
        if num_buckets < 1 or in_use + num_buckets > BUCKETS_MAX:
            raise error_from_code(
                ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
                f"Table {path} asks for {num_buckets} buckets; a table has at least 1, all tables together at most "
                f"{BUCKETS_MAX}, and {in_use} are in use.",
            )
        now_ms = _now_ms()
        entry = TableEntry(self._table_id_next, path, table_json, FIRST_SCHEMA_ID, num_buckets, now_ms, now_ms)
        await self._commit(lambda database: database.insert_table(entry, schema_json))
        self._table_id_next += 1
        self._tables[path] = entry
        self._tables_by_id[entry.table_id] = entry
        self._schemas[entry.table_id, entry.schema_id] = schema_json
        return entry

    async def drop_table(self, path: TablePath, ignore_if_not_exists: bool = False) -> None:
        """Code 7 if it does not exist and that is not to be ignored."""
        await self._change(self._drop_table(path, ignore_if_not_exists))

    async def _drop_table(self, path: TablePath, ignore: bool) -> None:
        if ignore and path not in self._tables:
            return
        entry = self.table(path)
        await self._commit(lambda database: database.delete_table(entry.table_id))
        self._forget(entry)

    async def next_writer_id(self) -> int:
        """An id that was never given out before, not even by a server that was killed since."""
        while self._writer_id_next == self._writer_id_reserved:
            await self._change(self._reserve_writer_ids())
        writer_id = self._writer_id_next
        self._writer_id_next += 1
        return writer_id

    async def _reserve_writer_ids(self) -> None:
        if self._writer_id_next < self._writer_id_reserved:
            return
        reserved = self._writer_id_reserved + WRITER_ID_BLOCK
        await self._commit(lambda database: database.reserve_writer_ids(reserved))
        self._writer_id_reserved = reserved

    async def close(self) -> None:
        """Wait for changes under way and close the database."""
        async with self._lock:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._database.close)
        self._executor.shutdown()

    def _forget(self, entry: TableEntry) -> None:
        del self._tables[entry.path]
        del self._tables_by_id[entry.table_id]
        for key in [key for key in self._schemas if key[0] == entry.table_id]:
            del self._schemas[key]
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
        except (sqlite3.Error, OSError) as error:
            raise FlussError(f"The catalog could not be changed: {error}", ErrorCode.STORAGE_EXCEPTION) from error


def _json_bytes(json: str) -> bytes:
    data = json.encode()
    if len(data) > JSON_BYTES_MAX:
        raise error_from_code(
            ErrorCode.INVALID_TABLE_EXCEPTION,
            f"A descriptor of {len(data)} bytes is too large, the limit is {JSON_BYTES_MAX}.",
        )
    return data

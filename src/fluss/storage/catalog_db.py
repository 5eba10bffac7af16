"""The catalog on disk: SQLite in WAL mode with synchronous FULL, used from one thread.

A transaction is on disk when its commit returns, or it never happened; SQLite repairs its own files after a crash. Ids
come from counters that only grow, advanced in the transaction that uses them, so an id is never given out twice, not
even after a drop. Schema changes of later format versions are migrations keyed on `user_version`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TablePath
from fluss.storage import files
from fluss.storage.failpoints import Site

SCHEMA_VERSION: Final = 1
TABLE_ID: Final = "table_id"
WRITER_ID: Final = "writer_id"

_SCHEMA: Final = (
    "CREATE TABLE counters (name TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE databases (name TEXT PRIMARY KEY, json BLOB NOT NULL,"
    " created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE tables (table_id INTEGER PRIMARY KEY, database TEXT NOT NULL REFERENCES databases (name),"
    " name TEXT NOT NULL, json BLOB NOT NULL, schema_id INTEGER NOT NULL, buckets INTEGER NOT NULL,"
    " created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL, UNIQUE (database, name))",
    "CREATE TABLE schemas (table_id INTEGER NOT NULL REFERENCES tables (table_id) ON DELETE CASCADE,"
    " schema_id INTEGER NOT NULL, json BLOB NOT NULL, PRIMARY KEY (table_id, schema_id)) WITHOUT ROWID",
)


class DatabaseEntry(NamedTuple):
    name: str
    json: bytes
    created_time_ms: int
    modified_time_ms: int


class TableEntry(NamedTuple):
    table_id: int
    path: TablePath
    table_json: bytes
    schema_id: int
    num_buckets: int
    created_time_ms: int
    modified_time_ms: int


class CatalogContent(NamedTuple):
    databases: list[DatabaseEntry]
    tables: list[TableEntry]
    schemas: dict[tuple[int, int], bytes]
    table_id_next: int
    writer_id_next: int


class CatalogDatabase:
    """All methods block and belong to one thread."""

    def __init__(self, path: Path) -> None:
        # isolation_level None: transactions begin and end where this file says so.
        self._connection = sqlite3.connect(path, isolation_level=None)
        try:
            self._execute("PRAGMA journal_mode = WAL")
            self._execute("PRAGMA synchronous = FULL")
            self._execute("PRAGMA fullfsync = ON")
            self._execute("PRAGMA foreign_keys = ON")
            self._migrate(path)
        except BaseException:
            self._connection.close()
            raise
        files.sync_directory(path.parent, Site.CATALOG_CREATE)

    def _execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)

    def _migrate(self, path: Path) -> None:
        (version,) = self._execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise FlussError(
                f"{path} has schema version {version}, this program knows {SCHEMA_VERSION}. Upgrade flussbett.",
                ErrorCode.STORAGE_EXCEPTION,
            )
        if version == 0:
            with self._transaction():
                for statement in _SCHEMA:
                    self._execute(statement)
                for counter in (TABLE_ID, WRITER_ID):
                    self._execute("INSERT INTO counters VALUES (?, 0)", counter)
                self._execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            files.around_commit(self._connection.commit, Site.CATALOG_COMMIT)
        except BaseException:
            if self._connection.in_transaction:
                self._connection.rollback()
            raise

    def load(self) -> CatalogContent:
        counters = dict(self._execute("SELECT name, next FROM counters"))
        tables = self._execute(
            "SELECT table_id, database, name, json, schema_id, buckets, created_ms, modified_ms FROM tables"
        )
        return CatalogContent(
            [DatabaseEntry(*row) for row in self._execute("SELECT name, json, created_ms, modified_ms FROM databases")],
            [TableEntry(row[0], TablePath(row[1], row[2]), *row[3:]) for row in tables],
            {(row[0], row[1]): row[2] for row in self._execute("SELECT table_id, schema_id, json FROM schemas")},
            counters[TABLE_ID],
            counters[WRITER_ID],
        )

    def insert_database(self, entry: DatabaseEntry) -> None:
        with self._transaction():
            self._execute("INSERT INTO databases VALUES (?, ?, ?, ?)", *entry)

    def delete_database(self, name: str) -> None:
        """Delete a database with its tables."""
        with self._transaction():
            self._execute("DELETE FROM tables WHERE database = ?", name)
            self._execute("DELETE FROM databases WHERE name = ?", name)

    def insert_table(self, entry: TableEntry, schema_json: bytes) -> None:
        path = entry.path
        with self._transaction():
            self._execute("UPDATE counters SET next = ? WHERE name = ?", entry.table_id + 1, TABLE_ID)
            self._execute(
                "INSERT INTO tables (table_id, database, name, json, schema_id, buckets, created_ms, modified_ms)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                *(entry.table_id, path.database, path.table, *entry[2:]),
            )
            self._execute("INSERT INTO schemas VALUES (?, ?, ?)", entry.table_id, entry.schema_id, schema_json)

    def delete_table(self, table_id: int) -> None:
        with self._transaction():
            self._execute("DELETE FROM tables WHERE table_id = ?", table_id)

    def reserve_writer_ids(self, next_id: int) -> None:
        """Promise that ids below `next_id` are never given out after a restart."""
        with self._transaction():
            self._execute("UPDATE counters SET next = ? WHERE name = ?", next_id, WRITER_ID)

    def close(self) -> None:
        self._connection.close()


CatalogWork = Callable[[CatalogDatabase], None]

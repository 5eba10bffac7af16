"""The catalog on disk: SQLite in WAL mode with synchronous FULL, used from one thread.

A transaction is on disk when its commit returns, or it never happened; SQLite repairs its own files after a crash. Ids
come from counters that only grow, advanced in the transaction that uses them, so an id is never given out twice, not
even after a drop. An older schema is brought up to date in one transaction, keyed on `user_version`.

SQLite takes a WAL that rotted for a shorter one, and has no checksums in the database file. So each transaction raises
the generation, which shows when some were lost, and the WAL is moved into the database file only by `settle`, which
leaves a file that does not change until the next time: its checksum can be kept. Both are kept in the marks.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TableBucket, TablePath
from fluss.model.staging import NO_BATCH, StagedRows, StagedTask
from fluss.storage import files
from fluss.storage.failpoints import Site

TABLE_ID: Final = "table_id"
PARTITION_ID: Final = "partition_id"
WRITER_ID: Final = "writer_id"  # of older versions, which counted them
GENERATION: Final = "generation"

_READ_BYTES: Final = 64 << 10

# What makes version n + 1 of version n. Never changed once released.
_MIGRATIONS: Final = (
    (
        "CREATE TABLE counters (name TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE databases (name TEXT PRIMARY KEY, json BLOB NOT NULL,"
        " created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TABLE tables (table_id INTEGER PRIMARY KEY, database TEXT NOT NULL REFERENCES databases (name),"
        " name TEXT NOT NULL, json BLOB NOT NULL, schema_id INTEGER NOT NULL, buckets INTEGER NOT NULL,"
        " created_ms INTEGER NOT NULL, modified_ms INTEGER NOT NULL, UNIQUE (database, name))",
        "CREATE TABLE schemas (table_id INTEGER NOT NULL REFERENCES tables (table_id) ON DELETE CASCADE,"
        " schema_id INTEGER NOT NULL, json BLOB NOT NULL, PRIMARY KEY (table_id, schema_id)) WITHOUT ROWID",
        f"INSERT INTO counters VALUES ('{TABLE_ID}', 0), ('{WRITER_ID}', 0)",
    ),
    (
        # A JSON list. Tables of version 1 have no partitions.
        "ALTER TABLE tables ADD COLUMN partition_keys TEXT NOT NULL DEFAULT '[]'",
        "CREATE TABLE partitions (partition_id INTEGER PRIMARY KEY,"
        " table_id INTEGER NOT NULL REFERENCES tables (table_id) ON DELETE CASCADE,"
        " name TEXT NOT NULL, created_ms INTEGER NOT NULL, UNIQUE (table_id, name))",
        f"INSERT INTO counters VALUES ('{PARTITION_ID}', 0)",
    ),
    (
        # Of auto-increment columns: ids from `next` on were never given out.
        "CREATE TABLE row_ids (table_id INTEGER PRIMARY KEY REFERENCES tables (table_id) ON DELETE CASCADE,"
        " next INTEGER NOT NULL)",
        # `snapshots`: a JSON list of [table id, partition id or null, bucket id, snapshot id].
        "CREATE TABLE kv_leases (lease_id TEXT PRIMARY KEY, expires_ms INTEGER NOT NULL, snapshots TEXT NOT NULL)"
        " WITHOUT ROWID",
    ),
    (
        # `decided`: JSON of a commit that was decided and may not be done; null: none.
        "CREATE TABLE staged_queries (table_id INTEGER NOT NULL REFERENCES tables (table_id) ON DELETE CASCADE,"
        " query_id TEXT NOT NULL, committed INTEGER NOT NULL, used_ms INTEGER NOT NULL, decided TEXT,"
        " PRIMARY KEY (table_id, query_id)) WITHOUT ROWID",
    ),
    (
        # `number`: in the order in which they were registered. `offsets`: JSON, as in the file of that name.
        "CREATE TABLE lake_snapshots (table_id INTEGER NOT NULL REFERENCES tables (table_id) ON DELETE CASCADE,"
        " number INTEGER NOT NULL, snapshot_id INTEGER NOT NULL, file_name TEXT NOT NULL, readable INTEGER NOT NULL,"
        " offsets BLOB NOT NULL, PRIMARY KEY (table_id, number), UNIQUE (table_id, snapshot_id)) WITHOUT ROWID",
    ),
    (f"INSERT INTO counters VALUES ('{GENERATION}', 0)",),
    (
        # Of the last committed batch: how many rows, and their digest in hexadecimal; null: not known.
        "ALTER TABLE staged_queries ADD COLUMN row_count INTEGER",
        "ALTER TABLE staged_queries ADD COLUMN digest TEXT",
        # Repeated batches up to this one are done, whatever rows they have.
        "ALTER TABLE staged_queries ADD COLUMN accepted INTEGER NOT NULL DEFAULT -1",
    ),
    (
        # Of tables whose last round of tiering failed.
        "CREATE TABLE lake_errors (table_id INTEGER PRIMARY KEY REFERENCES tables (table_id) ON DELETE CASCADE,"
        " error TEXT NOT NULL, time_ms INTEGER NOT NULL)",
    ),
    (
        # Of the cluster, as they were changed at run time.
        "CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        # `offsets`: a JSON list of [table id, partition id or null, bucket id, offset].
        "CREATE TABLE producers (producer_id TEXT PRIMARY KEY, expires_ms INTEGER NOT NULL, offsets TEXT NOT NULL)"
        " WITHOUT ROWID",
    ),
)
_GENERATION_VERSION: Final = 6  # has generations
SCHEMA_VERSION: Final = len(_MIGRATIONS)


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
    num_buckets: int  # of each partition, if it has partitions
    created_time_ms: int
    modified_time_ms: int
    partition_keys: tuple[str, ...]


class PartitionEntry(NamedTuple):
    partition_id: int
    table_id: int
    name: str
    created_time_ms: int


class LeaseEntry(NamedTuple):
    """KV snapshots that are kept for a reader, one per bucket at most."""

    lease_id: str
    expires_ms: int
    snapshots: dict[TableBucket, int]


class StagedDecision(NamedTuple):
    """What a commit of staged writes appends, and under which writer id."""

    batch_id: int
    writer_id: int
    tasks: tuple[StagedTask, ...]


class StagedQuery(NamedTuple):
    """How far a query has come in writing to a table."""

    table_id: int
    query_id: str
    committed: int  # the last batch, or NO_BATCH
    used_ms: int
    decided: StagedDecision | None = None
    rows: StagedRows | None = None  # of the last batch; None: not known
    accepted: int = NO_BATCH  # repeated batches up to this one are done, whatever rows they have


class LakeSnapshotEntry(NamedTuple):
    """A snapshot of a table in the lake that was registered."""

    table_id: int
    number: int
    snapshot_id: int
    file_name: str  # of the offsets file
    readable: int  # 1: readers may use it
    offsets: bytes


class LakeErrorEntry(NamedTuple):
    """Why the last round of tiering of a table failed."""

    table_id: int
    error: str
    time_ms: int


class ProducerEntry(NamedTuple):
    """Where the buckets ended that a producer writes to, as it registered them before it began."""

    producer_id: str
    expires_ms: int
    offsets: dict[TableBucket, int]

    def is_expired(self, now_ms: int | None) -> bool:
        """Whether its time is over; with None the clock is in doubt, and nothing goes by its age."""
        return now_ms is not None and self.expires_ms <= now_ms


class CatalogContent(NamedTuple):
    databases: list[DatabaseEntry]
    tables: list[TableEntry]
    schemas: list[tuple[int, int, bytes]]  # table id, schema id, JSON
    partitions: list[PartitionEntry]
    counters: dict[str, int]
    row_ids: dict[int, int]  # by table id
    leases: list[LeaseEntry]
    staged_queries: list[StagedQuery]
    lake_snapshots: list[LakeSnapshotEntry]  # of each table in the order of their numbers
    lake_errors: list[LakeErrorEntry]
    settings: list[tuple[str, str]]
    producers: list[ProducerEntry]


class CatalogDatabase:
    """All methods block and belong to one thread."""

    def __init__(self, path: Path) -> None:
        # isolation_level None: transactions begin and end where this file says so.
        self._connection = sqlite3.connect(path, isolation_level=None)
        self.path = path
        self.generation = 0  # raised by each transaction
        try:
            self._execute("PRAGMA journal_mode = WAL")
            self._execute("PRAGMA wal_autocheckpoint = 0")
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
        _check_version(path, version)
        if version < SCHEMA_VERSION:
            with self._transaction():
                for statements in _MIGRATIONS[version:]:
                    for statement in statements:
                        self._execute(statement)
                self._execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        (self.generation,) = self._execute("SELECT next FROM counters WHERE name = ?", GENERATION).fetchone()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            (generation,) = self._execute(
                "UPDATE counters SET next = next + 1 WHERE name = ? RETURNING next", GENERATION
            ).fetchone()
            files.around_commit(self._connection.commit, Site.CATALOG_COMMIT)
            self.generation = generation
        except BaseException:
            if self._connection.in_transaction:
                self._connection.rollback()
            raise

    def load(self) -> CatalogContent:
        tables = self._execute(
            "SELECT table_id, database, name, partition_keys, json, schema_id, buckets, created_ms, modified_ms"
            " FROM tables"
        )
        return CatalogContent(
            [DatabaseEntry(*row) for row in self._execute("SELECT name, json, created_ms, modified_ms FROM databases")],
            [
                TableEntry._make((table_id, TablePath(database, name), *rest, tuple(json.loads(keys))))
                for table_id, database, name, keys, *rest in tables
            ],
            self._execute("SELECT table_id, schema_id, json FROM schemas").fetchall(),
            [
                PartitionEntry(*row)
                for row in self._execute("SELECT partition_id, table_id, name, created_ms FROM partitions")
            ],
            dict(self._execute("SELECT name, next FROM counters")),
            dict(self._execute("SELECT table_id, next FROM row_ids")),
            [
                LeaseEntry(lease_id, expires_ms, _decode_snapshots(snapshots))
                for lease_id, expires_ms, snapshots in self._execute(
                    "SELECT lease_id, expires_ms, snapshots FROM kv_leases"
                )
            ],
            [
                StagedQuery._make((*numbers, _decode_decision(decided), _decode_rows(row_count, digest), accepted))
                for *numbers, decided, accepted, row_count, digest in self._execute(
                    "SELECT table_id, query_id, committed, used_ms, decided, accepted, row_count, digest"
                    " FROM staged_queries"
                )
            ],
            [
                LakeSnapshotEntry(*row)
                for row in self._execute(
                    "SELECT table_id, number, snapshot_id, file_name, readable, offsets FROM lake_snapshots"
                    " ORDER BY table_id, number"
                )
            ],
            [LakeErrorEntry(*row) for row in self._execute("SELECT table_id, error, time_ms FROM lake_errors")],
            self._execute("SELECT key, value FROM settings").fetchall(),
            [
                ProducerEntry(producer_id, expires_ms, _decode_snapshots(offsets))
                for producer_id, expires_ms, offsets in self._execute(
                    "SELECT producer_id, expires_ms, offsets FROM producers"
                )
            ],
        )

    def insert_database(self, entry: DatabaseEntry) -> None:
        with self._transaction():
            self._execute("INSERT INTO databases VALUES (?, ?, ?, ?)", *entry)

    def update_database(self, entry: DatabaseEntry) -> None:
        with self._transaction():
            self._execute(
                "UPDATE databases SET json = ?, modified_ms = ? WHERE name = ?",
                *(entry.json, entry.modified_time_ms, entry.name),
            )

    def delete_database(self, name: str) -> None:
        """Delete a database with its tables."""
        with self._transaction():
            self._execute("DELETE FROM tables WHERE database = ?", name)
            self._execute("DELETE FROM databases WHERE name = ?", name)

    def insert_table(self, entry: TableEntry, schema_json: bytes, partitions: Sequence[PartitionEntry] = ()) -> None:
        """Insert a table and its first partitions."""
        path = entry.path
        with self._transaction():
            self._advance(TABLE_ID, entry.table_id + 1)
            self._execute(
                "INSERT INTO tables (table_id, database, name, json, schema_id, buckets, created_ms, modified_ms,"
                " partition_keys) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                *(entry.table_id, path.database, path.table, *entry[2:7], json.dumps(entry.partition_keys)),
            )
            self._execute("INSERT INTO schemas VALUES (?, ?, ?)", entry.table_id, entry.schema_id, schema_json)
            self._insert_partitions(partitions)

    def update_table(self, entry: TableEntry, new_schema_json: bytes | None) -> None:
        """Replace a table's descriptor and add a schema, if there is a new one."""
        with self._transaction():
            self._execute(
                "UPDATE tables SET json = ?, schema_id = ?, modified_ms = ? WHERE table_id = ?",
                *(entry.table_json, entry.schema_id, entry.modified_time_ms, entry.table_id),
            )
            if new_schema_json is not None:
                self._execute("INSERT INTO schemas VALUES (?, ?, ?)", entry.table_id, entry.schema_id, new_schema_json)

    def delete_table(self, table_id: int) -> None:
        with self._transaction():
            self._execute("DELETE FROM tables WHERE table_id = ?", table_id)

    def insert_partitions(self, entries: Sequence[PartitionEntry]) -> None:
        with self._transaction():
            self._insert_partitions(entries)

    def delete_partitions(self, entries: Sequence[PartitionEntry]) -> None:
        with self._transaction():
            ids = [(entry.partition_id,) for entry in entries]
            self._connection.executemany("DELETE FROM partitions WHERE partition_id = ?", ids)

    def set_row_ids(self, next_ids: Mapping[int, int]) -> None:
        """Set from where on a table's ids are free, for each table."""
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO row_ids VALUES (?, ?) ON CONFLICT (table_id) DO UPDATE SET next = excluded.next",
                next_ids.items(),
            )

    def raise_counters(self, next_ids: Mapping[str, int]) -> None:
        """Let counters go on from these numbers, unless they are there already."""
        with self._transaction():
            for name, next_id in next_ids.items():
                self._execute("UPDATE counters SET next = max(next, ?) WHERE name = ?", next_id, name)

    def put_lease(self, entry: LeaseEntry) -> None:
        """Insert or replace a lease."""
        with self._transaction():
            self._execute(
                "INSERT OR REPLACE INTO kv_leases VALUES (?, ?, ?)",
                *(entry.lease_id, entry.expires_ms, _encode_snapshots(entry.snapshots)),
            )

    def delete_leases(self, lease_ids: Sequence[str]) -> None:
        with self._transaction():
            self._connection.executemany(
                "DELETE FROM kv_leases WHERE lease_id = ?", [(lease_id,) for lease_id in lease_ids]
            )

    def put_staged_query(self, entry: StagedQuery) -> None:
        with self._transaction():
            self._execute(
                "INSERT OR REPLACE INTO staged_queries (table_id, query_id, committed, used_ms, decided, accepted,"
                " row_count, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                *(*entry[:4], entry.decided and json.dumps(entry.decided), entry.accepted, *_encode_rows(entry.rows)),
            )

    def delete_staged_queries(self, keys: Sequence[tuple[int, str]]) -> None:
        """Delete staged queries by table id and query id."""
        with self._transaction():
            self._connection.executemany("DELETE FROM staged_queries WHERE table_id = ? AND query_id = ?", keys)

    def put_lake_snapshot(self, entry: LakeSnapshotEntry, number_kept_min: int) -> None:
        """Insert a snapshot and forget those of its table with smaller numbers."""
        with self._transaction():
            self._execute("INSERT INTO lake_snapshots VALUES (?, ?, ?, ?, ?, ?)", *entry)
            self._execute(
                "DELETE FROM lake_snapshots WHERE table_id = ? AND number < ?", entry.table_id, number_kept_min
            )

    def delete_lake_snapshots(self, table_id: int) -> None:
        with self._transaction():
            self._execute("DELETE FROM lake_snapshots WHERE table_id = ?", table_id)

    def put_lake_error(self, entry: LakeErrorEntry) -> None:
        """Insert or replace the error of a table."""
        with self._transaction():
            self._execute("INSERT OR REPLACE INTO lake_errors VALUES (?, ?, ?)", *entry)

    def delete_lake_error(self, table_id: int) -> None:
        with self._transaction():
            self._execute("DELETE FROM lake_errors WHERE table_id = ?", table_id)

    def change_settings(self, changes: Mapping[str, str | None]) -> None:
        """Set these, and delete those whose value is None."""
        with self._transaction():
            for key, value in changes.items():
                if value is None:
                    self._execute("DELETE FROM settings WHERE key = ?", key)
                else:
                    self._execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", key, value)

    def put_producer(self, entry: ProducerEntry, expired: Sequence[str]) -> None:
        """Insert or replace the offsets of a producer, and delete those of others."""
        with self._transaction():
            self._connection.executemany(
                "DELETE FROM producers WHERE producer_id = ?", [(producer_id,) for producer_id in expired]
            )
            self._execute(
                "INSERT OR REPLACE INTO producers VALUES (?, ?, ?)",
                *(entry.producer_id, entry.expires_ms, _encode_snapshots(entry.offsets)),
            )

    def delete_producer(self, producer_id: str) -> None:
        with self._transaction():
            self._execute("DELETE FROM producers WHERE producer_id = ?", producer_id)

    def copy_to(self, path: Path) -> None:
        """Make a database with the same content; it is on disk when this returns, its name need not be."""
        with closing(sqlite3.connect(path)) as target, files.creating(Site.BACKUP_COPY):
            self._connection.backup(target)
        fd = files.open_existing(path, writable=False)
        try:
            files.sync(fd, Site.BACKUP_COPY)
        finally:
            files.close(fd)

    @property
    def wal_size_bytes(self) -> int:
        """How much was committed since the catalog was settled, about."""
        try:
            return os.stat(f"{self.path}-wal").st_size
        except FileNotFoundError:
            return 0

    def settle(self) -> tuple[int, int]:
        """Move all that was committed into the database file, durably: its size and checksum from now on."""
        busy, _, _ = self._execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise sqlite3.OperationalError("the catalog is being read")
        return file_checksum(self.path)

    def close(self) -> None:
        self._connection.close()

    def _insert_partitions(self, entries: Sequence[PartitionEntry]) -> None:
        if entries:
            self._advance(PARTITION_ID, entries[-1].partition_id + 1)
            self._connection.executemany("INSERT INTO partitions VALUES (?, ?, ?, ?)", entries)

    def _advance(self, counter: str, next_id: int) -> None:
        self._execute("UPDATE counters SET next = ? WHERE name = ?", next_id, counter)


def _check_version(path: Path, version: int) -> None:
    if version > SCHEMA_VERSION:
        raise FlussError(
            f"{path} has schema version {version}, this program knows {SCHEMA_VERSION}. Upgrade flussbett.",
            ErrorCode.STORAGE_EXCEPTION,
        )


def look_at(path: Path, *, check_all: bool) -> tuple[int, str | None]:
    """The generation of a database that is not changed by this, and what is wrong with it; None: nothing."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        if check_all:
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if found != "ok":
                return 0, str(found)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        _check_version(path, version)
        if version < _GENERATION_VERSION:
            return 0, None
        (generation,) = connection.execute("SELECT next FROM counters WHERE name = ?", (GENERATION,)).fetchone()
    return generation, None


def file_checksum(path: Path) -> tuple[int, int]:
    """Size and CRC-32 of a file."""
    size_bytes = crc = 0
    with path.open("rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            crc = zlib.crc32(data, crc)
            size_bytes += len(data)
    return size_bytes, crc


def _encode_snapshots(snapshots: Mapping[TableBucket, int]) -> str:
    return json.dumps(
        [[bucket.table_id, bucket.partition_id, bucket.bucket_id, snapshot] for bucket, snapshot in snapshots.items()]
    )


def _decode_snapshots(text: str) -> dict[TableBucket, int]:
    return {
        TableBucket(table_id, bucket_id, partition_id): snapshot_id
        for table_id, partition_id, bucket_id, snapshot_id in json.loads(text)
    }


def _decode_decision(text: str | None) -> StagedDecision | None:
    if text is None:
        return None
    batch_id, writer_id, tasks = json.loads(text)
    # Those of older versions say nothing of their rows.
    return StagedDecision(batch_id, writer_id, tuple(StagedTask(*task) for task in tasks))


def _encode_rows(rows: StagedRows | None) -> tuple[int | None, str | None]:
    # SQLite's integers have a sign.
    return (None, None) if rows is None else (rows.row_count, f"{rows.digest:x}")


def _decode_rows(row_count: int | None, digest: str | None) -> StagedRows | None:
    return None if row_count is None or digest is None else StagedRows(row_count, int(digest, 16))


CatalogWork = Callable[[CatalogDatabase], None]

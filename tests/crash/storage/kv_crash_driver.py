"""A process to be killed: puts rows into a primary-key table, makes snapshots, loses its store and gets it back.

Every put is told when it is acknowledged; what it puts follows from its sequence number, so a test knows what the rows
must be after any number of puts. Rows of a second table get numbers, which are told.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa

from fluss.model.paths import TableBucket, TablePath
from fluss.model.schema import Schema
from fluss.model.tables.options import AUTO_INCREMENT_CACHE_SIZE
from fluss.storage import failpoints
from fluss.storage.kv.snapshots import KvSnapshots
from fluss.storage.store import Storage, StorageOptions
from tests.kit.storage.kv_tables import KV_MEMORY_BYTES, Row, Table, row

T = TablePath("fluss", "t")
WRITER_ID = 4
KEYS = 50
BATCHES = 12
SEGMENT_SIZE_BYTES = 8_000
NUMBERED = TablePath("fluss", "numbered")
NUMBERED_SCHEMA = Schema(
    pa.schema([("id", pa.int64()), ("number", pa.int64())]), primary_keys=["id"], auto_increment_column="number"
)
NUMBERS_BLOCK = 3


def batch(sequence: int) -> tuple[list[Row], list[int]]:
    """Rows and deletes."""
    chance = random.Random(sequence)
    rows = [row(chance.randrange(KEYS), f"put {sequence}") for _ in range(10)]
    return rows, [chance.randrange(KEYS) for _ in range(3)]


def rows_after(puts: int) -> dict[int, Row]:
    """What so many puts leave, by id."""
    kept: dict[int, Row] = {}
    for sequence in range(puts):
        rows, deletes = batch(sequence)
        kept.update({changed["id"]: changed for changed in rows})
        for key in deletes:
            kept.pop(key, None)
    return kept


def options(data_dir: str) -> StorageOptions:
    return StorageOptions(data_dir, segment_size_bytes=SEGMENT_SIZE_BYTES, kv_memory_bytes=KV_MEMORY_BYTES)


async def number(table: Table, ids: Sequence[int]) -> list[int]:
    """Make rows with these ids; the numbers that they got."""
    keys = [table.key(one) for one in ids]
    await table.kv().insert_missing(keys)
    return [found["number"] for found in table.rows(await table.kv().get_many(keys)) if found is not None]


class Driver:
    def __init__(self, data_dir: str, output_fd: int) -> None:
        self._data_dir = data_dir
        self._output_fd = output_fd
        self._sequence = 0

    def tell(self, *words: object) -> None:
        os.write(self._output_fd, (" ".join(map(str, words)) + "\n").encode())

    async def main(self) -> None:
        storage = await Storage.open(options(self._data_dir))
        table = await Table.create(storage)
        block = {AUTO_INCREMENT_CACHE_SIZE: str(NUMBERS_BLOCK)}
        await Table.create(storage, NUMBERED_SCHEMA, NUMBERED.table_name, properties=block)
        self.tell("table")
        await self._number(storage, 0)
        snapshots = KvSnapshots(storage, storage.kv.bucket)
        for _ in range(4):
            await self._puts(table)
            await snapshots.make(TableBucket(table.table_id, 0))
        await self._puts(table)
        kv = storage.bucket_path(table.bucket()) / "kv"
        await storage.close()
        (kv / "CURRENT").unlink()
        storage = await Storage.open(options(self._data_dir))
        await self._number(storage, 100)
        await self._puts(Table(storage, T))
        await storage.close()
        self.tell("done")

    async def _number(self, storage: Storage, first: int) -> None:
        for start in range(first, first + 2 * NUMBERS_BLOCK, 2):
            self.tell("numbers", *await number(Table(storage, NUMBERED), [start, start + 1]))

    async def _puts(self, table: Table) -> None:
        """Some at a time, so that several are between log and store."""
        puts = []
        for _ in range(BATCHES):
            rows, deletes = batch(self._sequence)
            made = table.batch(rows, deletes, writer_id=WRITER_ID, sequence=self._sequence)
            puts.append((self._sequence, table.kv().put(made)))
            self._sequence += 1
        for sequence, put in puts:
            await put.applied
            self.tell("ack", sequence)


def run(data_dir: str, fail_point: str | None, output: Connection) -> None:
    """A multiprocessing target, with a pipe for its output."""
    if fail_point is not None:
        failpoints.arm(fail_point)
    Path(data_dir).parent.mkdir(parents=True, exist_ok=True)
    asyncio.run(Driver(data_dir, output.fileno()).main())

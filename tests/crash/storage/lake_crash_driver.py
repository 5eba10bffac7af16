"""A process to be killed: rows are appended, lake snapshots prepared and registered, and what is done is told."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

from fluss.model.paths import TableBucket, TablePath
from fluss.storage.store import Storage, StorageOptions
from tests.crash.storage.driver_output import drive, tell
from tests.kit.storage.logs import append

TABLE = TablePath("fluss", "t")
TABLE_JSON = '{"properties":{"table.datalake.enabled":"true"}}'
ROUNDS = 4
ROWS = 3  # of a batch, which makes a round


def options(root: str | Path) -> StorageOptions:
    return StorageOptions(root)


async def tier(storage: Storage, round_number: int) -> None:
    """One round of a job; snapshots of even rounds are forgotten by later ones."""
    table = storage.catalog.table(TABLE)
    bucket = TableBucket(table.table_id, 0)
    await append(storage.bucket(bucket), "rows", records=ROWS).durable
    end = storage.bucket(bucket).high_watermark
    path = await storage.lake.prepare(table, {bucket: end}, merge=True)
    tell("prepared", round_number, end, path)
    keep = None if round_number % 2 else -1
    await storage.lake.commit(table.table_id, round_number, path, readable=True, earliest_to_keep=keep)
    tell("registered", round_number, end)


async def main(root: str) -> None:
    storage = await Storage.open(options(root))
    await storage.catalog.create_table(TABLE, TABLE_JSON, "{}", 1, ignore_if_exists=True)
    latest = storage.lake.latest(storage.catalog.table(TABLE).table_id)
    for round_number in range(0 if latest is None else latest.snapshot_id + 1, ROUNDS):
        await tier(storage, round_number)
    await storage.close()
    tell("done")


def run(root: str, fail_point: str | None, output: Connection) -> None:
    """The driver as a multiprocessing target, with a pipe for its output."""
    drive(main(root), fail_point, output)

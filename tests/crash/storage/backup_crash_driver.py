"""A process to be killed: rows are written, a backup is made, and another one that fails; what is done is told."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

from fluss.model.errors import FlussError
from fluss.model.paths import TableBucket, TablePath
from fluss.storage.backup.backup import Backup
from fluss.storage.kv.snapshots import KvSnapshots
from fluss.storage.store import Storage, StorageOptions
from tests.crash.storage.driver_output import drive, tell
from tests.kit.storage.kv_tables import KV_MEMORY_BYTES, Table, row
from tests.kit.storage.logs import append

LOG = TablePath("fluss", "log")
ROWS = TablePath("fluss", "rows")
BATCHES = 12
SEGMENT_SIZE_BYTES = 300


def options(root: str | Path) -> StorageOptions:
    return StorageOptions(root, segment_size_bytes=SEGMENT_SIZE_BYTES, kv_memory_bytes=KV_MEMORY_BYTES)


async def fill(storage: Storage, snapshots: KvSnapshots) -> None:
    table = await storage.catalog.create_table(LOG, "{}", "{}", 1)
    log = storage.bucket(TableBucket(table.table_id, 0))
    for number in range(BATCHES):
        await append(log, str(number), records=1, writer_id=7, sequence=number).durable
    rows = await Table.create(storage, name=ROWS.table)
    for number in range(BATCHES):
        await rows.kv().put(rows.batch([row(number, str(number), number)])).applied
    await snapshots.make(rows.bucket())
    tell("written")


async def main(root: str, target: str) -> None:
    storage = await Storage.open(options(root))
    snapshots = KvSnapshots(storage, storage.kv.bucket)
    if not storage.catalog.table_exists(ROWS):
        await fill(storage, snapshots)
    if not Path(target).exists():
        await Backup(storage, snapshots, Path(target)).run()
        tell("backup")
    fails = Backup(storage, snapshots, Path(target + ".failed"))
    fails.stop()
    try:
        await fails.run()
    except FlussError:
        tell("failed")
    await storage.close()
    tell("done")


def run(root: str, target: str, fail_point: str | None, output: Connection) -> None:
    """The driver as a multiprocessing target, with a pipe for its output."""
    drive(main(root, target), fail_point, output)

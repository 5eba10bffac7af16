"""Fills a small file system, run as `python -m tests.unit.storage.full_disk_driver <directory> disk|file`.

With "disk" the directory is a file system of a few MiB: the guard refuses writes first, then, switched off, the disk
does. With "file" only single files are limited, so the disk never is.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from fluss.model.errors import ErrorCode, FlussError
from fluss.model.paths import TableBucket, TablePath
from fluss.storage.store import Storage, StorageOptions
from tests.kit.storage.logs import append, read_all

FILE_BYTES_MAX = 2 << 20
FREE_BYTES_MIN = 4 << 20
SEGMENT_BYTES = 4 << 20
BATCH_BYTES = 100_000
BATCHES_MAX = 1_000


async def fill(storage: Storage, bucket: TableBucket, first: int) -> int:
    """Append until refused; how many rows were acknowledged."""
    log = storage.bucket(bucket)
    for number in range(first, first + BATCHES_MAX):
        try:
            await append(log, f"row {number} ".ljust(BATCH_BYTES, "."), records=1).durable
        except FlussError as error:
            if error.error_code != ErrorCode.LOG_STORAGE_EXCEPTION:
                raise
            return number - first
    raise AssertionError("the disk is never full")


def check(storage: Storage, bucket: TableBucket, count: int) -> None:
    rows = [text.split(".")[0].strip() for _, text in read_all(storage.bucket(bucket))]
    assert rows == [f"row {number}" for number in range(count)], rows[-3:]


async def guarded(root: Path) -> None:
    """Room is left, reads go on, and after a drop writes do."""
    storage = await Storage.open(
        StorageOptions(root, segment_size_bytes=SEGMENT_BYTES, disk_free_bytes_min=FREE_BYTES_MIN)
    )
    tables = [await storage.catalog.create_table(TablePath("fluss", name), "{}", "{}", 1) for name in ("a", "b")]
    a, b = (TableBucket(table.table_id, 0) for table in tables)
    count = await fill(storage, a, 0)
    assert count > 10
    assert storage.disk_guard.free_bytes() > FREE_BYTES_MIN // 2
    check(storage, a, count)
    await storage.catalog.drop_table(tables[0].path)
    while storage._removals:
        await asyncio.wait(storage._removals.values())
    # A look costs a second's wait.
    storage.disk_guard._looked_at_s = float("-inf")
    assert await fill(storage, b, 0) > 10
    await storage.close()


async def unguarded(root: Path) -> None:
    """The write itself fails: nothing acknowledged is lost, nothing half written is served, others go on."""
    storage = await Storage.open(StorageOptions(root, segment_size_bytes=SEGMENT_BYTES, disk_free_bytes_min=0))
    table = await storage.catalog.create_table(TablePath("fluss", "t"), "{}", "{}", 1)
    bucket = TableBucket(table.table_id, 0)
    count = await fill(storage, bucket, 0)
    assert count > 10
    assert await fill(storage, bucket, count) == 0
    check(storage, bucket, count)
    await storage.close()
    storage = await Storage.open(StorageOptions(root, segment_size_bytes=SEGMENT_BYTES, disk_free_bytes_min=0))
    check(storage, bucket, count)
    await storage.close()


async def main(directory: Path, limited: str) -> None:
    if limited == "disk":
        await guarded(directory / "guarded")
    else:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    await unguarded(directory / "unguarded")
    print("done")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))

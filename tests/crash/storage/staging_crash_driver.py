"""A process to be killed: writes batches of a query through staging, and tells which are committed.

It begins with the first batch each time, as a client would that was told nothing.
"""

from __future__ import annotations

import asyncio
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from fluss.storage.store import Storage, StorageOptions
from tests.crash.storage.driver_output import drive, tell
from tests.kit.storage.kv_tables import KV_MEMORY_BYTES
from tests.kit.storage.staging import LOG, ROWS, SUMS, create_all, write

BATCHES = 3
SEGMENT_SIZE_BYTES = 400
PATHS = (LOG, ROWS, SUMS)


def options(root: str | Path) -> StorageOptions:
    return StorageOptions(root, segment_size_bytes=SEGMENT_SIZE_BYTES, kv_memory_bytes=KV_MEMORY_BYTES)


async def main(root: str) -> None:
    storage = await Storage.open(options(root))
    await create_all(storage)
    await storage.staging.recover()
    attempt = time.time_ns()
    for batch_id in range(BATCHES):
        for path in PATHS:
            await write(storage, path, batch_id, attempt)
            tell("committed", path.table, batch_id)
    await storage.close()
    tell("done")


def run(root: str, fail_point: str | None, output: Connection) -> None:
    """The driver as a multiprocessing target, with a pipe for its output."""
    drive(main(root), fail_point, output)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

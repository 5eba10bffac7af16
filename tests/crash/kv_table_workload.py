"""A primary-key table that is written to, and says what is acknowledged, in a process that can be watched.

Run as `python -m tests.crash.kv_table_workload <directory> <seed> <batches>`. A byte is added to the file `acks` for
each batch once it is acknowledged, so a trace of system calls shows what was acknowledged before which of them.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from fluss.storage.kv.snapshots import KvSnapshots
from tests.crash.kv_stored import BUCKET, open_bucket, open_storage
from tests.kit.loads.kv_model import Model, random_batch

DATA, ACKS = "data", "acks"
SNAPSHOT_SHARE = 0.05
UNDER_WAY_MAX = 4


def models(seed: int, batches: int) -> list[Model]:
    """The table after each number of batches, from 0 on."""
    chance = random.Random(seed)
    model = Model()
    found = [Model()]
    for _ in range(batches):
        model.apply(random_batch(chance))
        found.append(Model(dict(model.rows), list(model.changes)))
    return found


async def run(directory: Path, seed: int, batches: int) -> None:
    chance = random.Random(seed)
    steps = random.Random(f"{seed}/steps")
    (directory / DATA).mkdir(parents=True)
    acks = os.open(directory / ACKS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    parent = os.open(directory, os.O_RDONLY)
    os.fsync(parent)
    storage = await open_storage(directory / DATA)
    kv = await open_bucket(storage)
    snapshots = KvSnapshots(storage, storage.kv.bucket)
    sequence = 0
    while sequence < batches:
        puts = []
        for _ in range(min(steps.randint(1, UNDER_WAY_MAX), batches - sequence)):
            batch = random_batch(chance)
            puts.append(kv.put(memoryview(batch.encode(0, sequence)), batch.targets))
            sequence += 1
        for put in puts:
            await put.applied
            os.write(acks, b".")
        if steps.random() < SNAPSHOT_SHARE:
            await snapshots.make(BUCKET)
    await storage.close()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))

"""A loss of power on a primary-key table, RocksDB and catalog included: the table is never ahead of its log.

The whole data directory is watched by strace, and what the disk may hold at random moments is played: what was not
synced is gone, torn, or there. Not among the default tests: a machine without strace must be able to run those.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash import kv_table_workload
from tests.crash.kv_stored import check_whole, open_storage
from tests.crash.kv_table_workload import ACKS, DATA, models
from tests.crash.traced_disk import Disk, can_trace, read_trace, traced
from tests.kit.loads.kv_model import Model

ROOT = Path(__file__).parents[2]
BATCHES = 80
LOSSES = 25
FULL_LOSSES = 400


def lose_power(directory: Path, seed: int, losses: int) -> None:
    assert can_trace(), "install strace to run this test"
    chance = random.Random(seed)
    live, trace = directory / "live", directory / "trace"
    live.mkdir()
    command = [sys.executable, "-m", kv_table_workload.__name__, str(live), str(seed), str(BATCHES)]
    subprocess.run([*traced(trace), *command], cwd=ROOT, check=True)
    calls = read_trace(trace)
    known = models(seed, BATCHES)
    beyond = 0
    for loss in range(losses):
        step = chance.randrange(len(calls))
        disk = Disk(live)
        disk.play(calls[:step])
        acknowledged = disk.size_bytes(live / ACKS)
        image = directory / f"image-{loss}"
        disk.write_image(image, chance)
        try:
            beyond += asyncio.run(check(image / DATA, known, acknowledged))
        except BaseException as error:
            error.add_note(f"power lost after step {step} of seed {seed}, {acknowledged} batches acknowledged: {image}")
            raise
        shutil.rmtree(image)
    assert beyond, "no loss ever came between the log and its acknowledgement: they prove little"


async def check(data_dir: Path, known: list[Model], acknowledged: int) -> int:
    """What is there is the table after some batches, all acknowledged ones among them; how many more there are."""
    if not data_dir.exists():
        assert not acknowledged
        return 0
    storage = await open_storage(data_dir)
    try:
        changes = await check_whole(storage)
    finally:
        await storage.close()
    # The table equals the fold of its log, so only the log is left to compare.
    stored = next((number for number, model in enumerate(known) if model.changes == changes), None)
    assert stored is not None, f"the log has {len(changes)} offsets, which no number of batches leaves"
    assert stored >= acknowledged, f"{stored} batches are there"
    return stored - acknowledged


@pytest.mark.full
@pytest.mark.timeout(300)
def test_power_loss(tmp_path: Path, seed: int) -> None:
    lose_power(tmp_path, seed, LOSSES)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_many_power_losses(tmp_path: Path, seed: int) -> None:
    lose_power(tmp_path, seed, FULL_LOSSES)

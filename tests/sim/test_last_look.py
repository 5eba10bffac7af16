"""The last look is at a server that has done all that clients have left to it."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random

import fluss.sync
from fluss.storage.failpoints import Site, Step
from fluss.testing.sim.history import Bucket
from fluss.testing.sim.scheduler import SimThread, Trace
from fluss.testing.sim.tables import LOG, drawn_tables
from fluss.testing.sim.workload import SimWorkload, Sizes
from fluss.testing.sim.world import ADDRESS, World


def rows_of_a_killed_client(root: Path) -> int:
    """How many rows the last look finds when a client is killed while its only row is being synced."""
    with World(1, root, Trace()) as world:
        world.start_server()
        assert world.await_server()
        table = drawn_tables(Random(1))[LOG]
        workload = SimWorkload(world, 1, {LOG: table}, Sizes(), {})
        world.spawn(world.process("host"), "setup", workload.set_up).join()

        def append() -> None:
            connection = fluss.sync.connect(ADDRESS)
            connection.get_table(table.path).new_append().create_writer().append({"id": 1, "text": ""}).wait()

        world.disk.faults.slow_sync_share = 1.0
        client: SimThread = world.spawn(world.process("host-b0"), "client", append)
        while not world.points.passed[Site.SEGMENT_APPEND, Step.AFTER_WRITE]:
            world.scheduler.sleep(0.001)
        world.kill_process(client.process)
        world.disk.faults.slow_sync_share = 0.0
        world.spawn(world.process("host"), "last look", workload.last_look).join()
        return sum(len(workload.contents[Bucket(LOG, number)].records) for number in range(table.buckets))


def test_the_last_look_sees_what_a_killed_client_has_sent(tmp_path: Path) -> None:
    # A world leaves threads behind: it has a process of its own.
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        assert processes.submit(rows_of_a_killed_client, tmp_path).result(60) == 1

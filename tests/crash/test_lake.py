"""Tiering while the server is killed: no registered snapshot is lost, and an interrupted round can be carried on."""

from __future__ import annotations

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

import fluss
import fluss.sync
from fluss.api.operations import LakeRegistry
from fluss.storage import failpoints
from fluss.storage.failpoints import STEPS, Site
from tests.crash.fail_point_hits import LAKE_HITS, LAKE_ROUNDS
from tests.crash.servers import new_server
from tests.kit.loads.writers import POLL_INTERVAL_S

ROWS: Final = 50
HITS: Final[dict[Site, int]] = {**LAKE_HITS, Site.CATALOG_COMMIT: LAKE_ROUNDS}
PATH: Final = fluss.TablePath("fluss", "tiered")
SCHEMA: Final = pa.schema([("id", pa.int64())])
DEATH_S_MAX: Final = 30.0
# The lake of this test: its newest snapshot, as (id, offset, path of the offsets file).
Head = tuple[int, int, str] | None


class Lake:
    """A job and the lake to which it writes; the lake survives whatever happens to the server."""

    def __init__(self) -> None:
        self.head: Head = None
        self.registered = 0  # as acknowledged
        self._connection: fluss.sync.FlussConnection | None = None

    def run(self, address: str) -> None:
        """Rounds until all are done, by a new job."""
        with fluss.sync.connect(address) as connection:
            self._connection = connection
            registry = LakeRegistry(connection)
            info = connection.get_admin().get_table_info(PATH)
            bucket = fluss.TableBucket(info.table_id, 0)
            self._repair(registry, info)
            while self.head is None or self.head[0] < LAKE_ROUNDS:
                self._round(connection, registry, info, bucket)

    def give_up(self) -> None:
        """The job that runs ends with an error, unless it is through."""
        assert self._connection is not None
        self._connection.close()

    def _repair(self, registry: LakeRegistry, info: fluss.TableInfo) -> None:
        known = registry.latest(PATH)
        if self.registered:
            assert known is not None
            assert known.snapshot_id >= self.registered, "a snapshot that was acknowledged is lost"
        if self.head is not None and (known is None or known.snapshot_id < self.head[0]):
            registry.commit(info, self.head[0], self.head[2], {})

    def _round(
        self,
        connection: fluss.sync.FlussConnection,
        registry: LakeRegistry,
        info: fluss.TableInfo,
        bucket: fluss.TableBucket,
    ) -> None:
        writer = connection.get_table(PATH).new_append().create_writer()
        writer.write_arrow(pa.table({"id": range(ROWS)}, SCHEMA))
        writer.flush()
        end = connection.get_admin().list_offsets(PATH, [0], fluss.OffsetSpec.latest())[0]
        number = 1 if self.head is None else self.head[0] + 1
        path = registry.prepare(info, {bucket: end})
        self.head = (number, end, path)
        registry.commit(info, number, path, {bucket: end})
        self.registered = number


def kill_at(directory: Path, name: str, count: int, *, new_job: bool) -> None:
    """The job tries again until the server is back; or it dies too, and another one carries on."""
    spec = f"{name}:{count}"
    print(f"fail point {spec}, {new_job=}")
    lake = Lake()
    with new_server(directory) as server, ThreadPoolExecutor(1) as thread:
        address = server.bootstrap_servers
        with fluss.sync.connect(address) as connection:
            properties = {"table.datalake.enabled": "true"}
            descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1, properties=properties)
            connection.get_admin().create_table(PATH, descriptor)
        server.terminate()
        server.env = {failpoints.ENVIRONMENT_VARIABLE: spec}
        server.start()
        job = thread.submit(lake.run, address)
        deadline = time.monotonic() + DEATH_S_MAX
        while server.process.returncode is None and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        assert server.process.returncode == -signal.SIGKILL, f"{spec} was not reached"
        if new_job:
            lake.give_up()
            with pytest.raises(fluss.FlussError):
                job.result(DEATH_S_MAX)
        server.env = {}
        server.start()
        if new_job:
            job = thread.submit(lake.run, address)
        job.result(DEATH_S_MAX)
        with fluss.sync.connect(address) as connection:
            latest = connection.get_admin().get_latest_lake_snapshot(PATH)
        assert lake.head is not None
        assert (latest.snapshot_id, list(latest.table_buckets_offset.values())) == (LAKE_ROUNDS, [lake.head[1]])
        assert "Traceback" not in server.log_file.read_text()


@pytest.mark.parametrize("site", HITS)
def test_killed_at_a_step_of(tmp_path: Path, chance: random.Random, site: Site) -> None:
    kill_at(
        tmp_path, f"{site}.{chance.choice(STEPS[site])}", chance.randint(1, HITS[site]), new_job=chance.random() < 0.5
    )


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [f"{site}.{step}" for site in HITS for step in STEPS[site]])
def test_killed_at(tmp_path: Path, chance: random.Random, name: str) -> None:
    most = next(count for site, count in HITS.items() if name in {f"{site}.{step}" for step in STEPS[site]})
    for count in sorted({1, most, chance.randint(1, most)}):
        for new_job in (False, True):
            kill_at(tmp_path / f"{count}-{new_job}", name, count, new_job=new_job)

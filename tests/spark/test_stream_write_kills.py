"""Exactly-once streams whose driver, task and server are killed: sums and rows stay exact."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fluss.sync import Config, DataTypes, FlussConnection, Schema, TableDescriptor, TablePath
from fluss.testing import FlussServer
from tests.spark.stream_job import BATCH_COUNT, KILLS

pytestmark = [pytest.mark.spark, pytest.mark.full]

T = DataTypes
ROWS, KEYS = 1_000, 10
RUN_S_MAX = 500.0
# In the middle of the first commit: some of its batches are in the log, the next one only in part.
KILLED_SERVER = {"FLUSS_FAIL_POINT": "segment.append.torn_write:3"}


def _run_job(server: FlussServer, path: TablePath, folder: Path) -> tuple[int, int]:
    """Run the stream until its process ends, starting the server again if it dies; returns exit code and restarts."""
    command = [sys.executable, "-m", "tests.spark.stream_job", server.bootstrap_servers, str(path), str(folder)]
    restarts = 0
    deadline = time.monotonic() + RUN_S_MAX
    with (folder / "job.log").open("ab") as log:
        job = subprocess.Popen(command, stdout=log, stderr=log, cwd=Path(__file__).parents[2])
        try:
            while job.poll() is None:
                if server.process.returncode is not None:
                    server.restart(env={})
                    restarts += 1
                assert time.monotonic() < deadline, (folder / "job.log").read_text()[-3_000:]
                time.sleep(0.1)
        finally:
            job.kill()
            job.wait()
    return job.returncode, restarts


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("aggregating", [True, False])
def test_rows_are_exact_whatever_is_killed(tmp_path: Path, aggregating: bool) -> None:
    (tmp_path / "feed").mkdir()
    for number in range(BATCH_COUNT):
        rows = pa.table(
            {"id": [row % KEYS for row in range(ROWS)], "value": [number * ROWS + row for row in range(ROWS)]}
        )
        pq.write_table(rows, tmp_path / "feed" / f"{number}.parquet")
    builder = Schema.builder().column("id", T.bigint())
    if aggregating:
        schema = builder.column("value", T.bigint(), agg_function="sum").primary_key(["id"]).build()
        descriptor = TableDescriptor(schema, bucket_count=3, properties={"table.merge-engine": "aggregation"})
    else:
        descriptor = TableDescriptor(builder.column("value", T.bigint()).build(), bucket_count=3, bucket_keys=["id"])
    path = TablePath("fluss", "killed")
    with FlussServer(tmp_path / "data", env=KILLED_SERVER) as server:
        config = Config({"bootstrap.servers": server.bootstrap_servers})
        with FlussConnection.create(config) as connection:
            connection.get_admin().create_table(path, descriptor)
        driver_kills, server_restarts = 0, 0
        while True:
            code, restarts = _run_job(server, path, tmp_path)
            server_restarts += restarts
            if code == 0:
                break
            driver_kills += 1
            assert driver_kills <= len(KILLS), (tmp_path / "job.log").read_text()[-3_000:]
        with FlussConnection.create(config) as connection:
            found = connection.get_table(path).new_scan().to_arrow()
    assert server_restarts == 1
    assert driver_kills == sum(victim == "driver" for _, _, victim in KILLS)
    assert len(list(tmp_path.glob("killed-*"))) == len(KILLS)
    values = range(BATCH_COUNT * ROWS)
    if aggregating:
        expected = {key: sum(value for value in values if value % KEYS == key) for key in range(KEYS)}
        assert dict(zip(*found.to_pydict().values(), strict=True)) == expected
    else:
        assert sorted(found.column("value").to_pylist()) == list(values)

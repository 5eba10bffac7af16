"""Many keys in one bucket: how fast they load, what the server needs, how soon it is back after a restart.

    python benchmarks/kv_scale.py [million keys]

Rows have 100-byte values and keys in random order. After the load some keys are looked up, the server is stopped and
started, and killed and started, and each time the first lookup is timed; then random keys are updated.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import fluss.sync as fluss
from fluss.testing import FlussServer

MILLION_KEYS = 10
BATCH_ROWS = 50_000
UPDATE_ROWS = 1_000_000
LOOKUPS = 2_000
PATH = fluss.TablePath("fluss", "scale")
SCHEMA = pa.schema([("id", pa.int64()), ("payload", pa.string())])
PAYLOAD = "{:025d}" * 4


def batch(ids: np.ndarray[Any, np.dtype[np.int64]], version: int) -> pa.RecordBatch:
    payloads = [PAYLOAD.format(*(number * 7 + version,) * 4) for number in ids.tolist()]
    return pa.record_batch([pa.array(ids), pa.array(payloads)], schema=SCHEMA)


def write(
    table: fluss.FlussTable, ids: np.ndarray[Any, np.dtype[np.int64]], version: int, pid: int
) -> tuple[float, int]:
    """Rows a second, and the most memory that the server had meanwhile."""
    began, peak = time.monotonic(), 0
    writer = table.new_upsert().create_writer()
    for start in range(0, len(ids), BATCH_ROWS):
        writer.write_arrow_batch(batch(ids[start : start + BATCH_ROWS], version))
        peak = max(peak, psutil.Process(pid).memory_info().rss)
    writer.flush()
    peak = max(peak, psutil.Process(pid).memory_info().rss)
    return len(ids) / (time.monotonic() - began), peak


def look_up(table: fluss.FlussTable, count: int, version: int) -> float:
    """The median time in ms; every row is checked."""
    lookuper = table.new_lookup().create_lookuper()
    times = []
    for number in random.Random(3).sample(range(count), LOOKUPS):
        began = time.monotonic()
        row = lookuper.lookup([number])
        times.append(time.monotonic() - began)
        assert row == {"id": number, "payload": PAYLOAD.format(*(number * 7 + version,) * 4)}, row
    return sorted(times)[len(times) // 2] * 1_000


def main() -> None:
    count = int((float(sys.argv[1]) if len(sys.argv) > 1 else MILLION_KEYS) * 1_000_000)
    ids = np.random.default_rng(1).permutation(count)
    with tempfile.TemporaryDirectory() as folder, FlussServer(Path(folder) / "data") as server:
        address = server.bootstrap_servers
        with fluss.connect(address) as connection:
            schema = fluss.Schema(SCHEMA, primary_keys=["id"])
            connection.get_admin().create_table(PATH, fluss.TableDescriptor(schema, bucket_count=1))
            table = connection.get_table(PATH)
            rate, peak = write(table, ids, 0, server.pid)
            print(f"load    {count:,} keys, {rate:,.0f} rows/s, server {peak / 1e6:,.0f} MB at most", flush=True)
            print(f"lookup  {look_up(table, count, 0):.2f} ms median", flush=True)
        for how, stop in (("stopped", server.terminate), ("killed", server.kill)):
            began = time.monotonic()
            stop()
            stopped = time.monotonic()
            server.start()
            with fluss.connect(address) as connection:
                assert connection.get_table(PATH).new_lookup().lookup([count - 1]) is not None
                took = time.monotonic() - stopped
                memory = psutil.Process(server.pid).memory_info().rss / 1e6
                print(f"{how:7} in {stopped - began:.2f} s, first row {took:.2f} s after, {memory:,.0f} MB", flush=True)
        with fluss.connect(address) as connection:
            table = connection.get_table(PATH)
            some = np.random.default_rng(2).permutation(count)[: min(count, UPDATE_ROWS)]
            rate, peak = write(table, some, 0, server.pid)
            print(f"update  {len(some):,} keys, {rate:,.0f} rows/s, server {peak / 1e6:,.0f} MB at most", flush=True)
            print(f"lookup  {look_up(table, count, 0):.2f} ms median", flush=True)
            assert connection.get_admin().get_table_stats(PATH).row_count == count


if __name__ == "__main__":
    main()

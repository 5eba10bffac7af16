"""Many keys in one bucket: how fast they load, what the server needs, how soon it is back after a restart.

    python -m benchmarks.kv_scale [million keys]

Rows have 100-byte values and keys in random order. After the load some keys are looked up, the server is stopped and
started, and killed and started, and each time the first lookup is timed; then some keys are written again. What a row
costs with the number of keys is part of `make bench`.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

import fluss.sync as fluss
from benchmarks.data import BATCH_ROWS, KV_SCHEMA, kv_batches, payload
from benchmarks.worker_loop import resident_mb
from fluss.testing import FlussServer

MILLION_KEYS = 10
UPDATE_ROWS = 1_000_000
LOOKUPS = 2_000
VERSION = 1
PATH = fluss.TablePath("fluss", "scale")


def write(table: fluss.FlussTable, batches: Sequence[pa.RecordBatch], pid: int) -> tuple[float, float]:
    """Rows a second, and the most memory that the server had meanwhile."""
    began, peak_mb = time.monotonic(), 0.0
    writer = table.new_upsert().create_writer()
    for batch in batches:
        writer.write_arrow_batch(batch)
        peak_mb = max(peak_mb, resident_mb(pid))
    writer.flush()
    rows = sum(batch.num_rows for batch in batches)
    return rows / (time.monotonic() - began), max(peak_mb, resident_mb(pid))


def look_up(table: fluss.FlussTable, count: int) -> float:
    """The median time in ms; every row is checked."""
    lookuper = table.new_lookup().create_lookuper()
    times = []
    for number in random.Random(3).sample(range(count), LOOKUPS):
        began = time.monotonic()
        row = lookuper.lookup([number])
        times.append(time.monotonic() - began)
        assert row == {"id": number, "payload": payload(number, VERSION)}, row
    return sorted(times)[len(times) // 2] * 1_000


def main() -> None:
    count = int((float(sys.argv[1]) if len(sys.argv) > 1 else MILLION_KEYS) * 1_000_000)
    batches = kv_batches(count, BATCH_ROWS, VERSION)
    with tempfile.TemporaryDirectory() as folder, FlussServer(Path(folder) / "data") as server:
        address = server.bootstrap_servers
        with fluss.connect(address) as connection:
            schema = fluss.Schema(KV_SCHEMA, primary_keys=["id"])
            connection.get_admin().create_table(PATH, fluss.TableDescriptor(schema, bucket_count=1))
            table = connection.get_table(PATH)
            rate, peak_mb = write(table, batches, server.pid)
            print(f"load    {count:,} keys, {rate:,.0f} rows/s, server {peak_mb:,.0f} MB at most", flush=True)
            print(f"lookup  {look_up(table, count):.2f} ms median", flush=True)
        for how, stop in (("stopped", server.terminate), ("killed", server.kill)):
            began = time.monotonic()
            stop()
            stopped = time.monotonic()
            server.start()
            with fluss.connect(address) as connection:
                assert connection.get_table(PATH).new_lookup().lookup([count - 1]) is not None
                took, memory_mb = time.monotonic() - stopped, resident_mb(server.pid)
                print(
                    f"{how:7} in {stopped - began:.2f} s, first row {took:.2f} s after, {memory_mb:,.0f} MB", flush=True
                )
        with fluss.connect(address) as connection:
            table = connection.get_table(PATH)
            some = batches[: UPDATE_ROWS // BATCH_ROWS]
            rate, peak_mb = write(table, some, server.pid)
            written = sum(batch.num_rows for batch in some)
            print(f"update  {written:,} keys, {rate:,.0f} rows/s, server {peak_mb:,.0f} MB at most", flush=True)
            print(f"lookup  {look_up(table, count):.2f} ms median", flush=True)
            assert connection.get_admin().get_table_stats(PATH).row_count == count


if __name__ == "__main__":
    main()

"""How long writes of a `fluss.aio` program keep its event loop from other work.

    python benchmarks/drain.py [megabytes]

One task appends and awaits `drain()` after each write; another one notes how late it is woken. The longest delay is the
longest time for which nothing else could run.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import fluss.aio as fluss
from fluss.testing import FlussServer

SIZE_MB = 100
STALL_MS_MAX = 50.0
TICK_S = 0.001
ROWS_PER_BATCH = 10_000
TEXT = "x" * 92  # with an eight-byte number a row has 100 bytes


async def longest_stall_ms(work: Awaitable[None]) -> tuple[float, float]:
    """Run `work`; returns the longest delay of another task meanwhile, in ms, and the time taken, in s."""
    task = asyncio.ensure_future(work)
    began, longest_s = time.perf_counter(), 0.0
    while not task.done():
        before = time.perf_counter()
        await asyncio.sleep(TICK_S)
        longest_s = max(longest_s, time.perf_counter() - before - TICK_S)
    await task
    return longest_s * 1_000, time.perf_counter() - began


async def write_rows(writer: Any, row_count: int) -> None:
    for number in range(row_count):
        writer.append({"id": number, "text": TEXT})
        await writer.drain()
    await writer.flush()


async def write_batches(writer: Any, row_count: int) -> None:
    for start in range(0, row_count, ROWS_PER_BATCH):
        ids = pa.array(range(start, start + ROWS_PER_BATCH), pa.int64())
        writer.write_arrow_batch(pa.record_batch({"id": ids, "text": TEXTS}))
        await writer.drain()
    await writer.flush()


TEXTS = pa.array([TEXT] * ROWS_PER_BATCH)
WORKLOADS: dict[str, Callable[[Any, int], Awaitable[None]]] = {"rows": write_rows, "arrow": write_batches}


async def measure(bootstrap_servers: str, size_mb: int) -> bool:
    good = True
    async with await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": bootstrap_servers})) as conn:
        admin = conn.get_admin()
        idle_ms, _ = await longest_stall_ms(asyncio.sleep(1))
        print(f"idle   longest stall {idle_ms:5.1f} ms")
        schema = fluss.Schema(pa.schema([("id", pa.int64()), ("text", pa.string())]))
        for name, workload in WORKLOADS.items():
            path = fluss.TablePath("fluss", f"drain_{name}")
            properties = {"table.log.arrow.compression.type": "NONE"}
            await admin.create_table(path, fluss.TableDescriptor(schema, properties=properties))
            writer = (await conn.get_table(path)).new_append().create_writer()
            stall_ms, took_s = await longest_stall_ms(workload(writer, size_mb * 10_000))
            good = good and stall_ms <= STALL_MS_MAX
            rate = f"{size_mb} MB in {took_s:5.2f} s, {size_mb / took_s:6.1f} MB/s"
            print(f"{name:6} {rate}, longest stall {stall_ms:5.1f} ms")
    return good


def main() -> int:
    size_mb = int(sys.argv[1]) if len(sys.argv) > 1 else SIZE_MB
    with tempfile.TemporaryDirectory() as folder, FlussServer(Path(folder) / "data") as server:
        return 0 if asyncio.run(measure(server.bootstrap_servers, size_mb)) else 1


if __name__ == "__main__":
    sys.exit(main())

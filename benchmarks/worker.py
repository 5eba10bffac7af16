"""Runs measurements with one client, told by JSON lines. The argument is the module to import as the client.

The same file runs in our interpreter (`fluss.aio`) and in that of pyfluss (`fluss`): it uses only names that both have.
Every measurement has a connection of its own, opened before the clock starts.
"""

from __future__ import annotations

import asyncio
import time

from data import (  # type: ignore[import-not-found, unused-ignore]
    BATCH_ROWS,
    DATABASE,
    kv_dicts,
    log_batches,
)
from worker_client import (  # type: ignore[import-not-found, unused-ignore]
    POLL_MS,
    fluss,
    opened,
    opened_table,
    subscribe_all,
)
from worker_kv import KvCommands  # type: ignore[import-not-found, unused-ignore]
from worker_log import LogCommands  # type: ignore[import-not-found, unused-ignore]
from worker_loop import serve  # type: ignore[import-not-found, unused-ignore]

START_S_MAX = 120.0
START_TICK_S = 0.005
# Once its buffer of 64 MB is full, which a cold server does not empty soon enough, pyfluss waits for ever.
FLUSH_ROWS = 20 * BATCH_ROWS


class Worker(LogCommands, KvCommands):  # type: ignore[misc, unused-ignore]
    async def await_databases(self, config: dict[str, str]) -> float:
        """Ask a server that is being started until it lists its databases; returns when it did."""
        host, port = config["bootstrap.servers"].split(":")
        ends = time.monotonic() + START_S_MAX
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
                writer.close()
                await self.list_databases(config)
                return time.monotonic()
            except (OSError, fluss.FlussError):
                if time.monotonic() > ends:
                    raise
                await asyncio.sleep(START_TICK_S)

    async def load(self, config: dict[str, str], log_table: str, kv_table: str, rows: int, keys: int) -> None:
        """Some work of all kinds that keeps no rows in this process: what memory it takes is the client's."""
        async with opened_table(config, log_table) as handle:
            writer = handle.new_append().create_writer()
            for first in range(0, rows, BATCH_ROWS):
                writer.write_arrow_batch(log_batches(min(BATCH_ROWS, rows - first), BATCH_ROWS, first)[0])
                if first % FLUSH_ROWS == 0:
                    await writer.flush()
            await writer.flush()
            scanner = await handle.new_scan().create_record_batch_log_scanner()
            subscribe_all(scanner, handle)
            seen = 0
            while seen < rows:
                seen += (await scanner.poll_arrow(POLL_MS)).num_rows
        async with opened_table(config, kv_table) as handle:
            writer = handle.new_upsert().create_writer()
            for item in kv_dicts(keys, 1):
                writer.upsert(item)
            await writer.flush()
        if seen != rows:
            raise ValueError(f"read {seen} rows, wrote {rows}")

    async def list_databases(self, config: dict[str, str]) -> list[str]:
        async with opened(config) as connection:
            return list(await connection.get_admin().list_databases())

    async def drop_table(self, config: dict[str, str], table: str) -> None:
        async with opened(config) as connection:
            await connection.get_admin().drop_table(fluss.TablePath(DATABASE, table), False)


if __name__ == "__main__":
    serve(Worker)

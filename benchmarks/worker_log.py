"""Commands on log tables."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from data import (  # type: ignore[import-not-found, unused-ignore]
    LOG_SCHEMA,
    checksum,
    dicts,
    log_batches,
)
from worker_client import (  # type: ignore[import-not-found, unused-ignore]
    POLL_MS,
    create,
    fluss,
    opened_table,
    set_nodelay,
    subscribe_all,
)
from worker_loop import PAUSE_S, Clock, Commands  # type: ignore[import-not-found, unused-ignore]

# All connections are open after this many rows; looking for new ones would cost time later.
SETTLING_ROWS = 5


class LogCommands(Commands):  # type: ignore[misc, unused-ignore]
    async def create_table(self, config: dict[str, str], table: str, buckets: int, properties: dict[str, str]) -> None:
        await create(config, table, fluss.Schema(LOG_SCHEMA), bucket_count=buckets, properties=properties)

    async def append_arrow(
        self, config: dict[str, str], table: str, rows: int, batch_rows: int, server_pid: int
    ) -> dict[str, Any]:
        data = log_batches(rows, batch_rows)
        async with opened_table(config, table) as handle:
            return await _append_all(handle.new_append().create_writer(), data, server_pid)

    async def prepare_append(self, config: dict[str, str], table: str, rows: int, batch_rows: int, first: int) -> None:
        """All but the writing, so that several workers can begin at the same time."""
        self._prepared_data = log_batches(rows, batch_rows, first)
        self._prepared_table = opened_table(config, table)
        self._prepared_writer = (await self._prepared_table.__aenter__()).new_append().create_writer()

    async def run_prepared_append(self, server_pid: int) -> dict[str, Any]:
        try:
            return await _append_all(self._prepared_writer, self._prepared_data, server_pid)
        finally:
            await self._prepared_table.__aexit__(None, None, None)
            del self._prepared_writer, self._prepared_data, self._prepared_table

    async def append_rows(self, config: dict[str, str], table: str, rows: int, server_pid: int) -> dict[str, Any]:
        data = list(dicts(rows))
        async with opened_table(config, table) as handle:
            writer = handle.new_append().create_writer()
            with Clock(server_pid) as clock:
                for item in data:
                    writer.append(item)
                await writer.flush()
        return {"rows": rows, **clock.figures()}

    async def scan_arrow(
        self,
        config: dict[str, str],
        table: str,
        server_pid: int,
        columns: list[str] | None = None,
        id_min: int | None = None,
    ) -> dict[str, Any]:
        """Read all, or some columns, or the rows from an id on."""
        async with opened_table(config, table) as handle:
            scan = handle.new_scan()
            scan = scan.project_by_name(columns) if columns else scan
            scan = scan.filter(fluss.col("id") >= id_min) if id_min is not None else scan
            scanner = await scan.create_record_batch_log_scanner()
            with Clock(server_pid) as clock:
                subscribe_all(scanner, handle)
                data: pa.Table = await scanner.to_arrow()
                if id_min is not None and fluss.__name__ == "fluss":
                    # pyfluss leaves out batches, not rows, and says so: its users have to filter again.
                    data = data.filter(pc.greater_equal(data["id"], id_min))
        return {"rows": data.num_rows, "bytes": data.nbytes, "checksum": checksum(data), **clock.figures()}

    async def poll_rows(self, config: dict[str, str], table: str, rows: int, server_pid: int) -> dict[str, Any]:
        """Read row by row, and use each of them a little."""
        seen = total = 0
        async with opened_table(config, table) as handle:
            scanner = await handle.new_scan().create_log_scanner()
            with Clock(server_pid) as clock:
                subscribe_all(scanner, handle)
                while seen < rows:
                    records = await scanner.poll(POLL_MS)
                    seen += len(records)
                    for record in records:
                        values = record.row
                        total += values["id"] * values["quality"]
        return {"rows": seen, "checksum": total, **clock.figures()}

    async def append_one_by_one(
        self, config: dict[str, str], table: str, rows: int, nodelay: bool, paused: bool
    ) -> list[tuple[float, float]]:
        """Append and flush single rows; returns when each was sent and when it was acknowledged."""
        pauses = random.Random(11)
        times = []
        async with opened_table(config, table) as handle:
            writer = handle.new_append().create_writer()
            for number, item in enumerate(dicts(rows)):
                if paused:
                    await asyncio.sleep(pauses.uniform(*PAUSE_S))
                if nodelay and number < SETTLING_ROWS:
                    set_nodelay()
                sent = time.monotonic()
                writer.append(item)
                await writer.flush()
                times.append((sent, time.monotonic()))
        return times

    async def tail(self, config: dict[str, str], table: str, rows: int, nodelay: bool) -> list[tuple[int, float]]:
        """Read `rows` rows as they come; returns the id of each and when it was seen."""
        seen: list[tuple[int, float]] = []
        async with opened_table(config, table) as handle:
            scanner = await handle.new_scan().create_log_scanner()
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            await scanner.poll(POLL_MS)
            self._send({"event": "tailing", "items": [table]})
            while len(seen) < rows:
                if nodelay and len(seen) < SETTLING_ROWS:
                    set_nodelay()
                records = await scanner.poll(POLL_MS)
                now = time.monotonic()
                seen.extend((record.row["id"], now) for record in records)
        return seen


async def _append_all(writer: Any, data: list[pa.RecordBatch], server_pid: int) -> dict[str, Any]:
    with Clock(server_pid) as clock:
        for batch in data:
            writer.write_arrow_batch(batch)
        await writer.flush()
    counts = {"rows": sum(batch.num_rows for batch in data), "bytes": sum(batch.nbytes for batch in data)}
    return {**counts, **clock.figures()}

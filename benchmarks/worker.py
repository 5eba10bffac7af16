"""Runs measurements with one client, told by JSON lines. The argument is the module to import as the client.

The same file runs in our interpreter (`fluss.aio`) and in that of pyfluss (`fluss`): it uses only names that both have.
Every measurement has a connection of its own, opened before the clock starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import os
import random
import socket
import stat
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from data import (  # type: ignore[import-not-found, unused-ignore]
    DATABASE,
    KV_SCHEMA,
    SCHEMA,
    batches,
    dicts,
    kv_batches,
    kv_dicts,
    payload,
    row,
)

POLL_MS = 100
# One client needs a tenth of a second for a lookup, another a few thousandths of that.
LOOKUPS_S_MAX = 10.0
# Between two rows of the latency measurement, so that they meet a waiting reader at any point of its wait.
PAUSE_S = (0.005, 0.015)
# All connections are open after this many rows; looking for new ones would cost time later.
SETTLING_ROWS = 5

fluss: Any = importlib.import_module(sys.argv[1])


class Worker:
    """Each public coroutine method is a command."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send

    async def create_table(self, config: dict[str, str], table: str, buckets: int, codec: str) -> None:
        async with _connection(config) as connection:
            admin = connection.get_admin()
            await admin.create_database(DATABASE, None, True)
            properties = {"table.log.arrow.compression.type": codec}
            descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=buckets, properties=properties)
            await admin.create_table(fluss.TablePath(DATABASE, table), descriptor, False)

    async def drop_table(self, config: dict[str, str], table: str) -> None:
        async with _connection(config) as connection:
            await connection.get_admin().drop_table(fluss.TablePath(DATABASE, table), False)

    async def append_arrow(self, config: dict[str, str], table: str, rows: int) -> dict[str, Any]:
        data = batches(rows)
        async with _table(config, table) as handle:
            writer = handle.new_append().create_writer()
            with _Clock() as clock:
                for batch in data:
                    writer.write_arrow_batch(batch)
                await writer.flush()
        return {"rows": rows, "bytes": sum(batch.nbytes for batch in data), **clock.figures()}

    async def append_rows(self, config: dict[str, str], table: str, rows: int) -> dict[str, Any]:
        data = list(dicts(rows))
        async with _table(config, table) as handle:
            writer = handle.new_append().create_writer()
            with _Clock() as clock:
                for item in data:
                    writer.append(item)
                await writer.flush()
        return {"rows": rows, **clock.figures()}

    async def scan_arrow(self, config: dict[str, str], table: str) -> dict[str, Any]:
        async with _table(config, table) as handle:
            scanner = await handle.new_scan().create_record_batch_log_scanner()
            buckets = range(handle.get_table_info().num_buckets)
            with _Clock() as clock:
                scanner.subscribe_buckets(dict.fromkeys(buckets, fluss.EARLIEST_OFFSET))
                data: pa.Table = await scanner.to_arrow()
        checked = {"sum_of_ids": pc.sum(data["id"]).as_py(), "distinct_ids": pc.count_distinct(data["id"]).as_py()}
        return {"rows": data.num_rows, "bytes": data.nbytes, **checked, **clock.figures()}

    async def create_kv_table(self, config: dict[str, str], table: str, buckets: int) -> None:
        async with _connection(config) as connection:
            admin = connection.get_admin()
            await admin.create_database(DATABASE, None, True)
            schema = fluss.Schema(KV_SCHEMA, primary_keys=["id"])
            descriptor = fluss.TableDescriptor(schema, bucket_count=buckets)
            await admin.create_table(fluss.TablePath(DATABASE, table), descriptor, False)

    async def upsert_bulk(self, config: dict[str, str], table: str, rows: int, version: int) -> dict[str, Any]:
        """Arrow batches where the client takes them, otherwise row by row, which is what its users have."""
        async with _table(config, table) as handle:
            writer = handle.new_upsert().create_writer()
            if not hasattr(writer, "write_arrow_batch"):
                return await self.upsert_rows(config, table, rows, version)
            data = kv_batches(rows, version)
            with _Clock() as clock:
                for batch in data:
                    writer.write_arrow_batch(batch)
                await writer.flush()
        return {"rows": rows, **clock.figures()}

    async def upsert_rows(self, config: dict[str, str], table: str, rows: int, version: int) -> dict[str, Any]:
        data = list(kv_dicts(rows, version))
        async with _table(config, table) as handle:
            writer = handle.new_upsert().create_writer()
            with _Clock() as clock:
                for item in data:
                    writer.upsert(item)
                await writer.flush()
        return {"rows": rows, **clock.figures()}

    async def lookup_one_by_one(
        self, config: dict[str, str], table: str, rows: int, version: int, lookups: int
    ) -> list[float]:
        """How long each lookup took, at most ten seconds in all; every row must be of the version."""
        chance = random.Random(13)
        times = []
        async with _table(config, table) as handle:
            lookuper = handle.new_lookup().create_lookuper()
            await lookuper.lookup([0])
            ends = time.monotonic() + LOOKUPS_S_MAX
            while len(times) < lookups and time.monotonic() < ends:
                number = chance.randrange(rows)
                began = time.monotonic()
                found = await lookuper.lookup([number])
                times.append(time.monotonic() - began)
                _check_row(found, number, version)
        return times

    async def lookup_concurrently(
        self, config: dict[str, str], table: str, rows: int, version: int, lookups: int, tasks: int, shared: bool
    ) -> dict[str, Any]:
        """`tasks` at a time, on one lookuper or on one of each task's own."""
        numbers = random.Random(17).choices(range(rows), k=lookups)
        async with _table(config, table) as handle:
            count = 1 if shared else tasks
            lookupers = [handle.new_lookup().create_lookuper() for _ in range(count)]
            await lookupers[0].lookup([0])

            async def look(task: int) -> list[Any]:
                lookuper = lookupers[task % count]
                return [await lookuper.lookup([number]) for number in numbers[task::tasks]]

            with _Clock() as clock:
                found = await asyncio.gather(*map(look, range(tasks)))
        for task, rows_found in enumerate(found):
            for number, row_found in zip(numbers[task::tasks], rows_found, strict=True):
                _check_row(row_found, number, version)
        return {"rows": lookups, **clock.figures()}

    async def append_one_by_one(
        self, config: dict[str, str], table: str, rows: int, nodelay: bool
    ) -> list[tuple[float, float]]:
        """Append and flush single rows; returns when each was sent and when it was acknowledged."""
        pauses = random.Random(11)
        times = []
        async with _table(config, table) as handle:
            writer = handle.new_append().create_writer()
            for number in range(rows):
                item = row(number)
                await asyncio.sleep(pauses.uniform(*PAUSE_S))
                if nodelay and number < SETTLING_ROWS:
                    _set_nodelay()
                sent = time.monotonic()
                writer.append(item)
                await writer.flush()
                times.append((sent, time.monotonic()))
        return times

    async def tail(self, config: dict[str, str], table: str, rows: int, nodelay: bool) -> list[tuple[int, float]]:
        """Read `rows` rows as they come; returns the id of each and when it was seen."""
        seen: list[tuple[int, float]] = []
        async with _table(config, table) as handle:
            scanner = await handle.new_scan().create_log_scanner()
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            await scanner.poll(POLL_MS)
            self._send({"event": "tailing", "items": [table]})
            while len(seen) < rows:
                if nodelay and len(seen) < SETTLING_ROWS:
                    _set_nodelay()
                records = await scanner.poll(POLL_MS)
                now = time.monotonic()
                for bucket in records.buckets():
                    seen.extend((record.row["id"], now) for record in records.records(bucket))
        return seen


def _check_row(found: dict[str, Any] | None, number: int, version: int) -> None:
    if found != {"id": number, "payload": payload(number, version)}:
        raise ValueError(f"key {number} has {found}, not version {version}")


class _Clock:
    """Wall and processor time of a block, with the collector's leftovers of the set-up out of the way."""

    def __enter__(self) -> _Clock:
        gc.collect()
        gc.freeze()
        self._start = (time.monotonic(), time.process_time())
        return self

    def __exit__(self, *_: object) -> None:
        self._end = (time.monotonic(), time.process_time())
        gc.unfreeze()

    def figures(self) -> dict[str, float]:
        return {"seconds": self._end[0] - self._start[0], "client_cpu_seconds": self._end[1] - self._start[1]}


@contextlib.asynccontextmanager
async def _connection(config: dict[str, str]) -> AsyncIterator[Any]:
    connection = await fluss.FlussConnection.create(fluss.Config(config))
    try:
        yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def _table(config: dict[str, str], table: str) -> AsyncIterator[Any]:
    async with _connection(config) as connection:
        yield await connection.get_table(fluss.TablePath(DATABASE, table))


def _set_nodelay() -> None:
    """Set TCP_NODELAY on every connection of this process: pyfluss has no option for it."""
    for name in os.listdir("/dev/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6):
                    copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            continue  # Closed since it was listed, or not connected any more.


async def _answer(worker: Worker, message: dict[str, Any]) -> dict[str, Any]:
    answer_id, timeout_s = message.pop("id"), message.pop("timeout_s")
    command = getattr(worker, message.pop("command"))
    try:
        return {"id": answer_id, "result": await asyncio.wait_for(command(**message), timeout_s)}
    except Exception as error:
        return {"id": answer_id, "error": {"type": type(error).__name__, "message": str(error)}}


async def main() -> None:
    # What a library prints must not get between the answers.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(message: dict[str, Any]) -> None:
        output.write(json.dumps(message) + "\n")

    worker = Worker(send)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        send(await _answer(worker, json.loads(line)))


if __name__ == "__main__":
    asyncio.run(main())

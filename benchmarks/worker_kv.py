"""Commands on primary-key tables."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from data import (  # type: ignore[import-not-found, unused-ignore]
    BATCH_ROWS,
    KV_SCHEMA,
    PREFIX_SCHEMA,
    ROWS_PER_PREFIX,
    kv_batches,
    kv_dicts,
    payload,
    prefix_row,
)
from worker_client import (  # type: ignore[import-not-found, unused-ignore]
    POLL_MS,
    create,
    fluss,
    opened_table,
    subscribe_all,
)
from worker_loop import Clock, Commands  # type: ignore[import-not-found, unused-ignore]

# One client needs a tenth of a second for a lookup, another a few thousandths of that.
LOOKUPS_S_MAX = 4.0


class KvCommands(Commands):  # type: ignore[misc, unused-ignore]
    async def create_kv_table(self, config: dict[str, str], table: str, buckets: int) -> None:
        await create(config, table, fluss.Schema(KV_SCHEMA, primary_keys=["id"]), bucket_count=buckets)

    async def create_prefix_table(self, config: dict[str, str], table: str, buckets: int) -> None:
        schema = fluss.Schema(PREFIX_SCHEMA, primary_keys=["owner", "id"])
        await create(config, table, schema, bucket_count=buckets, bucket_keys=["owner"])

    async def upsert_bulk(
        self, config: dict[str, str], table: str, rows: int, version: int, server_pid: int
    ) -> dict[str, Any]:
        """Arrow batches where the client takes them, otherwise row by row, which is what its users have."""
        async with opened_table(config, table) as handle:
            writer = handle.new_upsert().create_writer()
            if not hasattr(writer, "write_arrow_batch"):
                return await self.upsert_rows(config, table, rows, version, server_pid)
            data = kv_batches(rows, BATCH_ROWS, version)
            with Clock(server_pid) as clock:
                for batch in data:
                    writer.write_arrow_batch(batch)
                await writer.flush()
        return {"rows": rows, **clock.figures()}

    async def upsert_rows(
        self, config: dict[str, str], table: str, rows: int, version: int, server_pid: int
    ) -> dict[str, Any]:
        return await _upsert(config, table, list(kv_dicts(rows, version)), server_pid)

    async def upsert_prefix_rows(self, config: dict[str, str], table: str, rows: int, server_pid: int) -> None:
        await _upsert(config, table, [prefix_row(number) for number in range(rows)], server_pid)

    async def follow_changelog(
        self, config: dict[str, str], table: str, records: int, server_pid: int
    ) -> dict[str, Any]:
        """Read so many changes; returns how many there were of each kind and the sum of their ids."""
        total = 0
        kinds: list[Any] = []
        async with opened_table(config, table) as handle:
            scanner = await handle.new_scan().create_log_scanner()
            with Clock(server_pid) as clock:
                subscribe_all(scanner, handle)
                while len(kinds) < records:
                    for record in await scanner.poll(POLL_MS):
                        total += record.row["id"]
                        kinds.append(record.change_type)
        counts = Counter(kind.short_string() for kind in kinds)
        return {"rows": len(kinds), "kinds": counts, "sum_of_ids": total, **clock.figures()}

    async def lookup_one_by_one(
        self, config: dict[str, str], table: str, rows: int, version: int, lookups: int, server_pid: int
    ) -> dict[str, Any]:
        """How long each lookup took, a few seconds in all; every row must be of the version."""
        async with opened_table(config, table) as handle:
            lookuper = handle.new_lookup().create_lookuper()

            async def look(number: int) -> Callable[[], None]:
                found = await lookuper.lookup([number])
                return lambda: _check_row(found, number, version)

            return await _timed(look, rows, lookups, server_pid)

    async def lookup_prefixes(
        self, config: dict[str, str], table: str, rows: int, lookups: int, server_pid: int
    ) -> dict[str, Any]:
        """The same with prefixes, which have ten rows each."""
        async with opened_table(config, table) as handle:
            lookuper = handle.new_lookup().lookup_by(["owner"]).create_lookuper()

            async def look(owner: int) -> Callable[[], None]:
                found = await lookuper.lookup([owner])
                return lambda: _check_prefix(found, owner)

            return await _timed(look, rows // ROWS_PER_PREFIX, lookups, server_pid)

    async def lookup_concurrently(
        self,
        config: dict[str, str],
        table: str,
        rows: int,
        version: int,
        lookups: int,
        tasks: int,
        shared: bool,
        server_pid: int,
    ) -> dict[str, Any]:
        """`tasks` at a time for a few seconds at most, on one lookuper or on one of each task's own."""
        numbers = random.Random(17).choices(range(rows), k=lookups)
        async with opened_table(config, table) as handle:
            count = 1 if shared else tasks
            lookupers = [handle.new_lookup().create_lookuper() for _ in range(count)]
            await lookupers[0].lookup([0])

            found: list[tuple[int, Any]] = []

            async def look(task: int) -> None:
                lookuper = lookupers[task % count]
                for number in numbers[task::tasks]:
                    found.append((number, await lookuper.lookup([number])))  # noqa: PERF401

            with Clock(server_pid) as clock:
                running = [asyncio.ensure_future(look(task)) for task in range(tasks)]
                done, late = await asyncio.wait(running, timeout=LOOKUPS_S_MAX)
            for task in late:
                task.cancel()
            await asyncio.gather(*done)
            await asyncio.gather(*late, return_exceptions=True)
        for number, row_found in found:
            _check_row(row_found, number, version)
        return {"rows": len(found), **clock.figures()}


async def _upsert(config: dict[str, str], table: str, data: list[dict[str, Any]], server_pid: int) -> dict[str, Any]:
    async with opened_table(config, table) as handle:
        writer = handle.new_upsert().create_writer()
        with Clock(server_pid) as clock:
            for item in data:
                writer.upsert(item)
            await writer.flush()
    return {"rows": len(data), **clock.figures()}


async def _timed(
    look: Callable[[int], Awaitable[Callable[[], None]]], keys: int, lookups: int, server_pid: int
) -> dict[str, Any]:
    """Look random keys up one after another; what was found is checked after the clock has stopped."""
    chance = random.Random(13)
    times: list[float] = []
    checks = [await look(0)]
    with Clock(server_pid) as clock:
        ends = time.monotonic() + LOOKUPS_S_MAX
        while len(times) < lookups and time.monotonic() < ends:
            number = chance.randrange(keys)
            began = time.monotonic()
            checks.append(await look(number))
            times.append(time.monotonic() - began)
    for check in checks:
        check()
    return {"rows": len(times), "times": times, **clock.figures()}


def _check_row(found: dict[str, Any] | None, number: int, version: int) -> None:
    if found != {"id": number, "payload": payload(number, version)}:
        raise ValueError(f"key {number} has {found}, not version {version}")


def _check_prefix(found: list[dict[str, Any]], owner: int) -> None:
    first = owner * ROWS_PER_PREFIX
    wanted = [prefix_row(number) for number in range(first, first + ROWS_PER_PREFIX)]
    if sorted(found, key=lambda item: item["id"]) != wanted:
        raise ValueError(f"owner {owner} has {found}")

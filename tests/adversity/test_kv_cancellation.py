"""Calls for primary-key tables, cancelled at every single await (R24): as `test_cancellation.py` does it for others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import fluss.aio as fluss
from fluss.client.runtime import bridge, run
from fluss.testing import FlussServer
from tests.adversity.cancellation import (
    BOTH_LOOPS,
    CALL_S_MAX,
    ROWS,
    Bench,
    Runner,
    Script,
    cancel_at_every_await,
    server,
)

__all__ = ["server"]

PATH = fluss.TablePath("fluss", "cancelled_rows")
PARTS = 10


class KeyedBench(Bench):
    """With a primary-key table instead."""

    async def prepare(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.complaints.append(context))
        self.connection = await fluss.FlussConnection.create(self.config)
        self.admin = await self.connection.get_admin()
        columns = pa.schema([("part", pa.int32()), ("id", pa.int64()), ("name", pa.string())])
        schema = fluss.Schema(columns, ["part", "id"])
        await self.admin.create_table(PATH, fluss.TableDescriptor(schema, bucket_count=2, bucket_keys=["part"]))
        self.table = await self.connection.get_table(PATH)
        self.probes = 0
        writer = self.table.new_upsert().create_writer()
        for number in range(ROWS):
            writer.upsert([number % PARTS, number, "x"])
        await writer.flush()

    async def probe(self) -> None:
        """The connection works: it writes, and finds what it wrote in every way."""
        async with asyncio.timeout(CALL_S_MAX):
            self.probes += 1
            writer = self.table.new_upsert().create_writer()
            writer.upsert([0, 0, str(self.probes)])
            await writer.flush()
            expected = {"part": 0, "id": 0, "name": str(self.probes)}
            assert await self.table.new_lookup().create_lookuper().lookup([0, 0]) == expected
            whole = await self.table.new_scan().to_arrow()
            assert whole.num_rows >= ROWS
            assert expected in whole.to_pylist()

    async def drop(self) -> None:
        """Close first: rows of a cancelled call may not have been sent yet, and would have no table."""
        await bridge(self.connection._core.close())
        async with await fluss.FlussConnection.create(self.config) as connection:
            await connection.get_admin().drop_table(PATH)
        asyncio.get_running_loop().set_exception_handler(None)


async def upsert_and_flush(bench: KeyedBench) -> None:
    writer = bench.table.new_upsert().create_writer()
    writer.upsert([1, 1_000, "a"])
    writer.write_arrow(pa.table({"part": pa.array([2, 3], pa.int32()), "id": [1_001, 1_002], "name": ["b", "c"]}))
    writer.delete([1, 1_000])
    await writer.flush()


async def partial_update(bench: KeyedBench) -> None:
    writer = bench.table.new_upsert(columns=["part", "id"]).create_writer()
    writer.upsert({"part": 4, "id": 1_003})
    await writer.drain()
    await writer.flush()


async def wait_for_a_row(bench: KeyedBench) -> None:
    await bench.table.new_upsert().create_writer().upsert([5, 1_004, "d"]).wait()


async def lookup(bench: KeyedBench) -> None:
    lookuper = bench.table.new_lookup().create_lookuper()
    assert await lookuper.lookup([1, 1]) is not None
    assert await lookuper.lookup([1, 9_999]) is None


async def lookup_many(bench: KeyedBench) -> None:
    found = await bench.table.new_lookup().create_lookuper().lookup_many([[n % PARTS, n] for n in range(ROWS)])
    assert found.num_rows == ROWS


async def prefix_lookup(bench: KeyedBench) -> None:
    lookuper = bench.table.new_lookup().lookup_by(["part"]).create_lookuper()
    assert len(await lookuper.lookup([7])) == ROWS // PARTS
    assert (await lookuper.lookup_arrow([8])).num_rows == ROWS // PARTS


async def insert_if_not_exists(bench: KeyedBench) -> None:
    lookuper = bench.table.new_lookup().enable_insert_if_not_exists().create_lookuper()
    assert await lookuper.lookup([6, 1_005]) is not None


async def to_arrow(bench: KeyedBench) -> None:
    scan = bench.table.new_scan()
    await scan.to_arrow()
    _, offsets = await scan.project([1]).to_arrow_with_offsets()
    assert len(offsets) == 2


async def limit_scan(bench: KeyedBench) -> None:
    bucket = fluss.TableBucket(bench.table.get_table_info().table_id, 0)
    await bench.table.new_scan().limit(10).create_bucket_batch_scanner(bucket).to_arrow()


async def opened(bench: KeyedBench, start: str | fluss.ChangesPosition) -> fluss.Changes:
    """What `changes` does; that one blocks, which the I/O loop must not."""
    core = bench.table._core.changes()
    await bridge(core.start(start))
    return fluss.Changes(core)


async def changes(bench: KeyedBench) -> None:
    first = await opened(bench, "snapshot")
    try:
        for _ in range(3):
            await first.poll(20)
        position = first.position
    finally:
        first.close()
    resumed = await opened(bench, position)
    try:
        await resumed.poll(20)
    finally:
        resumed.close()


SCRIPTS: list[Callable[[KeyedBench], Script]] = [
    upsert_and_flush,
    partial_update,
    wait_for_a_row,
    lookup,
    lookup_many,
    prefix_lookup,
    insert_if_not_exists,
    to_arrow,
    limit_scan,
    changes,
]


@pytest.fixture
def bench(server: FlussServer) -> Iterator[KeyedBench]:
    made = KeyedBench(server.bootstrap_servers)
    run(made.prepare())
    yield made
    run(made.drop())


@BOTH_LOOPS
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_cancelled_at_every_await(bench: KeyedBench, script: Callable[[KeyedBench], Script], runner: Runner) -> None:
    cancel_at_every_await(bench, script, runner)

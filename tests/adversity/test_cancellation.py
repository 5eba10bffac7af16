"""Cancelled at every single await (R24): the connection goes on, and nothing is left behind.

The script runs on the client's own I/O loop, where the awaits of the API are those of the core, in one task. It is
cancelled at its n-th suspension, for n from 1 until it runs to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import fluss.aio as fluss
from fluss.client.runtime import bridge, run
from fluss.testing import FlussServer
from tests.adversity.cancellation import (
    BOTH_LOOPS,
    PATH,
    ROWS,
    Bench,
    Runner,
    Script,
    cancel_at_every_await,
    drop,
    server,
    subscribe,
)

__all__ = ["server"]  # a fixture

OTHER = fluss.TablePath("fluss", "other")


@pytest.fixture
def bench(server: FlussServer) -> Iterator[Bench]:
    made = Bench(server.bootstrap_servers)
    run(made.prepare())
    yield made
    run(made.close())
    run(drop(fluss.FlussConnection.create(made.config)))


async def connect(bench: Bench) -> None:
    async with fluss.connect(bench.config.bootstrap_servers) as connection:
        await (await connection.get_admin()).list_databases()


async def admin(bench: Bench) -> None:
    await bench.admin.list_databases()
    await bench.admin.create_table(OTHER, bench.descriptor, ignore_if_exists=True)
    await bench.admin.list_tables("fluss")
    await bench.admin.get_table_info(OTHER)
    await bench.connection.get_table(OTHER)
    await bench.admin.drop_table(OTHER, ignore_if_not_exists=True)
    await bench.admin.create_database("d", None, ignore_if_exists=True)
    await bench.admin.drop_database("d", ignore_if_not_exists=True, cascade=True)


async def list_offsets(bench: Bench) -> None:
    for spec in (fluss.OffsetSpec.earliest(), fluss.OffsetSpec.latest(), fluss.OffsetSpec.timestamp(0)):
        await bench.admin.list_offsets(PATH, [0, 1], spec)


async def append_and_flush(bench: Bench) -> None:
    writer = bench.table.new_append().create_writer()
    writer.append([1, "a"])
    writer.write_arrow(pa.table({"id": pa.array([2, 3]), "name": ["b", "c"]}))
    await writer.flush()


async def wait_for_a_row(bench: Bench) -> None:
    handle = bench.table.new_append().create_writer().append([1, "a"])
    await handle.wait()


async def drain(bench: Bench) -> None:
    writer = bench.table.new_append().create_writer()
    for number in range(50):
        writer.append([number, "a"])
        await writer.drain()
    await writer.flush()


async def poll(bench: Bench) -> None:
    scanner = await bench.table.new_scan().create_log_scanner()
    await subscribe(scanner, {0: fluss.EARLIEST_OFFSET, 1: fluss.LATEST_OFFSET})
    try:
        for _ in range(3):
            await scanner.poll(20)
    finally:
        scanner.close()


async def poll_arrow(bench: Bench) -> None:
    scanner = await bench.table.new_scan().project([0]).create_record_batch_log_scanner()
    await subscribe(scanner, {0: fluss.EARLIEST_OFFSET, 1: fluss.EARLIEST_OFFSET})
    try:
        for _ in range(3):
            await scanner.poll_arrow(20)
    finally:
        scanner.close()


async def to_arrow(bench: Bench) -> None:
    scanner = await bench.table.new_scan().create_record_batch_log_scanner()
    await subscribe(scanner, {0: fluss.EARLIEST_OFFSET, 1: fluss.EARLIEST_OFFSET})
    await scanner.to_arrow()
    await scanner.to_pandas()


async def limit_scan(bench: Bench) -> None:
    bucket = fluss.TableBucket(bench.table.get_table_info().table_id, 0)
    scanner = bench.table.new_scan().limit(10).create_bucket_batch_scanner(bucket)
    await scanner.to_arrow()


async def iterate(bench: Bench) -> None:
    scanner = await bench.table.new_scan().create_log_scanner()
    await subscribe(scanner, {0: fluss.EARLIEST_OFFSET, 1: fluss.EARLIEST_OFFSET})
    try:
        seen = 0
        async for _ in scanner:
            seen += 1
            if seen == ROWS:
                break
    finally:
        scanner.close()


async def look_around(bench: Bench) -> None:
    await bench.admin.get_server_nodes()
    await bench.admin.get_table_stats(PATH)
    await bench.admin.get_table_schema(PATH)
    await bench.admin.describe_cluster_configs()


async def close(bench: Bench) -> None:
    """Closing with rows on the way; a cancelled close must still end."""
    connection = await fluss.FlussConnection.create(bench.config)
    table = await connection.get_table(PATH)
    table.new_append().create_writer().append([1, "a"])
    await bridge(connection._core.close())


SCRIPTS: list[Callable[[Bench], Script]] = [
    connect,
    admin,
    list_offsets,
    append_and_flush,
    wait_for_a_row,
    drain,
    poll,
    poll_arrow,
    to_arrow,
    limit_scan,
    iterate,
    look_around,
    close,
]


@BOTH_LOOPS
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_cancelled_at_every_await(bench: Bench, script: Callable[[Bench], Script], runner: Runner) -> None:
    """On the I/O loop the awaits are those of the core; on another loop, those of the bridge between the two."""
    cancel_at_every_await(bench, script, runner)

"""Promise R24 in short form: calls cancelled at every await leave a client that works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fluss.client.client import ClientCore
from fluss.client.runtime import run
from fluss.client.table import TableCore
from fluss.model.config import Config
from fluss.model.offsets import OffsetSpec
from tests.kit.client_tables import everything, make_table

STEPS_MAX = 60
CALL_S_MAX = 20.0

Call = Callable[[ClientCore, TableCore], Coroutine[Any, Any, Any]]


async def connect(client: ClientCore, _: TableCore) -> None:
    other = await ClientCore.connect(Config({"bootstrap.servers": client.config.bootstrap_servers}))
    await other.close()


async def flush(_: ClientCore, table: TableCore) -> None:
    writer = table.append_writer()
    writer.append([1, "a", 0.5])
    await writer.flush()


async def wait_for_handle(_: ClientCore, table: TableCore) -> None:
    await table.append_writer().append([1, "a", 0.5]).wait()


async def poll(_: ClientCore, table: TableCore) -> None:
    scanner = table.log_scanner(None)
    try:
        await scanner.subscribe({(None, 0): -1, (None, 1): -2})
        await scanner.poll_batches(20, None)
    finally:
        scanner.close()


async def read_all(_: ClientCore, table: TableCore) -> None:
    scanner = table.log_scanner([0])
    await scanner.subscribe({(None, 0): -2, (None, 1): -2})
    await scanner.read_to_latest()


CALLS: dict[str, Call] = {
    "list databases": lambda client, _: client.admin.list_databases(),
    "table": lambda client, table: client.table(table.info.table_path),
    "offsets": lambda client, table: client.admin.list_offsets(table.info.table_path, [0, 1], OffsetSpec.latest()),
    "connect": connect,
    "flush": flush,
    "wait": wait_for_handle,
    "poll": poll,
    "read": read_all,
}


@pytest.mark.parametrize("name", CALLS)
def test_cancelled_at_every_await(client: ClientCore, name: str) -> None:
    call = CALLS[name]
    table = make_table(client, 2)
    fill = table.append_writer()
    for number in range(100):
        fill.append([number, "x", 0.5])
    run(fill.flush())

    async def cancel_after(steps: int) -> bool:
        task = asyncio.ensure_future(call(client, table))
        for _ in range(steps):
            await asyncio.sleep(0 if steps % 2 else 0.0003)
        task.cancel()
        await asyncio.wait([task], timeout=CALL_S_MAX)
        assert task.done()
        return task.cancelled()

    cancelled = sum(run(cancel_after(steps)) for steps in range(STEPS_MAX))
    assert cancelled > 1
    run(asyncio.wait_for(call(client, table), CALL_S_MAX))
    run(asyncio.wait_for(fill.flush(), CALL_S_MAX))
    assert everything(table).num_rows >= 100


def test_many_tasks_that_append_and_flush_share_batches(client: ClientCore) -> None:
    table = make_table(client)
    writer = table.append_writer()

    async def one(number: int) -> None:
        writer.append([number, "a", 0.5])
        await writer.flush()

    async def all_of_them() -> None:
        await asyncio.gather(*(one(number) for number in range(500)))

    run(all_of_them())
    assert sorted(everything(table)["id"].to_pylist()) == list(range(500))
    scanner = table.log_scanner(None)
    run(scanner.subscribe({(None, 0): 0}))
    assert len(run(scanner.read_to_latest())) < 50
    scanner.close()

"""Cancels a call at every await of its way, and looks at what it leaves."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import psutil
import pyarrow as pa
import pytest

import fluss.aio as fluss
from fluss.client.runtime import bridge, run
from fluss.testing import FlussServer

STEPS_MAX = 2_000
CALL_S_MAX = 20.0
ROWS = 200
PATH = fluss.TablePath("fluss", "cancelled")


class CancelledAt:
    """Awaits a coroutine and cancels the task at its n-th suspension, as `task.cancel()` from outside would."""

    def __init__(self, coroutine: Coroutine[Any, Any, object], step: int) -> None:
        self._coroutine = coroutine
        self._step = step
        self.cancelled = False

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self._coroutine.__await__()
        number = 0
        value: Any = None
        thrown: BaseException | None = None
        while True:
            try:
                suspended = steps.send(value) if thrown is None else steps.throw(thrown)
            except StopIteration:
                return
            number += 1
            if number == self._step:
                self.cancelled = True
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            value, thrown = None, None
            try:
                value = yield suspended
            except BaseException as error:
                thrown = error


async def subscribe(scanner: fluss.LogScanner, offsets: dict[int, int]) -> None:
    """What `subscribe_buckets` does; that one blocks, which the I/O loop must not."""
    await bridge(scanner._core.subscribe({(None, bucket): offset for bucket, offset in offsets.items()}))


class Bench:
    """A connection, a table with rows, and what of this process must not grow."""

    def __init__(self, address: str) -> None:
        self.config = fluss.Config({"bootstrap.servers": address, "request-timeout-ms": 10_000})
        self.complaints: list[dict[str, Any]] = []

    async def prepare(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.complaints.append(context))
        self.connection = await fluss.FlussConnection.create(self.config)
        self.admin = await self.connection.get_admin()
        schema = fluss.Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))
        self.descriptor = fluss.TableDescriptor(schema, bucket_count=2)
        await self.admin.create_table(PATH, self.descriptor)
        self.table = await self.connection.get_table(PATH)
        await self.append(ROWS)

    async def append(self, count: int) -> None:
        writer = self.table.new_append().create_writer()
        for number in range(count):
            writer.append([number, "x"])
        await writer.flush()

    async def probe(self) -> None:
        """The connection works: it answers, writes and reads."""
        async with asyncio.timeout(CALL_S_MAX):
            assert "fluss" in await self.admin.list_databases()
            await self.append(1)
            scanner = await self.table.new_scan().create_record_batch_log_scanner()
            await subscribe(scanner, {0: fluss.EARLIEST_OFFSET, 1: fluss.EARLIEST_OFFSET})
            assert (await scanner.to_arrow()).num_rows >= ROWS

    async def settle(self) -> None:
        """Wait until the cancelled call has left no task: this one is the only."""
        deadline = time.monotonic() + CALL_S_MAX
        while len(asyncio.all_tasks()) > 1:
            assert time.monotonic() < deadline, asyncio.all_tasks()
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        await self.connection._core.close()
        asyncio.get_running_loop().set_exception_handler(None)


AnyBench = TypeVar("AnyBench", bound=Bench)
Script: TypeAlias = Coroutine[Any, Any, None]
Runner: TypeAlias = Callable[[Coroutine[Any, Any, bool]], bool]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlussServer]:
    directory: Path = tmp_path_factory.mktemp("server") / "data"
    with FlussServer(directory, args=["--durability", "os"]) as running:
        yield running


async def drop(opening: Awaitable[fluss.FlussConnection]) -> None:
    connection = await opening
    await (await connection.get_admin()).drop_table(PATH)
    await bridge(connection._core.close())


BOTH_LOOPS = pytest.mark.parametrize("runner", [run, asyncio.run], ids=["io loop", "own loop"])


def cancel_at_every_await(bench: AnyBench, script: Callable[[AnyBench], Script], runner: Runner) -> None:
    process = psutil.Process()

    async def attempt(step: int) -> bool:
        trial = CancelledAt(script(bench), step)

        async def call() -> None:
            await trial

        task = asyncio.ensure_future(call())
        await asyncio.wait([task], timeout=CALL_S_MAX)
        assert task.done(), f"hangs after a cancel at await {step}"
        if not task.cancelled() and task.exception() is not None:
            raise AssertionError(f"cancelled at await {step} it raised {task.exception()!r}") from task.exception()
        assert task.cancelled() == trial.cancelled, f"the cancel at await {step} was swallowed"
        return trial.cancelled

    def checked(step: int) -> bool:
        cancelled = runner(attempt(step))
        run(bench.probe())
        run(bench.settle())
        return cancelled

    def cancel_all() -> int:
        """Cancel the call at its first await, its second and so on; how many sockets are open then."""
        step = 1
        while checked(step):
            step += 1
            assert step < STEPS_MAX
        print(f"{step - 1} awaits")
        assert step > 1
        gc.collect()
        return len(process.net_connections())

    checked(STEPS_MAX)
    # The first round may open connections that the calls keep; the second needs none.
    sockets = cancel_all()
    assert cancel_all() <= sockets
    assert not bench.complaints

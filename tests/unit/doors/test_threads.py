"""A store without a thread: pools whose work is done where it is given to them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from fluss.doors import replaced, threads
from tests.kit.storage.kv_tables import Table, opened, row


class AtOnce(Executor):
    """Does work when it is given, in the thread of whoever gives it."""

    def __init__(self) -> None:
        self.count = 0

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        self.count += 1
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args, **named))
        except BaseException as error:
            done.set_exception(error)
        return done


async def test_a_store_runs_without_threads(tmp_path: Path) -> None:
    pools: dict[str, AtOnce] = {}

    before = set(threading.enumerate())
    with replaced(threads, pool=lambda count, name: pools.setdefault(name, AtOnce())):
        async with opened(tmp_path / "data") as storage:
            table = await Table.create(storage)
            await table.kv().put(table.batch([row(number) for number in range(64)])).applied
            assert len(await table.all_rows()) == 64
    assert set(threading.enumerate()) <= before
    assert {name for name, pool in pools.items() if pool.count} >= {"fluss-catalog", "fluss-sync", "fluss-kv-write"}


def test_threads_are_named_and_end_with_the_process() -> None:
    seen: list[tuple[threading.Thread, str]] = []
    thread = threads.daemon(lambda text: seen.append((threads.current(), text)), "in", name="fluss-test")
    assert not thread.is_alive()
    thread.start()
    thread.join()
    assert seen == [(thread, "in")]
    assert (thread.name, thread.daemon) == ("fluss-test", True)
    with threads.pool(1, "fluss-pool") as pool:
        assert pool.submit(lambda: threads.current().name).result() == "fluss-pool_0"

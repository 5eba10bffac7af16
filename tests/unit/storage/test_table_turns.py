"""Places that tables get in turn."""

from __future__ import annotations

import asyncio

from fluss.storage.table_turns import TableTurns

LARGE, SMALL, OTHER = 1, 2, 3


class Work:
    """Notes which table's work has begun, and ends it on demand."""

    def __init__(self, places: int) -> None:
        self.turns = TableTurns(places)
        self.begun: list[int] = []
        self._ends: list[asyncio.Event] = []

    def start(self, table_id: int, count: int = 1) -> list[asyncio.Task[None]]:
        return [asyncio.ensure_future(self._work(table_id)) for _ in range(count)]

    async def _work(self, table_id: int) -> None:
        async with self.turns.turn(table_id):
            self.begun.append(table_id)
            end = asyncio.Event()
            self._ends.append(end)
            await end.wait()

    async def end_first(self) -> None:
        self._ends.pop(0).set()
        await settled()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_place_is_left_for_another_table() -> None:
    work = Work(places=3)
    tasks = work.start(LARGE, 100)
    await settled()
    assert work.begun == [LARGE, LARGE]
    tasks += work.start(SMALL)
    await settled()
    assert work.begun == [LARGE, LARGE, SMALL]
    await end(tasks)


async def test_tables_take_turns() -> None:
    work = Work(places=1)
    tasks = [*work.start(LARGE, 100), *work.start(SMALL, 2), *work.start(OTHER)]
    await settled()
    for _ in range(6):
        await work.end_first()
    # The first one came before there were others.
    assert work.begun == [LARGE, LARGE, SMALL, OTHER, LARGE, SMALL, LARGE]
    await end(tasks)


async def test_who_gives_up_takes_no_place() -> None:
    work = Work(places=1)
    tasks = work.start(LARGE, 3)
    await settled()
    # One that waits, and one that was given a place in this very moment.
    tasks[1].cancel()
    work._ends[0].set()
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.wait(tasks)
    after = work.start(SMALL)
    await settled()
    assert work.begun == [LARGE, SMALL]
    await end(after)
    assert (work.turns._free, work.turns._taken, work.turns._waiting) == (1, {}, {})

"""Places for costly work, given to tables in turn, so that no table waits behind all that another has asked for.

Logs and stores are opened by this rule. Whoever asks for one place waits for work that is under way, and never behind
all that another table has asked for. One table does not get all places while it is alone, either: the first work of
another one begins at once, however long the work of the first takes. All calls are made on the loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from fluss.doors import threads

_T = TypeVar("_T")


class TableTurns:
    def __init__(self, places: int) -> None:
        self._free = places
        self._table_max = max(1, places - 1)
        self._taken: Counter[int] = Counter()
        # The table whose turn is next comes first; of each, who asked first.
        self._waiting: OrderedDict[int, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, table_id: int) -> AsyncIterator[None]:
        """A place for work on a table, until the block ends."""
        await self._take(table_id)
        try:
            yield
        finally:
            self._give_back(table_id)

    async def _take(self, table_id: int) -> None:
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(table_id, deque()).append(given)
        self._give_out()
        try:
            await given
        except asyncio.CancelledError:
            if not given.cancelled():
                self._give_back(table_id)
            raise

    def _give_back(self, table_id: int) -> None:
        self._free += 1
        self._taken[table_id] -= 1
        if not self._taken[table_id]:
            del self._taken[table_id]
        self._give_out()

    def _give_out(self) -> None:
        for table_id in list(self._waiting):
            if not self._free:
                return
            if self._taken[table_id] < self._table_max:
                self._give(table_id)

    def _give(self, table_id: int) -> None:
        """Give a place to one who waits and has not given up, and let the other tables go first next time."""
        queue = self._waiting.pop(table_id)
        while queue:
            given = queue.popleft()
            if not given.done():
                given.set_result(None)
                self._free -= 1
                self._taken[table_id] += 1
                break
        if queue:
            self._waiting[table_id] = queue


class TableThreads:
    """A few threads for work on tables; the places in them are given in turn."""

    def __init__(self, count: int, name: str) -> None:
        self._turns = TableTurns(count)
        self._pool = threads.pool(count, name)

    async def run(self, table_id: int, work: Callable[[], _T]) -> _T:
        """Do work on a table in a thread."""
        async with self._turns.turn(table_id):
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def shutdown(self) -> None:
        """Wait for what is under way and end the threads."""
        self._pool.shutdown()

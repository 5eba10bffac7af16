"""A scan of all rows of a bucket as of one moment, however long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TypeAlias

from fluss.storage.kv.store import KvSnapshot, KvStoreError, Page

ReadPage: TypeAlias = Callable[[Callable[[], Page]], Awaitable[Page]]


class BucketScan:
    """Keeps its store open, and old files alive, until it is closed."""

    def __init__(self, snapshot: KvSnapshot, read_page: ReadPage, held: AsyncExitStack) -> None:
        self.log_offset = snapshot.state.covered_offset  # the rows are as of this offset of the log
        self.at_end = False  # whether all rows were read
        self._snapshot = snapshot
        self._read_page = read_page
        self._held = held  # gives the store back
        self._lock = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    async def read(self, size_bytes_max: int, rows_max: int) -> list[bytes]:
        """The next values in the order of their keys, at least one if any is left; empty at the end."""
        async with self._lock:
            if self._closing is not None:
                raise KvStoreError("The scan was closed; begin it again.")
            page = await self._read_page(partial(self._snapshot.read, rows_max, size_bytes_max))
        self.at_end = page.next_key is None
        return page.values

    def close(self) -> None:
        """End it; a read under way comes to its end first."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())

    async def _close(self) -> None:
        async with self._lock:
            self._snapshot.close()
            await self._held.aclose()

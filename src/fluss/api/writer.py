"""What writers share in the facades that await: flush, drain and acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Self

from fluss.api.contexts import FLUSHING, leaving
from fluss.api.writer_base import Core, WriterBase, WriteResultHandleBase
from fluss.client.runtime import bridge
from fluss.doors import clock

# Writes that do not wait keep the event loop for no longer than this before other tasks have a turn.
TURN_S_MAX = 0.005


class WriteResultHandle(WriteResultHandleBase):
    """A write under way: ignore it, or await it (or `wait()`) until the server has stored the rows."""

    __slots__ = ()

    async def wait(self) -> None:
        """Wait until the server has stored the rows."""
        await self._handle.wait()

    def __await__(self) -> Generator[Any, None, None]:
        return self.wait().__await__()


class AwaitedWriter(WriterBase[Core, WriteResultHandle]):
    """A writer whose waiting is awaited."""

    _handle_class = WriteResultHandle
    _yielded_at = 0.0

    async def flush(self) -> None:
        """Send everything buffered and wait until it is stored; raises the first failure."""
        await self._core.flush()

    async def drain(self) -> None:
        """Wait until the buffer has room, so that the next write does not block the event loop.

        Lets other tasks run now and then, so a loop of writes may await it after each of them.
        """
        if self._core.is_full:
            await bridge(self._core.drain())
        elif clock.monotonic() - self._yielded_at < TURN_S_MAX:
            return
        else:
            await asyncio.sleep(0)
        self._yielded_at = clock.monotonic()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        with leaving(error, FLUSHING):
            await self.flush()

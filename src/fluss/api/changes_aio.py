"""The reader of changes whose polls are awaited: for `fluss.aio`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from fluss.api.changes_base import ChangesBase
from fluss.api.scanner import ITERATION_POLL_MS
from fluss.client.runtime import bridge

if TYPE_CHECKING:
    import pyarrow as pa


class Changes(ChangesBase):
    __doc__ = ChangesBase.__doc__

    async def poll(self, timeout_ms: int) -> pa.Table:
        """The next changes, at the latest after `timeout_ms`; empty if none came."""
        return self._taken(await bridge(self._core.poll(timeout_ms)))

    async def __aiter__(self) -> AsyncIterator[pa.Table]:
        while True:
            changes = await self.poll(ITERATION_POLL_MS)
            if changes.num_rows:
                yield changes

    async def __aenter__(self) -> Changes:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

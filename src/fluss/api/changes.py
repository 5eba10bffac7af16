"""The reader of changes whose polls block: for `fluss` and `fluss.sync`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from fluss.api.changes_base import ChangesBase
from fluss.api.scanner import ITERATION_POLL_MS
from fluss.client.runtime import bridge, run

if TYPE_CHECKING:
    import pyarrow as pa


class Changes(ChangesBase):
    __doc__ = ChangesBase.__doc__

    def poll(self, timeout_ms: int) -> pa.Table:
        """The next changes, at the latest after `timeout_ms`; empty if none came."""
        return self._taken(run(self._core.poll(timeout_ms)))

    def __iter__(self) -> Iterator[pa.Table]:
        while True:
            changes = self.poll(ITERATION_POLL_MS)
            if changes.num_rows:
                yield changes

    async def __aiter__(self) -> AsyncIterator[pa.Table]:
        while True:
            changes = self._taken(await bridge(self._core.poll(ITERATION_POLL_MS)))
            if changes.num_rows:
                yield changes

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

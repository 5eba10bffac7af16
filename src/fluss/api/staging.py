"""Staged writes; all that talks to the server is awaited."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self

from fluss.api.staging_base import StagedWriteBase
from fluss.client.runtime import bridge
from fluss.client.staging import StagedWriterCore
from fluss.model.staging import StagedTask

if TYPE_CHECKING:
    import pyarrow as pa


class StagedWriter:
    """Stages rows of one attempt. Obtain with `StagedWrite.create_writer(...)`."""

    def __init__(self, core: StagedWriterCore) -> None:
        self._core = core

    async def write_arrow_batch(self, batch: pa.RecordBatch) -> None:
        """Append rows, or upsert them in a primary-key table."""
        await bridge(self._core.write(batch))

    async def delete_arrow_batch(self, batch: pa.RecordBatch) -> None:
        """Delete the rows with these keys from a primary-key table."""
        await bridge(self._core.write(batch, deletes=True))

    async def pass_over_deletes(self, batch: pa.RecordBatch) -> None:
        """Count keys that have nothing to delete: a repeated batch is known by all keys it came with."""
        await bridge(self._core.pass_over_deletes(batch))

    async def finish(self) -> StagedTask:
        """Wait until the server has all rows; returns what the commit has to name."""
        return await bridge(self._core.finish())

    async def close(self) -> None:
        """Stop, finished or not."""
        await bridge(self._core.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class StagedWrite(StagedWriteBase):
    __doc__ = StagedWriteBase.__doc__

    def create_writer(self, task: int, attempt: int, *, columns: Sequence[str] | None = None) -> StagedWriter:
        """A writer of appends or upserts; `columns` makes these a partial update."""
        return StagedWriter(self._core.writer(task, attempt, columns))

    async def commit(self, tasks: Iterable[StagedTask]) -> bool:
        """Store the rows of these attempts, unless an earlier commit did; returns True when they are stored."""
        self.is_repeated = await bridge(self._core.commit(tasks))
        return True

    async def abort(self) -> None:
        """Let the server forget what is staged; does nothing once a commit has begun."""
        await bridge(self._core.abort())

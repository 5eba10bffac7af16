"""Staged writes: batches of a query, each stored once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self

from fluss.api.awaiting import wait
from fluss.client.staging import StagedWriteCore, StagedWriterCore
from fluss.model.staging import StagedTask

if TYPE_CHECKING:
    import pyarrow as pa


class StagedWriter:
    """Stages rows of one attempt. Obtain with `StagedWrite.create_writer(...)`."""

    def __init__(self, core: StagedWriterCore) -> None:
        self._core = core

    async def write_arrow_batch(self, batch: pa.RecordBatch) -> None:
        """Append rows, or upsert them in a primary-key table."""
        await wait(self._core.write(batch))

    async def delete_arrow_batch(self, batch: pa.RecordBatch) -> None:
        """Delete the rows with these keys from a primary-key table."""
        await wait(self._core.write(batch, deletes=True))

    async def pass_over_deletes(self, batch: pa.RecordBatch) -> None:
        """Count keys that have nothing to delete: a repeated batch is known by all keys it came with."""
        await wait(self._core.pass_over_deletes(batch))

    async def finish(self) -> StagedTask:
        """Wait until the server has all rows; returns what the commit has to name."""
        return await wait(self._core.finish())

    async def close(self) -> None:
        """Stop, finished or not."""
        await wait(self._core.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class StagedWrite:
    """One batch of a query, stored once however often it is written. Obtain with `table.new_staged_write(...)`.

    Tasks write with writers of their own, each attempt under a number of its own; nobody sees their rows. `commit`
    names the attempts that count and stores their rows. An error before it has begun leaves nothing; once it has, it is
    carried out whatever happens, and when it is repeated with the same rows nothing is stored again. Batches of a query
    are committed in the order of their ids: one before the last, or the last one with other rows, is refused, and the
    error says what to do. Only a Flussbett server can do this; what nobody commits within a day it forgets.
    """

    def __init__(self, core: StagedWriteCore) -> None:
        self._core = core
        self.is_repeated = False
        """Whether the batch had been committed before `commit` was called."""

    @property
    def query_id(self) -> str:
        return self._core.query_id

    @property
    def batch_id(self) -> int:
        return self._core.batch_id

    def create_writer(self, task: int, attempt: int, *, columns: Sequence[str] | None = None) -> StagedWriter:
        """A writer of appends or upserts; `columns` makes these a partial update."""
        return StagedWriter(self._core.writer(task, attempt, columns))

    async def commit(self, tasks: Iterable[StagedTask]) -> bool:
        """Store the rows of these attempts, unless an earlier commit did; returns True when they are stored."""
        self.is_repeated = await wait(self._core.commit(tasks))
        return True

    async def abort(self) -> None:
        """Let the server forget what is staged; does nothing once a commit has begun."""
        await wait(self._core.abort())

    def __repr__(self) -> str:
        return f"StagedWrite({self._core.info.table_path}, query_id={self.query_id!r}, batch_id={self.batch_id})"

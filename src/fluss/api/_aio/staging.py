"""Staged writes: batches of a query, each stored once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self

from fluss.api.awaiting import wait
from fluss.client.write.staged import StagedWriteCore, StagedWriterCore
from fluss.model.staging import StagedTask

if TYPE_CHECKING:
    import pyarrow as pa


class StagedWriter:
    """Stages rows of one attempt. Obtain with `StagedWrite.create_writer(...)`; one caller at a time.

    Examples:
        >>> async with staged.create_writer(task=0, attempt=0) as writer:
        ...     await writer.write_arrow_batch(pa.record_batch({"id": [4], "url": ["/"]}))
        ...     task = await writer.finish()
        >>> await staged.commit([task])
        True
    """

    def __init__(self, core: StagedWriterCore) -> None:
        self._core = core

    async def write_arrow_batch(self, batch: pa.RecordBatch) -> None:
        """Append rows, or upsert them in a primary-key table.

        Args:
            batch: A PyArrow RecordBatch; columns are matched by name.

        Raises:
            SchemaMismatchError: A column does not fit the table's schema.
            FlussError: The server could not stage the rows.

        Examples:
            >>> await writer.write_arrow_batch(pa.record_batch({"id": [4], "name": ["dan"]}))
        """
        await wait(self._core.write(batch))

    async def delete_arrow_batch(self, batch: pa.RecordBatch) -> None:
        """Delete the rows with some keys from a primary-key table.

        Args:
            batch: A PyArrow RecordBatch with the key columns.

        Raises:
            SchemaMismatchError: A column does not fit the table's schema.
            InvalidRequestError: The table has no primary key.
            FlussError: The server could not stage the keys.

        Examples:
            >>> await writer.delete_arrow_batch(pa.record_batch({"id": [1]}))
        """
        await wait(self._core.write(batch, deletes=True))

    async def pass_over_deletes(self, batch: pa.RecordBatch) -> None:
        """Count keys that have nothing to delete: a repeated batch is known by all keys it came with.

        Args:
            batch: A PyArrow RecordBatch with the key columns.

        Raises:
            SchemaMismatchError: A column does not fit the table's schema.
            InvalidRequestError: The table has no primary key.

        Examples:
            >>> await writer.pass_over_deletes(pa.record_batch({"id": [99]}))
        """
        await wait(self._core.pass_over_deletes(batch))

    async def finish(self) -> StagedTask:
        """Wait until the server has all rows.

        Returns:
            What the commit has to name.

        Raises:
            FlussError: Rows could not be staged.

        Examples:
            >>> task = await writer.finish()
        """
        return await wait(self._core.finish())

    async def close(self) -> None:
        """Stop, finished or not. What is staged and not committed is forgotten within a day.

        Examples:
            >>> await writer.close()
        """
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

    Examples:
        >>> staged = clicks.new_staged_write("nightly", batch_id=1)
        >>> async with staged.create_writer(task=0, attempt=0) as writer:
        ...     await writer.write_arrow_batch(pa.record_batch({"id": [4], "url": ["/"]}))
        ...     tasks = [await writer.finish()]
        >>> await staged.commit(tasks), staged.is_repeated
        (True, False)
    """

    def __init__(self, core: StagedWriteCore) -> None:
        self._core = core
        self.is_repeated = False
        """Whether the batch had been committed before `commit` was called."""

    @property
    def query_id(self) -> str:
        """The name of the query.

        Examples:
            >>> staged.query_id
            'nightly'
        """
        return self._core.query_id

    @property
    def batch_id(self) -> int:
        """The number of the batch.

        Examples:
            >>> staged.batch_id
            1
        """
        return self._core.batch_id

    def create_writer(self, task: int, attempt: int, *, columns: Sequence[str] | None = None) -> StagedWriter:
        """Make a writer of appends or upserts.

        Args:
            task: The number of the task.
            attempt: The number of this attempt at it; an attempt that is repeated gets another number.
            columns: Names of columns: these make upserts a partial update.

        Returns:
            The writer.

        Examples:
            >>> writer = staged.create_writer(task=0, attempt=0)
        """
        return StagedWriter(self._core.writer(task, attempt, columns))

    async def commit(self, tasks: Iterable[StagedTask]) -> bool:
        """Store the rows of some attempts, unless an earlier commit did. `is_repeated` says whether one did.

        Args:
            tasks: What `finish` of their writers returned.

        Returns:
            True: the rows are stored.

        Raises:
            InvalidRequestError: An attempt is not known or has expired, or the batch is not the one that the query has
                to commit; the message says what to do.

        Examples:
            >>> await staged.commit([])
            True
        """
        self.is_repeated = await wait(self._core.commit(tasks))
        return True

    async def abort(self) -> None:
        """Let the server forget what is staged; does nothing once a commit has begun.

        Examples:
            >>> await staged.abort()
        """
        await wait(self._core.abort())

    def __repr__(self) -> str:
        return f"StagedWrite({self._core.info.table_path}, query_id={self.query_id!r}, batch_id={self.batch_id})"

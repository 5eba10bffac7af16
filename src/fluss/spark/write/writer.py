"""Writing a DataFrame, and writing a stream micro-batch by micro-batch.

Rows are appended to log tables; primary-key tables take upserts, deletes and changes. Every task writes its rows and
waits until the server has stored them; the write succeeds when all tasks have. Rows that were stored stay stored,
whatever fails later, and a task that Spark runs again writes its rows again. So:

- appends are at least once: count on one copy of a row only if no task failed;
- upserts, deletes and changes leave the same rows however often they are repeated, where the last write of a key wins;
- an aggregating table counts repeated rows again.

Changes of one key are made in their order where they come in one Spark partition; between partitions there is no order.

A stream's micro-batch is written like a batch, so one that fails and is repeated writes its rows again. With
`exactly.once` it is stored once, whatever fails. Tasks stage their rows on the server, where nobody sees them, under
the query's id, the number of the micro-batch, the task and the attempt. When all tasks are done the driver names the
attempts that count, in one request; the server records it before it appends the rows, finishes it even if it is killed,
and answers a repetition with the same rows as done. So rows are stored once whatever is killed or repeated, in log
tables and in primary-key tables of every kind. The query is known by its checkpoint: with a new checkpoint it is a new
query.

A repetition with other rows, or of an earlier micro-batch, comes from a checkpoint that was put back or from a query
that is not deterministic. The server refuses it, and the query fails with the commands that settle it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from fluss.doors import randomness
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.spark.source_options import STREAM_OPTIONS, SourceOptions, bad_option
from fluss.spark.tables import open_table
from fluss.spark.waiting import told_shortly
from fluss.spark.write.plan import WriteOptions, WritePlan

if TYPE_CHECKING:
    import pyarrow as pa

    from fluss.sync import StagedTask


@dataclass(frozen=True)
class RowsStored(WriterCommitMessage):  # type: ignore[misc]
    """What a task reports: its rows are stored."""

    row_count: int


class FlussWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Checks the schema on the driver, writes in tasks. Holds plain values only, because Spark pickles it."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        options.refuse(STREAM_OPTIONS, "streams that are written (df.writeStream)")
        if WriteOptions.of(options).exactly_once:
            raise bad_option(
                "The option 'exactly.once' is for streams (df.writeStream): a batch write has no name under which a "
                "repetition could be recognised. Leave it out."
            )
        self._options, self._schema = options, schema
        self._plan = WritePlan.early(options, schema)

    @told_shortly()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsStored:
        """Write all batches of a task and wait until they are stored."""
        return store_rows(self._plan or WritePlan.make(self._options, self._schema), iterator)


def store_rows(plan: WritePlan, iterator: Iterator[pa.RecordBatch]) -> RowsStored:
    """What a task does whose rows are visible as soon as they are stored."""
    from fluss.spark.write.task import store, with_rows

    batches = with_rows(iterator)
    if batches is None:
        return RowsStored(0)
    with plan.open() as opened:
        return RowsStored(store(plan, opened, batches))


# What Spark tells the tasks of a micro-batch.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
ATTEMPT_BITS = 63

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowsStaged(WriterCommitMessage):  # type: ignore[misc]
    """What a task reports: its rows wait for the commit."""

    query_id: str
    batch_id: int
    task: StagedTask
    row_count: int


class FlussStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Spark makes one on the driver for each micro-batch and ships it to the tasks, and makes another to commit."""

    def __init__(self, options: SourceOptions, schema: Any, *, plans: bool = True) -> None:
        """Without `plans` it is one that commits."""
        self._options, self._schema = options, schema
        self._exactly_once = WriteOptions.of(options).exactly_once
        self._plan = WritePlan.early(options, schema) if plans else None

    @told_shortly()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsStored | RowsStaged:
        """Store, or stage, all batches of a task."""
        plan = self._plan or WritePlan.make(self._options, self._schema)
        return stage_rows(plan, iterator) if self._exactly_once else store_rows(plan, iterator)

    @told_shortly()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Make what was staged visible. A task without rows staged nothing, and nothing of nothing needs no commit."""
        staged = _staged(messages)
        if staged:
            with open_table(self._options) as opened:
                opened.table.new_staged_write(staged[0].query_id, batchId).commit(message.task for message in staged)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Forget what was staged. A commit that the server has recorded stays: it will be repeated, and then known.

        What is left behind where this fails goes with a later commit of the query, or in time. So it is not waited for:
        this is what a stopped query does at last.
        """
        staged = _staged(messages)
        if staged:
            try:
                with open_table(self._options, waits=False) as opened:
                    opened.table.new_staged_write(staged[0].query_id, batchId).abort()
            except FlussError as error:
                _log.warning("Rows of micro-batch %d stay staged until they expire: %s", batchId, error.message)


def stage_rows(plan: WritePlan, iterator: Iterator[pa.RecordBatch]) -> RowsStored | RowsStaged:
    """What a task does whose rows become visible with the commit."""
    from fluss.spark.write.task import apply, with_rows

    batches = with_rows(iterator)
    if batches is None:
        return RowsStored(0)
    query_id, batch_id, task = _micro_batch()
    # Spark's own attempt ids begin anew with each driver, and a task of a dead one may still be writing.
    attempt = int.from_bytes(randomness.token_bytes(8)) >> 64 - ATTEMPT_BITS
    with plan.open() as opened:
        staged = opened.table.new_staged_write(query_id, batch_id)
        with staged.create_writer(task, attempt, columns=plan.targets) as writer:
            write, delete = writer.write_arrow_batch, writer.delete_arrow_batch
            row_count = apply(plan, opened, batches, write, delete, writer.pass_over_deletes)
            return RowsStaged(query_id, batch_id, writer.finish(), row_count)


def _micro_batch() -> tuple[str, int, int]:
    """The query's id, the number of the micro-batch and that of the task."""
    context = TaskContext.get()
    query_id = batch_id = None
    if context is not None:
        query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if context is None or query_id is None or batch_id is None:
        raise InvalidRequestError("Spark does not say which query this is, so 'exactly.once' can't work: leave it out.")
    return query_id, int(batch_id), context.partitionId()


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[RowsStaged]:
    return [message for message in messages if isinstance(message, RowsStaged)]

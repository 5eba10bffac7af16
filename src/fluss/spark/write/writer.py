"""Writing a DataFrame or micro-batches: the writer on the driver, and its tasks, which append and upsert.

Missing partitions are created up to a bound that all tasks of a write share. The driver notes the newest partition when
the write begins. A task that meets rows of a missing partition counts those that are newer, whoever created them, and
creates none if there would be too many; a Flussbett server counts once more when it creates one, so that tasks that ask
at the same moment keep the bound together.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from fluss.doors import randomness
from fluss.formats.rows.keys import partition_names
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, SchemaMismatchError
from fluss.model.partitions import spec_of_name
from fluss.model.records import CHANGE_TYPE
from fluss.spark.columns import to_table
from fluss.spark.source_options import STREAM_OPTIONS, SourceOptions, bad_option, open_table
from fluss.spark.waiting import told_shortly
from fluss.spark.write.plan import NEW_PARTITIONS_MAX, WriteMode, WriteOptions, WritePlan

if TYPE_CHECKING:
    from fluss.model.partitions import PartitionBound
    from fluss.spark.source_options import OpenTable
    from fluss.sync import StagedTask


_NAMES_SHOWN = 3


class WritePartitions:
    """Finds and creates the partitions of a table for one task; without a bound it creates none."""

    def __init__(self, opened: OpenTable, bound: PartitionBound | None) -> None:
        info = opened.info
        self._admin = opened.connection.get_admin()
        self._path = info.table_path
        self._keys = info.partition_keys
        columns = {column.name: column for column in info.schema.columns}
        self._columns = [columns[key] for key in self._keys]
        self._bound = bound
        self._known: set[str] = set()
        self._new_count = 0

    def provide(self, rows: pa.RecordBatch) -> None:
        """Create what partitions of the rows are missing, all or none of them as far as their number is known."""
        if self._bound is None:
            return
        missing = self._missing(partition_names(rows, self._columns)[1])
        self._check_count(self._bound, missing)
        for name in missing:
            self._create(self._bound, name)

    def split(self, keys: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Keys of partitions that exist, and keys of those that do not, in which there is nothing to delete."""
        indexes, names = partition_names(keys, self._columns)
        missing = self._missing(names)
        if not missing:
            return keys, keys.slice(0, 0)
        is_missing = np.isin(names, missing)[indexes.to_numpy()]
        return keys.filter(pa.array(~is_missing)), keys.filter(pa.array(is_missing))

    def _missing(self, names: Sequence[str]) -> list[str]:
        """Those of these partitions that do not exist, each with a name that one may have."""
        if not self._known.issuperset(names):
            infos = self._admin.list_partition_infos(self._path)
            self._known = {info.partition_name for info in infos}
            if self._bound is not None:
                self._new_count = sum(info.partition_id > self._bound.newer_than_id for info in infos)
        missing = sorted(set(names) - self._known)
        for name in missing:
            spec_of_name(name, self._keys).check_values()
        return missing

    def _create(self, bound: PartitionBound, name: str) -> None:
        try:
            self._admin.create_partition(self._path, spec_of_name(name, self._keys), True, bound=bound)
        except FlussError as error:
            if error.error_code == ErrorCode.PARTITION_MAX_NUM_EXCEPTION:
                self._check_count(bound, self._missing([name]))
            raise
        self._known.add(name)

    def _check_count(self, bound: PartitionBound, missing: Sequence[str]) -> None:
        count = self._new_count + len(missing)
        if missing and count > bound.newer_max:
            shown = ", ".join(map(repr, missing[:_NAMES_SHOWN])) + (", ..." if len(missing) > _NAMES_SHOWN else "")
            raise InvalidRequestError(
                f"The rows are for at least {count} partitions that {self._path} did not have when the write began "
                f"({shown} among them); it may create {bound.newer_max}. Check the values of "
                f"{', '.join(map(repr, self._keys))}, or raise the bound: .option({NEW_PARTITIONS_MAX!r}, {count}).",
                ErrorCode.PARTITION_MAX_NUM_EXCEPTION,
            )


_UPSERTS = ("+I", "+U", "+A")
_DELETE, _BEFORE_UPDATE = "-D", "-U"


class Operation(NamedTuple):
    """Rows to append or upsert, or keys to delete."""

    is_delete: bool
    rows: pa.RecordBatch


def with_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """The batches that have rows; None if none has, so that nobody connects for nothing."""
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    return None if first is None else chain((first,), filled)


def store(plan: WritePlan, opened: OpenTable, batches: Iterable[pa.RecordBatch]) -> int:
    """Write rows and wait until they are stored; returns how many came."""
    if plan.mode is WriteMode.APPEND:
        appender = opened.table.new_append().create_writer()
        row_count = apply(plan, opened, batches, appender.write_arrow_batch)
        appender.flush()
        return row_count
    upserter = opened.table.new_upsert(plan.targets).create_writer()
    row_count = apply(plan, opened, batches, upserter.write_arrow_batch, upserter.delete_arrow)
    upserter.flush()
    return row_count


def apply(
    plan: WritePlan,
    opened: OpenTable,
    batches: Iterable[pa.RecordBatch],
    write: Callable[[pa.RecordBatch], object],
    delete: Callable[[pa.RecordBatch], object] | None = None,
    pass_over: Callable[[pa.RecordBatch], object] | None = None,
) -> int:
    """Hand operations to a writer in their order; returns how many rows came.

    `pass_over` is told of keys to delete in partitions that do not exist.
    """
    row_count = 0
    translate = Translation(plan, opened.table.arrow_schema)
    partitions = WritePartitions(opened, plan.partition_bound) if opened.info.is_partitioned() else None
    for batch in batches:
        for is_delete, rows in translate(batch):
            if not is_delete:
                if partitions is not None:
                    partitions.provide(rows)
                write(rows)
                continue
            assert delete is not None
            if partitions is not None:
                rows, missing = partitions.split(rows)
                if missing.num_rows and pass_over is not None:
                    pass_over(missing)
            if rows.num_rows:
                delete(rows)
        row_count += batch.num_rows
    return row_count


class Translation:
    """The translation of Spark's batches into operations on the table."""

    def __init__(self, plan: WritePlan, table_schema: pa.Schema) -> None:
        self._plan = plan
        self._path = plan.options.table_path
        self._row_schema = pa.schema([table_schema.field(name) for name in plan.columns])
        self._key_schema = pa.schema([table_schema.field(name) for name in plan.keys])

    def __call__(self, batch: pa.RecordBatch) -> Iterator[Operation]:
        """What a batch asks for, in order."""
        if self._plan.mode is WriteMode.CHANGELOG:
            yield from self._changes(batch)
        else:
            yield self._operation(self._plan.mode is WriteMode.DELETE, batch)

    def _operation(self, is_delete: bool, batch: pa.RecordBatch) -> Operation:
        schema = self._key_schema if is_delete else self._row_schema
        return Operation(is_delete, to_table(batch, schema, self._path))

    def _changes(self, batch: pa.RecordBatch) -> Iterator[Operation]:
        """Changes of one key in their order, all others together as far as that allows."""
        types = batch.column(CHANGE_TYPE)
        is_delete = pc.equal(types, _DELETE)
        is_upsert = pc.is_in(types, pa.array(_UPSERTS, types.type))
        self._check_change_types(types, pc.or_(is_upsert, is_delete))
        keep = is_upsert if self._plan.ignore_delete else pc.or_(is_upsert, is_delete)
        if not pc.all(keep).as_py():
            batch, is_delete = batch.filter(keep), is_delete.filter(keep)
        if not batch.num_rows:
            return
        deletes = is_delete.to_numpy(zero_copy_only=False)
        if deletes.all() or not deletes.any():
            yield self._operation(bool(deletes[0]), batch)
            return
        keys = to_table(batch, self._key_schema, self._path)
        rounds = change_rounds(key_codes(keys), deletes)
        ordered = batch.take(pa.array(np.argsort(rounds, kind="stable")))
        end = 0
        for number, row_count in enumerate(np.bincount(rounds).tolist()):
            if row_count:
                yield self._operation(number % 2 == 1, ordered.slice(end, row_count))
            end += row_count

    def _check_change_types(self, types: pa.Array, known: pa.Array) -> None:
        known = pc.or_(known, pc.equal(types, _BEFORE_UPDATE))
        if pc.all(known, skip_nulls=False).as_py() is not True:
            strange = types.filter(pc.invert(pc.fill_null(known, False)))[0].as_py()
            raise SchemaMismatchError(
                f"The column {CHANGE_TYPE!r} of changes of {self._path} has {strange!r}; it may have "
                f"{', '.join((*_UPSERTS, _BEFORE_UPDATE, _DELETE))}."
            )


def key_codes(keys: pa.RecordBatch) -> np.ndarray:
    """A number for each row, the same for rows with the same key."""
    codes = np.zeros(keys.num_rows, np.int64)
    for column in keys.columns:
        values = column.dictionary_encode().indices
        _, codes = np.unique(codes * keys.num_rows + values.to_numpy(), return_inverse=True)
    return codes


def change_rounds(codes: np.ndarray, deletes: np.ndarray) -> np.ndarray:
    """The round in which each change is made, so that those of one key keep their order.

    Rounds with even numbers are upserts, those with odd ones deletes. A key needs a new round only where its changes
    turn from one to the other, so there are few rounds however long the batch is.
    """
    order = np.argsort(codes, kind="stable")
    kind, code = deletes[order].astype(np.int64), codes[order]
    is_first = np.ones(len(code), np.bool_)
    is_first[1:] = code[1:] != code[:-1]
    turns = kind.copy()
    turns[1:] = np.where(is_first[1:], kind[1:], kind[1:] != kind[:-1])
    total = np.cumsum(turns)
    starts = np.flatnonzero(is_first)
    before = np.repeat(total[starts] - turns[starts], np.diff(np.append(starts, len(code))))
    rounds = np.empty(len(code), np.int64)
    rounds[order] = total - before
    return rounds


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

    batches = with_rows(iterator)
    if batches is None:
        return RowsStored(0)
    with plan.open() as opened:
        return RowsStored(store(plan, opened, batches))


# What Spark tells the tasks of a micro-batch.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
ATTEMPT_BITS = 63
# Spark 4.0 has no such writer; there the source refuses streams, and batches are written all the same.
_StreamWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", object)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowsStaged(WriterCommitMessage):  # type: ignore[misc]
    """What a task reports: its rows wait for the commit."""

    query_id: str
    batch_id: int
    task: StagedTask
    row_count: int


class FlussStreamWriter(_StreamWriter):  # type: ignore[misc]
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

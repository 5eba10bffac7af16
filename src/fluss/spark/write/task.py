"""What a task does with its batches: rows to append or upsert, and keys to delete, as Arrow batches in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss.model.errors import SchemaMismatchError
from fluss.model.records import CHANGE_TYPE
from fluss.spark.convert import to_table
from fluss.spark.write.write_options import WriteMode
from fluss.spark.write.write_partitions import WritePartitions

if TYPE_CHECKING:
    from fluss.spark.tables import OpenTable
    from fluss.spark.write.plan import WritePlan

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
    """From Spark's batches to operations on the table."""

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
    """In which round each change is made, so that those of one key keep their order.

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

"""The task of a write, which finds the partitions of its batches, appends, upserts and deletes.

Missing partitions are created up to a bound that all tasks of a write share. The driver notes the newest partition when
the write begins. A task that meets rows of a missing partition counts those that are newer, whoever created them, and
creates none if there would be too many; a Flussbett server counts once more when it creates one, so that tasks that ask
at the same moment keep the bound together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss.formats.rows.partition_values import partition_names
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, SchemaMismatchError
from fluss.model.partitions import spec_of_name
from fluss.model.records import CHANGE_TYPE
from fluss.spark.columns import to_table
from fluss.spark.write.plan import NEW_PARTITIONS_MAX, WriteMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fluss.model.partitions import PartitionBound
    from fluss.spark.tables import OpenTable
    from fluss.spark.write.plan import WritePlan

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

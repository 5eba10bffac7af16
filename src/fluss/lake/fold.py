"""What a stretch of a changelog leaves: the last change of each key, whatever the key's columns and types.

Keys are compared as bytes, so that all types, several columns and both sides (changes, rows of the lake) are one case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss.formats.keys import KeyEncoder
from fluss.lake.format import BUCKET, OFFSET, TIMESTAMP
from fluss.lake.parquet import to_schema
from fluss.model.arrow_types import arrow_schema
from fluss.model.errors import InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.records import ChangeType
from fluss.model.schema import Schema
from fluss.model.types import TypeRoot

if TYPE_CHECKING:
    from fluss.sync import TableBucket, TableScan

# A fold that has grown beyond this is to be taken and the next one begun.
FOLDED_ROWS_MAX: Final = 2_000_000
FOLDED_BYTES_MAX: Final = 512 * 1024 * 1024
# Changes that wait before they are folded into the rest.
PENDING_ROWS_MAX: Final = 500_000
PENDING_BYTES_MAX: Final = 128 * 1024 * 1024
# Keys that are looked up at once: each time the set of changed keys is hashed anew.
LOOKED_UP_ROWS: Final = 1_000_000

# The lake keeps no finer times.
_LAKE_TIME_PRECISION: Final = 6
_TIMES: Final = (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)
_CHANGE_COLUMNS: Final = 3  # that a changelog has in front of the table's
_KEY, _REMOVED, _PLACE = "key", "removed", "place"


class Folded(NamedTuple):
    """Keys that changed, and the rows that are left of them in the order of their offsets, with the system columns."""

    keys: pa.BinaryArray
    rows: pa.Table
    removed: pa.Table  # rows of keys that are gone, with the system columns, too


class Keys:
    """The primary keys of a table's rows within one bucket, as bytes."""

    def __init__(self, info: TableInfo) -> None:
        wanted = info.descriptor.physical_primary_keys
        columns = [column for name in wanted for column in info.schema.columns if column.name == name]
        for column in columns:
            if column.data_type.root in _TIMES and column.data_type.precision > _LAKE_TIME_PRECISION:
                raise InvalidRequestError(
                    f"The key column {column.name!r} of {info.table_path} has times finer than microseconds, which the "
                    "lake can't keep apart; use a precision of 6 or less."
                )
        self._encoder = KeyEncoder(columns)
        self._schema: pa.Schema = arrow_schema(Schema.of(columns))
        self.names: list[str] = self._schema.names

    def encode(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """The key of each row; columns may have the table's types or the lake's."""
        return self._encoder.encode(to_schema(rows, self._schema))

    def found_in(self, batches: Iterable[pa.RecordBatch], wanted: pa.BinaryArray) -> pa.BooleanArray:
        """For each row whether its key is one of those wanted."""
        found: list[pa.Array] = []
        waiting: list[pa.Array] = []
        for batch in batches:
            waiting.append(self.encode(batch))
            if sum(map(len, waiting)) >= LOOKED_UP_ROWS:
                found.append(pc.is_in(pa.concat_arrays(waiting), value_set=wanted))
                waiting = []
        if waiting:
            found.append(pc.is_in(pa.concat_arrays(waiting), value_set=wanted))
        return pa.concat_arrays(found) if found else pa.array([], pa.bool_())

    def without(self, batches: Iterable[pa.RecordBatch], changed: pa.BinaryArray) -> Iterator[pa.RecordBatch]:
        """The rows whose key is none of those that have changed."""
        waiting: list[pa.RecordBatch] = []
        row_count = 0
        for batch in batches:
            waiting.append(batch)
            row_count += batch.num_rows
            if row_count >= LOOKED_UP_ROWS:
                yield from self._kept(waiting, changed)
                waiting, row_count = [], 0
        yield from self._kept(waiting, changed)

    def _kept(self, batches: Sequence[pa.RecordBatch], changed: pa.BinaryArray) -> Iterator[pa.RecordBatch]:
        first, is_changed = 0, self.found_in(batches, changed)
        for batch in batches:
            yield batch.filter(pc.invert(is_changed.slice(first, batch.num_rows)))
            first += batch.num_rows


class ChangeFold:
    """Folds the changes of one bucket, in the order of its log."""

    def __init__(self, keys: Keys, columns: Sequence[str], bucket: int) -> None:
        self._keys = keys
        self._columns = columns
        self._bucket = bucket
        self._state: pa.Table | None = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0

    def add(self, changes: pa.RecordBatch) -> None:
        """Take further changes, as `read_bucket(changelog=True)` gives them."""
        # What a row was before an update says nothing of what is there now.
        changes = changes.filter(pc.not_equal(changes.column(0), ChangeType.UpdateBefore.short_string()))
        if not changes.num_rows:
            return
        rows = lake_rows(changes, self._columns, self._bucket)
        removed = pc.equal(changes.column(0), ChangeType.Delete.short_string())
        columns = [self._keys.encode(rows), removed, *rows.columns]
        self._pending.append(pa.RecordBatch.from_arrays(columns, names=[_KEY, _REMOVED, *rows.schema.names]))
        self._pending_rows += rows.num_rows
        self._pending_bytes += rows.nbytes
        held = 0 if self._state is None else self._state.num_rows
        if self._pending_rows >= max(PENDING_ROWS_MAX, held) or self._pending_bytes >= PENDING_BYTES_MAX:
            self._fold()

    @property
    def is_full(self) -> bool:
        """Whether what is left by now should be taken."""
        state = self._state
        return state is not None and (state.num_rows >= FOLDED_ROWS_MAX or state.nbytes >= FOLDED_BYTES_MAX)

    def take(self) -> Folded | None:
        """What the changes so far leave, None if there were none; the next ones begin anew."""
        if self._pending:
            self._fold()
        state, self._state = self._state, None
        if state is None:
            return None
        keys, is_removed = state.column(0).combine_chunks(), state.column(1)
        rows = state.select(list(range(2, state.num_columns)))
        return Folded(keys, rows.filter(pc.invert(is_removed)), rows.filter(is_removed))

    def _fold(self) -> None:
        """Keep the last change of each key, in the order of the log."""
        every = pa.Table.from_batches(self._pending)
        if self._state is not None:
            every = pa.concat_tables([self._state, every])
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        places = pa.array(np.arange(every.num_rows))
        last = pa.table([every.column(0), places], names=[_KEY, _PLACE]).group_by(_KEY).aggregate([(_PLACE, "max")])
        if last.num_rows < every.num_rows:
            every = every.take(pa.array(np.sort(last.column(f"{_PLACE}_max").to_numpy())))
        self._state = every


def fold_changes(
    scan: TableScan, bucket: TableBucket, start_offset: int, end_offset: int, keys: Keys, columns: Sequence[str]
) -> Folded | None:
    """What the changes of a bucket between two offsets leave, all of it in memory; None if nothing was changed."""
    fold = ChangeFold(keys, columns, bucket.bucket)
    for changes in scan.read_bucket(bucket, start_offset, end_offset, changelog=True):
        fold.add(changes)
    return fold.take()


def lake_rows(changes: pa.RecordBatch, columns: Sequence[str], bucket: int) -> pa.RecordBatch:
    """The rows of changes with the system columns behind the table's."""
    offsets, times = changes.column(1), changes.column(2)
    return with_system_columns(changes.columns[_CHANGE_COLUMNS:], columns, bucket, offsets, times)


def with_system_columns(
    values: Sequence[pa.Array], columns: Sequence[str], bucket: int, offsets: pa.Array, times: pa.Array
) -> pa.RecordBatch:
    """Columns of the table, and where each row is from."""
    buckets = pa.repeat(pa.scalar(bucket, pa.int32()), len(offsets))
    return pa.RecordBatch.from_arrays([*values, buckets, offsets, times], names=[*columns, BUCKET, OFFSET, TIMESTAMP])

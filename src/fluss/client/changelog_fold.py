"""The rows that a bucket's changes leave, or those that were there before them.

Forwards the last change of each key wins; backwards the first one, which tells the row as it was.
"""

from __future__ import annotations

import bisect

import pyarrow as pa
import pyarrow.compute as pc

from fluss.client.buckets import row_numbers
from fluss.client.changelog import change_types_array
from fluss.client.fetched import FetchedBatch
from fluss.formats.keys import PrimaryKeyEncoder
from fluss.model.records import ChangeType

# Changes that wait before they are folded into the rest: few enough to be held, enough to make it worth the while.
PENDING_ROWS_MAX = 500_000

_KEY, _REMOVED, _PLACE = "key", "removed", "place"


class Folded:
    """What is known of each key that has changed, in the order of keys."""

    def __init__(self, keys: pa.Array, removals: pa.Array, rows: pa.Table) -> None:
        self.keys = keys
        self._removals = removals
        self._rows = rows

    def __len__(self) -> int:
        return len(self.keys)

    def place_after(self, key: bytes) -> int:
        """How many keys are at or before `key`."""
        return bisect.bisect_right(range(len(self)), key, key=lambda place: self.keys[place].as_py())

    def rows(self, start: int, end: int) -> list[pa.RecordBatch]:
        """The rows that are there, of some keys."""
        count = end - start
        kept = self._rows.slice(start, count).filter(pc.invert(self._removals.slice(start, count)))
        batches: list[pa.RecordBatch] = kept.to_batches()
        return batches


class ChangelogFold:
    """Folds batches of one bucket, in the order of its log. Not for the I/O loop: it works on all rows at once."""

    def __init__(self, keys: PrimaryKeyEncoder, schema: pa.Schema, *, backwards: bool = False) -> None:
        self._keys = keys
        # The row as it was before an update says nothing about what is there now, and the other way round.
        void, removal, self._chosen = (
            (ChangeType.UpdateAfter, ChangeType.Insert, "min")
            if backwards
            else (ChangeType.UpdateBefore, ChangeType.Delete, "max")
        )
        self._void, self._removal = change_types_array(bytes([void, removal]))
        self._schema = schema
        head = [(_KEY, pa.binary()), (_REMOVED, pa.bool_())]
        # Columns of the table are told from the first two by place: they may have the same names.
        self._state: pa.Table = pa.schema([*map(pa.field, *zip(*head, strict=True)), *schema]).empty_table()
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0

    def add(self, batches: list[FetchedBatch]) -> None:
        """Take further changes."""
        for fetched in batches:
            batch, changes = fetched.batch, fetched.change_types
            types = change_types_array(bytes(fetched.row_count) if changes is None else changes)
            lasting = pc.not_equal(types, self._void)
            batch, types = batch.filter(lasting), types.filter(lasting)
            removed = pc.equal(types, self._removal)
            arrays = [self._keys.encode(batch), removed, *batch.columns]
            self._pending.append(pa.RecordBatch.from_arrays(arrays, schema=self._state.schema))
            self._pending_rows += batch.num_rows
        if self._pending_rows > max(PENDING_ROWS_MAX, self._state.num_rows):
            self._fold()

    def _fold(self) -> None:
        every = pa.concat_tables([self._state, pa.Table.from_batches(self._pending, self._state.schema)])
        self._pending, self._pending_rows = [], 0
        places = row_numbers(every.num_rows)
        by_key = pa.table([every.column(0), places], names=[_KEY, _PLACE]).group_by(_KEY)
        chosen = by_key.aggregate([(_PLACE, self._chosen)])
        self._state = every.take(chosen.column(f"{_PLACE}_{self._chosen}"))

    def result(self) -> Folded:
        """What the changes so far leave."""
        self._fold()
        ordered = self._state.take(pc.sort_indices(self._state.column(0)))
        keys, removals = (ordered.column(place).combine_chunks() for place in (0, 1))
        return Folded(keys, removals, ordered.select(list(range(2, ordered.num_columns))))

"""The last change of each key in a stretch of a changelog, or backwards its first.

Forwards that is what there is behind the stretch; backwards it is what there was before it, by the rows that the
changelog kept of each change. Keys are compared as bytes, so that all types and several columns are one case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss.formats.arrow.arrays import numbers_array, texts_array
from fluss.model.records import ChangeType

# Changes that wait before they are folded into the rest: few enough to be held, enough to make it worth the while.
PENDING_ROWS_MAX: Final = 500_000

_KEY, _REMOVED, _PLACE = "key", "removed", "place"
_KINDS: Final = texts_array([kind.short_string() for kind in ChangeType])


class LastChanges(NamedTuple):
    """One change of each key that has any, in the order of the log."""

    keys: pa.BinaryArray
    is_removed: pa.ChunkedArray
    """Whether the key is gone, or was not there before"""
    rows: pa.Table


class LastChangeFold:
    """Folds changes that come in the order of their log. Not for an event loop: it works on all rows at once."""

    def __init__(
        self,
        encode: Callable[[pa.RecordBatch], pa.BinaryArray],
        *,
        backwards: bool = False,
        pending_bytes_max: int | None = None,
    ) -> None:
        self._encode = encode
        self._pending_bytes_max = pending_bytes_max
        # The row as it was before an update says nothing about what is there now, and the other way round.
        void, removal, self._chosen = (
            (ChangeType.UpdateAfter, ChangeType.Insert, "min")
            if backwards
            else (ChangeType.UpdateBefore, ChangeType.Delete, "max")
        )
        self._void, self._removal = pa.Array.from_buffers(pa.uint8(), 2, [None, pa.py_buffer(bytes([void, removal]))])
        self._state: pa.Table | None = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0

    def add(self, change_types: pa.Array, rows: pa.RecordBatch) -> None:
        """Take further changes; their types are numbers of ChangeType."""
        lasting = pc.not_equal(change_types, self._void)
        rows, change_types = rows.filter(lasting), change_types.filter(lasting)
        if not rows.num_rows:
            return
        # Columns of the table are told from the first two by place: they may have the same names.
        columns = [self._encode(rows), pc.equal(change_types, self._removal), *rows.columns]
        self._pending.append(pa.RecordBatch.from_arrays(columns, names=[_KEY, _REMOVED, *rows.schema.names]))
        self._pending_rows += rows.num_rows
        self._pending_bytes += rows.nbytes
        is_large = self._pending_bytes_max is not None and self._pending_bytes >= self._pending_bytes_max
        if is_large or self._pending_rows >= max(PENDING_ROWS_MAX, self.row_count):
            self._fold()

    @property
    def row_count(self) -> int:
        """How many keys are left of what was folded so far."""
        return 0 if self._state is None else int(self._state.num_rows)

    @property
    def size_bytes(self) -> int:
        """How much of the memory these have."""
        return 0 if self._state is None else int(self._state.nbytes)

    def take(self) -> LastChanges | None:
        """What the changes so far leave, None if there were none; the next ones begin anew."""
        if self._pending:
            self._fold()
        state, self._state = self._state, None
        if state is None:
            return None
        return LastChanges(
            state.column(0).combine_chunks(), state.column(1), state.select(list(range(2, state.num_columns)))
        )

    def _fold(self) -> None:
        every = pa.Table.from_batches(self._pending)
        if self._state is not None:
            every = pa.concat_tables([self._state, every])
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        places = numbers_array(np.arange(every.num_rows, dtype=np.int64))
        by_key = pa.table([every.column(0), places], names=[_KEY, _PLACE]).group_by(_KEY)
        chosen = by_key.aggregate([(_PLACE, self._chosen)])
        if chosen.num_rows < every.num_rows:
            every = every.take(numbers_array(np.sort(chosen.column(f"{_PLACE}_{self._chosen}").to_numpy())))
        self._state = every


def numbered_kinds(kinds: pa.Array) -> pa.Array:
    """Numbers of ChangeType for the short texts that changes have as Arrow rows."""
    return pc.index_in(kinds, value_set=_KINDS)

"""Changes as Arrow rows, and the rows that a bucket's changes leave.

Read forwards, the last change of each key wins. Read backwards the first one does, which tells the row as it was.
"""

from __future__ import annotations

import bisect
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss.client.scan.decode import FetchedBatch
from fluss.client.write.routing import row_numbers
from fluss.formats.arrow.arrays import numbers_array, texts_array
from fluss.formats.changelog.last_change import LastChangeFold
from fluss.formats.rows.keys import PrimaryKeyEncoder
from fluss.model.records import CHANGE_TYPE, COMMIT_TIMESTAMP, LOG_OFFSET, ChangeType

_FIELDS = (
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(LOG_OFFSET, pa.int64(), nullable=False),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("ms", tz="UTC")),
)
_TIMESTAMP = _FIELDS[2].type


_SHORT = texts_array([change.short_string() for change in ChangeType])


def changelog_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of changes of rows of `schema`."""
    return pa.schema([*_FIELDS, *schema])


def with_changes(fetched: FetchedBatch) -> FetchedBatch:
    """The same rows with what happened to each in front."""
    count = fetched.row_count
    kinds = pa.repeat(_SHORT[ChangeType.AppendOnly], count)
    if fetched.change_types is not None:
        kinds = _SHORT.take(change_types_array(fetched.change_types))
    offsets = fetched.offsets
    if offsets is None:
        offsets = row_numbers(fetched.base_offset + count, fetched.base_offset)
    times = numbers_array(np.full(count, fetched.timestamp_ms, np.int64), _TIMESTAMP)
    return replace(fetched, batch=_joined(kinds, offsets, times, fetched.batch))


def as_inserts(rows: pa.RecordBatch, log_offset: int) -> pa.RecordBatch:
    """Rows that are there, as changes: when each was made is not known."""
    kinds = pa.repeat(_SHORT[ChangeType.Insert], rows.num_rows)
    offsets = numbers_array(np.full(rows.num_rows, log_offset, np.int64))
    return _joined(kinds, offsets, pa.nulls(rows.num_rows, _TIMESTAMP), rows)


def change_types_array(change_types: bytes) -> pa.Array:
    """Change types, one per row, as Arrow has them; nothing is copied."""
    return pa.Array.from_buffers(pa.uint8(), len(change_types), [None, pa.py_buffer(change_types)])


def _joined(kinds: pa.Array, offsets: pa.Array, times: pa.Array, rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([kinds, offsets, times, *rows.columns], schema=changelog_schema(rows.schema))


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
        self._fold = LastChangeFold(keys.encode, backwards=backwards)
        self._schema = schema

    def add(self, batches: list[FetchedBatch]) -> None:
        """Take further changes."""
        for fetched in batches:
            types = bytes(fetched.row_count) if fetched.change_types is None else fetched.change_types
            self._fold.add(change_types_array(types), fetched.batch)

    def result(self) -> Folded:
        """What the changes leave."""
        last = self._fold.take()
        if last is None:
            return Folded(pa.nulls(0, pa.binary()), pa.nulls(0, pa.bool_()), self._schema.empty_table())
        order = pc.sort_indices(last.keys)
        rows = pa.Table.from_arrays(last.rows.take(order).columns, schema=self._schema)
        return Folded(last.keys.take(order), last.is_removed.take(order).combine_chunks(), rows)

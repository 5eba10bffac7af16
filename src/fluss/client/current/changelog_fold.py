"""The rows that a bucket's changes leave, or those that were there before them.

Forwards the last change of each key wins; backwards the first one, which tells the row as it was.
"""

# Small on purpose: the fold is the one of `formats`; here is what the batches of a client and the order of keys need.

from __future__ import annotations

import bisect

import pyarrow as pa
import pyarrow.compute as pc

from fluss.client.current.changelog import change_types_array
from fluss.client.scan.fetched import FetchedBatch
from fluss.formats.changelog.last_change import LastChangeFold
from fluss.formats.rows.keys import PrimaryKeyEncoder


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

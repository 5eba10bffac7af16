"""Changes of a bucket folded to the rows that they leave, and keys by which rows of the lake are compared with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fluss.formats.changelog.fold import LastChangeFold, numbered_kinds
from fluss.formats.rows.keys import KeyEncoder
from fluss.lake.format import BUCKET, OFFSET, TIMESTAMP
from fluss.lake.parquet import to_schema
from fluss.model.errors import InvalidRequestError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.infos import TableInfo
from fluss.model.schema import Schema
from fluss.model.types import TypeRoot

if TYPE_CHECKING:
    from fluss.sync import TableBucket, TableScan

# A fold that has grown beyond this is to be taken and the next one begun.
FOLDED_ROWS_MAX: Final = 2_000_000
FOLDED_BYTES_MAX: Final = 512 * 1024 * 1024
# Changes that wait before they are folded into the rest, beside the bound on their number.
PENDING_BYTES_MAX: Final = 128 * 1024 * 1024
# Keys that are looked up at once: each time the set of changed keys is hashed anew.
LOOKED_UP_ROWS: Final = 1_000_000

# The lake keeps no finer times.
_LAKE_TIME_PRECISION: Final = 6
_TIMES: Final = (TypeRoot.TIMESTAMP, TypeRoot.TIMESTAMP_LTZ)
_CHANGE_COLUMNS: Final = 3  # that a changelog has in front of the table's


class FoldedChanges(NamedTuple):
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
        """Whether the key of each row is one of those wanted."""
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
        """The rows whose key has not changed."""
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
        self._columns = columns
        self._bucket = bucket
        self._fold = LastChangeFold(keys.encode, pending_bytes_max=PENDING_BYTES_MAX)

    def add(self, changes: pa.RecordBatch) -> None:
        """Take further changes, as `read_bucket(changelog=True)` gives them."""
        self._fold.add(numbered_kinds(changes.column(0)), lake_rows(changes, self._columns, self._bucket))

    @property
    def is_full(self) -> bool:
        """Whether what is left by now should be taken."""
        return self._fold.row_count >= FOLDED_ROWS_MAX or self._fold.size_bytes >= FOLDED_BYTES_MAX

    def take(self) -> FoldedChanges | None:
        """What the changes so far leave, None if there were none; the next ones begin anew."""
        last = self._fold.take()
        if last is None:
            return None
        return FoldedChanges(last.keys, last.rows.filter(pc.invert(last.is_removed)), last.rows.filter(last.is_removed))


def fold_changes(
    scan: TableScan, bucket: TableBucket, start_offset: int, end_offset: int, keys: Keys, columns: Sequence[str]
) -> FoldedChanges | None:
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

"""Reading rows of the lake in a task, in the table's types, and merging them with changes that came since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from fluss.client.filtering import ScanFilter
from fluss.lake.fold import ChangeFold, Folded, Keys
from fluss.lake.layout import OFFSET, TIMESTAMP
from fluss.lake.parquet import READ_ROWS, read_file, to_schema
from fluss.model.arrow_types import arrow_schema
from fluss.model.errors import InvalidRequestError
from fluss.model.paths import TableBucket
from fluss.model.predicate_text import parse_predicate
from fluss.model.records import CHANGE_TYPE, COMMIT_TIMESTAMP, LOG_OFFSET, ChangeType
from fluss.spark.lake_parts import LakeBucket, LakePart, LakeRows, LakeSlice, LakeSource

if TYPE_CHECKING:
    from fluss.model.schema import Column
    from fluss.spark.tables import OpenTable

# What the columns of changes are called in the lake.
_OF_CHANGES: Final = {OFFSET: LOG_OFFSET, TIMESTAMP: COMMIT_TIMESTAMP}


def read_lake(
    opened: OpenTable, columns: Iterable[Column], filter_text: str | None, part: LakePart
) -> Iterator[pa.RecordBatch]:
    """The rows of a part that match, in these columns; those of changes say when each row was written last."""
    reading = _Reading(opened, [column.name for column in columns], filter_text, part.source)
    batches = reading.of_files(part) if isinstance(part, LakeRows) else reading.merged(part)
    try:
        for batch in batches:
            matching = reading.narrowed(batch)
            if matching.num_rows:
                yield matching
    except FileNotFoundError as error:
        raise InvalidRequestError(
            f"A file of {opened.info.table_path} in the lake was there when the query was planned, and is gone: its "
            f"snapshot was expired and cleaned up. Load the table again. ({error})"
        ) from error


class _Reading:
    """Rows on their way have what is needed of the table's columns, and their offsets and times behind."""

    def __init__(self, opened: OpenTable, names: Sequence[str], filter_text: str | None, source: LakeSource) -> None:
        info = opened.info
        self._info, self._table, self._source, self._output = info, opened.table, source, list(names)
        self._names = info.schema.column_names
        self._filter = None
        if filter_text is not None:
            self._filter = ScanFilter(parse_predicate(filter_text, info.schema), info.schema)
        filtered = () if self._filter is None else (self._names[index] for index in self._filter.columns)
        wanted = {*names, *filtered, *info.physical_primary_keys}
        self._needed = [name for name in self._names if name in wanted]
        types = arrow_schema(info.schema)
        fields = [(name, types.field(name).type) for name in self._needed]
        self._schema = pa.schema([*fields, (OFFSET, pa.int64()), (TIMESTAMP, pa.timestamp("ms", "UTC"))])

    def of_files(self, part: LakeRows) -> Iterator[pa.RecordBatch]:
        """Rows of files as they are."""
        for item in part.slices:
            for batch in self._file(item):
                batch = _between(batch, OFFSET, item.start_offset, item.end_offset)
                yield _between(batch, TIMESTAMP, part.start_ms, part.end_ms)

    def merged(self, part: LakeBucket) -> Iterator[pa.RecordBatch]:
        """Rows of files whose keys have not changed since, and what the changes have left of the others."""
        keys = Keys(self._info)
        changed = self._changed(part, keys)
        rows = (batch for file in part.files for batch in self._file(LakeSlice(file)))
        if changed is None:
            yield from rows
            return
        # Each time the set of changed keys is hashed anew.
        for some in _gathered(rows, max(READ_ROWS, len(changed.keys))):
            yield some.filter(pc.invert(pc.is_in(keys.encode(some), value_set=changed.keys)))
        for batch in changed.rows.to_batches(READ_ROWS):
            yield to_schema(batch, self._schema)

    def _changed(self, part: LakeBucket, keys: Keys) -> Folded | None:
        """What has become of the keys that have changed since the files were written."""
        scan = self._table.new_scan()
        if self._needed != self._names:
            scan = scan.project_by_name(self._needed)
        fold = ChangeFold(keys, self._needed, part.bucket)
        bucket = TableBucket(part.table_id, part.bucket, part.partition_id)
        for changes in scan.read_bucket(bucket, part.start_offset, part.end_offset, changelog=True):
            fold.add(changes)
        return fold.take()

    def _file(self, item: LakeSlice) -> Iterator[pa.RecordBatch]:
        """The rows of a file; columns that the lake does not know yet are null."""
        of_lake = self._source.schema
        known = [field for field in self._schema if field.name in of_lake.names]
        asked = pa.schema([of_lake.field(field.name) for field in known])
        for batch in read_file(item.file, asked, self._source.properties, item.share):
            rows = to_schema(batch, pa.schema(known))
            columns = [
                rows.column(field.name) if field.name in of_lake.names else pa.nulls(rows.num_rows, field.type)
                for field in self._schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def narrowed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows that match, in the columns that were asked for."""
        if self._filter is not None:
            batch = batch.filter(self._filter.mask(lambda index: batch.column(self._names[index])))
        change_type = ChangeType.Insert if self._info.has_primary_key() else ChangeType.AppendOnly
        changes = pa.repeat(change_type.short_string(), batch.num_rows)
        batch = batch.rename_columns([_OF_CHANGES.get(name, name) for name in batch.schema.names])
        return batch.append_column(CHANGE_TYPE, changes).select(self._output)


def _gathered(batches: Iterable[pa.RecordBatch], row_count: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at least so many, but for the last."""
    waiting: list[pa.RecordBatch] = []
    waiting_rows = 0
    for batch in batches:
        waiting.append(batch)
        waiting_rows += batch.num_rows
        if waiting_rows >= row_count:
            yield pa.concat_batches(waiting)
            waiting, waiting_rows = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


def _between(batch: pa.RecordBatch, column: str, start: Any, end: Any) -> pa.RecordBatch:
    """Rows with values from `start` up to, not including, `end`; None is no limit."""
    kind = batch.schema.field(column).type
    if start is not None:
        batch = batch.filter(pc.greater_equal(batch.column(column), pa.scalar(start, kind)))
    return batch if end is None else batch.filter(pc.less(batch.column(column), pa.scalar(end, kind)))

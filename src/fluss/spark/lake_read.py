"""Reading rows of the lake in a task, in the table's types, and merging them with changes that came since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from fluss.client.filtering import ScanFilter
from fluss.lake.fold import Keys, fold_changes
from fluss.lake.format import OFFSET, TIMESTAMP
from fluss.lake.parquet import READ_ROWS, read_file_as, to_schema
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
            f"A file of {opened.info.table_path} in the lake was there when the query was planned, and is not here: "
            "its snapshot was expired and cleaned up, so load the table again; or this machine does not share the "
            f"lake's folder with the driver's. ({error})"
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
        scan = self._table.new_scan()
        if self._needed != self._names:
            scan = scan.project_by_name(self._needed)
        bucket = TableBucket(part.table_id, part.bucket, part.partition_id)
        changed = fold_changes(scan, bucket, part.start_offset, part.end_offset, keys, self._needed)
        rows = (batch for file in part.files for batch in self._file(LakeSlice(file)))
        if changed is None:
            yield from rows
            return
        yield from keys.without(rows, changed.keys)
        for batch in changed.rows.to_batches(READ_ROWS):
            yield to_schema(batch, self._schema)

    def _file(self, item: LakeSlice) -> Iterator[pa.RecordBatch]:
        source = self._source
        return read_file_as(item.file, source.schema, self._schema, source.properties, item.share)

    def narrowed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows that match, in the columns that were asked for."""
        if self._filter is not None:
            batch = batch.filter(self._filter.mask(lambda index: batch.column(self._names[index])))
        change_type = ChangeType.Insert if self._info.has_primary_key() else ChangeType.AppendOnly
        changes = pa.repeat(change_type.short_string(), batch.num_rows)
        batch = batch.rename_columns([_OF_CHANGES.get(name, name) for name in batch.schema.names])
        return batch.append_column(CHANGE_TYPE, changes).select(self._output)


def _between(batch: pa.RecordBatch, column: str, start: Any, end: Any) -> pa.RecordBatch:
    """Rows with values from `start` up to, not including, `end`; None is no limit."""
    kind = batch.schema.field(column).type
    if start is not None:
        batch = batch.filter(pc.greater_equal(batch.column(column), pa.scalar(start, kind)))
    return batch if end is None else batch.filter(pc.less(batch.column(column), pa.scalar(end, kind)))

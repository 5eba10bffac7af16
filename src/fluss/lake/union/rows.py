"""The one reader of lake and log: below a union read in Python, in DuckDB and in the tasks of Spark.

`BucketReader` has files with their deletes applied, changes folded, and both put together by key. What its users add is
which rows they ask for, and how these are handed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

import pyarrow as pa

from fluss.client.scan.filter import ScanFilter
from fluss.lake.fold import FoldedChanges, Keys, fold_changes
from fluss.lake.format import OFFSET, TIMESTAMP, LakeFile
from fluss.lake.parquet import READ_ROWS, read_file_as, to_schema
from fluss.lake.union.plan import LakeSource, UnionBucket, UnionPlan
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.paths import TableBucket
from fluss.model.predicates import Predicate
from fluss.model.tables.merge_rules import has_old_images
from fluss.sync import FlussTable

# Where a row is from, as a read that asks for it has it behind the table's columns.
_ORIGIN: Final = ((OFFSET, pa.int64()), (TIMESTAMP, pa.timestamp("ms", "UTC")))


class BucketReader:
    """Reads a table's rows in the columns that a read needs. Its calls block, and may be made in any thread.

    These are the columns wanted, those of the filter and the keys, in the table's order. Changes and rows of the lake
    are compared by key, and an update that takes a row out of what matches must be known as well: so the filter comes
    last.
    """

    def __init__(
        self, table: FlussTable, wanted: Iterable[str], predicate: Predicate | None = None, *, with_origin: bool = False
    ) -> None:
        self._info = info = table.get_table_info()
        self._columns = columns = info.schema.column_names
        self._filter = None if predicate is None else ScanFilter(predicate, info.schema)
        filtered = () if self._filter is None else (columns[index] for index in self._filter.columns)
        needed = {*wanted, *filtered, *info.primary_keys}
        self.names = [name for name in columns if name in needed]
        types = arrow_schema(info.schema)
        self.schema: pa.Schema = pa.schema([*map(types.field, self.names), *(_ORIGIN if with_origin else ())])
        scan = table.new_scan()
        self._changes = scan if self.names == columns else scan.project_by_name(self.names)

    def file(self, source: LakeSource, file: LakeFile, share: tuple[int, int] = (0, 1)) -> Iterator[pa.RecordBatch]:
        """The rows of a file, or of a share of it, that were not deleted."""
        return read_file_as(file, source.schema, self.schema, source.properties, share)

    def changes(self, bucket: TableBucket, start_offset: int, end_offset: int) -> FoldedChanges | None:
        """What changes leave of the keys that they touch, all in memory; None if there are none."""
        return fold_changes(self._changes, bucket, start_offset, end_offset, self._keys, self.names)

    def files(
        self, source: LakeSource, files: Iterable[LakeFile], changes: FoldedChanges | None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of files, without those whose key has changed."""
        rows = (batch for file in files for batch in self.file(source, file))
        return rows if changes is None else self._keys.without(rows, changes.keys)

    def left(self, changes: FoldedChanges | None) -> Iterator[pa.RecordBatch]:
        """The rows that changes leave."""
        for batch in () if changes is None else changes.rows.to_batches(READ_ROWS):
            yield to_schema(batch, self.schema)

    def matching(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that the filter lets through."""
        if self._filter is None:
            return batch
        return batch.filter(self._filter.mask(lambda index: batch.column(self._columns[index])))

    @cached_property
    def _keys(self) -> Keys:
        return Keys(self._info)  # raises for keys that a lake can't hold


class UnionReader:
    """Reads buckets of a plan in the columns and rows wanted. Its calls block, and may be made in any thread."""

    def __init__(
        self, table: FlussTable, projection: Sequence[int] | None = None, predicate: Predicate | None = None
    ) -> None:
        self._info = info = table.get_table_info()
        full = table.arrow_schema
        wanted = list(range(len(full))) if projection is None else list(projection)
        self.schema: pa.Schema = pa.schema([full.field(index) for index in wanted])
        self.key_names = info.primary_keys
        self._reader = BucketReader(table, self.schema.names, predicate)
        rows = table.new_scan().project(wanted)
        self._rows = rows if predicate is None else rows.filter(predicate)

    @property
    def needed(self) -> pa.Schema:
        """The columns of rows before they are narrowed."""
        return self._reader.schema

    def batches(self, plan: UnionPlan) -> Iterator[pa.RecordBatch]:
        """All rows of a plan, in bounded memory but for the keys that the tail of a primary-key table touches."""
        for bucket in plan.buckets:
            changes = self.changes(bucket)
            yield from self.lake_batches(plan, bucket.files, changes)
            yield from self.tail_batches(bucket, changes)

    def changes(self, bucket: UnionBucket) -> FoldedChanges | None:
        """What a tail leaves of the keys that it touches; None where there are none, or rows have no keys."""
        if not (self.key_names and bucket.is_tiered and bucket.tail_rows):
            return None
        assert bucket.start_offset is not None
        assert bucket.end_offset is not None
        return self._reader.changes(self._bucket(bucket), bucket.start_offset, bucket.end_offset)

    def lake_batches(
        self, plan: UnionPlan, files: Sequence[LakeFile], changes: FoldedChanges | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the lake, without those whose key has changed."""
        if files:
            yield from self._narrowed(self._reader.files(plan.source, files, changes))

    def tail_batches(self, bucket: UnionBucket, changes: FoldedChanges | None) -> Iterator[pa.RecordBatch]:
        """The rows that the log behind the lake's files has, or leaves."""
        if changes is not None:
            yield from self._narrowed(self._reader.left(changes))
        elif not bucket.tail_rows or (self.key_names and bucket.is_tiered):
            return  # offsets that changed nothing leave nothing
        elif self.key_names:
            yield from self._rows.read_bucket_at(self._bucket(bucket), self._repeatable(bucket.end_offset))
        else:
            assert bucket.start_offset is not None
            assert bucket.end_offset is not None
            yield from self._rows.read_bucket(self._bucket(bucket), bucket.start_offset, bucket.end_offset)

    def _repeatable(self, offset: int | None) -> int | None:
        """The offset; None, which is as of now, where the changelog does not tell rows as they were before."""
        return offset if has_old_images(self._info.properties) else None

    def _bucket(self, bucket: UnionBucket) -> TableBucket:
        return TableBucket(self._info.table_id, bucket.bucket, bucket.partition_id)

    def _narrowed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows and columns that are wanted."""
        for batch in map(self._reader.matching, batches):
            if batch.num_rows:
                columns = [batch.column(name) for name in self.schema.names]
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

"""Reading what a union plan names: rows of the lake's files and of the log behind them, each once, as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from fluss.api.lake import blocking_shells
from fluss.client.filtering import ScanFilter
from fluss.lake.files import LakeFile
from fluss.lake.fold import Folded, Keys, fold_changes
from fluss.lake.options import LakeOptions, is_lake_named
from fluss.lake.parquet import read_file_as
from fluss.lake.union_plan import (
    ATTEMPTS_MAX,
    OvertakenError,
    UnionBucket,
    UnionPlan,
    check_mode,
    named_options,
    plan_union,
)
from fluss.model.errors import ErrorCode, FlussError, NotFoundError
from fluss.model.merge_rules import has_old_images
from fluss.model.paths import TableBucket
from fluss.model.predicates import Predicate
from fluss.sync import FlussTable

if TYPE_CHECKING:
    from fluss.client.table import TableCore

T = TypeVar("T")


class UnionReader:
    """Reads buckets of a plan in the columns and rows wanted. Its calls block, and may be made in any thread."""

    def __init__(
        self, table: FlussTable, projection: Sequence[int] | None = None, predicate: Predicate | None = None
    ) -> None:
        self._info = info = table.get_table_info()
        full = table.arrow_schema
        wanted = list(range(len(full))) if projection is None else list(projection)
        self._filter = None if predicate is None else ScanFilter(predicate, info.schema)
        self.schema: pa.Schema = pa.schema([full.field(index) for index in wanted])
        self.key_names = info.primary_keys
        keys = [full.get_field_index(key) for key in self.key_names]
        # Changes and rows of the lake are compared by key, and an update that takes a row out of what matches must be
        # known as well: so the filter comes last.
        needed = sorted({*wanted, *keys, *(self._filter.columns if self._filter else ())})
        self._places = {index: place for place, index in enumerate(needed)}
        self._wanted = [self._places[index] for index in wanted]
        self.needed: pa.Schema = pa.schema([full.field(index) for index in needed])
        self._all_changes = table.new_scan().project(needed)
        rows = table.new_scan().project(wanted)
        self._rows = rows if predicate is None else rows.filter(predicate)

    def batches(self, plan: UnionPlan) -> Iterator[pa.RecordBatch]:
        """All rows of a plan, in bounded memory but for the keys that the tail of a primary-key table touches."""
        for bucket in plan.buckets:
            changes = self.changes(bucket)
            yield from self.lake_batches(plan, bucket.files, changes)
            yield from self.tail_batches(bucket, changes)

    def changes(self, bucket: UnionBucket) -> Folded | None:
        """What a tail leaves of the keys that it touches; None where there are none, or rows have no keys."""
        if not (self.key_names and bucket.is_tiered and bucket.tail_rows):
            return None
        assert bucket.start_offset is not None
        assert bucket.end_offset is not None
        start, end = bucket.start_offset, bucket.end_offset
        return fold_changes(self._all_changes, self._bucket(bucket), start, end, self._keys, self.needed.names)

    @cached_property
    def _keys(self) -> Keys:
        return Keys(self._info)  # raises for keys that a lake can't hold

    def lake_batches(
        self, plan: UnionPlan, files: Iterable[LakeFile], changes: Folded | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the lake, without those whose key has changed."""
        batches: Iterator[pa.RecordBatch] = (
            batch for file in files for batch in read_file_as(file, plan.schema, self.needed, plan.io_properties)
        )
        if changes is not None:
            batches = self._keys.without(batches, changes.keys)
        for batch in batches:
            yield from self._narrowed(batch)

    def tail_batches(self, bucket: UnionBucket, changes: Folded | None) -> Iterator[pa.RecordBatch]:
        """The rows that the log behind the lake's files has, or leaves."""
        if changes is not None:
            for batch in changes.rows.select(self.needed.names).to_batches():
                yield from self._narrowed(batch)
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

    def _narrowed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows and columns that are wanted."""
        if self._filter is not None:
            batch = batch.filter(self._filter.mask(lambda index: batch.column(self._places[index])))
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays([batch.column(place) for place in self._wanted], schema=self.schema)


class UnionRead:
    """A union read of a table: plans, and reads what it has planned. Its calls block."""

    def __init__(
        self,
        core: TableCore,
        projection: Sequence[int] | None,
        predicate: Predicate | None,
        warehouse: str | None,
        catalog: Mapping[str, str] | None,
        mode: str,
    ) -> None:
        self._connection, self.table = blocking_shells(core)
        self.has_filter = predicate is not None
        self.reader = UnionReader(self.table, projection, predicate)
        self._named = warehouse, catalog
        if is_lake_named(warehouse, catalog):
            LakeOptions.of(None, warehouse, catalog)  # a mistake is told at once
        self._mode = check_mode(mode)

    def plan(self) -> UnionPlan:
        """What is read, as of now."""
        options = named_options(self._connection, self.table.table_path, *self._named)
        return plan_union(self._connection, self.table, options=options, mode=self._mode)

    def to_arrow(self) -> pa.Table:
        """All rows."""
        return self.at_once(lambda plan: pa.Table.from_batches(self.reader.batches(plan), self.reader.schema))

    def batch_reader(self) -> pa.RecordBatchReader:
        """All rows, batch by batch."""
        return pa.RecordBatchReader.from_batches(self.reader.schema, self.reader.batches(self.plan()))

    def to_duckdb(self, connection: Any = None) -> Any:
        """All rows, as a DuckDB relation."""
        from fluss.lake.duck import to_duckdb

        return to_duckdb(self, connection)

    def at_once(self, read: Callable[[UnionPlan], T]) -> T:
        """What `read` makes of a plan; if that is overtaken before it is read, of the next one."""
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return read(self.plan())
            except OvertakenError:
                raise  # planning has done what can be done
            except (FlussError, FileNotFoundError) as error:
                if not _is_overtaken(error):
                    raise
        return read(self.plan())


def _is_overtaken(error: FlussError | FileNotFoundError) -> bool:
    if isinstance(error, FileNotFoundError | NotFoundError):
        return True  # a file that was cleaned up, or a partition that was dropped; a dropped table fails the next plan
    return error.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION

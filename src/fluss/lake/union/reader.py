"""The one reader of lake and log: rows in Arrow, for Python and for Spark's tasks, or a relation of DuckDB.

`BucketReader` has files with their deletes applied, changes folded, and both put together by key. What its users add is
which rows they ask for, and how these are handed over.
"""

from __future__ import annotations

import glob
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from fluss.api.operations import blocking_shells
from fluss.client.scan.filter import ScanFilter
from fluss.lake.filesystem import check_place, open_filesystem
from fluss.lake.fold import FoldedChanges, Keys, fold_changes
from fluss.lake.format import OFFSET, TIMESTAMP, LakeFile
from fluss.lake.options import LakeOptions, is_lake_named, local_path
from fluss.lake.parquet import READ_ROWS, read_file_as, to_schema
from fluss.lake.union.plan import (
    ATTEMPTS_MAX,
    LakeSource,
    OvertakenError,
    UnionBucket,
    UnionPlan,
    check_mode,
    named_options,
    plan_union,
)
from fluss.model.errors import ErrorCode, FlussError, NotFoundError
from fluss.model.forms.arrow_types import arrow_schema
from fluss.model.paths import TableBucket
from fluss.model.predicates import Predicate
from fluss.model.tables.merge_rules import has_old_images
from fluss.model.trust import is_local
from fluss.sync import FlussTable

if TYPE_CHECKING:
    from fluss.client.table import TableCore


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


def load_duckdb() -> Any:
    """The module; raises when it is not there."""
    try:
        return importlib.import_module("duckdb")
    except ImportError as error:
        raise FlussError("duckdb is not installed; install flussbett[lake].") from error


class LakeRelation:
    """Builds the relation of a plan."""

    def __init__(self, duck: Any, reader: UnionReader, plan: UnionPlan) -> None:
        self._duck = duck
        self._reader = reader
        self._plan = plan
        empty = duck.from_arrow(reader.needed.empty_table())
        self._types = dict(zip(reader.needed.names, map(str, empty.types), strict=True))

    def build(self) -> Any:
        """All rows."""
        reader, plan = self._reader, self._plan
        fresh: list[pa.RecordBatch] = []
        touched: list[pa.Table] = []
        for bucket in plan.buckets:
            changes = reader.changes(bucket)
            if changes is not None:
                touched += [table.select(reader.key_names) for table in (changes.rows, changes.removed)]
            fresh += reader.tail_batches(bucket, changes)
            fresh += reader.lake_batches(plan, [file for file in bucket.files if file.has_deletes], changes)
        found = self._duck.from_arrow(pa.Table.from_batches(fresh, reader.schema))
        keys = self._duck.from_arrow(pa.concat_tables(touched)) if touched else None
        rest = [file for bucket in plan.buckets for file in bucket.files if not file.has_deletes]
        local = [file for file in rest if is_local(file.path)]
        remote = [file for file in rest if not is_local(file.path)]
        if local:
            found = self.rows_of(self._open_local(local), keys).union(found)
        if remote:
            found = self.rows_of(self.open_by_arrow(remote), keys).union(found)
        return found

    def _open_local(self, files: Sequence[LakeFile]) -> Any:
        for file in files:
            check_place(file.path, self._plan.source.properties)
        # What looks like a pattern, or like a partition in a folder's name, is not one.
        paths = [glob.escape(str(local_path(file.path))) for file in files]
        return self._duck.read_parquet(paths, hive_partitioning=False, union_by_name=True)

    def open_by_arrow(self, files: Sequence[LakeFile]) -> Any:
        """Files that DuckDB can't open itself; it is given what a query needs of them."""
        import pyarrow.dataset as ds

        opened = [open_filesystem(file.path, self._plan.source.properties) for file in files]
        return self._duck.from_arrow(
            ds.dataset([path for _, path in opened], self._plan.source.schema, "parquet", filesystem=opened[0][0])
        )

    def rows_of(self, opened: Any, keys: Any | None = None) -> Any:
        """Rows of the lake in the table's types, but for those whose key was touched."""
        there = set(opened.columns)
        columns = [
            f"CAST({quoted(name) if name in there else 'NULL'} AS {kind}) AS {quoted(name)}"
            for name, kind in self._types.items()
        ]
        rows = opened.select(", ".join(columns))
        if keys is not None:
            same = " AND ".join(f"l.{quoted(name)} = r.{quoted(name)}" for name in self._reader.key_names)
            rows = rows.set_alias("l").join(keys.set_alias("r"), same, how="anti")
        return rows.select(", ".join(map(quoted, self._reader.schema.names)))


def quoted(name: str) -> str:
    """A name as SQL has it."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


T = TypeVar("T")


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
        self._has_filter = predicate is not None
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
        """All rows, as a relation of `connection`, or of DuckDB's default one; fresh rows are held in memory."""

        duck = load_duckdb() if connection is None else connection
        names = {name.lower() for name in self.reader.needed.names}
        # DuckDB does not tell columns apart by case, and this module's filters have no other form than Arrow's.
        if self._has_filter or len(names) < len(self.reader.needed):
            return duck.from_arrow(self.to_arrow())
        return self.at_once(lambda plan: LakeRelation(duck, self.reader, plan).build())

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

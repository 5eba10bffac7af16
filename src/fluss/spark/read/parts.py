"""Parts of a read, one for each Spark partition: a range of a log, rows at an offset, rows of the lake.

A table of many partitions has many small buckets; of more than a few, several are one part.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from fluss.lake.format import OFFSET, TIMESTAMP, LakeFile
from fluss.lake.log_ranges import PART_ROWS_MIN
from fluss.lake.union.plan import LakeSource, UnionBucket
from fluss.lake.union.reader import BucketReader
from fluss.model.errors import ErrorCode, FlussError, InvalidRequestError, TimeoutError
from fluss.model.forms.predicate_text import parse_predicate
from fluss.model.infos import TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TableBucket
from fluss.model.records import CHANGE_TYPE, COMMIT_TIMESTAMP, LOG_OFFSET, ChangeType
from fluss.spark.read.options import CHANGELOG_COLUMNS, ReadOptions, read_columns
from fluss.spark.source_options import OpenTable, SourceOptions, open_table

if TYPE_CHECKING:
    from fluss.model.schema import Column
    from fluss.sync import TableScan


# What the columns of changes are called in the lake.
_OF_CHANGES: Final = {OFFSET: LOG_OFFSET, TIMESTAMP: COMMIT_TIMESTAMP}


def read_lake(
    opened: OpenTable, columns: Iterable[Column], filter_text: str | None, part: LakePart
) -> Iterator[pa.RecordBatch]:
    """The rows of a part that match, in these columns; those of changes say when each row was written last."""
    info, names = opened.info, [column.name for column in columns]
    predicate = None if filter_text is None else parse_predicate(filter_text, info.schema)
    reader = BucketReader(opened.table, names, predicate, with_origin=True)
    batches = _of_files(reader, part) if isinstance(part, LakeRows) else _merged(reader, part)
    try:
        for batch in map(reader.matching, batches):
            if batch.num_rows:
                yield _dressed(batch, info, names)
    except FileNotFoundError as error:
        raise InvalidRequestError(
            f"A file of {info.table_path} in the lake was there when the query was planned, and is not here: "
            "its snapshot was expired and cleaned up, so load the table again; or this machine does not share the "
            f"lake's folder with the driver's. ({error})"
        ) from error


def _of_files(reader: BucketReader, part: LakeRows) -> Iterator[pa.RecordBatch]:
    """Rows of files as they are."""
    for item in part.slices:
        for batch in reader.file(part.source, item.file, item.share):
            batch = _between(batch, OFFSET, item.start_offset, item.end_offset)
            yield _between(batch, TIMESTAMP, part.start_ms, part.end_ms)


def _merged(reader: BucketReader, part: LakeBucket) -> Iterator[pa.RecordBatch]:
    """Rows of files whose keys have not changed since, and what the changes have left of the others."""
    bucket = TableBucket(part.table_id, part.bucket, part.partition_id)
    changes = reader.changes(bucket, part.start_offset, part.end_offset)
    yield from reader.files(part.source, part.files, changes)
    yield from reader.left(changes)


def _dressed(batch: pa.RecordBatch, info: TableInfo, names: Sequence[str]) -> pa.RecordBatch:
    """A batch in the columns that were asked for, those of changes among them."""
    change_type = ChangeType.Insert if info.has_primary_key() else ChangeType.AppendOnly
    changes = pa.repeat(change_type.short_string(), batch.num_rows)
    batch = batch.rename_columns([_OF_CHANGES.get(name, name) for name in batch.schema.names])
    return batch.append_column(CHANGE_TYPE, changes).select(names)


def _between(batch: pa.RecordBatch, column: str, start: Any, end: Any) -> pa.RecordBatch:
    """Rows with values from `start` up to, not including, `end`; None means without a limit."""
    kind = batch.schema.field(column).type
    if start is not None:
        batch = batch.filter(pc.greater_equal(batch.column(column), pa.scalar(start, kind)))
    return batch if end is None else batch.filter(pc.less(batch.column(column), pa.scalar(end, kind)))


@dataclass(frozen=True)
class LakeSlice:
    """A file, or the part of it that `share` says; of its rows those between two offsets, where there are any."""

    file: LakeFile
    share: tuple[int, int] = (0, 1)
    start_offset: int | None = None
    end_offset: int | None = None

    @property
    def row_count(self) -> int:
        """About how many rows it has."""
        return -(-self.file.row_count // self.share[1])


@dataclass(frozen=True)
class LakeRows(InputPartition):  # type: ignore[misc]
    """Rows of files as they are, those that were committed in [start_ms, end_ms) where that is asked for."""

    table_id: int
    source: LakeSource
    slices: tuple[LakeSlice, ...]
    start_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True)
class LakeBucket(InputPartition):  # type: ignore[misc]
    """The rows of one bucket of a primary-key table: those of its files, with the changes since folded onto them."""

    table_id: int
    partition_id: int | None
    bucket: int
    source: LakeSource
    files: tuple[LakeFile, ...]
    start_offset: int
    end_offset: int
    partition_name: str | None = None


LakePart: TypeAlias = LakeRows | LakeBucket


def cut_file(file: LakeFile, part_rows: int, start_offset: int | None, end_offset: int | None) -> Iterator[LakeSlice]:
    """A file in slices of about as many rows, and of at least one row group each."""
    from fluss.lake.parquet import ROW_GROUP_ROWS

    count = -(-file.row_count // max(part_rows, ROW_GROUP_ROWS)) or 1
    for number in range(count):
        yield LakeSlice(file, (number, count), start_offset, end_offset)


def join_slices(slices: Iterable[LakeSlice], part_rows: int) -> Iterator[tuple[LakeSlice, ...]]:
    """Slices, small ones together up to about as many rows."""
    waiting: list[LakeSlice] = []
    row_count = 0
    for item in slices:
        if waiting and row_count + item.row_count > part_rows:
            yield tuple(waiting)
            waiting, row_count = [], 0
        waiting.append(item)
        row_count += item.row_count
    if waiting:
        yield tuple(waiting)


def merged_part(table_id: int, source: LakeSource, bucket: UnionBucket) -> LakeBucket:
    """A bucket of a primary-key table that has files and changes since."""
    assert bucket.start_offset is not None
    assert bucket.end_offset is not None
    return LakeBucket(
        table_id,
        bucket.partition_id,
        bucket.bucket,
        source,
        bucket.files,
        bucket.start_offset,
        bucket.end_offset,
        bucket.partition_name,
    )


# Smaller batches are joined up to about this: each one costs Spark a fixed time.
BATCH_ROWS = 32_768
# So many parts, or fewer, stay as they are: one for each bucket.
UNGROUPED_PARTS_MAX = 32
# To begin with a bucket takes as long as to read about so many rows.
BUCKET_ROWS = 5_000


@dataclass(frozen=True)
class BucketRange(InputPartition):  # type: ignore[misc]
    """The rows, or changes, of one bucket from `start_offset` up to, not including, `end_offset`."""

    table_id: int
    partition_id: int | None
    bucket: int
    start_offset: int
    end_offset: int
    partition_name: str | None = None

    @property
    def rows_max(self) -> int:
        """The most rows it can have."""
        return self.end_offset - self.start_offset


@dataclass(frozen=True)
class BucketRowsAt(InputPartition):  # type: ignore[misc]
    """The rows of one bucket of a primary-key table as they were at an offset of its changelog; None: when read."""

    table_id: int
    partition_id: int | None
    bucket: int
    offset: int | None
    rows_max: int
    """At most how many rows it has: one for each change"""
    partition_name: str | None = None


@dataclass(frozen=True)
class BucketGroup(InputPartition):  # type: ignore[misc]
    """Small parts of several buckets, which one task reads one after the other."""

    table_id: int
    parts: tuple[BucketRange | BucketRowsAt, ...]


SinglePart: TypeAlias = BucketRange | BucketRowsAt | LakePart
BucketPart: TypeAlias = SinglePart | BucketGroup


def group_parts(parts: Sequence[SinglePart], rows_wanted: int | None) -> list[BucketPart]:
    """The parts; if there are many, small ones of buckets together, because a task takes longer to start than to read.

    `rows_wanted` are about how many rows a part is to have, if that was said.
    """
    if len(parts) <= UNGROUPED_PARTS_MAX:
        return list(parts)
    limit = min(PART_ROWS_MIN, rows_wanted or PART_ROWS_MIN)
    groups: list[list[Any]] = []
    row_count = 0
    for part in parts:
        part_rows = sys.maxsize if isinstance(part, LakeRows | LakeBucket) else part.rows_max + BUCKET_ROWS
        if groups and isinstance(part, type(groups[-1][0])) and row_count + part_rows <= limit:
            groups[-1].append(part)
            row_count += part_rows
        else:
            groups.append([part])
            row_count = part_rows
    return [found[0] if len(found) == 1 else BucketGroup(found[0].table_id, tuple(found)) for found in groups]


ErrorHandler: TypeAlias = Callable[[FlussError, SinglePart], None]
"""Returns if a part that failed has no more rows, and raises otherwise"""


def raise_error(error: FlussError, part: SinglePart) -> None:
    """Raise an error of a part: none means that the part has no more rows."""
    raise error


def read_part(
    options: SourceOptions, schema: Any, part: BucketPart, on_error: ErrorHandler = raise_error
) -> Iterator[pa.RecordBatch]:
    """The rows of a part in the columns of a Spark schema, as Arrow batches that Spark takes.

    Without `changelog=true`, a range of changes gives rows as they were after each insert or update, and no deletes.
    """
    from fluss.spark.columns import spark_arrow_schema, to_spark

    if not isinstance(part, BucketRange | BucketRowsAt | BucketGroup | LakeRows | LakeBucket):
        return  # where there are no parts Spark asks for one of its own
    read_options = ReadOptions.of(options)
    with open_table(options) as opened:
        info = opened.info
        if info.table_id != part.table_id:
            raise InvalidRequestError(f"{info.table_path} was dropped and created again; load it again.")
        columns = read_columns(info, schema, read_options.changelog)
        arrow_schema = spark_arrow_schema(schema)
        for batch in _joined(_all_rows(opened, columns, read_options, part, on_error)):
            yield to_spark(batch, arrow_schema)


def _all_rows(
    opened: OpenTable, columns: list[Column], options: ReadOptions, part: BucketPart, on_error: ErrorHandler
) -> Iterator[pa.RecordBatch]:
    """The rows of a part, or of one after the other of a group."""
    for item in part.parts if isinstance(part, BucketGroup) else (part,):
        try:
            yield from _rows(opened, columns, options, item)
        except FlussError as error:
            explained = _explained(error, opened, item)
            explained.__cause__ = error
            on_error(explained, item)


def scan_of(opened: OpenTable, columns: Iterable[Column], filter_text: str | None) -> TableScan:
    """A scan of those of the columns that are the table's, and of the rows that match a filter."""
    from fluss.model.forms.predicate_text import parse_predicate

    schema, scan = opened.info.schema, opened.table.new_scan()
    names = [column.name for column in columns if column.name not in CHANGELOG_COLUMNS]
    if names != schema.column_names:
        scan = scan.project_by_name(names or schema.column_names[:1])
    return scan if filter_text is None else scan.filter(parse_predicate(filter_text, schema))


def _rows(opened: OpenTable, columns: list[Column], options: ReadOptions, part: SinglePart) -> Iterator[pa.RecordBatch]:
    if isinstance(part, LakeRows | LakeBucket):
        return read_lake(opened, columns, options.filter, part)
    scan = scan_of(opened, columns, options.filter)
    bucket = TableBucket(part.table_id, part.bucket, part.partition_id)
    with_changes = any(column.name in CHANGELOG_COLUMNS for column in columns)
    if isinstance(part, BucketRowsAt):
        rows = scan.read_bucket_at(bucket, part.offset)
        offset = part.offset
        return rows if offset is None or not with_changes else (_as_inserts(batch, offset) for batch in rows)
    images_only = opened.info.has_primary_key() and not options.changelog
    rows = scan.read_bucket(bucket, part.start_offset, part.end_offset, changelog=with_changes or images_only)
    return map(_new_images, rows) if images_only else rows


def _new_images(changes: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as they were after each change that left one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds = pa.array([ChangeType.Insert.short_string(), ChangeType.UpdateAfter.short_string()])
    return changes.filter(pc.is_in(changes.column(CHANGE_TYPE), value_set=kinds))


def _as_inserts(rows: pa.RecordBatch, offset: int) -> pa.RecordBatch:
    """Rows that are there, as changes: when each was made is not known."""
    import pyarrow as pa

    count = rows.num_rows
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(ChangeType.Insert.short_string(), count),
            pa.repeat(pa.scalar(offset, pa.int64()), count),
            pa.nulls(count, pa.timestamp("ms", tz="UTC")),
            *rows.columns,
        ],
        [CHANGE_TYPE, LOG_OFFSET, COMMIT_TIMESTAMP, *rows.schema.names],
    )


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    row_count = 0
    for batch in batches:
        waiting.append(batch)
        row_count += batch.num_rows
        if row_count >= BATCH_ROWS:
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting, row_count = [], 0
    if row_count:
        yield pa.concat_batches(waiting)


def _is_behind(opened: OpenTable, part: BucketRange) -> bool:
    """Whether the log ends before the part does: then another directory was put in the place of the server's."""
    ends = opened.table.new_scan().bucket_offsets(OffsetSpec.latest(), [part.partition_id])
    return ends[TableBucket(part.table_id, part.bucket, part.partition_id)] < part.end_offset


def _explained(error: FlussError, opened: OpenTable, part: SinglePart) -> FlussError:
    """The error; where what was planned is gone, with what to do."""
    if isinstance(part, LakeRows):
        return error
    if error.error_code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION:
        start = part.offset if isinstance(part, BucketRowsAt) else part.start_offset
        reason = f"expired before they were read ({error.message}) Load the table again, or keep its log for longer"
    elif error.error_code == ErrorCode.PARTITION_NOT_EXISTS:
        start = 0
        reason = "are gone with their partition. Load the table again"
    elif isinstance(error, TimeoutError) and isinstance(part, BucketRange) and _is_behind(opened, part):
        start = part.start_offset
        reason = "are not there any more: the server has lost them. Load the table again"
    else:
        return error
    where = "" if part.partition_name is None else f" of partition {part.partition_name}"
    return InvalidRequestError(
        f"Rows of {opened.info.table_path}, bucket {part.bucket}{where}, from offset {start} on were there when the "
        f"query was planned, and {reason}.",
        error.error_code,
    )

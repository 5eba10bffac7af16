"""Rows of the lake in Spark partitions: in the table's types, merged with changes that came since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from fluss.lake.format import OFFSET, TIMESTAMP, LakeFile
from fluss.lake.union.plan import LakeSource, UnionBucket
from fluss.lake.union.rows import BucketReader
from fluss.model.errors import InvalidRequestError
from fluss.model.forms.predicate_text import parse_predicate
from fluss.model.infos import TableInfo
from fluss.model.paths import TableBucket
from fluss.model.records import CHANGE_TYPE, COMMIT_TIMESTAMP, LOG_OFFSET, ChangeType

if TYPE_CHECKING:
    from fluss.model.schema import Column
    from fluss.spark.tables import OpenTable


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
    """Rows with values from `start` up to, not including, `end`; None is no limit."""
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

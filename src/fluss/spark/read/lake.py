"""Spark partitions that have rows of the lake: some of its files, or a bucket's files merged with its changes since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql.datasource import InputPartition

from fluss.lake.format import LakeFile
from fluss.lake.union.plan import LakeSource, UnionBucket


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

"""A batch query's reader: what it takes from the lake, and what from the log behind it.

A log table gives its rows, a primary-key table its current rows, and with `changelog=true` either gives its changes.
The offsets are fixed when Spark plans the query: a query reads the same rows however often its tasks run and however
late, and what is written later is not seen; load the table again to see it.

A table that has history in a lake gives it, too, with the rows that came since. Each row is decided on once, when the
query is planned: the files are those of one snapshot, and the log begins where that snapshot ends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader

from fluss.lake.modes import AUTO, NONE, ONLY
from fluss.lake.options import LakeOptions, is_tiered
from fluss.lake.union.plan import UnionBucket, UnionPlan, named_options, plan_union
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.spark.read.options import BucketOffsets, ReadOptions, check_chosen_once, read_columns
from fluss.spark.read.parts import (
    BucketPart,
    BucketRange,
    LakeRows,
    LakeSlice,
    SinglePart,
    cut_file,
    group_parts,
    join_slices,
    merged_part,
    read_part,
    scan_of,
)
from fluss.spark.read.plan import (
    BucketKey,
    bucket_offsets,
    parse_partitions,
    part_rows,
    plan_parts,
    refuse_both,
    refuse_start,
    rows_at,
    split_ranges,
)
from fluss.spark.source_options import LAKE_MODE, OpenTable, SourceOptions, bad_option, open_table
from fluss.spark.waiting import told_shortly

if TYPE_CHECKING:
    import pyarrow as pa


def reads_lake(info: TableInfo, options: ReadOptions) -> bool:
    """Whether a batch read asks for the lake; raises when it can't have what it asks for."""
    if options.lake_mode == NONE:
        return False
    past = info.has_primary_key() and (options.changelog or options.has_end)
    if options.lake_mode == AUTO:
        return is_tiered(info) and not past
    if past:
        what = "no changes of a table with a primary key" if options.changelog else "its rows of one moment only"
        raise bad_option(f"The lake has {what}: read {info.table_path} with .option({LAKE_MODE!r}, 'none').")
    return True


def plan_lake_parts(opened: OpenTable, options: ReadOptions) -> list[SinglePart] | None:
    """The parts of a batch read of lake and log; None if nothing was tiered yet."""
    info = opened.info
    if info.has_primary_key():
        refuse_start(info, options)
    union = union_of(opened, options)
    if union is None:
        return None
    if info.has_primary_key():
        return key_parts(info, union, options.rows_per_partition_max)
    return _log_parts(opened, union, options)


def union_of(opened: OpenTable, options: ReadOptions) -> UnionPlan | None:
    """The plan of a read of lake and log, in the partitions that were chosen; None if nothing was tiered yet."""
    info = opened.info
    specs = None
    if options.partitions is not None:
        if not info.is_partitioned():
            raise bad_option(f"{info.table_path} has no partitions: leave out the option 'partitions'.")
        specs = parse_partitions(options.partitions, info.partition_keys)
    try:
        found = plan_union(
            opened.connection,
            opened.table,
            options=lake_options(opened, options),
            partitions=specs,
            mode=options.lake_mode,
        )
    except (ImportError, FlussError) as error:
        raise explained(info, error) from error
    if found.snapshot_id is not None:
        return found
    if options.lake_mode == ONLY:
        raise InvalidRequestError(f"Nothing of {info.table_path} is in the lake yet: its server knows no snapshot.")
    return None


def lake_options(opened: OpenTable, options: ReadOptions) -> LakeOptions | None:
    """The options of the lake that the read names; None if it names none."""
    return named_options(opened.connection, opened.info.table_path, options.lake_warehouse, options.lake_catalog)


def explained(info: TableInfo, error: ImportError | FlussError) -> FlussError:
    """The error; where a library is missing, with what to do."""
    if isinstance(error, FlussError) and not isinstance(error.__cause__, ImportError):
        return error
    return FlussError(
        f"{info.table_path} has history in a lake, and pyiceberg, which finds it, is not installed here: install "
        f"flussbett[lake], or read what the server has with .option({LAKE_MODE!r}, 'none')."
    )


def key_parts(info: TableInfo, union: UnionPlan, rows_wanted: int | None) -> list[SinglePart]:
    """The parts of a primary-key table: buckets that have changes since, rows of files, buckets the lake has not."""
    merged = [
        merged_part(info.table_id, union.source, item) for item in union.buckets if item.is_tiered and item.tail_rows
    ]
    live = [
        rows_at(info, item.partition_id, item.bucket, item.end_offset, item.partition_name)
        for item in union.buckets
        if not item.is_tiered and item.end_offset
    ]
    still = [replace(item, files=()) if item.tail_rows else item for item in union.buckets]
    return [*live, *merged, *file_parts(info, union, still, {}, rows_wanted)]


def _log_parts(opened: OpenTable, union: UnionPlan, options: ReadOptions) -> list[SinglePart]:
    info = opened.info
    starts, ends = _given(union, options, "start"), _given(union, options, "end")
    for name, end in ends.items():
        if starts.get(name, 0) > end:
            raise bad_option(f"The read of bucket {name[1]} starts at offset {starts[name]}, after its end at {end}.")
    if (options.start_timestamp_ms or 0) > (options.end_timestamp_ms or options.start_timestamp_ms or 0):
        raise bad_option("The read starts at a time after its end.")
    limits = {name: (starts.get(name), ends.get(name)) for name in {*starts, *ends}}
    first_at = _offsets_at(opened, union, options.start_timestamp_ms)
    end_at = _offsets_at(opened, union, options.end_timestamp_ms)
    ranges = []
    for item in union.buckets:
        if item.start_offset is None or item.end_offset is None:
            continue
        lowest, highest = limits.get((item.partition_name, item.bucket), (None, None))
        key = (item.partition_id, item.bucket)
        start = max(item.start_offset, lowest or 0, first_at.get(key, 0))
        end = min(offset for offset in (item.end_offset, highest, end_at.get(key)) if offset is not None)
        if start < end:
            ranges.append(BucketRange(info.table_id, *key, start, end, item.partition_name))
    files = file_parts(info, union, union.buckets, limits, options.rows_per_partition_max)
    between = [replace(part, start_ms=options.start_timestamp_ms, end_ms=options.end_timestamp_ms) for part in files]
    return [*between, *split_ranges(opened, ranges, options.rows_per_partition_max)]


def file_parts(
    info: TableInfo,
    union: UnionPlan,
    buckets: Sequence[UnionBucket],
    limits: Mapping[tuple[str | None, int], tuple[int | None, int | None]],
    rows_wanted: int | None,
) -> list[LakeRows]:
    """Rows of files as they are: small files together, large ones cut."""
    row_count = sum(file.row_count for item in buckets for file in item.files)
    size = part_rows(row_count, rows_wanted)

    def slices() -> Iterator[LakeSlice]:
        for item in buckets:
            start, end = limits.get((item.partition_name, item.bucket), (None, None))
            if not _lies_behind(item, start):
                for file in item.files:
                    yield from cut_file(file, size, start, end)

    return [LakeRows(info.table_id, union.source, found) for found in join_slices(slices(), size)]


def _lies_behind(bucket: UnionBucket, offset: int | None) -> bool:
    """Whether the lake has no rows from an offset on. Of a partition that was dropped it may have higher ones."""
    return not bucket.partition and (offset or 0) >= (bucket.start_offset or sys.maxsize)


def _given(union: UnionPlan, options: ReadOptions, end: str) -> BucketOffsets:
    """Offsets that an option has for where a read begins or ends; raises when the table does not have them."""
    is_start = end == "start"
    given = options.start_offsets if is_start else options.end_offsets
    refuse_both(given, options.start_timestamp_ms if is_start else options.end_timestamp_ms, end)
    buckets = {(item.partition_name, item.bucket): item for item in union.buckets}
    for (name, bucket), offset in (given or {}).items():
        where = f"bucket {bucket}" + ("" if name is None else f" of partition {name!r}")
        item = buckets.get((name, bucket))
        if item is None:
            raise bad_option(
                f"The option 'scan.{end}.offsets' names {where}, which the read of this table does not have."
            )
        first = 0 if item.is_tiered else (item.start_offset or 0)
        if item.end_offset is not None and not first <= offset <= item.end_offset:
            raise bad_option(
                f"The option 'scan.{end}.offsets' has offset {offset} for {where}; there are {first} to "
                f"{item.end_offset}."
            )
    return given or {}


def _offsets_at(opened: OpenTable, union: UnionPlan, timestamp_ms: int | None) -> dict[BucketKey, int]:
    """The offsets of a time in the logs that are read."""
    if timestamp_ms is None:
        return {}
    partitions = {item.partition_id: item.partition_name for item in union.buckets if item.start_offset is not None}
    return bucket_offsets(opened, partitions, OffsetSpec.timestamp(timestamp_ms)) if partitions else {}


STREAM_OPTIONS = ("scan.startup.mode", "scan.startup.timestamp", "maxRowsPerTrigger", "maxBytesPerTrigger")


class FlussReader(DataSourceReader):  # type: ignore[misc]
    """Plans on the driver, reads in tasks. Holds plain values only, because Spark pickles it."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        options.refuse(STREAM_OPTIONS, "streams")
        check_chosen_once(ReadOptions.of(options).columns, schema)
        self._options = options
        self._schema = schema

    @told_shortly()
    def partitions(self) -> list[BucketPart]:
        """The parts of the table as it is now."""
        read_options = ReadOptions.of(self._options)
        with open_table(self._options) as opened:
            columns = read_columns(opened.info, self._schema, read_options.changelog)
            scan_of(opened, columns, read_options.filter)  # raises when the filter does not fit the table
            parts = plan_lake_parts(opened, read_options) if reads_lake(opened.info, read_options) else None
            found = plan_parts(opened, read_options) if parts is None else parts
            return group_parts(found, read_options.rows_per_partition_max)

    def read(self, partition: BucketPart) -> Iterator[pa.RecordBatch]:
        """The rows of a part as Arrow batches."""
        with told_shortly():
            yield from read_part(self._options, self._schema, partition)

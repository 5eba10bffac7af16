"""The plan of a batch read: which partitions, from which offset to which, and in how many parts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from fluss.lake import log_ranges
from fluss.model.errors import ErrorCode, InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.model.partitions import PartitionSpec
from fluss.model.paths import TableBucket
from fluss.model.tables.merge_rules import has_old_images
from fluss.spark.read.options import BucketOffsets, ReadOptions
from fluss.spark.read.parts import BucketRange, BucketRowsAt, SinglePart
from fluss.spark.source_options import OpenTable, bad_option

Partitions: TypeAlias = Mapping[int | None, str | None]
"""Names by partition id; a table without partitions is its own partition None"""
BucketKey: TypeAlias = tuple[int | None, int]
"""(partition id or None, bucket)"""


def plan_parts(opened: OpenTable, options: ReadOptions) -> list[SinglePart]:
    """The parts of a batch read; those without rows are left out."""
    info = opened.info
    partitions = chosen_partitions(opened, options.partitions)
    if info.has_primary_key() and not options.changelog:
        refuse_start(info, options)
        ends = _ends(opened, partitions, options)
        return [
            rows_at(info, partition, bucket, offset, partitions[partition], is_asked_for=options.has_end)
            for (partition, bucket), offset in ends.items()
            if offset
        ]
    starts, ends = _starts(opened, partitions, options), _ends(opened, partitions, options)
    _refuse_backwards(options, starts, ends)
    ranges = [
        BucketRange(info.table_id, key[0], key[1], start, ends[key], partitions[key[0]])
        for key, start in starts.items()
        if start < ends.get(key, 0)
    ]
    return split_ranges(opened, ranges, options.rows_per_partition_max, in_order=info.has_primary_key())


def rows_at(
    info: TableInfo,
    partition_id: int | None,
    bucket: int,
    offset: int,
    partition_name: str | None,
    *,
    is_asked_for: bool = False,
) -> BucketRowsAt:
    """The rows of a bucket at an offset; where only those of now are kept and no other is asked for, those of now."""
    return BucketRowsAt(
        info.table_id,
        partition_id,
        bucket,
        offset if has_old_images(info.properties) or is_asked_for else None,
        offset,
        partition_name,
    )


def chosen_partitions(opened: OpenTable, text: str | None) -> dict[int | None, str | None]:
    """The table's partitions that the option `partitions` names, all without it."""
    info = opened.info
    if not info.is_partitioned():
        if text is not None:
            raise bad_option(f"{info.table_path} has no partitions: leave out the option 'partitions'.")
        return {None: None}
    specs = [PartitionSpec({})] if text is None else parse_partitions(text, info.partition_keys)
    found = opened.connection.get_admin().list_partition_infos(info.table_path)
    return {
        item.partition_id: item.partition_name
        for item in found
        if any(spec.matches(item.partition_spec) for spec in specs)
    }


def parse_partitions(text: str, partition_keys: Sequence[str]) -> list[PartitionSpec]:
    """`day=2026-01-01/region=EU, day=2026-01-02`: values of partition columns; those left out may have any value."""
    specs = []
    for item in text.split(","):
        values: dict[str, str] = {}
        for pair in item.split("/"):
            key, equals, value = (part.strip() for part in pair.partition("="))
            if not (key and equals and value) or key in values:
                raise bad_option(
                    f"The option 'partitions' is like day=2026-01-01/region=EU, day=2026-01-02, and not {text!r}."
                )
            if key not in partition_keys:
                raise bad_option(
                    f"The option 'partitions' names {key!r}; the partition columns are {', '.join(partition_keys)}."
                )
            values[key] = value
        specs.append(PartitionSpec(values))
    return specs


def bucket_offsets(opened: OpenTable, partitions: Partitions, spec: OffsetSpec) -> dict[BucketKey, int]:
    """An offset for every bucket of these partitions, but for those that are gone.

    A time that has not come yet is taken for the latest.
    """
    try:
        return _asked(opened, partitions, spec)
    except InvalidRequestError as error:
        if error.error_code != ErrorCode.INVALID_TIMESTAMP_EXCEPTION:
            raise
        return _asked(opened, partitions, OffsetSpec.latest())


def _asked(opened: OpenTable, partitions: Partitions, spec: OffsetSpec) -> dict[BucketKey, int]:
    found = opened.table.new_scan().bucket_offsets(spec, list(partitions))
    in_order = sorted(found, key=lambda bucket: (bucket.partition_id or 0, bucket.bucket))
    return {(bucket.partition_id, bucket.bucket): found[bucket] for bucket in in_order}


def given_offsets(opened: OpenTable, partitions: Partitions, option: str, given: BucketOffsets) -> dict[BucketKey, int]:
    """Offsets of an option by partition id and bucket; raises when the table does not have them."""
    ids = {name: partition_id for partition_id, name in partitions.items()}
    firsts = bucket_offsets(opened, partitions, OffsetSpec.earliest())
    ends = bucket_offsets(opened, partitions, OffsetSpec.latest())
    found: dict[BucketKey, int] = {}
    for (name, bucket), offset in given.items():
        where = f"bucket {bucket}" + ("" if name is None else f" of partition {name!r}")
        if name not in ids or (ids[name], bucket) not in ends:
            raise bad_option(f"The option {option!r} names {where}, which the read of this table does not have.")
        key = (ids[name], bucket)
        if not firsts[key] <= offset <= ends[key]:
            raise bad_option(
                f"The option {option!r} has offset {offset} for {where}; there are {firsts[key]} to {ends[key]}."
            )
        found[key] = offset
    return found


def _starts(opened: OpenTable, partitions: Partitions, options: ReadOptions) -> dict[BucketKey, int]:
    refuse_both(options.start_offsets, options.start_timestamp_ms, "start")
    earliest = bucket_offsets(opened, partitions, OffsetSpec.earliest())
    if options.start_timestamp_ms is not None:
        found = bucket_offsets(opened, partitions, OffsetSpec.timestamp(options.start_timestamp_ms))
        return {key: max(offset, earliest.get(key, 0)) for key, offset in found.items()}
    if options.start_offsets is None:
        return earliest
    return earliest | given_offsets(opened, partitions, "scan.start.offsets", options.start_offsets)


def _ends(opened: OpenTable, partitions: Partitions, options: ReadOptions) -> dict[BucketKey, int]:
    refuse_both(options.end_offsets, options.end_timestamp_ms, "end")
    if options.end_timestamp_ms is not None:
        return bucket_offsets(opened, partitions, OffsetSpec.timestamp(options.end_timestamp_ms))
    latest = bucket_offsets(opened, partitions, OffsetSpec.latest())
    if options.end_offsets is None:
        return latest
    return latest | given_offsets(opened, partitions, "scan.end.offsets", options.end_offsets)


def refuse_both(offsets: object, timestamp_ms: object, end: str) -> None:
    """Raise where a read is told twice where it begins or ends."""
    if offsets is not None and timestamp_ms is not None:
        raise bad_option(
            f"Give one of the options 'scan.{end}.offsets' and 'scan.incremental.{end}.timestamp', not both."
        )


def _refuse_backwards(options: ReadOptions, starts: Mapping[BucketKey, int], ends: Mapping[BucketKey, int]) -> None:
    for key, start in starts.items():
        if options.has_start and options.has_end and start > ends.get(key, start):
            raise bad_option(f"The read of bucket {key[1]} starts at offset {start}, after its end at {ends[key]}.")


def refuse_start(info: TableInfo, options: ReadOptions) -> None:
    """Raise where a read of current rows has a start."""
    if options.has_start:
        raise bad_option(
            f"{info.table_path} has a primary key: a read of its rows has an end, not a start. Read its changes "
            "between two offsets with .option('changelog', 'true')."
        )


def split_ranges(
    opened: OpenTable, ranges: Sequence[BucketRange], rows_wanted: int | None, *, in_order: bool = False
) -> list[BucketRange]:
    """Ranges in parts of about as many rows as wanted; if that is None, so many parts that all cores are used.

    They are cut between batches, where the server tells where those are. With `in_order` they are cut only if parts are
    asked for: several tasks that write the rows of one key at a time would leave any of them as the last one.
    """
    if in_order and rows_wanted is None:
        return list(ranges)
    size = part_rows(sum(part.end_offset - part.start_offset for part in ranges), rows_wanted)
    stretches = [
        (TableBucket(part.table_id, part.bucket, part.partition_id), part.start_offset, part.end_offset)
        for part in ranges
    ]
    return [
        replace(whole, start_offset=start, end_offset=end)
        for whole, parts in zip(ranges, log_ranges.split_ranges(opened.table, stretches, size), strict=True)
        for start, end in parts
    ]


def part_rows(row_count: int, wanted: int | None) -> int:
    """About how many rows a part has.

    The driver does not know how many cores the executors have; its own machine's are the best guess.
    """
    return log_ranges.part_rows(row_count, os.cpu_count() or 1) if wanted is None else wanted

"""Where a stream begins, the lake's snapshot included, and where its logs end now.

A stream that begins with the lake has a snapshot's rows in its first micro-batch, and the log goes on behind them. The
position in the checkpoint names the snapshot, so that the micro-batch has the same rows when it is run again.
"""

from __future__ import annotations

from fluss.lake.format import PartitionValues
from fluss.lake.modes import AUTO, ONLY
from fluss.lake.place import is_tiered
from fluss.lake.union.plan import BucketFiles, OvertakenError, UnionBucket, UnionPlan, UnionPlanner
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.model.partitions import spec_of_name
from fluss.spark.read.options import ReadOptions, StartupMode
from fluss.spark.read.parts import BucketPart
from fluss.spark.read.plan import (
    BucketKey,
    Partitions,
    bucket_offsets,
    chosen_partitions,
    given_offsets,
    parse_partitions,
)
from fluss.spark.read.reader import explained, file_parts, key_parts, lake_options, union_of
from fluss.spark.source_options import LAKE_MODE, SourceOptions, bad_option
from fluss.spark.stream.offsets import CURRENT_ROWS, Offsets, StreamOffset
from fluss.spark.tables import OpenTable


def first_snapshot(opened: OpenTable, options: ReadOptions) -> tuple[int, dict[BucketKey, int]] | None:
    """The snapshot that a new stream begins with, and where the logs go on behind it; None if it has none."""
    info = opened.info
    if options.startup_mode is not StartupMode.FULL or options.lake_mode != AUTO or not is_tiered(info):
        return None
    union = union_of(opened, options)
    if union is None or union.snapshot_id is None:
        return None
    offsets = {
        (item.partition_id, item.bucket): item.start_offset
        if item.is_tiered or not info.has_primary_key()
        else CURRENT_ROWS
        for item in union.buckets
        if item.start_offset is not None
    }
    return union.snapshot_id, offsets


def snapshot_parts(
    opened: OpenTable, options: ReadOptions, snapshot_id: int, names: Partitions, starts: Offsets, ends: Offsets
) -> list[BucketPart]:
    """The rows of a snapshot; those of a primary-key table with the changes up to the end of the micro-batch.

    Buckets of which the snapshot has nothing are left to others.
    """
    info = opened.info
    chosen = None if options.partitions is None else parse_partitions(options.partitions, info.partition_keys)
    planner = UnionPlanner(opened.connection, opened.table, lake_options(opened, options), chosen, AUTO)
    union, files = _stored(planner, info, snapshot_id)
    for (partition_id, bucket), end in ends.items() if info.has_primary_key() else ():
        if partition_id not in names:
            continue  # dropped since: what the lake has of it is read
        values = _values(info, names[partition_id])
        kept = tuple(files.pop((values, bucket), ()))
        start = starts.get((partition_id, bucket), CURRENT_ROWS)
        if start != CURRENT_ROWS:
            union.buckets.append(
                UnionBucket(values, partition_id, names[partition_id], bucket, kept, start, max(start, end))
            )
    union.buckets.extend(planner.rest(files))
    if not info.has_primary_key():
        return [*file_parts(info, union, union.buckets, {}, options.rows_per_partition_max)]
    return key_parts(info, union, options.rows_per_partition_max)


def _stored(planner: UnionPlanner, info: TableInfo, snapshot_id: int) -> tuple[UnionPlan, BucketFiles]:
    """A plan without buckets yet, and the files of the chosen partitions."""
    try:
        return planner.stored(snapshot_id)
    except OvertakenError as error:
        raise InvalidRequestError(
            f"The stream's first micro-batch was to have snapshot {snapshot_id} of {info.table_path}, which is no "
            "longer in the lake. Start with a new checkpoint to read what there is."
        ) from error
    except FlussError as error:
        raise explained(info, error) from error


def _values(info: TableInfo, partition_name: str | None) -> PartitionValues:
    if partition_name is None:
        return ()
    values = spec_of_name(partition_name, info.partition_keys).get_spec_map()
    return tuple(values[key] for key in info.partition_keys)


# Every log begins with this offset when it is made.
FIRST_OFFSET = 0

_GO_TOGETHER = {StartupMode.TIMESTAMP: "scan.startup.timestamp", StartupMode.OFFSETS: "scan.start.offsets"}
_BATCH_ONLY = ("scan.end.offsets", "scan.incremental.start.timestamp", "scan.incremental.end.timestamp")


def check_stream_options(options: SourceOptions) -> ReadOptions:
    """Check the options of a stream."""
    read_options = ReadOptions.of(options)
    options.refuse(_BATCH_ONLY, "batch reads; a stream has no end")
    if read_options.lake_mode == ONLY:
        raise bad_option(f"The option {LAKE_MODE!r} can be 'only' in batch reads; a stream goes on with the log.")
    for mode, name in _GO_TOGETHER.items():
        if (name in options.own) != (read_options.startup_mode is mode):
            raise bad_option(f"In a stream the option {name!r} and .option('scan.startup.mode', '{mode}') go together.")
    return read_options


def beginning(info: TableInfo, options: ReadOptions) -> int:
    """Where buckets begin of which a position says nothing: those of partitions that have come since the start."""
    is_full = options.startup_mode is StartupMode.FULL
    return CURRENT_ROWS if is_full and info.has_primary_key() else FIRST_OFFSET


def initial_offset(opened: OpenTable, options: ReadOptions) -> StreamOffset:
    """Where a new stream begins."""
    info = opened.info
    first = beginning(info, options)
    found = first_snapshot(opened, options)
    if found is not None:
        return StreamOffset(info.table_id, without_unread(found[1], first), is_initial=True, lake=found[0])
    partitions = chosen_partitions(opened, options.partitions)
    if first == CURRENT_ROWS:
        offsets = {(partition_id, bucket): first for partition_id in partitions for bucket in range(info.num_buckets)}
    else:
        offsets = bucket_offsets(opened, partitions, _start_spec(options))
    if options.start_offsets is not None:
        offsets |= given_offsets(opened, partitions, "scan.start.offsets", options.start_offsets)
    return StreamOffset(info.table_id, without_unread(offsets, first), is_initial=True)


def latest_offsets(opened: OpenTable, options: ReadOptions) -> dict[BucketKey, int]:
    """The ends of all logs that the stream reads."""
    return bucket_offsets(opened, chosen_partitions(opened, options.partitions), OffsetSpec.latest())


def without_unread(offsets: Offsets, first: int) -> Offsets:
    """Leave out partitions of which nothing was read: an empty one is no news."""
    read = {partition_id for (partition_id, _), offset in offsets.items() if partition_id is None or offset != first}
    return {key: offset for key, offset in offsets.items() if key[0] in read}


def _start_spec(options: ReadOptions) -> OffsetSpec:
    if options.startup_mode is StartupMode.LATEST:
        return OffsetSpec.latest()
    if options.startup_timestamp_ms is not None:
        return OffsetSpec.timestamp(options.startup_timestamp_ms)
    return OffsetSpec.earliest()

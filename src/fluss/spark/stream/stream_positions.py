"""Where a stream begins, and how far it can read now: offsets asked from the server."""

from __future__ import annotations

from fluss.lake.modes import ONLY
from fluss.model.infos import TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.spark.read.options import ReadOptions, StartupMode
from fluss.spark.read.plan import BucketKey, bucket_offsets, chosen_partitions, given_offsets
from fluss.spark.source_options import LAKE_MODE, SourceOptions, bad_option
from fluss.spark.stream.offsets import CURRENT_ROWS, Offsets, StreamOffset
from fluss.spark.stream.positions import first_snapshot
from fluss.spark.tables import OpenTable

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

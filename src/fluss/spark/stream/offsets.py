"""Offsets of a stream as Spark keeps them: where it begins, where logs end, how far a micro-batch may go.

    {"version": 1, "table_id": 7, "offsets": [120, 98]}
    {"version": 1, "table_id": 8, "offsets": {"3": [120, 98], "5": [-1, -1]}}

A position has an offset per bucket, and in a partitioned table a list per partition id; -1 stands for a bucket whose
current rows come first. Spark takes two texts that differ for new data, so one that says the same is returned as it
was.

Further fields are notes. `start` is in the end of the first micro-batch: Spark does not keep where a stream began
before that batch is through, and asks for it anew when it has to run the batch again. `dropped` has the partitions that
were found to be gone since the text before. `lake` is in the beginning of a stream, and in the end of its first
micro-batch: the snapshot whose rows come in that batch, before those of the logs.

A limit counts rows by offsets: a change that is not wanted counts like one that is. Every bucket gets a share by how
much it has, and at least one row, so that all of them move. The current rows of a bucket come in one piece: so many
buckets at a time as have seen no more changes than the limit has rows, and at least one.

A stream that begins with the lake has a snapshot's rows in its first micro-batch, and the log goes on behind them. The
position in the checkpoint names the snapshot, so that the micro-batch has the same rows when it is run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from fluss.lake.format import PartitionValues
from fluss.lake.modes import AUTO, ONLY
from fluss.lake.options import is_tiered
from fluss.lake.union.plan import BucketFiles, OvertakenError, UnionBucket, UnionPlan, UnionPlanner
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.model.partitions import spec_of_name
from fluss.spark.read.options import ReadOptions, StartupMode
from fluss.spark.read.parts import BucketRange, SinglePart
from fluss.spark.read.plan import (
    BucketKey,
    Partitions,
    bucket_offsets,
    chosen_partitions,
    given_offsets,
    parse_partitions,
)
from fluss.spark.read.reader import explained, file_parts, key_parts, lake_options, union_of
from fluss.spark.source_options import LAKE_MODE, OpenTable, SourceOptions, bad_option

VERSION = 1
CURRENT_ROWS = -1

Offsets: TypeAlias = Mapping[BucketKey, int]


@dataclass(frozen=True)
class StreamOffset:
    """A position of a stream."""

    table_id: int
    offsets: Offsets
    is_initial: bool = False
    """Whether a stream begins here"""
    start: Offsets | None = None
    """Where the first micro-batch began, in its end"""
    dropped: tuple[int, ...] = ()
    lake: int | None = None
    """The lake snapshot that the first micro-batch has"""

    def to_json(self) -> dict[str, Any]:
        """What Spark writes as JSON; the same position is always the same text."""
        found: dict[str, Any] = {"version": VERSION, "table_id": self.table_id, "offsets": _plain(self.offsets)}
        if self.is_initial:
            found["initial"] = True
        if self.start is not None:
            found["start"] = _plain(self.start)
        if self.dropped:
            found["dropped"] = sorted(self.dropped)
        if self.lake is not None:
            found["lake"] = self.lake
        return found

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], info: TableInfo) -> StreamOffset:
        """A position of this table from what Spark has kept."""
        version = stored.get("version")
        if version is None:
            raise InvalidRequestError(
                f"The checkpoint has no position of {info.table_path}: it is that of a stream from another source. Use "
                "a new checkpoint."
            )
        if version != VERSION:
            raise InvalidRequestError(
                f"The checkpoint's position of {info.table_path} is of version {version}, and this release knows "
                f"version {VERSION}: use the release that wrote it, or a new checkpoint."
            )
        if stored["table_id"] != info.table_id:
            raise InvalidRequestError(
                f"{info.table_path} was dropped and created again, or the checkpoint is that of another stream: it "
                f"is of the table with id {stored['table_id']}, and this one has id {info.table_id}. Start with a new "
                "checkpoint to read it."
            )
        start = stored.get("start")
        return cls(
            info.table_id,
            _offsets(stored["offsets"]),
            is_initial=bool(stored.get("initial")),
            start=None if start is None else _offsets(start),
            dropped=tuple(stored.get("dropped", ())),
            lake=stored.get("lake"),
        )


def _plain(offsets: Offsets) -> object:
    by_partition: dict[int | None, list[int]] = {}
    for key in sorted(offsets, key=lambda key: (key[0] or 0, key[1])):
        by_partition.setdefault(key[0], []).append(offsets[key])
    if None in by_partition:
        return by_partition[None]
    return {str(partition_id): found for partition_id, found in by_partition.items()}


def _offsets(stored: Any) -> Offsets:
    if isinstance(stored, list):
        return {(None, bucket): offset for bucket, offset in enumerate(stored)}
    return {(int(name), bucket): offset for name, found in stored.items() for bucket, offset in enumerate(found)}


SAMPLE_ROWS = 1_000


def limited(starts: Offsets, ends: Offsets, rows_max: int) -> dict[BucketKey, int]:
    """Ends for about `rows_max` rows; `starts` and `ends` have the same buckets."""
    found = dict(starts)
    remaining = rows_max
    for key, start in starts.items():
        # A bucket has no more rows than it has seen changes.
        if start == CURRENT_ROWS and (remaining == rows_max or ends[key] <= remaining):
            found[key] = ends[key]
            remaining -= ends[key]
    backlog = {key: ends[key] - start for key, start in starts.items() if start != CURRENT_ROWS and ends[key] > start}
    total = sum(backlog.values())
    if remaining > 0:
        for key, rows in backlog.items():
            found[key] += rows if total <= remaining else max(1, rows * remaining // total)
    return found


def sample_range(info: TableInfo, starts: Offsets, ends: Offsets) -> BucketRange | None:
    """Some of the rows that come next, to see how large they are; None if there are none."""
    backlog = {key: ends[key] - start for key, start in starts.items() if ends[key] > max(start, 0)}
    if not backlog:
        return None
    partition_id, bucket = key = max(backlog, key=backlog.__getitem__)
    # Where current rows come first, the last changes are about as large, and are kept the longest.
    start = starts[key] if starts[key] != CURRENT_ROWS else max(0, ends[key] - SAMPLE_ROWS)
    return BucketRange(info.table_id, partition_id, bucket, start, min(ends[key], start + SAMPLE_ROWS))


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
) -> list[SinglePart]:
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
    """The start of buckets that a position does not name: those of partitions that have come since the start."""
    is_full = options.startup_mode is StartupMode.FULL
    return CURRENT_ROWS if is_full and info.has_primary_key() else FIRST_OFFSET


def initial_offset(opened: OpenTable, options: ReadOptions) -> StreamOffset:
    """The position where a new stream begins."""
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
    """Leave out partitions of which nothing was read."""
    read = {partition_id for (partition_id, _), offset in offsets.items() if partition_id is None or offset != first}
    return {key: offset for key, offset in offsets.items() if key[0] in read}


def _start_spec(options: ReadOptions) -> OffsetSpec:
    if options.startup_mode is StartupMode.LATEST:
        return OffsetSpec.latest()
    if options.startup_timestamp_ms is not None:
        return OffsetSpec.timestamp(options.startup_timestamp_ms)
    return OffsetSpec.earliest()

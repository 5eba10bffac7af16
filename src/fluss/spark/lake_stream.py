"""The lake as the beginning of a stream: its first micro-batch has a snapshot's rows, and the log goes on behind them.

The position in the checkpoint names the snapshot, so that the micro-batch has the same rows when it is run again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from fluss.lake.files import LakeFile, PartitionValues
from fluss.lake.modes import AUTO
from fluss.lake.options import LakeOptions
from fluss.lake.place import is_tiered
from fluss.lake.union_plan import UnionBucket, UnionPlan
from fluss.model.errors import FlussError, InvalidRequestError
from fluss.model.infos import TableInfo
from fluss.model.partitions import PartitionSpec, spec_of_name
from fluss.model.trust import Trust
from fluss.spark.lake_plan import explained, file_parts, key_parts, lake_options, union_of
from fluss.spark.plan import BucketKey, Partitions, parse_partitions
from fluss.spark.ranges import BucketPart
from fluss.spark.read_options import ReadOptions, StartupMode
from fluss.spark.stream_offsets import CURRENT_ROWS, Offsets
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
    union, files = _load(opened, options, snapshot_id)
    if not info.has_primary_key():
        union.buckets.extend(UnionBucket(key[0], None, None, key[1], tuple(found)) for key, found in files.items())
        return [*file_parts(info, union, union.buckets, {}, options.rows_per_partition_max)]
    for (partition_id, bucket), end in ends.items():
        start = starts.get((partition_id, bucket), CURRENT_ROWS)
        if partition_id not in names:
            continue  # dropped since: what the lake has of it is read
        values = _values(info, names[partition_id])
        kept = tuple(files.pop((values, bucket), ()))
        if start != CURRENT_ROWS:
            union.buckets.append(
                UnionBucket(values, partition_id, names[partition_id], bucket, kept, start, max(start, end))
            )
    union.buckets.extend(UnionBucket(key[0], None, None, key[1], tuple(found)) for key, found in files.items())
    return key_parts(info, union, options.rows_per_partition_max)


def _load(
    opened: OpenTable, options: ReadOptions, snapshot_id: int
) -> tuple[UnionPlan, dict[tuple[PartitionValues, int], list[LakeFile]]]:
    """A plan without buckets yet, and the files of the chosen partitions."""
    from fluss.lake.iceberg import load_table

    info = opened.info
    files: dict[tuple[PartitionValues, int], list[LakeFile]] = defaultdict(list)
    chosen = None if options.partitions is None else parse_partitions(options.partitions, info.partition_keys)
    try:
        place = lake_options(opened, options)
        if place is None:
            # Of what a server of Apache Fluss answers about a table, this alone says where its lake is.
            described = opened.connection.get_admin().get_table_info(info.table_path)
            place = LakeOptions.of(described, trust=Trust.of(opened.connection.config))
        lake = load_table(place, info.table_path)
        if lake is None or lake.sequence_number(snapshot_id) is None:
            raise InvalidRequestError(
                f"The stream's first micro-batch was to have snapshot {snapshot_id} of {info.table_path}, which is no "
                "longer in the lake. Start with a new checkpoint to read what there is."
            )
        for file in lake.files(snapshot_id):
            own = PartitionSpec(_spec(info, file.partition))
            if chosen is None or any(spec.matches(own) for spec in chosen):
                files[file.partition, file.bucket].append(file)
    except (ImportError, FlussError) as error:
        raise explained(info, error) from error
    return UnionPlan(snapshot_id, lake.file_schema, lake.io_properties), files


def _spec(info: TableInfo, partition: PartitionValues) -> Mapping[str, str]:
    return dict(zip(info.partition_keys, partition, strict=True))


def _values(info: TableInfo, partition_name: str | None) -> PartitionValues:
    if partition_name is None:
        return ()
    values = spec_of_name(partition_name, info.partition_keys).get_spec_map()
    return tuple(values[key] for key in info.partition_keys)

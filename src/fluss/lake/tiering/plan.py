"""What a tiering round has to do: from where to where in each bucket, in which tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fluss.lake.files import LakeFile, PartitionValues, by_bucket
from fluss.lake.iceberg.table import LakeTable
from fluss.lake.log_parts import part_rows, split_stretches
from fluss.lake.parquet import FileTarget
from fluss.lake.tiering.task import ChangesPart, CurrentPart, LogPart, Task, TieredTable
from fluss.model.infos import LakeSnapshot, TableInfo
from fluss.model.offsets import OffsetSpec
from fluss.model.paths import TableBucket

if TYPE_CHECKING:
    from fluss.sync import FlussConnection, FlussTable


@dataclass(frozen=True)
class RoundPlan:
    """Tasks, how far each bucket is tiered when they are done, and files that go in any case."""

    tasks: list[Task] = field(default_factory=list)
    ends: dict[TableBucket, int] = field(default_factory=dict)
    removed: list[LakeFile] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.tasks and not self.removed

    @property
    def row_count(self) -> int:
        """How many rows, or changes, there are to read."""
        return sum(task.end_offset - task.start_offset for task in self.tasks)


@dataclass(frozen=True)
class Stretch:
    """One bucket's log, and how far it is tiered."""

    bucket: TableBucket
    partition: PartitionValues
    earliest: int
    end: int
    tiered: int | None  # up to here; None: never

    @property
    def start(self) -> int:
        """Where tiering goes on; what retention has removed is gone."""
        return max(self.tiered or 0, self.earliest)


def plan_round(
    connection: FlussConnection, table: FlussTable, lake: LakeTable, tiered: LakeSnapshot | None, slots: int
) -> RoundPlan:
    """Everything from the registered offsets to the latest ones; partitions that were dropped are left alone."""
    info = table.get_table_info()
    stretches = list(log_stretches(connection, table, tiered))
    target = FileTarget(lake.location, lake.file_schema, tuple(info.partition_keys), lake.io_properties)
    common = TieredTable(info.table_path, info.table_id, tuple(info.get_column_names()), target)
    plan = RoundPlan(ends={item.bucket: item.end for item in stretches})
    if info.has_primary_key():
        _plan_changes(plan, common, info, stretches, lake)
    else:
        plan.tasks.extend(_log_parts(common, table, stretches, slots))
    return plan


def log_stretches(connection: FlussConnection, table: FlussTable, tiered: LakeSnapshot | None) -> Iterator[Stretch]:
    """The buckets that a table has, each with its log as of now."""
    info = table.get_table_info()
    partitions: dict[int | None, PartitionValues] = {None: ()}
    if info.is_partitioned():
        found = connection.get_admin().list_partition_infos(info.table_path)
        values = {item.partition_id: item.partition_spec.get_spec_map() for item in found}
        partitions = {key: tuple(spec[name] for name in info.partition_keys) for key, spec in values.items()}
    scan = table.new_scan()
    firsts = scan.bucket_offsets(OffsetSpec.earliest(), list(partitions)) if partitions else {}
    ends = scan.bucket_offsets(OffsetSpec.latest(), list(partitions)) if partitions else {}
    for bucket in sorted(ends, key=lambda item: (item.partition_id or 0, item.bucket)):
        if bucket in firsts:
            offset = None if tiered is None else tiered.get_bucket_offset(bucket)
            known = None if offset is None or offset < 0 else offset
            yield Stretch(bucket, partitions[bucket.partition_id], firsts[bucket], ends[bucket], known)


def _plan_changes(
    plan: RoundPlan, common: TieredTable, info: TableInfo, stretches: Sequence[Stretch], lake: LakeTable
) -> None:
    from fluss.lake.fold import Keys

    Keys(info)  # raises if they can't be told apart in the lake
    files = by_bucket(lake.files(lake.snapshot_id))
    for item in stretches:
        own = files[item.partition, item.bucket.bucket]
        if item.tiered is not None and item.tiered >= item.earliest:
            if item.start < item.end:
                kept = tuple(own)
                plan.tasks.append(ChangesPart(common, item.bucket, item.partition, item.start, item.end, kept))
            continue
        # Files of a bucket that was never tiered are of an earlier partition of this name, or of nobody.
        plan.removed.extend(own)
        if item.earliest:
            plan.tasks.append(CurrentPart(common, item.bucket, item.partition, item.start, item.end))
        elif item.end:
            plan.tasks.append(ChangesPart(common, item.bucket, item.partition, 0, item.end))


def _log_parts(common: TieredTable, table: FlussTable, stretches: Sequence[Stretch], slots: int) -> Iterator[LogPart]:
    """Rows to be added, long stretches in several parts."""
    new = [item for item in stretches if item.start < item.end]
    size = part_rows(sum(item.end - item.start for item in new), slots)
    split = split_stretches(table, [(item.bucket, item.start, item.end) for item in new], size)
    for item, parts in zip(new, split, strict=True):
        for start, end in parts:
            yield LogPart(common, item.bucket, item.partition, start, end)

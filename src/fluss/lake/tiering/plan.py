"""The plan of a tiering round: from where to where in each bucket, in which tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fluss.lake.format import LakeFile, LakeTable, by_bucket
from fluss.lake.log_ranges import Stretch, log_stretches, part_rows, split_ranges
from fluss.lake.parquet import FileTarget
from fluss.lake.tiering.task import ChangesPart, CurrentPart, LogPart, Task, TieredTable
from fluss.model.infos import LakeSnapshot, TableInfo
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
    split = split_ranges(table, [(item.bucket, item.start, item.end) for item in new], size)
    for item, parts in zip(new, split, strict=True):
        for start, end in parts:
            yield LogPart(common, item.bucket, item.partition, start, end)
